"""The reward functions in the sandbox: loads them and calls them on a batch."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from grpo_engine.rewards.form import hint
from grpo_engine.rewards.load import ENVIRONMENTS, LoadedReward, load_reward
from grpo_engine.rewards.outcome import FunctionResult, RewardProblem, Score, read_scores
from grpo_engine.sandbox.program import Server
from grpo_engine.sandbox.report import TooLateError, describe, plain

Columns = Mapping[str, Sequence[Any]]
# Further fields of TRL's state; a run here has one process and no log history.
AS_TRL = {
    "epoch": 0.0,
    "global_step": 0,
    "max_steps": 0,
    "num_train_epochs": 1,
    "log_history": (),
    "best_metric": None,
    "is_local_process_zero": True,
    "is_world_process_zero": True,
}


class EndedEnvironment(SimpleNamespace):
    """The public attributes that a rollout's environment had at its end."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the environment had no public attribute {name!r} at its end; it had "
            f"{', '.join(self.__dict__) or 'none'} (methods cannot be called)"
        )


class RewardService:
    """The functions by their numbers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._functions: dict[int, LoadedReward] = {}

    def load(self, index: int, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Load one more function."""
        reward = load_reward(name, options, self._server.objects)
        self._server.allow_memory(reward.function)
        self._functions[index] = reward
        return {
            "name": reward.name,
            "file": reward.file,
            "is_async": reward.is_async,
            "requires": reward.required,
        }

    def call(
        self, index: int, name: str, weight: float, columns: Columns, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A `FunctionResult` for a batch, or for each completion if the function fails."""
        reward, completions, outcome = (
            self._functions[index],
            columns["completions"],
            FunctionResult(),
        )
        score = partial(self._scores, reward, weight, state)
        scores = score(columns, outcome)
        if any(map(_has_raised, scores)):
            scores = _by_row(score, columns, state["time_limit"] / 2) or scores
        outcome.extras = {k: v for k, v in outcome.extras.items() if len(v) == len(completions)}
        reasons = outcome.extras.pop("reason", [""] * len(completions))
        for completion, item, reason in zip(completions, scores, reasons, strict=True):
            if isinstance(item, RewardProblem):
                message, line = item.message + hint(item, completion), item.line or reward.file
                item = replace(item, function=name, message=message, line=line)
            outcome.add(item, name, weight, str(reason))
        return asdict(outcome)

    def _scores(
        self,
        reward: LoadedReward,
        weight: float,
        state: Mapping[str, Any],
        columns: Columns,
        outcome: FunctionResult,
    ) -> list[Score]:
        """Call a function; what it logs is added to the outcome."""

        def log_extra(column: str, values: Sequence[Any]) -> None:
            """Log a column with one value per completion."""
            outcome.extras.setdefault(str(column), []).extend(map(plain, values))

        def log_metric(name: str, value: float) -> None:
            """Log a value of a metric that is averaged over the step."""
            outcome.metrics.setdefault(str(name), []).append(float(value))

        keywords = {
            **{column: list(values) for column, values in columns.items()},
            "trainer_state": SimpleNamespace(**{**AS_TRL, **state}),
            "log_extra": log_extra,
            "log_metric": log_metric,
        }
        if ENVIRONMENTS in columns:
            states = columns[ENVIRONMENTS]
            keywords[ENVIRONMENTS] = [EndedEnvironment(**attributes) for attributes in states]
        count = len(columns["completions"])
        try:
            output = self._server.run(reward.function, **reward.keywords(keywords))
            return read_scores(output, count, weight)
        except (MemoryError, TooLateError):
            raise
        except (Exception, SystemExit) as error:
            failure = describe(error)
            problem = RewardProblem(
                cause="exception",
                message=failure.message,
                line=failure.line,
                traceback=failure.traceback,
            )
            return [problem] * count


def _has_raised(item: Score) -> bool:
    return isinstance(item, RewardProblem) and item.cause == "exception"


def _by_row(
    score: Callable[[Columns, FunctionResult], list[Score]], columns: Columns, seconds: float
) -> list[Score] | None:
    """What it gives the completions one by one, if that shows in time which are at fault."""
    deadline, scores = time.monotonic() + seconds, list[Score]()
    for row in range(len(columns["completions"])):
        part = {name: values[row : row + 1] for name, values in columns.items()}
        (item,) = score(part, FunctionResult())
        scores.append(replace(item, completion=row) if isinstance(item, RewardProblem) else item)
        if time.monotonic() > deadline:
            return None
    return scores if any(map(_has_raised, scores)) else None
