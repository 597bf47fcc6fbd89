"""Loads a reward function by the name that the user writes.

A name is a built-in one, `path/to/file.py:function`, `package.module:function`,
`http://host:port/path`, or `model:folder` for a sequence classifier.
"""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_engine.errors import RewardError
from grpo_engine.rewards.builtins import BUILT_IN, nearest

# The arguments that TRL passes to every reward function, besides the data set's columns.
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
ENVIRONMENTS = "environments"  # given as well if the run has environments
FORMS = "a built-in name, file.py:function, module:function, http://… or model:folder"


@dataclass(frozen=True, slots=True)
class LoadedReward:
    """A reward function, its name in metrics, and its parameters."""

    name: str
    function: Callable[..., Any]
    file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    takes_all: bool = True
    accepts: frozenset[str] = frozenset()
    requires: tuple[str, ...] = ()

    @property
    def is_async(self) -> bool:
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        call = getattr(function, "__call__", None)  # noqa: B004 - the object's method is needed
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def keywords(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords to call it with: all, or without **kwargs only those it names."""
        every = {**given, **self.options}
        return every if self.takes_all else {k: v for k, v in every.items() if k in self.accepts}

    def missing(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Required parameters that neither TRL's keywords, columns nor options provide."""
        known = {*GIVEN, *columns, *self.options}
        return tuple(name for name in self.requires if name not in known)


def load_reward(name: str, options: Mapping[str, Any]) -> LoadedReward:
    """Find the function and check that it accepts keyword arguments."""
    function, file = find(name)
    if not callable(function):
        raise RewardError(f"reward {name}: {type(function).__name__} is not callable")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return LoadedReward(_name_of(function, name), function, file, dict(options))
    kinds = inspect.Parameter
    blind = [p.name for p in parameters if p.kind is kinds.POSITIONAL_ONLY and p.default is p.empty]
    if blind:
        raise RewardError(
            f"reward {name}: rewards are called by keyword, but {', '.join(blind)} can only be "
            "given by position; remove the `/` from its parameters"
        )
    named = [p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    takes_all = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    accepts = frozenset(p.name for p in named)
    unknown = [option for option in options if option not in accepts and not takes_all]
    if unknown:
        raise RewardError(
            f"reward {name} takes no option {unknown[0]!r}; it takes {', '.join(sorted(accepts))}"
        )
    return LoadedReward(
        _name_of(function, name),
        function,
        file,
        dict(options),
        takes_all,
        accepts,
        tuple(p.name for p in named if p.default is p.empty),
    )


def find(name: str) -> tuple[Any, str]:
    """The reward function that a name refers to, and its source file."""
    if name.startswith(("http://", "https://")):
        from grpo_engine.rewards.endpoint import Endpoint

        return Endpoint(name), ""
    if name.startswith("model:"):
        from grpo_engine.rewards.classifier import Classifier

        return Classifier(name.removeprefix("model:")), ""
    target = BUILT_IN[name].target if name in BUILT_IN else name
    if ":" not in target and not target.endswith(".py"):
        raise RewardError(f"unknown reward {name!r}{nearest(name)}; give {FORMS}")
    return find_object(target, f"reward {name}", FORMS)


def find_object(target: str, what: str, forms: str) -> tuple[Any, str]:
    """The object at `file.py:name` or `module:name`, and its source file; `what` is for errors."""
    place, colon, attribute = target.rpartition(":")
    file = target.removesuffix(":")
    if file.endswith(".py"):
        have = _names(_from_file(file, what, forms))
        raise RewardError(f"{what} is a file; write {file}:NAME, it has {have}")
    if not colon or not place or not attribute:
        raise RewardError(f"unknown {what}; give {forms}")
    looks_like_file = place.endswith(".py") or "/" in place
    load = _from_file if looks_like_file else _from_module
    module = load(place, what, forms)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            have = _names(module)
            raise RewardError(f"{what}: {place} has no {attribute!r}; it has {have}")
        found = getattr(found, part)
    return found, str(getattr(module, "__file__", "") or "")


def _names(module: Any) -> str:
    """What a module defines itself."""
    here = vars(module).items()
    own = [name for name, value in here if getattr(value, "__module__", "") == module.__name__]
    return ", ".join(own) or "nothing"


def _from_file(place: str, what: str, forms: str) -> Any:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise RewardError(f"{what}: there is no file {path}; give {forms}")
    key = f"reward_file_{path.stem}_{abs(hash(str(path))):x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise RewardError(f"{what}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    # Let it import modules beside it, as when the file is run as a script.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module


def _from_module(place: str, what: str, forms: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise RewardError(
                f"{what}: there is no module {error.name} (looked in {Path.cwd()} and the "
                f"installed packages); give {forms}"
            ) from error
        raise


def _name_of(function: Any, written: str) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = getattr(function, "__name__", None)
    if written in BUILT_IN:
        return written
    return str(named or type(function).__name__)
