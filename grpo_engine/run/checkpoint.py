"""Atomic checkpoints with everything needed to resume bit for bit.

A checkpoint is a directory `checkpoints/step-000020`: a valid mlx-lm adapter directory with more
safetensors and a `state.json`. It is written under a temporary name, flushed and renamed; only then
are older ones removed. `state.json` lists the size and SHA-256 of every file, so that a damaged
checkpoint is detected and the previous one is used.

Listing checkpoints does not load MLX.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine.errors import CheckpointError, NotWrittenError, OutsideError
from grpo_engine.frozen import frozen
from grpo_engine.paths import flush, inside, irregular_file, remove
from grpo_engine.platform.faults import raise_fault

if TYPE_CHECKING:
    import mlx.core as mx

FORMAT = 1
FOLDER = "checkpoints"
STATE = "state.json"
_PREFIX, _PARTIAL, _DOOMED = "step-", ".partial-", ".doomed-"


@frozen
class Checkpoint:
    step: int
    path: Path
    state: Mapping[str, Any]
    arrays: "Mapping[str, Mapping[str, mx.array]] | None" = None  # read by rank 0, without files

    def tensors(self, name: str) -> "dict[str, mx.array]":
        """Read `<name>.safetensors` into memory; the file may be removed afterwards."""
        import mlx.core as mx

        if self.arrays is not None:
            return dict(self.arrays[name])
        file = self.path / f"{name}.safetensors"
        if not file.exists():
            raise CheckpointError(f"{self.path} has no {file.name}; resume an older checkpoint")
        arrays: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
        mx.eval(arrays)
        return arrays

    def has(self, name: str) -> bool:
        if self.arrays is not None:
            return name in self.arrays
        return (self.path / f"{name}.safetensors").exists()


def save(
    run_folder: Path,
    step: int,
    *,
    tensors: "Mapping[str, Mapping[str, mx.array]]",
    state: Mapping[str, Any],
    write: Callable[[Path], None] | None = None,
) -> Checkpoint:
    """Write a checkpoint atomically: a kill at any moment leaves it complete or absent.

    `write` writes the adapter's files into the given folder. Raises NotWrittenError if it cannot be
    written; earlier checkpoints stay.
    """
    import mlx.core as mx

    mx.eval([list(arrays.values()) for arrays in tensors.values()])
    mx.synchronize()  # an array of a failed command buffer reads as if it were valid
    size = sum(array.nbytes for arrays in tensors.values() for array in arrays.values())
    root = inside(run_folder, FOLDER)
    try:
        root.mkdir(parents=True, exist_ok=True)
        # a part of a checkpoint would only take the space that the store may still need
        if shutil.disk_usage(root).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as a write would
        return _save(root, step, tensors, state, write)
    except (OSError, RuntimeError) as error:  # MLX reports a failed write as RuntimeError
        raise_fault(error)
        with contextlib.suppress(OSError):
            clear_leftovers(run_folder)
        raise NotWrittenError(
            f"the checkpoint of step {step} cannot be written to {root}: "
            f"{getattr(error, 'strerror', None) or error}; it needs {size / 1e6:.1f} MB, "
            f"{_free(run_folder)}"
        ) from error


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB are free"
    except OSError as error:
        return f"and the folder cannot be read ({error.strerror})"


def _save(
    root: Path,
    step: int,
    tensors: "Mapping[str, Mapping[str, mx.array]]",
    state: Mapping[str, Any],
    write: Callable[[Path], None] | None,
) -> Checkpoint:
    import mlx.core as mx

    clear_leftovers(root.parent)
    final = root / f"{_PREFIX}{step:06d}"
    partial = root / f"{_PARTIAL}{final.name}"
    partial.mkdir()
    for name, arrays in tensors.items():
        mx.save_safetensors(str(partial / f"{name}.safetensors"), dict(arrays))
    if write:
        write(partial)
    files = {file.name: _describe(file) for file in sorted(partial.iterdir())}
    full = {**state, "format": FORMAT, "step": step, "files": files}
    (partial / STATE).write_text(json.dumps(full, indent=1), encoding="utf-8")
    for file in partial.iterdir():
        flush(file)
    flush(partial)
    doomed = _doom(final) if final.exists() else None
    partial.rename(final)
    flush(root)
    if doomed:
        remove(root, doomed.name)
    return Checkpoint(step=step, path=final, state=full)


def _describe(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _doom(path: Path) -> Path:
    # renamed first, so that a kill during removal does not leave a partial checkpoint
    return path.rename(path.with_name(f"{_DOOMED}{path.name}"))


def clear_leftovers(run_folder: Path) -> None:
    """Remove leftovers of an interrupted save or removal; restore a checkpoint that is complete."""
    root = inside(run_folder, FOLDER)
    if not root.is_dir():
        return
    for path in root.iterdir():
        if path.name.startswith(_DOOMED):
            final = root / path.name.removeprefix(_DOOMED)
            if not final.exists():
                with contextlib.suppress(CheckpointError):
                    open_folder(path)
                    path.rename(final)
        if path.exists() and path.name.startswith((_DOOMED, _PARTIAL)):
            remove(root, path.name)


def steps(run_folder: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    root = inside(run_folder, FOLDER)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    numbers = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    return sorted(int(number) for number in numbers if number.isdigit())


def folder(run_folder: Path, step: int) -> Path:
    """The folder of a step's checkpoint, whether or not it exists."""
    return inside(run_folder, FOLDER, f"{_PREFIX}{step:06d}")


def load(run_folder: Path, step: int) -> Checkpoint:
    """Open the checkpoint of a step and verify its files."""
    return open_folder(folder(run_folder, step))


def open_folder(path: Path) -> Checkpoint:
    """Open a checkpoint by its folder and verify its files."""
    if problem := irregular_file(path):
        raise CheckpointError(f"{problem}; resume an older checkpoint")
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path / STATE} cannot be read ({error}); resume an older checkpoint"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not of checkpoint format {FORMAT}; resume it with the version that wrote it"
        )
    for name, described in state["files"].items():
        try:
            file = inside(path, name)
        except OutsideError as error:
            raise CheckpointError(f"{path / STATE}: {error}") from error
        if not file.exists() or _describe(file) != described:
            raise CheckpointError(f"{file} is missing or damaged; resume an older checkpoint")
    return Checkpoint(step=int(state["step"]), path=path, state=state)


def latest(run_folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest undamaged checkpoint, and what is wrong with newer ones."""
    clear_leftovers(run_folder)
    problems: list[str] = []
    for step in reversed(steps(run_folder)):
        try:
            return load(run_folder, step), problems
        except CheckpointError as error:
            problems.append(str(error))
    return None, problems


def prune(run_folder: Path, *, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` checkpoints and the best one."""
    for step in steps(run_folder)[:-keep]:
        if step != best:
            remove(run_folder, FOLDER, _doom(folder(run_folder, step)).name)


def newest_step(run_folder: Path) -> int:
    """The step of the newest checkpoint; -1 without one."""
    saved, _ = latest(run_folder)
    return -1 if saved is None else saved.step
