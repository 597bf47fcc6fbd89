"""Objects by the names that users write: `file.py:name`, `module:name`, or an installed package's.

A package brings its own by entry points: group `grpo_tui.tasks`, `.rewards`, `.environments`,
`.recipes` or `.recorders`, name = `module:name`.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from grpo_engine.errors import EngineError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = Literal["tasks", "rewards", "environments", "recipes", "recorders"]
# begins the name of an object that only the Python process which was given it has
GIVEN = "python:"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a name is looked up for: words for messages, the error, and the forms it may have."""

    what: str
    error: type[EngineError]
    forms: str = "file.py:name or module:name"

    def refuse(self, message: str) -> EngineError:
        """An error that begins with what was wanted."""
        return self.error(f"{self.what}{message}")


def find(target: str, wanted: Wanted) -> tuple[Any, str]:
    """The object that `place:name` refers to, and its source file."""
    place, colon, attribute = target.rpartition(":")
    file = target.removesuffix(":")
    if file.endswith(".py"):
        have = _names(_from_file(file, wanted))
        raise wanted.refuse(f" is a file; write {file}:NAME, it has {have}")
    if not colon or not place or not attribute:
        raise wanted.refuse(f": {target!r} is no name; give {wanted.forms}")
    looks_like_file = place.endswith(".py") or "/" in place
    module = _from_file(place, wanted) if looks_like_file else _from_module(place, wanted)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise wanted.refuse(f": {place} has no {attribute!r}; it has {_names(module)}")
        found = getattr(found, part)
    return found, str(getattr(module, "__file__", "") or "")


def _names(module: ModuleType) -> str:
    """What a module defines itself."""
    here = vars(module).items()
    own = [name for name, value in here if getattr(value, "__module__", "") == module.__name__]
    return ", ".join(own) or "nothing"


def _from_file(place: str, wanted: Wanted) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise wanted.refuse(f": there is no file {path}; give {wanted.forms}")
    # an edited file is another module
    key = f"user_file_{path.stem}_{abs(hash(str(path))):x}_{path.stat().st_mtime_ns:x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise wanted.refuse(f": {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    # Let it import modules beside it, as when the file is run as a script.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module


def _from_module(place: str, wanted: Wanted) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise wanted.refuse(
                f": there is no module {error.name} (looked in {Path.cwd()} and the "
                f"installed packages); give {wanted.forms}"
            ) from error
        raise


@cache
def installed(kind: Kind) -> "dict[str, EntryPoint]":
    """What installed packages bring, by name; nothing of it is imported."""
    from importlib.metadata import entry_points

    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"grpo_tui.{kind}"):
        points.setdefault(point.name, point)
    return points


def package_of(point: "EntryPoint") -> str:
    """The name of the package that an entry point belongs to."""
    return point.dist.name if point.dist is not None else point.value


def load(point: "EntryPoint", wanted: Wanted) -> Any:
    """Import what an installed package brings; whatever that raises names the package."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise wanted.refuse(
            f" of the package {package_of(point)} cannot be imported from {point.value}: "
            f"{type(error).__name__}: {error}; update or remove the package"
        ) from error


def brought(kind: Kind, name: str, wanted: Wanted) -> tuple[Any, str] | None:
    """What an installed package brings by this name, and its source file; None if none does."""
    point = installed(kind).get(name)
    if point is None:
        return None
    found = load(point, wanted)
    return found, str(getattr(sys.modules.get(point.module), "__file__", "") or "")


def summaries(kind: Kind) -> Iterator[tuple[str, str]]:
    """Name and words of everything that packages bring, for lists; imports nothing."""
    for name, point in installed(kind).items():
        yield name, f"From the package {package_of(point)} ({point.value})."


def keyword_of(what: str) -> str:
    """How Python objects of this kind are passed to `grpo_engine.resume`."""
    return f"{what}s=[…]" if what in ("reward", "tool") else f"{what}=…"


def refuse_given(name: str, what: str) -> None:
    """Raise if a setting names an object that only another Python process had."""
    if name.startswith(GIVEN):
        own = name.removeprefix(GIVEN)
        raise EngineError(
            f"{what} {own!r} is a Python object that was passed to grpo_engine and cannot be "
            "imported: pass it again from Python, as in "
            f"grpo_engine.resume(run, {keyword_of(what)})"
        )
