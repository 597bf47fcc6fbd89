"""RewardWorker: scores a batch in the reward process and reports what went wrong, and where.

Before the first training step is finished (`global_step` 0), an exception or an unusable return
value ends the run, since a fix is cheap then. Later the completions that caused it get None ("does
not apply"), and the engine raises an alert. A timeout or a crash of the process gives None for that
function's whole call at any step, and a new process is started. A function that fails completely in
`PATIENCE` calls in a row ends the run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from grpo_engine.errors import RewardError
from grpo_engine.events import RewardValue
from grpo_engine.rewards.form import hint
from grpo_engine.rewards.load import GIVEN
from grpo_engine.rewards.worker.local import Functions, Mixed
from grpo_engine.rewards.worker.outcome import Kind, Outcome, RewardProblem, ScoredRewards
from grpo_engine.rewards.worker.process import DiedError, TimedOutError, UserProcess

# Calls in a row that fail completely before the run ends.
PATIENCE = 5
# Functions may import large libraries on load.
LEAST_LOAD_S = 10.0  # for a new interpreter, on a busy machine
# Extra seconds to wait after a call's limit: async functions may time out by themselves.
SLACK = 1.0


@dataclass(slots=True)
class Function:
    """A function as the worker described it, and how often in a row it failed completely."""

    written: str
    weight: float
    options: Mapping[str, Any]
    name: str = ""
    is_async: bool = False
    requires: tuple[str, ...] = ()
    file: str = ""
    failures: int = 0


class RewardWorker:
    """Reward functions in a separate process; a context manager.

    `specs` are (name, weight, options) triples or `RewardSpec`s. `interrupted` is polled while
    waiting; if it returns true, the process is killed and `ScoringInterruptedError` is raised.
    `local` functions, by name, are called in this process. `measured` is one more function, which
    has no weight and is called only where `score` is asked to measure.
    """

    def __init__(
        self,
        specs: Sequence[Any],
        folder: Path,
        time_limit: float,
        interrupted: Callable[[], bool] = lambda: False,
        *,
        local: Functions | None = None,
        may_be_empty: bool = False,
        measured: Any = None,
    ) -> None:
        self.functions = [Function(s.name, s.weight, s.options) for s in specs]
        self._rewards = len(self.functions)
        if measured is not None:
            self.functions.append(Function(measured.name, 0.0, measured.options))
        if not self._rewards and not may_be_empty:
            raise RewardError(
                "there is no reward function: the task has none of its own; "
                "name one in rewards.functions"
            )
        self.time_limit = time_limit
        self.folder = folder
        self._interrupted = interrupted
        self._local = local
        self._process: UserProcess | Mixed | None = None
        self._has_batch = False
        self._batch: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(function.name for function in self.functions[: self._rewards])

    @property
    def measured(self) -> str:
        """The name of the function that is no reward; empty if there is none."""
        return "".join(function.name for function in self.functions[self._rewards :])

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(function.weight for function in self.functions[: self._rewards])

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.stop()

    def check(self, columns: Sequence[str], task: str = "the task") -> None:
        """Raise RewardError if a function needs a column that the data lacks."""
        for function in self.functions:
            known = {*GIVEN, *columns, *function.options}
            if lacking := [name for name in function.requires if name not in known]:
                have = ", ".join(columns) or "none"
                raise RewardError(
                    f"reward {function.name} ({function.file or function.written}) needs the "
                    f"column {lacking[0]!r}, which {task} does not have; it has: {have}. Rename "
                    "the parameter or the column, or give it a default or rewards.options"
                )

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
        trainer_state: Mapping[str, Any],
        *,
        measure: bool = False,
    ) -> ScoredRewards:
        """Call the reward functions and, to `measure`, the one that is no reward, as the last."""
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
        batch = {**{k: v for k, v in columns.items() if k not in GIVEN}, **given}
        self._batch = {
            "do": "batch",
            "batch": {key: list(values) for key, values in batch.items()},
            "state": dict(trainer_state),
        }
        self._has_batch = False
        outcomes: dict[int, Outcome] = {}
        called = self.functions if measure else self.functions[: self._rewards]
        together = [i for i, f in enumerate(called) if f.is_async]
        try:
            if len(together) > 1:
                outcomes |= self._call_together(together)
            for index in range(len(called)):
                if index not in outcomes:
                    outcomes[index] = self._call(index)
        except BaseException:
            self._abandon()
            raise
        results = [(function, outcomes[index]) for index, function in enumerate(called)]
        self._judge(results, first=not trainer_state.get("global_step", 0))
        return self._gather(results, len(completions))

    def _start(self) -> None:
        """Start the process and load every function, in order."""
        self._process = Mixed(self._local, self._new) if self._local else self._new()
        self._has_batch = False
        for function in self.functions:
            request = {
                "do": "load", "name": function.written, "options": dict(function.options),
                "weight": function.weight,
            }  # fmt: skip
            try:
                found = self._process.ask(request, self._load_limit)
            except TimedOutError as error:
                self._abandon()
                raise RewardError(
                    f"reward {function.written} was not loaded within {self._load_limit:g} s"
                    f"{_at(error.where)}; make its file quicker to import, or raise "
                    "rewards.time_limit"
                ) from None
            except DiedError as error:
                self._abandon()
                raise RewardError(
                    f"loading reward {function.written} ended the worker process, which "
                    f"{error.how}{_at(error.where)}; see {self.folder / 'rewards.log'}"
                ) from None
            except BaseException:
                self._abandon()
                raise
            if not found["ok"]:
                self._abandon()
                raise RewardError(_with_trace(found["message"] + _at(found["where"]), found))
            function.is_async, function.file = found["async"], found["file"]
            function.requires = tuple(found["requires"])
            if not function.name:
                function.name = self._unique(found["name"])

    def _new(self) -> UserProcess:
        return UserProcess(self.folder, self._interrupted)

    @property
    def _load_limit(self) -> float:
        return max(LEAST_LOAD_S, self.time_limit)

    def _unique(self, name: str) -> str:
        taken = {function.name for function in self.functions}
        number, unique = 1, name
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        return unique

    def _abandon(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.stop(grace=0)

    def _ask(self, frame: Mapping[str, Any]) -> Any:
        if self._process is None:
            self._start()
        assert self._process is not None
        if not self._has_batch:
            self._process.ask(self._batch, self._load_limit)
            self._has_batch = True
        return self._process.ask(frame, self.time_limit + SLACK)

    def _call(self, index: int) -> Outcome:
        function, count = self.functions[index], len(self._batch["batch"]["completions"])
        frame = {"do": "call", "functions": [index], "limit": self.time_limit}
        begun = time.monotonic()
        try:
            found = self._ask(frame)[0]
        except TimedOutError as error:
            self._abandon()
            lost = self._failed(function, count, "timeout", self._late(), error.where)
        except DiedError as error:
            self._abandon()
            message = f"ended the worker process, which {error.how}; scored None"
            lost = self._failed(function, count, "crash", message, error.where)
        else:
            return self._outcome(index, found, count)
        lost.seconds = time.monotonic() - begun
        return lost

    def _call_together(self, indices: list[int]) -> dict[int, Outcome]:
        """Call several async functions at once; empty if the process was lost."""
        count = len(self._batch["batch"]["completions"])
        try:
            found = self._ask({"do": "call", "functions": indices, "limit": self.time_limit})
        except (TimedOutError, DiedError):
            self._abandon()
            return {}
        return {
            index: self._outcome(index, each, count)
            for index, each in zip(indices, found, strict=True)
        }

    def _outcome(self, index: int, found: Mapping[str, Any], count: int) -> Outcome:
        function = self.functions[index]
        if not found["ok"]:
            if found.get("timeout"):
                late = self._failed(function, count, "timeout", self._late(), found["where"])
                late.seconds = found["seconds"]
                return late
            return self._raised(index, found, count)
        problems = _odd(function, found)
        return Outcome(
            found["values"],
            [None if own is None else tuple((e, s) for e, s in own) for own in found["steps"]],
            found["extras"],
            found["metrics"],
            problems,
            found["seconds"],
        )

    def _raised(self, index: int, found: Mapping[str, Any], count: int) -> Outcome:
        """After an exception, retry the completions one by one to find the cause."""
        function = self.functions[index]
        try:
            each = self._ask({"do": "each", "function": index, "limit": self.time_limit})
        except (TimedOutError, DiedError):
            self._abandon()
            each = []
        culprits = [row for row, one in enumerate(each) if not one["ok"]]
        if not culprits or len(each) < count:
            first = culprits[0] if culprits else None
            said = each[first] if first is not None else found
            return self._failed(function, count, "exception", said["message"], "", said, first)
        values = [one["values"][0] if one["ok"] else None for one in each]
        steps = [one["steps"][0] if one["ok"] else None for one in each]
        problems = [
            self._problem(function, row, "exception", each[row]["message"], "", each[row])
            for row in culprits
        ]
        for row, one in enumerate(each):
            problems += _odd(function, one, row) if one["ok"] else []
        tupled = [None if own is None else tuple((e, s) for e, s in own) for own in steps]
        return Outcome(values, tupled, problems=problems, seconds=found["seconds"])

    def _late(self) -> str:
        return (
            f"gave no scores within rewards.time_limit {self.time_limit:g} s; scored None. Make it "
            "faster or raise the limit"
        )

    def _failed(
        self,
        function: Function,
        count: int,
        kind: Kind,
        message: str,
        where: str,
        found: Mapping[str, Any] | None = None,
        completion: int | None = None,
    ) -> Outcome:
        problem = self._problem(function, completion, kind, message, where, found)
        return Outcome([None] * count, [None] * count, problems=[problem])

    def _problem(
        self,
        function: Function,
        completion: int | None,
        kind: Kind,
        message: str,
        where: str,
        found: Mapping[str, Any] | None,
    ) -> RewardProblem:
        found = found or {}
        source = f": {found['line']}" if found.get("line") else ""
        if kind == "exception":
            message += hint(message, self._batch["batch"]["completions"][completion or 0])
        return RewardProblem(
            function=function.name,
            completion=completion,
            line=(found.get("where") or where) + source,
            message=message,
            kind=kind,
            traceback=str(found.get("traceback", "")),
        )

    def _judge(self, results: Sequence[tuple[Function, Outcome]], *, first: bool) -> None:
        """Raise if the run should end, by the rules in the module docstring."""
        for function, outcome in results:
            fatal = [p for p in outcome.problems if p.kind in ("exception", "count", "type")]
            if first and fatal:
                message = f"{fatal[0]}"
                if len(fatal) > 1:
                    message += f" (and {len(fatal) - 1} more completions)"
                raise RewardError(_with_trace(message, {"traceback": fatal[0].traceback}))
            failed = bool(outcome.problems) and all(value is None for value in outcome.values)
            function.failures = function.failures + 1 if failed else 0
            if function.failures >= PATIENCE:
                raise RewardError(
                    f"reward {function.name} failed completely {PATIENCE} times in a row; the last "
                    f"time: {outcome.problems[0]}"
                )

    def _gather(self, results: Sequence[tuple[Function, Outcome]], count: int) -> ScoredRewards:
        outcomes = [outcome for _, outcome in results]
        extras: dict[str, tuple[Any, ...]] = {}
        metrics: dict[str, list[float]] = {}
        reasons = []
        for outcome in outcomes:
            own = {k: tuple(v) for k, v in outcome.extras.items() if len(v) == count}
            given = own.pop("reason", ("",) * count)
            said = {p.completion: p.message for p in outcome.problems}
            whole = said.get(None, "")
            reasons.append(tuple(said.get(i) or whole or str(given[i]) for i in range(count)))
            extras |= own
            for name, numbers in outcome.metrics.items():
                metrics.setdefault(name, []).extend(numbers)
        columns = [
            [
                RewardValue(
                    name=function.name, value=value, weight=function.weight, reason=reason
                )
                for value, reason in zip(outcome.values, said, strict=True)
            ]
            for (function, outcome), said in zip(results, reasons, strict=True)
        ]  # fmt: skip
        return ScoredRewards(
            names=tuple(function.name for function, _ in results),
            rewards=tuple(zip(*columns, strict=True)) or ((),) * count,
            steps=tuple(tuple(outcome.steps) for outcome in outcomes),
            extras=extras,
            metrics={name: sum(numbers) / len(numbers) for name, numbers in metrics.items()},
            problems=tuple(problem for outcome in outcomes for problem in outcome.problems),
            seconds=tuple(outcome.seconds for outcome in outcomes),
        )


def _odd(
    function: Function, found: Mapping[str, Any], completion: int | None = None
) -> list[RewardProblem]:
    """The unusable scores of a call, which was for one completion if that is given."""
    return [
        RewardProblem(
            function=function.name, completion=row if completion is None else completion,
            line=function.file, message=message, kind=kind,
        )
        for row, kind, message in found["odd"]
    ]  # fmt: skip


def _at(where: str) -> str:
    return f" (at {where})" if where else ""


def _with_trace(message: str, found: Mapping[str, Any]) -> str:
    trace = str(found.get("traceback", "")).strip()
    return f"{message}\n{trace}" if trace else message
