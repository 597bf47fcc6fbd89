"""Scores a batch with the reward functions and reports what went wrong, and where.

Before the first training step is finished (`global_step` 0), an exception or an unusable return
value ends the run, since a fix is cheap then. Later the function has failed on the completions that
caused it, and the engine raises an alert. By a timeout or a crash of the process it fails on all
completions of the call at any step, and a new process is started. A function that fails completely
in `PATIENCE` calls in a row ends the run.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from grpo_engine.errors import RewardError
from grpo_engine.names import JUDGE
from grpo_engine.rewards.load import ARGUMENTS, Functions
from grpo_engine.rewards.outcome import FunctionResult, RewardProblem
from grpo_engine.rewards.rubric import key_variables
from grpo_engine.rollouts.prompts import reward_completion, reward_prompt
from grpo_engine.sandbox.client import Sandbox, ServiceCall, finish
from grpo_engine.tasks.base import Prompt, RewardSpec

SERVICE = "grpo_engine.rewards.service:RewardService"
OUTCOME = TypeAdapter(FunctionResult)
PATIENCE = 5  # calls in a row
MIN_LOAD_S = 10.0  # A new interpreter imports large libraries, perhaps on a busy machine.


@dataclass(slots=True, eq=False)
class Function:
    """A function as its process described it, and how often in a row it failed completely."""

    spec: RewardSpec
    load: ServiceCall
    sandbox: Sandbox
    name: str = ""
    is_async: bool = False
    requires: Sequence[str] = ()
    file: str = ""
    failures: int = 0


class RewardClient:
    """Reward functions in a process of their own; a context manager.

    `interrupted` is polled while waiting; if it returns true, the process is killed and `StopNow`
    is raised. `local` functions, by name, are called in this process, judges in one that has their
    keys. Functions have these and `hidden` variables only if they are `named`; `foreign` ones have
    a short list and those.
    """

    def __init__(
        self,
        specs: Sequence[RewardSpec],
        folder: Path | None,
        time_limit: float,
        interrupted: Callable[[], bool] = lambda: False,
        *,
        local: Functions | None = None,
        may_be_empty: bool = False,
        named: Collection[str] = (),
        hidden: Collection[str] = (),
        foreign: bool = False,
    ) -> None:
        if not specs and not may_be_empty:
            raise RewardError(
                "there is no reward function: the task has none of its own; "
                "name one in rewards.functions"
            )
        self.time_limit, self._open = time_limit, ExitStack()
        self.functions: list[Function] = []
        sandboxes = dict[str, Sandbox]()
        keys = key_variables(spec.name for spec in specs)
        for index, spec in enumerate(specs):
            objects = local if local and spec.name in local else None
            judges = spec.name.startswith(JUDGE)
            name = "judges" if judges else "local rewards" if objects else "rewards"
            sandbox = sandboxes.setdefault(
                name,
                Sandbox(
                    SERVICE,
                    folder,
                    name,
                    interrupted=interrupted,
                    objects=objects,
                    foreign=foreign or judges,
                    named={*named, *keys} if judges else named,
                    hidden={*keys, *hidden},
                ),
            )
            arguments = {"index": index, "name": spec.name, "options": dict(spec.options)}
            limit = max(MIN_LOAD_S, time_limit)
            load = ServiceCall("load", arguments, limit, loads=f"reward {spec.name}")
            sandbox.setup.append(load)
            self.functions.append(Function(spec, load, sandbox))
        self._sandboxes = [*map(self._open.enter_context, sandboxes.values())]

    def __enter__(self) -> Self:
        names: list[str] = []
        with self._open:
            for sandbox in self._sandboxes:
                sandbox.start()
            for function in self.functions:
                for name, value in function.load.value_or(RewardError).items():
                    setattr(function, name, value)
                number, name = 1, function.name
                while function.name in names:
                    number += 1
                    function.name = f"{name}_{number}"
                names.append(function.name)
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(function.name for function in self.functions)

    def check(self, columns: Sequence[str], task: str) -> None:
        """Raise RewardError if a function needs a column that the data lacks."""
        for function in self.functions:
            available = {*ARGUMENTS, *columns, *function.spec.options}
            if missing := [name for name in function.requires if name not in available]:
                have = ", ".join(columns) or "none"
                fix = "Name one of them in task.columns.answer, rename"
                if missing[0] != "answer":
                    fix = "Rename"
                raise RewardError(
                    f"reward {function.name} ({function.file or function.spec.name}) needs the "
                    f"column {missing[0]!r}, which {task} does not have; it has: {have}. {fix} "
                    "the parameter of your function, or give it a default or rewards.options"
                )

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
        trainer_state: Mapping[str, Any],
        *,
        count: int | None = None,
    ) -> list[FunctionResult]:
        """Call all of the functions, or the first `count`."""
        columns = {
            **columns,
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
        }
        state = {**trainer_state, "time_limit": self.time_limit}
        called, calls = self.functions[:count], dict[Function, ServiceCall]()
        for function in sorted(called, key=lambda function: not function.is_async):
            arguments = {
                "index": self.functions.index(function),
                "name": function.name,
                "weight": function.spec.weight,
                "columns": columns,
                "state": state,
            }
            call = ServiceCall("call", arguments, self.time_limit, in_thread=function.is_async)
            function.sandbox.submit(call)
            calls[function] = call
        for is_local in (False, True):
            finish([item for item in self._sandboxes if bool(item.objects) is is_local])
        is_first, outcomes = not trainer_state.get("global_step", 0), []
        for function in called:
            outcomes.append(_outcome(function, calls[function], len(completions)))
            _check(function, outcomes[-1], is_first=is_first)
        return outcomes

    def try_on(
        self, prompt: Prompt, completions: Sequence[str], columns: Mapping[str, Any]
    ) -> list[FunctionResult]:
        """Score completions of one prompt; errors are only reported, as after the first step."""
        count = len(completions)
        return self.score(
            [reward_prompt(prompt)] * count,
            [reward_completion(prompt, text) for text in completions],
            [list(text.encode("utf-8", "surrogatepass")) for text in completions],
            {name: [value] * count for name, value in columns.items()},
            {"global_step": 1, "max_steps": 1},
        )


def _outcome(function: Function, call: ServiceCall, count: int) -> FunctionResult:
    """The result of a function, or its failure."""
    failure = call.failure
    if failure and failure.cause == "loading":
        raise RewardError(failure.message)
    if failure:
        problem = RewardProblem(
            cause="timeout" if failure.cause == "timeout" else "crash",
            function=function.name,
            message=failure.message + failure.remedy,
            line=failure.line or function.file,
        )
        outcome = FunctionResult()
        for _ in range(count):
            outcome.add(problem, function.name, function.spec.weight)
    else:
        outcome = OUTCOME.validate_python(call.value)
    outcome.seconds = call.seconds
    return outcome


def _check(function: Function, outcome: FunctionResult, *, is_first: bool) -> None:
    """Raise if the run should end, by the rules in the module docstring."""
    problems = outcome.problems
    fatal = [p for p in problems if p.cause in ("exception", "count", "type")]
    if is_first and fatal:
        more = f" (and {len(fatal) - 1} more completions)" if len(fatal) > 1 else ""
        raise RewardError(f"{fatal[0]}{more}\n{fatal[0].traceback}".strip())
    is_faulty = any(problem.cause != "no_score" for problem in problems)
    has_failed = is_faulty and all(reward.value is None for reward in outcome.rewards)
    function.failures = function.failures + 1 if has_failed else 0
    if function.failures >= PATIENCE:
        raise RewardError(
            f"reward {function.name} failed completely {PATIENCE} times in a row; the last "
            f"time: {problems[0]}"
        )
