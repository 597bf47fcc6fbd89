"""The reward functions in the sandbox: loads them and calls them on a batch."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

from grpo_engine.rewards.load import ENVIRONMENTS, LoadedReward, as_reward, load_reward
from grpo_engine.rewards.returned import read_scores
from grpo_engine.sandbox.program import Server
from grpo_engine.sandbox.report import plain

Columns = Mapping[str, Sequence[Any]]
# Further fields of TRL's state; a run here has one process and no log history.
AS_TRL = {
    "epoch": 0.0, "global_step": 0, "max_steps": 0, "num_train_epochs": 1, "log_history": (),
    "best_metric": None, "is_local_process_zero": True, "is_world_process_zero": True,
}  # fmt: skip


class EndedEnvironment(SimpleNamespace):
    """The public attributes that a rollout's environment had at its end."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the environment had no public attribute {name!r} at its end; it had "
            f"{', '.join(self.__dict__) or 'none'} (methods cannot be called)"
        )


class Rewards:
    """The functions, in the order in which they were loaded."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._functions: list[tuple[LoadedReward, float]] = []  # with their weights

    def load(self, name: str, options: Mapping[str, Any], weight: float) -> dict[str, Any]:
        """Load one more function."""
        if name in self._server.objects:
            function = self._server.objects[name]
            code = getattr(inspect.unwrap(function), "__code__", None)
            reward = as_reward(name, function, code.co_filename if code else "", options)
        else:
            reward = load_reward(name, options)
        self._server.allow_memory(reward.function)
        self._functions.append((reward, weight))
        return {
            "name": reward.name, "file": reward.file, "is_async": reward.is_async,
            "requires": reward.required,
        }  # fmt: skip

    def call(self, index: int, columns: Columns, state: Mapping[str, Any]) -> dict[str, Any]:
        """Call a function on a batch."""
        (reward, weight), count = self._functions[index], len(columns["completions"])
        extras: dict[str, list[Any]] = {}
        metrics: dict[str, list[float]] = {}

        def log_extra(column: str, values: Sequence[Any]) -> None:
            """Log a column with one value per completion."""
            extras.setdefault(str(column), []).extend(map(plain, values))

        def log_metric(name: str, value: float) -> None:
            """Log a value of a metric that is averaged over the step."""
            metrics.setdefault(str(name), []).append(float(value))

        keywords = {
            **columns, "trainer_state": SimpleNamespace(**{**AS_TRL, **state}),
            "log_extra": log_extra, "log_metric": log_metric,
        }  # fmt: skip
        if ENVIRONMENTS in columns:
            states = columns[ENVIRONMENTS]
            keywords[ENVIRONMENTS] = [EndedEnvironment(**attributes) for attributes in states]
        output = self._server.run(reward.function, **reward.keywords(keywords))
        outcome = read_scores(output, count, weight)
        return asdict(replace(outcome, extras=extras, metrics=metrics))
