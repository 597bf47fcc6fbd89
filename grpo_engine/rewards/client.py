"""Scores a batch with the reward functions and reports what went wrong, and where.

Before the first training step is finished (`global_step` 0), an exception or an unusable return
value ends the run, since a fix is cheap then. Later the completions that caused it get None ("does
not apply"), and the engine raises an alert. A timeout or a crash of the process gives None for that
function's whole call at any step, and a new process is started. A function that fails completely in
`PATIENCE` calls in a row ends the run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from grpo_engine.errors import RewardError
from grpo_engine.events import RewardValue
from grpo_engine.rewards.form import hint
from grpo_engine.rewards.load import GIVEN, Functions
from grpo_engine.rewards.outcome import Outcome, RewardProblem, ScoredRewards
from grpo_engine.sandbox.client import Call, Result, Sandbox
from grpo_engine.sandbox.report import Failure

SERVICE = "grpo_engine.rewards.service:Rewards"
# Calls in a row that fail completely before the run ends.
PATIENCE = 5
# Functions may import large libraries on load.
MIN_LOAD_S = 10.0  # for a new interpreter, on a busy machine


@dataclass(slots=True, eq=False)
class Function:
    """A function as its process described it, and how often in a row it failed completely."""

    written: str
    weight: float
    options: Mapping[str, Any]
    name: str = ""
    is_async: bool = False
    requires: Sequence[str] = ()
    file: str = ""
    failures: int = 0


@dataclass(slots=True, eq=False)
class _Group:
    """The functions of one sandbox; `batch_in` is the number of the process that has the batch."""

    sandbox: Sandbox
    functions: list[Function]
    loads: dict[Call, Function]
    batch_in: int = 0


class RewardClient:
    """Reward functions in a process of their own; a context manager.

    `specs` are `RewardSpec`s. `interrupted` is polled while waiting; if it returns true, the
    process is killed and `StopNow` is raised. `local` functions, by name, are called in this
    process. `measured` is one more function, which has no weight and is called only where `score`
    is asked to measure.
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
        self._batch: dict[str, Any] = {}
        local = local or {}
        self._groups = []
        for objects in ({}, local):
            functions = [f for f in self.functions if (f.written in local) == bool(objects)]
            if functions:
                loads = {self._load(function): function for function in functions}
                sandbox = Sandbox(
                    SERVICE, folder, "rewards", setup=list(loads), interrupted=interrupted,
                    objects=objects,
                )  # fmt: skip
                self._groups.append(_Group(sandbox, functions, loads))

    def __enter__(self) -> Self:
        with ExitStack() as on_error:
            on_error.callback(self.close, grace=0)
            for group in self._groups:
                for result in group.sandbox.start():
                    function = group.loads[result.call]
                    if result.failure:
                        raise self._not_loaded(group, function, result.failure)
                    for name, value in result.value.items():  # as the service describes it
                        setattr(function, name, value)
            on_error.pop_all()
        names: list[str] = []
        for function in self.functions:
            number, name = 1, function.name
            while function.name in names:
                number += 1
                function.name = f"{name}_{number}"
            names.append(function.name)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.weights)

    @property
    def measured(self) -> str:
        """The name of the function that is no reward; empty if there is none."""
        return "".join(function.name for function in self.functions[self._rewards :])

    @property
    def weights(self) -> dict[str, float]:
        """Of the rewards, by name."""
        return {function.name: function.weight for function in self.functions[: self._rewards]}

    def close(self, grace: float = 1.0) -> None:
        for group in self._groups:
            group.sandbox.close(grace)

    def check(self, columns: Sequence[str], task: str) -> None:
        """Raise RewardError if a function needs a column that the data lacks."""
        for function in self.functions:
            available = {*GIVEN, *columns, *function.options}
            if missing := [name for name in function.requires if name not in available]:
                have = ", ".join(columns) or "none"
                raise RewardError(
                    f"reward {function.name} ({function.file or function.written}) needs the "
                    f"column {missing[0]!r}, which {task} does not have; it has: {have}. Rename "
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
        self._batch = {
            "columns": {key: list(values) for key, values in {**columns, **given}.items()},
            "state": dict(trainer_state),
        }
        called = self.functions if measure else self.functions[: self._rewards]
        outcomes: dict[Function, Outcome] = {}
        try:
            for group in self._groups:
                group.batch_in = 0
                functions = [function for function in group.functions if function in called]
                outcomes |= self._call_together(group, [f for f in functions if f.is_async])
                for function in functions:
                    if function not in outcomes:
                        index = group.functions.index(function)
                        result = self._ask(group, "call", self.time_limit, index=index)
                        outcomes[function] = self._outcome(group, function, result)
        except BaseException:
            self.close(grace=0)
            raise
        results = [(function, outcomes[function]) for function in called]
        self._judge(results, first=not trainer_state.get("global_step", 0))
        return _gather(results, len(completions))

    @property
    def _load_limit(self) -> float:
        return max(MIN_LOAD_S, self.time_limit)

    def _load(self, function: Function) -> Call:
        arguments = {
            "name": function.written, "options": dict(function.options), "weight": function.weight,
        }  # fmt: skip
        return Call("load", lambda _: (arguments, self._load_limit))

    def _not_loaded(self, group: _Group, function: Function, failure: Failure) -> RewardError:
        return RewardError(
            group.sandbox.loading_error(
                f"reward {function.written}", failure, self._load_limit, "rewards.time_limit"
            )
        )

    def _ask(self, group: _Group, method: str, limit: float, **arguments: Any) -> Result:
        """Make a call, with the batch if the process has not got it."""

        def prepare(process: int) -> tuple[Mapping[str, Any], float]:
            batch = None if process == group.batch_in else self._batch
            group.batch_in = process
            return {**arguments, "limit": limit, "batch": batch}, limit

        result = group.sandbox.ask(Call(method, prepare))
        if result.setup is not None and result.failure is not None:
            raise self._not_loaded(group, group.loads[result.setup], result.failure)
        return result

    def _call_together(
        self, group: _Group, functions: Sequence[Function]
    ) -> dict[Function, Outcome]:
        """Call several async functions at once; empty if the process was lost."""
        if len(functions) < 2:
            return {}
        indices = [group.functions.index(function) for function in functions]
        result = self._ask(group, "call_together", self.time_limit, indices=indices)
        return {
            function: self._outcome(group, function, Result.of(result.call, reply))
            for function, reply in zip(functions, result.value or (), strict=False)
        }

    def _outcome(self, group: _Group, function: Function, result: Result) -> Outcome:
        if result.failure is None:
            outcome = _returned(function, result.value)
        elif result.failure.cause == "exception":
            outcome = self._by_row(group, function, result.failure)
        else:
            outcome = self._failed(function, result.failure)
        outcome.seconds = result.seconds
        return outcome

    def _by_row(self, group: _Group, function: Function, failure: Failure) -> Outcome:
        """After an exception, call the function for one completion at a time to find the cause."""
        index, outcome = group.functions.index(function), Outcome()
        deadline = time.monotonic() + self.time_limit
        for row in range(self._count):
            left = deadline - time.monotonic()
            result = self._ask(group, "call", left, index=index, row=row) if left > 0 else None
            if result is None or (result.failure and result.failure.cause != "exception"):
                break
            if result.failure is None:
                outcome.extend(_returned(function, result.value, row))
            else:
                problem = self._problem(function, result.failure, row)
                outcome.extend(Outcome([None], [None], problems=[problem]))
        if len(outcome.values) == self._count and any(
            problem.cause == "exception" for problem in outcome.problems
        ):
            return outcome
        return self._failed(function, failure)

    @property
    def _count(self) -> int:
        return len(self._batch["columns"]["completions"])

    def _failed(self, function: Function, failure: Failure) -> Outcome:
        problem = self._problem(function, failure, None)
        return Outcome([None] * self._count, [None] * self._count, problems=[problem])

    def _problem(self, function: Function, failure: Failure, row: int | None) -> RewardProblem:
        message, cause = failure.message, failure.cause
        if cause == "timeout":
            message = (
                f"gave no scores within rewards.time_limit {self.time_limit:g} s; scored None. "
                "Make it faster or raise the limit"
            )
        elif cause == "exception":
            message += hint(message, self._batch["columns"]["completions"][row or 0])
        else:
            message += f"; scored None{failure.remedy}"
        return RewardProblem(
            function=function.name,
            completion=row,
            line=failure.location + (f": {failure.source}" if failure.source else ""),
            message=message,
            cause="crash" if cause == "memory" else cause,
            traceback=failure.traceback,
        )

    def _judge(self, results: Sequence[tuple[Function, Outcome]], *, first: bool) -> None:
        """Raise if the run should end, by the rules in the module docstring."""
        for function, outcome in results:
            fatal = [p for p in outcome.problems if p.cause in ("exception", "count", "type")]
            if first and fatal:
                more = f" (and {len(fatal) - 1} more completions)" if len(fatal) > 1 else ""
                trace = f"\n{fatal[0].traceback.strip()}" if fatal[0].traceback else ""
                raise RewardError(f"{fatal[0]}{more}{trace}")
            failed = bool(outcome.problems) and all(value is None for value in outcome.values)
            function.failures = function.failures + 1 if failed else 0
            if function.failures >= PATIENCE:
                raise RewardError(
                    f"reward {function.name} failed completely {PATIENCE} times in a row; the last "
                    f"time: {outcome.problems[0]}"
                )


def _returned(function: Function, value: Mapping[str, Any], row: int | None = None) -> Outcome:
    """What a call on the batch, or on one row of it, returned."""
    steps = [None if own is None else tuple((e, s) for e, s in own) for own in value["steps"]]
    problems = [
        RewardProblem(
            function=function.name, completion=index if row is None else row,
            line=function.file, message=message, cause=cause,
        )
        for index, cause, message in value["invalid"]
    ]  # fmt: skip
    return Outcome(value["values"], steps, value["extras"], value["metrics"], problems)


def _gather(results: Sequence[tuple[Function, Outcome]], count: int) -> ScoredRewards:
    extras: dict[str, tuple[Any, ...]] = {}
    metrics: dict[str, list[float]] = {}
    columns = []
    for function, outcome in results:
        logged = {k: tuple(v) for k, v in outcome.extras.items() if len(v) == count}
        reasons = logged.pop("reason", ("",) * count)
        messages = {problem.completion: problem.message for problem in outcome.problems}
        columns.append([
            RewardValue(
                name=function.name, value=value, weight=function.weight,
                reason=messages.get(row) or messages.get(None) or str(reason),
            )
            for row, (value, reason) in enumerate(zip(outcome.values, reasons, strict=True))
        ])  # fmt: skip
        extras |= logged
        for name, numbers in outcome.metrics.items():
            metrics.setdefault(name, []).extend(numbers)
    outcomes = [outcome for _, outcome in results]
    return ScoredRewards(
        names=tuple(function.name for function, _ in results),
        rewards=tuple(zip(*columns, strict=True)) or ((),) * count,
        steps=tuple(tuple(outcome.steps) for outcome in outcomes),
        extras=extras,
        metrics={name: sum(numbers) / len(numbers) for name, numbers in metrics.items()},
        problems=tuple(problem for outcome in outcomes for problem in outcome.problems),
        seconds=tuple(outcome.seconds for outcome in outcomes),
    )
