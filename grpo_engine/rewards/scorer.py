"""Scores answers with the run's reward functions, and knows which one decides accuracy."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_engine.alerts.rules import Alert
from grpo_engine.alerts.state import raised
from grpo_engine.config.settings import RunConfig
from grpo_engine.config.stop_when import StopRule
from grpo_engine.control import Control
from grpo_engine.errors import ConfigError, RewardError
from grpo_engine.events import AlertRaised, RewardValue
from grpo_engine.metrics import function_of
from grpo_engine.names import IN_PROCESS, JUDGE
from grpo_engine.rewards.builtins import BUILT_IN
from grpo_engine.rewards.client import RewardClient
from grpo_engine.rewards.form import received
from grpo_engine.rewards.load import ENVIRONMENTS, Functions
from grpo_engine.rewards.outcome import Cause, FunctionResult, RewardProblem, mean_metrics
from grpo_engine.rewards.right import RIGHT_OR_WRONG, Right
from grpo_engine.rewards.scoring import OVERLONG, Scores
from grpo_engine.rewards.specs import measured_specs, specs_of
from grpo_engine.rollouts.prompts import RenderedPrompt, reward_completion, reward_prompt
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.answers import text_of
from grpo_engine.tasks.base import Example, Task

NO_SCORE = "If it goes on, correct the judge's server or its rubric, or take another model."
REMEDY = "Try it with `grpo-tui rewards test`; its output is in rewards.log of the run's folder."


def check_functions(config: RunConfig, task: Task, names: Sequence[str]) -> Right:
    """The rule for right answers; refuse settings that name a function which the run lacks."""
    recipe = config.algorithm.resolved()
    sources = [*names, OVERLONG] if recipe.overlong_buffer else names
    watched = StopRule(config.stop_when).metrics if config.stop_when else set()
    named = [("stop_when", "stop_when", function_of(metric)) for metric in watched]
    best = function_of(config.checkpoint.best_by)
    named.append(("checkpoint.best_by", "checkpoint.best_by", best))
    if recipe.refill_rounds and recipe.refill_on not in ("accuracy", "total"):
        named.append(("refill_on", "algorithm.options", recipe.refill_on))
    for name, setting, function in named:
        if function not in ("", *sources):
            raise ConfigError(
                f"{name}: {function!r} is not a reward function of the run; its functions are "
                f"{', '.join(sources)}",
                setting,
                "rewards.functions",
            )
    return Right.of(config.evaluation.accuracy, task.accuracy, names)


class Scorer:
    """Scores with the reward functions of a run; `enter` sees to it that their processes end."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        folder: Path | None,
        control: Control,
        enter: Callable[[RewardClient], RewardClient],
        *,
        environments: Sequence[str] | None = None,
        local: Functions | None = None,
        foreign: bool = False,
    ) -> None:
        """`environments` that give rewards, by name; None if the run has none at all.

        `foreign` functions are those of a run that began elsewhere.
        """
        specs = specs_of(config, task)
        measured = measured_specs(config, task, specs) if specs or environments else []
        client = RewardClient(
            [*specs, *measured],
            folder,
            config.rewards.time_limit,
            interrupted=lambda: control.stop_now,
            local=local,
            named=config.sandbox.environment,
            hidden=(config.remote.key_env,),
            foreign=foreign,
            may_be_empty=bool(environments) or not config.algorithm.resolved().reads_rewards,
        )
        self._client, self._count = enter(client), len(specs)  # A further function only measures.
        self._environments = environments
        self._config, self._task = config, task
        columns = [*task.train[0].columns] if len(task.train) else []
        if environments is not None:
            columns.append(ENVIRONMENTS)
        client.check(columns, f"task {task.name}")
        self.right = check_functions(config, task, self.names)
        # A reward function that is named as an accuracy takes precedence over the task's.
        is_measured = self.right.function in ("", *RIGHT_OR_WRONG)
        self._measured = "".join(client.names[self._count :]) if is_measured else ""
        self.held_out_right = Right(self._measured) if self._measured else self.right

    @property
    def weights(self) -> dict[str, float]:
        """Of the sources of rewards: functions, then environments."""
        weights = {f.name: f.spec.weight for f in self._client.functions[: self._count]}
        return weights | dict.fromkeys(self._environments or (), 1.0)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.weights)

    @property
    def form_note(self) -> str:
        """In which form the user's functions get completions; empty if all are built in."""
        names = ", ".join(self._custom)
        return f"your reward functions ({names}) get {self._received}" if names else ""

    def advice(self, name: str) -> str:
        """What to look at if a function of the user makes no difference."""
        if name not in self._custom:
            return ""
        text = f"It gets {self._received}. "
        if self._custom[name].startswith(IN_PROCESS):  # The command line lacks it.
            return text
        task = self._config.task.name
        return f"{text}Try it: grpo-tui rewards test {self._custom[name]} --task {task}"

    @property
    def _received(self) -> str:
        return received(self._task, self._config.rewards.completions)

    @property
    def _custom(self) -> dict[str, str]:
        """The functions that the user wrote: their names, and as the settings have them."""
        functions = self._client.functions
        return {
            f.name: f.spec.name
            for f in functions
            if f.spec.name not in BUILT_IN and not f.spec.name.startswith(JUDGE)
        }

    @property
    def format(self) -> str:
        """The function that scores the format of an answer; empty if there is none."""
        return next((name for name in self._client.names[: self._count] if "format" in name), "")

    def score(
        self,
        examples: Sequence[Example],
        prompts: Sequence[RenderedPrompt],
        rollouts: Sequence[Trajectory],
        *,
        step: int,
        held_out: bool = False,
    ) -> Scores:
        """Score answers; `examples` and `prompts` have one entry per answer.

        An answer whose environment failed gets no rewards. Where a function failed,
        `rewards.on_failure` decides; the scores of the others are kept. Held-out answers are also
        judged by the task's accuracy function where that is no reward.
        """
        measured = self._measured if held_out else ""
        is_process = self._config.algorithm.resolved().compares == "steps"
        weights = self.weights | ({measured: 0.0} if measured else {})
        rows = [row for row in zip(examples, prompts, rollouts, strict=True) if not row[2].failed]
        outcomes = self._outcomes(rows, step, None if measured else self._count) if rows else []
        problems = [problem for outcome in outcomes for problem in outcome.problems]
        on_failure = self._config.rewards.on_failure
        if problems and on_failure == "stop":
            raise RewardError(
                f"{problems[0]}; rewards.on_failure is stop: correct it and resume the run, or set "
                "leave_out"
            )
        rewards, steps, indices = list[Any](), list[Any](), itertools.count()
        for rollout in rollouts:
            row_steps: Any = ()
            if rollout.failed:
                error = next((span.error for span in rollout.spans if span.error), "")
                values = [
                    RewardValue(name=name, value=None, weight=weight, reason=error, failed=True)
                    for name, weight in weights.items()
                ]
            else:
                row = next(indices)
                scores = [outcome.rewards[row] for outcome in outcomes]
                if on_failure == "zero":
                    scores = [replace(r, value=0.0) if r.failed else r for r in scores]
                functions, unweighted = scores[: self._count], scores[self._count :]
                values = [*functions, *self._of_environment(rollout), *unweighted]
                if not any(reward.missing for reward in functions):
                    row_steps = steps_of(rollout, functions, [o.steps[row] for o in outcomes])
            rewards.append(tuple(values))
            steps.append(row_steps)
        return Scores(
            rewards=tuple(rewards),
            measured=measured,
            logged=mean_metrics(outcomes),
            steps=tuple(steps) if is_process else None,
            alerts=(
                *alerts_of(step, problems, [rollout for _, _, rollout in rows]),
                *environment_alerts(step, rollouts),
            ),
        )

    def _outcomes(
        self,
        rows: Sequence[tuple[Example, RenderedPrompt, Trajectory]],
        step: int,
        count: int | None,
    ) -> list[FunctionResult]:
        """The results of all functions, or of the first `count`."""
        examples, prompts, rollouts = zip(*rows, strict=True)
        columns = columns_of(examples)
        if self._environments is not None:
            states = [rollout.environment and rollout.environment.state for rollout in rollouts]
            columns[ENVIRONMENTS] = [dict(state or {}) for state in states]
        finished = max(0, step - 1)
        rollouts_before = finished * self._config.rollout.prompts
        return self._client.score(
            [reward_prompt(prompt.prompt) for prompt in prompts],
            [
                completion_of(prompt, rollout, self._config.rewards.completions)
                for prompt, rollout in zip(prompts, rollouts, strict=True)
            ],
            [list(rollout.ids) for rollout in rollouts],
            columns,
            {
                "global_step": finished,
                "max_steps": self._config.steps,
                "epoch": rollouts_before / max(1, len(self._task.train)),
            },
            count=count,
        )

    def _of_environment(self, rollout: Trajectory) -> tuple[RewardValue, ...]:
        """The reward of each environment; None for all but the rollout's."""
        outcome, scores = rollout.environment, [score for _, score in turn_rewards(rollout)]
        active = outcome.name if outcome and (scores or outcome.by_turn) else None
        return tuple(
            RewardValue(name=name, weight=1.0, value=sum(scores) if name == active else None)
            for name in self._environments or ()
        )


def steps_of(
    rollout: Trajectory,
    rewards: Sequence[RewardValue],
    steps: Sequence[Sequence[tuple[int, float]] | None],
) -> tuple[tuple[int, float | None], ...]:
    """Weighted scores of a rollout's steps by their last token; `steps` are those by function.

    An outcome is a step that ends with the answer.
    """
    if not rollout.ids:
        return ()
    last, scores = last_model_token(rollout), turn_rewards(rollout)
    for reward, pairs in zip(rewards, steps, strict=False):
        if pairs is None:
            pairs = () if reward.value is None else ((len(rollout.text), reward.value),)
        scores += [
            (min(rollout.token_at(end), last), reward.weight * score) for end, score in pairs
        ]
    return tuple(sorted(scores))


def completion_of(
    prompt: RenderedPrompt, rollout: Trajectory, form: str
) -> str | list[dict[str, Any]]:
    """The completion as reward functions get it; of a dialogue about a text, the model's turns."""
    if not rollout.messages:
        return reward_completion(prompt.prompt, rollout.text, form=form)
    messages = [dict(message) for message in rollout.messages]
    as_text = form == "text" or isinstance(prompt.prompt, str)
    return text_of(messages) if as_text else messages


def _turn_ends(rollout: Trajectory) -> dict[int, int]:
    """The last token of each of the model's turns."""
    spans = (span for span in rollout.spans if span.kind == "model")
    return {span.turn: span.start + span.length - 1 for span in spans}


def last_model_token(rollout: Trajectory) -> int:
    return [len(rollout.ids) - 1, *_turn_ends(rollout).values()][-1]


def turn_rewards(rollout: Trajectory) -> list[tuple[int, float]]:
    """The environment's rewards of the turns, each at its last token, and of the dialogue."""
    ends = _turn_ends(rollout)
    scores = [(ends[span.turn], span.reward) for span in rollout.spans if span.reward is not None]
    if rollout.environment is not None and rollout.environment.reward is not None:
        scores.append((last_model_token(rollout), rollout.environment.reward))
    return scores


def environment_alerts(step: int, rollouts: Sequence[Trajectory]) -> Iterator[AlertRaised]:
    """One alert for the rollouts whose environments failed, with the first one's reason."""
    failed = [rollout for rollout in rollouts if rollout.failed]
    if failed:
        span = next(span for span in failed[0].spans if span.error)
        yield raised(
            step,
            "environment_error",
            Alert(
                "warning",
                f"Environment {span.name}, {span.error}.{_position(failed)}",
                "Such answers get no reward. Correct the environment; try it with "
                "`grpo-tui tasks test`.",
            ),
        )


def columns_of(examples: Sequence[Example]) -> dict[str, list[Any]]:
    """The data set's columns, repeated per answer; None where a row lacks a column."""
    names = dict.fromkeys(name for example in examples for name in example.columns)
    return {name: [example.columns.get(name) for example in examples] for name in names}


def alerts_of(
    step: int, problems: Sequence[RewardProblem], rollouts: Sequence[Trajectory]
) -> Iterator[AlertRaised]:
    """One alert per function and kind of problem, which names the first answer that has it."""
    groups: dict[tuple[str, Cause], list[RewardProblem]] = {}
    for problem in problems:
        groups.setdefault((problem.function, problem.cause), []).append(problem)
    for (_, cause), problems_of_cause in groups.items():
        affected = [rollouts[p.completion] for p in problems_of_cause if p.completion is not None]
        alert = Alert(
            "error" if cause in ("exception", "crash") else "warning",
            f"{str(problems_of_cause[0]).removesuffix('.')}.{_position(affected)}",
            NO_SCORE if cause == "no_score" else REMEDY,
        )
        yield raised(step, f"reward_{cause}", alert)


def _position(rollouts: Sequence[Trajectory]) -> str:
    """A sentence that names the first of the rollouts, and how many more there are."""
    if not rollouts:
        return ""
    first, more = rollouts[0], len(rollouts) - 1
    further = f", and {more} more of the step" if more else ""
    return f" It was answer {first.index + 1} to prompt {first.group + 1}{further}."
