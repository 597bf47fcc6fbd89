"""Writes a bundle: a zip file with a store of some runs, their page, settings and versions.

The store is a new one that the runs are copied to, so that nothing of other runs is in it. What is
written says nothing of the machine, the user and their folders, but for prompts and answers, which
stay as they are. Code comes along only if that is asked for.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grpo_engine.config.safe_yaml import dump_yaml
from grpo_engine.run import checkpoint
from grpo_tui.app.bundle.code import Code, code_of, plain_name, unused_name
from grpo_tui.app.bundle.private import Private
from grpo_tui.app.page.answers import Choice
from grpo_tui.app.page.write import page
from grpo_tui.experiments.bundles import STORE
from grpo_tui.experiments.db.machine import host_name
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.export.files import replacing
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.importing import copy_run
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RunSummary

ADAPTER = ("adapter_config.json", "adapters.safetensors")
WRITTEN = (1980, 1, 1, 0, 0, 0)  # the time of every file: the first that a zip file knows
README = """\
Runs of grpo-tui. To look at them, open report.html in a browser, or:

    grpo-tui runs import THIS.zip

store       the runs: metrics, answers, token numbers, evaluations
NAME        settings.yaml, versions.json{more}
"""
NO_CODE = Code(files={}, left_out=())


def code_of_runs(reader: StoreReader, runs: Sequence[RunSummary]) -> dict[int, Code]:
    """The code of each run, of which a user is asked first."""
    result = {}
    for run in runs:
        code = code_of(reader.run(run.key).config, reader.code(run.key))
        of_recipe = {
            f"algorithm-{plain_name(choice)}.py": str(source.get("text", "")).encode()
            for choice, source in reader.functions(run.key).items()
        }
        result[run.key] = Code(files={**of_recipe, **code.files}, left_out=code.left_out)
    return result


def write_bundle(
    reader: StoreReader,
    runs: Sequence[RunSummary],
    out: Path,
    code: Mapping[int, Code],
    *,
    with_adapter: bool = False,
) -> None:
    """Write a bundle of these runs; it is complete or absent. `code` is by the key of a run."""
    hosts = {attempt.host.partition("/")[0] for run in runs for attempt in reader.attempts(run.key)}
    private = Private({*hosts, host_name().partition("/")[0]}, with_code=bool(code))
    adapters = {run.key: adapter_of(reader, run) for run in runs if with_adapter}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grpo-tui-")))
        part = stack.enter_context(replacing(out))
        path = folder / STORE
        with ExperimentStore(path) as store:
            for run in runs:
                copy_run(store, reader, run, origin="bundle", private=private)
        bundle = stack.enter_context(
            zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False)
        )
        more = ", adapter" * bool(adapters) + ", code" * bool(code)
        _add(bundle, "README.txt", README.format(more=more))
        with StoreReader(path) as copy:
            copies = [copy.resolve(run.uid) for run in runs]
            _add(bundle, "report.html", page(copy, copies, Choice()))
            used = {"README.txt", "report.html", "store"}
            for run, copied in zip(runs, copies, strict=True):
                name = unused_name(copied.name.replace("/", "-"), used)
                used.add(name)
                for member, content in _of_run(copy, copied):
                    _add(bundle, f"{name}/{member}", content)
                for member, data in code.get(run.key, NO_CODE).files.items():
                    _add(bundle, f"{name}/code/{member}", data)
                if run.key in adapters:
                    _add_adapter(bundle, f"{name}/adapter", adapters[run.key], private)
        for file in sorted(path.parent.rglob("*")):
            if file.is_file() and file.suffix == ".db":
                _add_file(bundle, file.relative_to(folder).as_posix(), file)


def _of_run(copy: StoreReader, run: RunSummary) -> Iterator[tuple[str, str]]:
    detail = copy.run(run.key)
    yield "settings.yaml", dump_yaml(detail.config, allow_unicode=False)
    versions = {"versions": detail.versions, "code": copy.code(run.key), "device": run.device}
    yield "versions.json", json_text(versions, indent=2) + "\n"


def adapter_of(reader: StoreReader, run: RunSummary) -> Path:
    """The folder of the run's best checkpoint, else of its newest, which has an adapter."""
    folder = Path(reader.run(run.key).folder)
    saved, _ = checkpoint.latest(folder)
    if saved is None:
        raise ExportError(f"{run.name} has no checkpoint: leave --with-adapter out")
    best = saved.state["progress"]["best_step"]
    if best in checkpoint.steps(folder):
        saved = checkpoint.load(folder, best)
    if not all((saved.path / name).is_file() for name in ADAPTER):
        raise ExportError(
            f"{run.name} trained all weights: leave --with-adapter out, and write its model with "
            f"grpo-tui models export {run.id}"
        )
    return saved.path


def _add_adapter(bundle: zipfile.ZipFile, name: str, folder: Path, private: Private) -> None:
    settings, weights = ADAPTER
    tree: Any = private(json.loads((folder / settings).read_text(encoding="utf-8")))
    _add(bundle, f"{name}/{settings}", json.dumps(tree, indent=4))
    _add_file(bundle, f"{name}/{weights}", folder / weights)


def _add(bundle: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    bundle.writestr(_info(name), content)


def _add_file(bundle: zipfile.ZipFile, name: str, file: Path) -> None:
    with file.open("rb") as source, bundle.open(_info(name), "w", force_zip64=True) as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _info(name: str) -> zipfile.ZipInfo:
    """An entry without the time and the rights of a file here."""
    info = zipfile.ZipInfo(name, WRITTEN)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o100644 << 16
    return info
