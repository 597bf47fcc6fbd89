"""Objects by the names that users write: `file.py:name`, `module:name`, or an installed package's.

A package brings its own by entry points: group `grpo_tui.tasks`, `.rewards`, `.environments`,
`.recipes` or `.recorders`, name = `module:name`. Modules that others have imported and the standard
library are never names: by these, settings alone would run any command.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

from grpo_engine.errors import EngineError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EntryGroup = Literal["tasks", "rewards", "environments", "recipes", "recorders"]
# begins the name of an object that only the Python process which was given it has
IN_PROCESS = "python:"
# begins the name of a reward function that is a judge; the path of its rubric follows
JUDGE = "judge:"
# the modules of the standard library of which rows are, such as a list, a generator or a table
ROWS: Final = ("builtins", "collections", "itertools", "csv", "_csv")


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a name is looked up for: words for messages, the error, and the forms it may have."""

    subject: str
    error: type[EngineError]
    forms: str = "file.py:name or module:name"

    def refuse(self, message: str) -> EngineError:
        """An error that begins with what was looked up."""
        return self.error(f"{self.subject}{message}")


def find(target: str, purpose: Purpose) -> tuple[Any, str]:
    """The object that `place:name` refers to, and its source file."""
    location, colon, attribute = target.rpartition(":")
    file = target.removesuffix(":")
    if file.endswith(".py"):
        have = _names(_from_file(file, purpose))
        raise purpose.refuse(f" is a file; write {file}:NAME, it has {have}")
    if not colon or not location or not attribute:
        raise purpose.refuse(f": {target!r} is no name; give {purpose.forms}")
    is_file = location.endswith(".py") or "/" in location
    module = _from_file(location, purpose) if is_file else _from_module(location, purpose)
    return _member(module, location, attribute, purpose), _file_of(module)


def _member(module: ModuleType, location: str, attribute: str, purpose: Purpose) -> Any:
    """What a module has by a dotted name, unless that leads through or out of other modules."""
    result: Any = module
    for part in attribute.split("."):
        if part.startswith("__") or not hasattr(result, part):
            raise purpose.refuse(f": {location} has no {attribute!r}; it has {_names(module)}")
        result = getattr(result, part)
        if isinstance(result, ModuleType):
            raise purpose.refuse(
                f": {part!r} in {location}:{attribute} is the module {result.__name__}; name that "
                "module before the colon"
            )
    source = _origin(result)
    is_rows = not callable(result) and source in ROWS
    if _is_standard(source) and not is_rows:
        raise purpose.refuse(
            f": {location}:{attribute} is of Python's standard library ({source}), which is not "
            "taken; write a function that calls it"
        )
    return result


def _origin(item: Any) -> str:
    """The module that an object comes from; of an instance that of its class."""
    while isinstance(item, functools.partial | MethodType):
        item = item.func if isinstance(item, functools.partial) else item.__func__
    module = getattr(item, "__module__", None)
    # a method that is not written in Python has none
    return module if isinstance(module, str) else type(getattr(item, "__self__", item)).__module__


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _file_of(module: object) -> str:
    return str(getattr(module, "__file__", "") or "")


def _names(module: ModuleType) -> str:
    """What a module defines itself."""
    items = vars(module).items()
    defined = [name for name, value in items if getattr(value, "__module__", "") == module.__name__]
    return ", ".join(defined) or "nothing"


def _from_file(location: str, purpose: Purpose) -> ModuleType:
    path = Path(location).expanduser().resolve()
    if not path.is_file():
        raise purpose.refuse(f": there is no file {path}; give {purpose.forms}")
    # an edited file is another module
    key = f"user_file_{path.stem}_{abs(hash(str(path))):x}_{path.stat().st_mtime_ns:x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise purpose.refuse(f": {path} is not a Python file")
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


def _from_module(location: str, purpose: Purpose) -> ModuleType:
    if _is_standard(location):
        raise purpose.refuse(
            f": {location} is of Python's standard library, which is not taken; write a function "
            "that calls it"
        )
    try:
        return importlib.import_module(location)
    except ModuleNotFoundError as error:
        if error.name and (location == error.name or location.startswith(f"{error.name}.")):
            raise purpose.refuse(
                f": there is no module {error.name} (looked in {Path.cwd()} and the "
                f"installed packages); give {purpose.forms}"
            ) from error
        raise


@cache
def installed(group: EntryGroup) -> "dict[str, EntryPoint]":
    """What installed packages bring, by name; nothing of it is imported."""
    from importlib.metadata import entry_points

    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"grpo_tui.{group}"):
        points.setdefault(point.name, point)
    return points


def package_of(point: "EntryPoint") -> str:
    """The name of the package that an entry point belongs to."""
    return point.dist.name if point.dist is not None else point.value


def load(point: "EntryPoint", purpose: Purpose) -> Any:
    """Import what an installed package brings; whatever that raises names the package."""
    try:
        module = _from_module(point.module, purpose)
        return _member(module, point.module, point.attr, purpose)
    except (Exception, SystemExit) as error:
        raise purpose.refuse(
            f" of the package {package_of(point)} cannot be imported from {point.value}: "
            f"{type(error).__name__}: {error}; update or remove the package"
        ) from error


def find_installed(group: EntryGroup, name: str, purpose: Purpose) -> tuple[Any, str] | None:
    """What an installed package brings by this name, and its source file; None if none does."""
    point = installed(group).get(name)
    if point is None:
        return None
    return load(point, purpose), _file_of(sys.modules.get(point.module))


def resolve(group: EntryGroup, role: str, name: str, purpose: Purpose) -> tuple[Any, str]:
    """What a package brings by this name, else the object that it refers to; its source file."""
    refuse_missing(name, role)
    return find_installed(group, name, purpose) or find(name, purpose)


def summaries(group: EntryGroup) -> Iterator[tuple[str, str]]:
    """Name and words of everything that packages bring, for lists; imports nothing."""
    for name, point in installed(group).items():
        yield name, f"From the package {package_of(point)} ({point.value})."


def keyword_of(role: str) -> str:
    """How Python objects of this role are passed to `grpo_engine.resume`."""
    return f"{role}s=[…]" if role in ("reward", "tool", "function") else f"{role}=…"


def refuse_missing(name: str, role: str) -> None:
    """Raise if a setting names an object that only another Python process had."""
    if name.startswith(IN_PROCESS):
        raise EngineError(
            f"{role} {name.removeprefix(IN_PROCESS)!r} is a Python object that was passed to "
            "grpo_engine and cannot be imported: pass it again from Python, as in "
            f"grpo_engine.resume(run, {keyword_of(role)})"
        )
