"""Loads a reward function by the name that the user writes.

A name is a built-in one, that of an installed package, `path/to/file.py:function`,
`package.module:function`, `http://host:port/path`, or `model:folder` for a sequence classifier.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_engine import names
from grpo_engine.errors import RewardError, nearest
from grpo_engine.rewards.builtins import BUILT_IN

# The arguments that TRL passes to every reward function, besides the data set's columns.
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
Functions = Mapping[str, Callable[..., Any]]
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


def load_reward(name: str, options: Mapping[str, Any]) -> LoadedReward:
    """Find the function and check that it accepts keyword arguments."""
    return as_reward(name, *find(name), options)


def as_reward(name: str, function: Any, file: str, options: Mapping[str, Any]) -> LoadedReward:
    """Describe a function, and check that it accepts keyword arguments."""
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
    wanted = names.Purpose(f"reward {name}", RewardError, FORMS)
    if name.startswith(("http://", "https://")):
        from grpo_engine.rewards.endpoint import Endpoint

        return Endpoint(name), ""
    if name.startswith("model:"):
        from grpo_engine.rewards.classifier import Classifier

        return Classifier(name.removeprefix("model:")), ""
    names.refuse_missing(name, "reward")
    if name in BUILT_IN:
        return names.find(BUILT_IN[name].target, wanted)
    if ":" not in name and not name.endswith(".py"):
        if found := names.find_installed("rewards", name, wanted):
            return found
        raise RewardError(f"unknown reward {name!r}{nearest(name, BUILT_IN, 1)}; give {FORMS}")
    return names.find(name, wanted)


def _name_of(function: Any, written: str) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = getattr(function, "__name__", None)
    if ":" not in written:  # built in, or a package's
        return written
    if written.startswith(names.IN_PROCESS):
        return written.removeprefix(names.IN_PROCESS)
    return str(named or type(function).__name__)
