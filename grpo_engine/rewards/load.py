"""Loads a reward function by the name that the user writes.

A name is a built-in one, that of an installed package, `path/to/file.py:function`,
`package.module:function`, or `judge:rubric.yaml` for a language model that judges.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from grpo_engine import names
from grpo_engine.errors import RewardError, nearest
from grpo_engine.rewards.builtins import BUILT_IN

# TRL passes these to every reward function, besides the data set's columns.
ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
Functions = Mapping[str, Callable[..., Any]]
ENVIRONMENTS = "environments"  # a further argument in a run with environments
FORMS = "a built-in name, file.py:function, module:function or judge:rubric.yaml"


@dataclass(frozen=True, slots=True)
class LoadedReward:
    """A reward function, its name in metrics, and its parameters."""

    name: str
    function: Callable[..., Any]
    file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, inspect.Parameter] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        function: Any = self.function
        return any(map(inspect.iscoroutinefunction, (function, function.__call__)))

    @property
    def has_kwargs(self) -> bool:
        """Whether it takes any keyword; so does a built-in callable without a signature."""
        kinds = [parameter.kind for parameter in self.parameters.values()]
        return not kinds or inspect.Parameter.VAR_KEYWORD in kinds

    @property
    def required(self) -> list[str]:
        """The parameters and, of a judge, the columns that it cannot do without."""
        named = [
            p.name
            for p in self.parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        return [*named, *getattr(self.function, "columns", ())]

    def keywords(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords to call it with: all, or without **kwargs only those it names."""
        merged = {**arguments, **self.options}
        return {k: v for k, v in merged.items() if self.has_kwargs or k in self.parameters}


def load_reward(
    name: str, options: Mapping[str, Any], objects: Mapping[str, Any] = MappingProxyType({})
) -> LoadedReward:
    """Find the function, first in `objects`, and check that it accepts keyword arguments."""
    function, file = (objects[name], "") if name in objects else find(name)
    if not callable(function):
        raise RewardError(f"reward {name}: {type(function).__name__} is not callable")
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):  # Some built-in callables have no signature.
        parameters = inspect.signature(function).parameters
    reward = LoadedReward(_name_of(function, name), function, file, options, parameters)
    unknown = [option for option in options if option not in parameters]
    if unknown and not reward.has_kwargs:
        accepted = ", ".join(sorted(parameters))
        raise RewardError(f"reward {name} takes no option {unknown[0]!r}; it takes {accepted}")
    return reward


def find(name: str) -> tuple[Any, str]:
    """The reward function that a name refers to, and its source file."""
    if name.startswith(names.JUDGE):
        from grpo_engine.rewards.judge import Judge

        return Judge(name.removeprefix(names.JUDGE)), ""
    purpose = names.Purpose(f"reward {name}", RewardError, FORMS + nearest(name, BUILT_IN, 1))
    if name in BUILT_IN:
        return names.find(BUILT_IN[name].target, purpose)
    return names.resolve("rewards", "reward", name, purpose)


def _name_of(function: Any, written: str) -> str:
    if ":" not in written:  # a built-in function, or a package's
        return written
    if written.startswith(names.IN_PROCESS):
        return written.removeprefix(names.IN_PROCESS)
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)
