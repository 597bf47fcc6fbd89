"""The reward functions in the sandbox: loads them and calls them on a batch."""

import asyncio
import inspect
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from grpo_engine.rewards.load import ENVIRONMENTS, LoadedReward, as_reward, load_reward
from grpo_engine.rewards.returned import read_scores
from grpo_engine.sandbox.event_loop import EventLoop, limited
from grpo_engine.sandbox.program import Server
from grpo_engine.sandbox.report import describe, plain

# Further fields of TRL's state; a run here has one process and no log history.
AS_TRL = {
    "epoch": 0.0, "global_step": 0, "max_steps": 0, "num_train_epochs": 1, "log_history": (),
    "best_metric": None, "is_local_process_zero": True, "is_world_process_zero": True,
}  # fmt: skip


class TrainerState(SimpleNamespace):
    """Read-only progress of the run, with the attributes of TRL's `TrainerState`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer_state has no {name!r}; it has {', '.join(self.__dict__)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"trainer_state is read-only: cannot set {name!r}")


class EndedEnvironment(SimpleNamespace):
    """The public attributes that a rollout's environment had at its end."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the environment had no public attribute {name!r} at its end; it had "
            f"{', '.join(self.__dict__) or 'none'} (methods cannot be called)"
        )


class Journal:
    """Values that one call logs through `log_extra` and `log_metric`."""

    def __init__(self) -> None:
        self.extras: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = {}

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log a column with one value per completion."""
        self.extras.setdefault(str(column), []).extend(plain(value) for value in values)

    def log_metric(self, name: str, value: float) -> None:
        """Log a value of a metric that is averaged over the step."""
        self.metrics.setdefault(str(name), []).append(float(value))


class Rewards:
    """The functions and the current batch."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._functions: list[tuple[LoadedReward, float]] = []  # with their weights
        self._batch: Mapping[str, Any] = {}
        self._state: Mapping[str, Any] = {}
        self._loop = EventLoop()

    def close(self) -> None:
        self._loop.close()

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

    def call(
        self, index: int, limit: float, batch: Mapping[str, Any] | None, row: int | None = None
    ) -> dict[str, Any]:
        """Call a function on the batch, on a new one if that is given, or on one row of it."""
        self._set_batch(batch)
        rows, journal = slice(None) if row is None else slice(row, row + 1), Journal()
        output = self._begin(index, rows, journal)
        if inspect.isawaitable(output):
            output = self._loop.wait(output, limit)
        return self._checked(index, rows, output, journal)

    def call_together(
        self, indices: Sequence[int], limit: float, batch: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """Call async functions concurrently, as TRL does; each has a value or a failure."""
        self._set_batch(batch)

        async def call(index: int) -> dict[str, Any]:
            journal, begun = Journal(), time.monotonic()
            try:
                output = await limited(self._begin(index, slice(None), journal), limit)
                reply = {"value": self._checked(index, slice(None), output, journal)}
            except MemoryError:  # another function may hold what is missing
                raise
            except Exception as error:
                reply = {"failure": describe(error)}
            return {**reply, "seconds": time.monotonic() - begun}

        async def call_all() -> list[dict[str, Any]]:
            return await asyncio.gather(*map(call, indices))

        replies: list[dict[str, Any]] = self._loop.wait(call_all(), limit + 1.0)
        return replies

    def _set_batch(self, batch: Mapping[str, Any] | None) -> None:
        if batch is not None:
            self._batch, self._state = batch["columns"], batch["state"]

    def _begin(self, index: int, rows: slice, journal: Journal) -> Any:
        """Call a function with copies, so that it cannot change another's input."""
        batch = json.loads(json.dumps({k: values[rows] for k, values in self._batch.items()}))
        if ENVIRONMENTS in batch:
            batch[ENVIRONMENTS] = [EndedEnvironment(**state) for state in batch[ENVIRONMENTS]]
        reward, _ = self._functions[index]
        keywords = {
            **batch,
            "trainer_state": TrainerState(**{**AS_TRL, **self._state}),
            "log_extra": journal.log_extra,
            "log_metric": journal.log_metric,
        }
        return reward.function(**reward.keywords(keywords))

    def _checked(self, index: int, rows: slice, output: Any, journal: Journal) -> dict[str, Any]:
        count = len(self._batch["completions"][rows])
        scores = read_scores(output, count, weight=self._functions[index][1])
        return {**asdict(scores), "extras": journal.extras, "metrics": journal.metrics}
