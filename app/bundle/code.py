"""The text of a run's functions and the uncommitted difference, as they were when it began.

They are read again where the command runs. What has another digest by now is left out.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_engine import consent
from grpo_engine.errors import EngineError
from grpo_engine.frozen import frozen
from grpo_engine.setup.code_version import (
    FOLDER,
    Git,
    GitError,
    difference,
    digest_of,
    root_of,
)

DIFFERENCE = "uncommitted.diff"


@frozen
class Code:
    """Files for a bundle by their names there, and sentences on those that are not in it."""

    files: Mapping[str, bytes]
    left_out: tuple[str, ...]


def code_of(config: Mapping[str, Any], recorded: Mapping[str, Mapping[str, Any]]) -> Code:
    """The files that a run's settings name, if they have the digests of its record."""
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    there = {digest_of(path): path for path in _named(config)}
    for name, version in recorded.items():
        if name == FOLDER or not version.get("sha256"):
            continue
        path = there.get(str(version["sha256"]))
        if path is None:
            left_out.append(f"{name} is not here as it was when the run began")
        else:
            files[unused_name(name, files)] = path.read_bytes()
    if digest := recorded.get(FOLDER, {}).get("diff"):
        if (text := _difference(str(digest))) is None:
            left_out.append("the folder has no longer the changes that it had when the run began")
        else:
            files[DIFFERENCE] = text
    if not recorded:
        left_out.append("the run did not record the versions of its code")
    return Code(files=files, left_out=tuple(left_out))


def _named(config: Mapping[str, Any]) -> Iterator[Path]:
    with suppress(EngineError):  # settings that this version cannot read name nothing
        for item in consent.question_of(config).items:
            yield from item.files if item.is_code else ()


def _difference(digest: str) -> bytes | None:
    """The uncommitted difference of the repository that this is in, if it has the digest."""
    root = root_of(Path.cwd())
    if root is None:
        return None
    try:
        text = difference(Git(root))
    except GitError:
        return None
    return text if hashlib.sha256(text).hexdigest() == digest else None


def plain_name(name: str) -> str:
    """A name from a record as a path that stays in its folder."""
    parts = (re.sub(r"[^\w.-]", "-", part).lstrip(".") for part in name.split("/"))
    return "/".join(filter(None, parts)) or "file"


def unused_name(name: str, used: Collection[str]) -> str:
    """The plain name, with a number if it is used: a bundle has no name twice, in any case."""
    path, folded = PurePosixPath(plain_name(name)), {item.casefold() for item in used}
    numbered = (str(path.with_stem(f"{path.stem}-{number}")) for number in count(2))
    return next(item for item in chain([str(path)], numbered) if item.casefold() not in folded)
