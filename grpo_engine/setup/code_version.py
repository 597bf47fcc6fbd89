"""Which version of the user's code a run uses: git's commit, and whether files differ from it.

A repository is as hostile as any file. Git is asked with none of its hooks, filters and monitors,
enters no submodule, fetches nothing and writes nothing. Without git, where there is no repository,
or where it takes too long, nothing is known.
"""

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from grpo_engine.frozen import frozen

LIMIT_S = 2.0  # for each repository
LARGEST: Final = 16 << 20  # bytes of a file or a difference that is digested
CONFIG: Final = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
}
FILTER = re.compile(r"filter\..*\.(clean|smudge|process|required)", re.DOTALL)
FOLDER = "."  # the name of the folder that the run began in


class GitError(Exception):
    """Git did not answer."""


def code_version(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The commit of a folder and of files with code, and whether they differ from it.

    Files are named from the folder, and others by their last part, so that no name says where the
    user's folders are, with a number where several have one name. `diff` is the digest of the
    uncommitted difference.
    """
    repositories: dict[Path, Repository | None] = {}

    def repository(path: Path) -> Repository | None:
        root = root_of(path)
        if root is not None and root not in repositories:
            repositories[root] = _read(root)
        return repositories[root] if root is not None else None

    result: dict[str, dict[str, Any]] = {}
    if (of_folder := repository(folder)) is not None:
        result[FOLDER] = {
            "commit": of_folder.commit,
            "dirty": of_folder.dirty,
            "diff": of_folder.diff,
        }
    folder = folder.resolve()
    paths = dict.fromkeys(path.resolve() for path in files)
    for file in sorted(paths, key=lambda path: not path.is_relative_to(folder)):
        if digest := digest_of(file):
            of_file = repository(file.parent)
            known = {} if of_file is None else of_file.state_of(file)
            name = name_of(file, folder)
            numbered = chain([name], (f"{name} ({number})" for number in count(2)))
            unused = next(name for name in numbered if name not in result)
            result[unused] = {"sha256": digest, **known}
    return result


def name_of(file: Path, folder: Path) -> str:
    """A file by its path from the folder, or by its last part if it is elsewhere."""
    folder = folder.resolve()
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name


def digest_of(file: Path) -> str:
    """The digest of a file; empty for what is no file, or too large to be code."""
    with suppress(OSError):
        if file.is_file() and file.stat().st_size <= LARGEST:
            return hashlib.sha256(file.read_bytes()).hexdigest()
    return ""


@frozen
class Repository:
    """What git says of a repository; `dirty` is None if it did not say that."""

    root: Path
    commit: str
    changed: frozenset[str] | None
    tracked: frozenset[str]
    diff: str

    @property
    def dirty(self) -> bool | None:
        return None if self.changed is None else bool(self.changed)

    def state_of(self, file: Path) -> dict[str, Any]:
        """The commit, and whether the file is not as it is there."""
        name = file.relative_to(self.root).as_posix()
        if self.changed is None:
            return {"commit": self.commit, "dirty": None}
        return {"commit": self.commit, "dirty": name in self.changed or name not in self.tracked}


def root_of(folder: Path) -> Path | None:
    """The repository that a folder is in; looked for without git, which a Mac may not have yet."""
    folder = folder.resolve()
    return next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)


def _read(root: Path) -> Repository | None:
    try:
        git = Git(root)
        commit = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").decode().strip()
    except (GitError, UnicodeDecodeError):
        return None
    changed: frozenset[str] | None = None
    tracked, diff = frozenset[str](), ""
    with suppress(GitError):
        status = git.run("status", "--porcelain", "-z", "-uno", "--no-renames", *WITHOUT_MODULES)
        changed = frozenset(os.fsdecode(entry[3:]) for entry in status.split(b"\0") if entry)
        tracked = frozenset(map(os.fsdecode, git.run("ls-files", "-z").split(b"\0")))
        if changed:
            diff = hashlib.sha256(difference(git)).hexdigest()
    return Repository(root=root, commit=commit, changed=changed, tracked=tracked, diff=diff)


WITHOUT_MODULES = ("--ignore-submodules=all",)


def difference(git: "Git") -> bytes:
    """The uncommitted difference, as `git apply` takes it."""
    plain = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--binary")
    return git.run("diff", *plain, *WITHOUT_MODULES, "HEAD")


class Git:
    """Git in a repository, which is not believed; it has so many seconds for all answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._until = time.monotonic() + LIMIT_S
        self._program = shutil.which("git")
        self._config = dict(CONFIG)
        # Older versions of git do not take settings from the environment: nothing is asked then.
        names = self.run("config", "--name-only", "-z", "--get-regexp", ".*").split(b"\0")
        if not {name.lower().encode() for name in CONFIG} <= set(names):
            raise GitError("this version of git cannot be told to run no filters")
        for name in map(os.fsdecode, names):
            if FILTER.fullmatch(name):
                self._config[name] = "false" if name.endswith(".required") else ""

    def run(self, *arguments: str) -> bytes:
        """The output of a command."""
        if self._program is None:
            raise GitError("there is no git")
        command = [self._program, "--no-optional-locks", "--no-pager", *arguments]
        left = self._until - time.monotonic()
        try:
            answer = subprocess.run(
                command,
                cwd=self.root,
                env=environment(self._config),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=max(0.0, left),
                check=False,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise GitError(str(error)) from error
        if answer.returncode or len(answer.stdout) > LARGEST:
            raise GitError(f"git {arguments[0]} ended with {answer.returncode}")
        return answer.stdout


def environment(config: Mapping[str, str]) -> dict[str, str]:
    """What git sees: these settings over those of the repository, and nothing of another one."""
    names: Sequence[str] = ("PATH", "HOME", "XDG_CONFIG_HOME")
    return {
        **{name: os.environ[name] for name in names if name in os.environ},
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_CONFIG_COUNT": str(len(config)),
        **{f"GIT_CONFIG_KEY_{index}": name for index, name in enumerate(config)},
        **{f"GIT_CONFIG_VALUE_{index}": value for index, value in enumerate(config.values())},
    }
