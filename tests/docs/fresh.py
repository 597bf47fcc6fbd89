"""A new Python environment with what a page tells its reader to install, and nothing else.

The packages are links to those of the environment that runs the tests, so that making one takes no
network and a second.
"""

import platform
import shlex
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

# what `make run` installs
PROGRAM = "grpo-tui[cpu]" if platform.system() == "Linux" else "grpo-tui"


def make(folder: Path, packages: Iterable[str]) -> Path:
    """Make an environment with the program and these packages; return its interpreter."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for package in required([PROGRAM, *packages]):
        for name in top_level(package):
            if not (site / name).exists():
                (site / name).symlink_to(str(package.locate_file(name)))
    return python


def required(packages: Iterable[str]) -> Iterator[Distribution]:
    """The packages and all that they need here, each once."""
    waiting, seen = [Requirement(package) for package in packages], set[tuple[str, str]]()
    while waiting:
        requirement = waiting.pop()
        package = distribution(requirement.name)
        for extra in requirement.extras | {""}:
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            if not extra:
                yield package
            needs = map(Requirement, package.requires or ())
            waiting += [
                need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})
            ]


def top_level(package: Distribution) -> set[str]:
    """The files and folders of a package in the folder of all packages."""
    parts = (file.parts for file in package.files or ())
    return {name for name, *_ in parts if name not in ("..", "__pycache__")}


def installed_by(line: str) -> list[str]:
    """The packages that a command installs beside the program."""
    first, command, *names = [*shlex.split(line, comments=True), "", ""]
    is_install = (first, command) == ("pip", "install")
    return [name for name in names if is_install and name[:1] not in ("", ".")]
