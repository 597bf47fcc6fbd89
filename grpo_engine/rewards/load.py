"""Loads a reward function by the name that the user writes.

A name is a built-in one, that of an installed package, `path/to/file.py:function`,
`package.module:function`, `judge:rubric.yaml` for a language model that judges,
`http://host:port/path`, or `model:folder` for a sequence classifier.
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
FORMS = (
    "a built-in name, file.py:function, module:function, judge:rubric.yaml, http://… or "
    "model:folder"
)


@dataclass(frozen=True, slots=True)
class LoadedReward:
    """A reward function, its name in metrics, and its parameters."""

    name: str
    function: Callable[..., Any]
    file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    has_kwargs: bool = True
    parameters: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()

    @property
    def is_async(self) -> bool:
        function = _unwrapped(self.function)
        return any(map(inspect.iscoroutinefunction, (function, function.__call__)))

    def keywords(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords to call it with: all, or without **kwargs only those it names."""
        merged = {**arguments, **self.options}
        return {k: v for k, v in merged.items() if self.has_kwargs or k in self.parameters}


def load_reward(name: str, options: Mapping[str, Any]) -> LoadedReward:
    """Find the function and check that it accepts keyword arguments."""
    return as_reward(name, *find(name), options)


def as_reward(name: str, function: Any, file: str, options: Mapping[str, Any]) -> LoadedReward:
    """Describe a function, and check that it accepts keyword arguments."""
    if not callable(function):
        raise RewardError(f"reward {name}: {type(function).__name__} is not callable")
    title = _name_of(function, name)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return LoadedReward(title, function, file, options)
    required = [p for p in parameters if p.default is p.empty]
    if blocking := [p.name for p in required if p.kind is p.POSITIONAL_ONLY]:
        raise RewardError(
            f"reward {name}: rewards are called by keyword, but {', '.join(blocking)} can only be "
            "given by position; remove the `/` from its parameters"
        )
    accepted = frozenset(
        p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )
    has_kwargs = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [option for option in options if option not in accepted and not has_kwargs]
    if unknown:
        raise RewardError(
            f"reward {name} takes no option {unknown[0]!r}; it takes {', '.join(sorted(accepted))}"
        )
    needs = (p.name for p in required if p.name in accepted)
    columns = getattr(function, "columns", ())  # of a judge
    return LoadedReward(title, function, file, options, has_kwargs, accepted, (*needs, *columns))


def find(name: str) -> tuple[Any, str]:
    """The reward function that a name refers to, and its source file."""
    reference = names.Purpose(f"reward {name}", RewardError, FORMS)
    if name.startswith(("http://", "https://")):
        from grpo_engine.rewards.endpoint import Endpoint

        return Endpoint(name), ""
    if name.startswith("judge:"):
        from grpo_engine.rewards.judge import Judge

        return Judge(name.removeprefix("judge:")), ""
    if name.startswith("model:"):
        from grpo_engine.rewards.classifier import Classifier

        return Classifier(name.removeprefix("model:")), ""
    names.refuse_missing(name, "reward")
    if name in BUILT_IN:
        return names.find(BUILT_IN[name].target, reference)
    if ":" not in name and not name.endswith(".py"):
        if reward := names.find_installed("rewards", name, reference):
            return reward
        raise RewardError(f"unknown reward {name!r}{nearest(name, BUILT_IN, 1)}; give {FORMS}")
    return names.find(name, reference)


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Any, written: str) -> str:
    if ":" not in written:  # built in, or a package's
        return written
    if written.startswith(names.IN_PROCESS):
        return written.removeprefix(names.IN_PROCESS)
    function = _unwrapped(function)
    return str(getattr(function, "__name__", None) or type(function).__name__)
