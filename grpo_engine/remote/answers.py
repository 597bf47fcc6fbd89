"""What a server answered, checked before it is used: whoever runs the server may want to harm."""

import math
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Final

import numpy as np

from grpo_engine.errors import OutsideError, quoted, shortened
from grpo_engine.paths import inside
from grpo_engine.remote.protocol import Prompt, Sample, ServiceRefusedError

ROUNDING: Final = 1e-4  # nats that a log-probability may lie above 0
LARGEST_ADAPTER: Final = 16 << 30
MOST_FILES: Final = 1000
KINDS: Final = {
    tarfile.SYMTYPE: "a link",
    tarfile.LNKTYPE: "a link",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
}


def samples(answer: Sequence[object], prompt: Prompt, vocab_size: int) -> list[Sample]:
    """The samples of an answer of the SDK, or an error that names what is wrong with one.

    `vocab_size` is 0 where it is not known.
    """
    if len(answer) != prompt.count:
        raise _unusable(f"{len(answer):,} samples where {prompt.count:,} were asked for")
    results = []
    for sample in answer:
        ids, logprobs = getattr(sample, "tokens", None), getattr(sample, "logprobs", None)
        if ids is None or len(ids) == 0:
            raise _unusable("a sample without tokens")
        if len(ids) > prompt.max_tokens:
            raise _unusable(f"{len(ids):,} tokens where at most {prompt.max_tokens:,} fit")
        if logprobs is None:
            raise _unusable("a sample without log-probabilities, which every loss needs")
        outside = [index for index in ids if index < 0 or 0 < vocab_size <= index]
        if outside:
            raise _unusable(
                f"token {outside[0]:,}, which is not in the vocabulary of {vocab_size:,}; is "
                "model.path the model that it serves?"
            )
        is_cut = getattr(sample, "stop_reason", None) == "length"
        numbers = finite(logprobs, len(ids))
        results.append(Sample(ids=tuple(map(int, ids)), logprobs=numbers, is_cut=is_cut))
    return results


def finite(values: Sequence[float | None], length: int) -> tuple[float, ...]:
    """These log-probabilities, if there are `length` of them, all finite and none above 0."""
    if len(values) != length:
        raise _unusable(f"{len(values):,} log-probabilities for {length:,} tokens")
    numbers = np.array([math.nan if value is None else value for value in values], float)
    if not np.isfinite(numbers).all():
        index = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise _unusable(f"the log-probability {numbers[index]} of token {index + 1} of {length:,}")
    if length and numbers.max() > ROUNDING:
        raise _unusable(f"a log-probability of {numbers.max():.3g}; none is above 0")
    return tuple(np.minimum(numbers, 0).tolist())


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Write the files of an adapter's archive into a folder, or raise before any is outside it."""
    size = 0
    try:
        with tarfile.open(fileobj=archive, mode="r:*") as files:
            for count, member in enumerate(files):
                size += member.size
                if size > LARGEST_ADAPTER or count >= MOST_FILES:
                    raise _unusable(
                        f"an archive of more than {LARGEST_ADAPTER >> 30} GB or {MOST_FILES:,} "
                        "files"
                    )
                if not member.isdir():
                    _write(files, member, folder)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _unusable(f"an archive that cannot be read: {shortened(str(error))}") from None


def _write(files: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    if not member.isreg():
        kind = KINDS.get(member.type, "something other than a file")
        raise _unusable(f"an archive in which {quoted(member.name)} is {kind}")
    names = [name for name in PurePosixPath(member.name).parts if name != "."]
    try:
        path = inside(folder, *names)
    except OutsideError:
        raise _unusable(f"an archive with a file outside it, {quoted(member.name)}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    source = files.extractfile(member)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    if source is not None:
        with os.fdopen(os.open(path, flags, 0o644), "wb") as target:
            shutil.copyfileobj(source, target)


def _unusable(what: str) -> ServiceRefusedError:
    return ServiceRefusedError(f"The server sent {what}.")
