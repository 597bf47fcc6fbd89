"""The events of a run: past-tense facts as plain Python values, each with its step.

A loop of another trainer records them too. What it does not know is None, or empty, and never 0.
"""

import dataclasses
import functools
import itertools
import math
import statistics
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Union

from grpo_engine.frozen import frozen

Phase = Literal["load", "generate", "score", "logprobs", "update", "evaluate", "checkpoint"]
Origin = Literal["train", "eval", "pinned"]
Finish = Literal["stop", "length", "stop_string", "turns", "context", "environment_error", ""]
REPLACED = ", replaced"  # ends `no_signal` of a group that a refill replaced
CUT: frozenset[Finish] = frozenset({"length", "context"})  # a limit ended the answer, not the model
Severity = Literal["info", "warning", "error"]


def sparse() -> Any:
    """An empty tuple by default, which is then left out of the stored event."""
    return field(default=(), metadata={"sparse": True})


@frozen
class RewardValue:
    """One reward function's score of one completion; `value` is None where it does not apply.

    Where the function failed it is None as well, or 0 if the settings say so.
    """

    name: str
    value: float | None
    weight: float  # NaN if unknown
    reason: str = ""
    failed: bool = field(default=False, metadata={"sparse": True})

    @property
    def missing(self) -> bool:
        """Whether the completion has no total, since the function failed."""
        return self.failed and self.value is None


# Rewards this close, as a share of the largest, are equal. Advantages and many reward functions
# are computed in float32, which rounds each number by up to 6e-8 of it.
EQUAL_REWARDS = 1e-6


def rewards_differ(rewards: Iterable[float | None]) -> bool:
    """Whether any two rewards differ by more than rounding."""
    values = [reward for reward in rewards if reward is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return high - low > EQUAL_REWARDS * abs(high)


def reward_std(rewards: Sequence[float]) -> float | None:
    """The standard deviation (n - 1) of a group's rewards, 0 if none differ; None below two."""
    if len(rewards) < 2:
        return None
    return statistics.stdev(rewards) if rewards_differ(rewards) else 0.0


def total_reward(values: Iterable[float | None], weights: Iterable[float]) -> float | None:
    """r = Σ_f w_f·r_f over the functions that apply; None if none does. NaN counts as None.

    A total that is not larger than the rounding of its terms is 0: .1 + .2 - .3 is not 6e-17.
    """
    parts = [
        weight * value
        for value, weight in zip(values, weights, strict=True)
        if value is not None and not math.isnan(value)
    ]
    if not parts:
        return None
    total = sum(parts)
    rounding = 2 * len(parts) * sys.float_info.epsilon * sum(map(abs, parts))
    return total if abs(total) > rounding else 0.0


@frozen
class Span:
    """Consecutive tokens of one author: the model's in a turn, or the environment's reply to it.

    `chars` are those of the answer's text. `reward` and `info` are what the environment gave for
    the turn, `ms` how long it took.
    """

    start: int
    length: int
    kind: Literal["model", "environment"]
    turn: int  # counted from 0
    chars: int = 0
    name: str = ""  # the tools called, or the environment
    ms: float | None = None
    error: str = ""
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


def unscored(span: Span) -> Span:
    """The span as progress shows it: without what the environment gave for the turn."""
    return dataclasses.replace(span, reward=None, info={})


def model_tokens(ids: Sequence[int], spans: Iterable[Span]) -> int:
    """Tokens of an answer without its environment's; an answer without spans is one turn."""
    return len(ids) - sum(span.length for span in spans if span.kind == "environment")


@frozen
class Rollout:
    """One scored rollout: its ids as sampled, its text for people, and its rewards.

    `ends[t]` counts the characters of `text` up to and including token t; empty if unknown.
    `finish` is empty if unknown. Where the ids are unknown, `length` counts the model's tokens.
    """

    index: int
    ids: tuple[int, ...]
    text: str
    finish: Finish
    rewards: tuple[RewardValue, ...]
    reward: float | None
    advantage: float | None
    sampler_logprobs: tuple[float, ...]
    ends: tuple[int, ...] = ()
    spans: tuple[Span, ...] = sparse()  # empty for one turn of the model
    without_ids: bool = field(default=False, metadata={"sparse": True})
    length: int | None = field(default=None, metadata={"sparse": True})

    @property
    def model_tokens(self) -> int | None:
        """Tokens of the model; None if unknown."""
        return self.length if self.without_ids else max(0, model_tokens(self.ids, self.spans))

    @property
    def failed(self) -> str:
        """The reward functions that failed on it."""
        return ", ".join(reward.name for reward in self.rewards if reward.failed)


@frozen
class Group:
    """The rollouts of one prompt, which are compared with each other."""

    index: int
    origin: Origin
    example_key: str
    prompt_text: str
    prompt_ids: tuple[int, ...]
    prompt_hash: str
    target: str
    refill: int = field(default=0, metadata={"stored": "attempt"})  # 0 for the first sampling
    rollouts: tuple[Rollout, ...] = field(metadata={"stored": "completions"})
    reward_mean: float | None
    reward_std: float | None
    no_signal: str = ""
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def demonstrated(self) -> bool:
        """Whether its answers are the data's own, which are learned without a reward."""
        return self.origin == "train" and {
            (item.advantage, item.reward, item.rewards) for item in self.rollouts
        } == {(1.0, None, ())}


@frozen
class UpdateTotals:
    """What an update divides by and compares with, for the completions of one micro-batch."""

    rows: float  # completions of the minibatch, empty and masked ones included
    tokens: float  # tokens of the minibatch in the loss; TRL takes a mean, which may be a fraction
    minibatch: int = 0
    micro_batches: int = 1
    batch_tokens: int | None = None  # tokens of the micro-batch in the loss
    entropy_bonus: float = 0.0  # weight in this step
    entropy_floor: float | None = None  # lowest entropy of a pushed token
    updated_tokens: int | None = None  # tokens at or above it


@frozen
class TokenNumbers:
    """The numbers of one completion's tokens; every non-empty tuple is as long as its ids.

    `old` are the sampling policy's log-probabilities as the trainer computes them, `passes` those
    before each pass's update, `after` those after the step, `sampled` those after top-p. `updates`
    is empty in runs recorded before it was; an empty `mask` has every token in the loss.
    """

    index: int
    old: tuple[float, ...]
    reference: tuple[float, ...] = ()
    passes: tuple[tuple[float, ...], ...] = ()
    after: tuple[float, ...] = ()
    entropy: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    sampled: tuple[float, ...] = ()
    mask: tuple[int, ...] = sparse()  # 1 in the loss, 0 left out of it
    updates: tuple[UpdateTotals, ...] = sparse()  # one per pass
    entropies: tuple[tuple[float, ...], ...] = sparse()  # one per pass, if the loss reads them
    values: tuple[tuple[float, ...], ...] = sparse()  # the critic's, one per pass
    old_values: tuple[float, ...] = sparse()
    returns: tuple[float, ...] = sparse()
    teacher: tuple[float, ...] = sparse()  # the teacher's log-probabilities
    clip_fraction: float | None = None
    kl: float | None = None


@frozen
class RowDelta:
    """What one row of the decoding batch gained since the last progress event.

    `tokens` are the model's; `spans` those of a dialogue that ended, and `waits` says that its
    environment has not replied yet.
    """

    group: int
    index: int
    text: str
    tokens: int | None  # None in the replay of a run that did not record them
    finish: Finish | None = None
    spans: tuple[Span, ...] = sparse()
    waits: bool = field(default=False, metadata={"sparse": True})


@frozen
class PromptStarted:
    """A prompt whose answers are sampled."""

    group: int
    origin: Origin
    prompt_text: str
    target: str
    rows: int


@frozen
class EvaluationSample:
    """One held-out problem in one evaluation, with the number of right samples.

    `correct` is None where nothing says which answers are right. `rewards` are means by function,
    of `scored` answers.
    """

    example_key: str
    correct: int | None
    samples: int
    rewards: Mapping[str, float]
    scored: Mapping[str, float] = field(default_factory=dict, metadata={"sparse": True})


@frozen
class RunStarted:
    """A run began or was resumed; `step` is the last finished step.

    `code` are the versions of the folder that it began in (`.`) and of the files of its functions.
    """

    step: int
    config: Mapping[str, Any]
    total_steps: int | None
    resumed: bool
    versions: Mapping[str, str]
    device: str
    threads: int | None
    dataset_fingerprint: str
    recipe: str
    code: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata={"sparse": True})


@frozen
class FunctionsLoaded:
    """Choices of the recipe are functions of the user; `sources` by choice, as they are now."""

    step: int
    sources: Mapping[str, Mapping[str, Any]]


@frozen
class ModelLoaded:
    """The policy was loaded."""

    step: int
    path: str
    parameters: int
    trainable: int
    dtype: str
    notes: tuple[str, ...] = ()
    seconds: float
    settled: Mapping[str, Any] = field(default_factory=dict)  # settings decided at load, by path


@frozen
class PhaseStarted:
    """The step entered a phase; `total` is its amount of work, 0 if unknown."""

    step: int
    phase: Phase
    total: int = 0
    detail: str = ""


@frozen
class PhaseAdvanced:
    """`done` of the phase's total are finished."""

    step: int
    phase: Phase
    done: int
    total: int


@frozen
class ServerAwaited:
    """The run waits for a server's answer of this kind; empty once that has come."""

    step: int
    detail: str


@frozen
class PromptsStarted:
    """Decoding of these prompts began; their rows follow in `RolloutsAdvanced`."""

    step: int
    prompts: tuple[PromptStarted, ...]


@frozen
class RolloutsAdvanced:
    """Rows of the decoding batch grew; `tokens` and `finished` are totals of this phase."""

    step: int
    rows: tuple[RowDelta, ...]
    tokens: int
    finished: int
    total: int
    tokens_per_second: float


@frozen
class GroupScored:
    """The rewards and advantages of a group were computed."""

    step: int
    group: Group


@frozen
class TokensScored:
    """The token numbers of a group are final for this step."""

    step: int
    group: int
    origin: Origin
    numbers: tuple[TokenNumbers, ...]


@frozen
class PassFinished:
    """One optimiser update of the step: pass `index` (1-based) over minibatch `minibatch`."""

    step: int
    index: int
    minibatch: int
    loss: float | None
    clip_low: float | None
    clip_high: float | None
    kl_to_old: float | None
    grad_norm: float | None
    learning_rate: float | None
    stop_reason: str = ""


@frozen
class StepFinished:
    """The step is complete: all metrics, and total tokens and seconds so far."""

    step: int
    metrics: Mapping[str, float]
    tokens: int | None
    elapsed: float


@frozen
class StepSkipped:
    """The step made no update, for the given reason."""

    step: int
    reason: str


@frozen
class AlertRaised:
    """An alert rule holds at this step."""

    step: int
    rule: str
    severity: Severity
    explanation: str
    remedy: str
    value: float | None = None
    limit: float | None = None
    group: int | None = None


@frozen
class AlertEnded:
    """A rule that was raised does not hold at this step."""

    step: int
    rule: str


@frozen
class EvaluationFinished:
    """A held-out evaluation: metrics with their intervals, and one row per problem."""

    step: int
    moment: Literal["before", "during", "after"]
    mode: Literal["greedy", "sampled"]
    problems: int
    samples: int
    metrics: Mapping[str, float]
    rows: tuple[EvaluationSample, ...]
    seconds: float


def evaluation_series(event: EvaluationFinished) -> dict[str, float]:
    """An evaluation's metrics by series; greedy evaluations have their own."""
    if event.mode == "sampled":
        return dict(event.metrics)
    return {
        f"eval/greedy/{name.removeprefix('eval/')}": value for name, value in event.metrics.items()
    }


@frozen
class BenchmarkScore:
    """A metric of a standard benchmark with its standard error; None if that is unknown.

    `moment` is before for the model that a run began with, and after for the trained one.
    """

    task: str
    metric: str
    moment: Literal["before", "after"]
    value: float
    stderr: float | None
    samples: int
    higher_is_better: bool = True

    @property
    def key(self) -> str:
        """Its name as a metric of the run."""
        return f"{BENCHMARK}{self.task}/{self.metric}"


BENCHMARK = "lm-eval/"  # begins the names of metrics that a benchmark measured


@frozen
class BenchmarksMeasured:
    """Another program measured the checkpoint of a step, and the model that the run began with."""

    step: int
    program: str
    scores: tuple[BenchmarkScore, ...]
    seconds: float
    limit: int = 0  # problems of each task; 0 for all

    def series(self, moment: str) -> dict[str, float]:
        """The values at a moment and their standard errors, as metrics."""
        metrics: dict[str, float] = {}
        for score in self.scores:
            if score.moment == moment:
                metrics[score.key] = score.value
                if score.stderr is not None:
                    metrics[f"{score.key}/stderr"] = score.stderr
        return metrics


@frozen
class CheckpointSaved:
    """A complete checkpoint was written; `best_by` is the metric by which it is the best."""

    step: int
    path: str
    best: bool
    seconds: float
    best_by: str = ""


@frozen
class NoteWritten:
    """A line for the log: a decision of the engine and its reason."""

    step: int
    text: str
    severity: Severity = "info"


def warning(step: int, text: str) -> NoteWritten:
    return NoteWritten(step=step, text=text, severity="warning")


@frozen
class RunPaused:
    """The engine paused: because it was asked to, or for the reason given."""

    step: int
    reason: str = ""


@frozen
class RunResumed:
    """The engine resumed after a pause."""

    step: int


@frozen
class RunFinished:
    """The run ended as planned (`completed`) or because it was asked to (`stopped`).

    `imported`: all that another trainer's files have was read; how that run ended is unknown.
    """

    step: int
    reason: Literal["completed", "stopped", "aborted", "imported"]
    summary: Mapping[str, float]


@frozen
class RunFailed:
    """The run ended with an error."""

    step: int
    error: str
    message: str
    traceback: str = ""


Event = (
    RunStarted
    | FunctionsLoaded
    | ModelLoaded
    | PhaseStarted
    | PhaseAdvanced
    | ServerAwaited
    | PromptsStarted
    | RolloutsAdvanced
    | GroupScored
    | TokensScored
    | PassFinished
    | StepFinished
    | StepSkipped
    | AlertRaised
    | AlertEnded
    | EvaluationFinished
    | BenchmarksMeasured
    | CheckpointSaved
    | NoteWritten
    | RunPaused
    | RunResumed
    | RunFinished
    | RunFailed
)

# Names in stores, spill files and JSON lines: a class that is renamed needs its old name here.
EVENT_TYPES: dict[str, type] = {event.__name__: event for event in typing.get_args(Event)}
_NAMES = {event: name for name, event in EVENT_TYPES.items()}


def kind_of(event: Event) -> str:
    """The name under which the event is stored."""
    return _NAMES[type(event)]


def to_json(event: Event) -> dict[str, Any]:
    """Return the event as JSON values, its type under `event`; NaN and infinities as strings."""
    return {"event": kind_of(event), **encode(event)}


def from_json(data: Mapping[str, Any]) -> Event:
    """Rebuild the event that `to_json` wrote."""
    event: Event = decode(EVENT_TYPES[data["event"]], data)
    return event


def encode(value: Any) -> Any:
    """A dataclass, or what may be in one, as JSON values."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if dataclasses.is_dataclass(value):
        return {
            f.metadata.get("stored", f.name): encode(content)
            for f in dataclasses.fields(value)
            if (content := getattr(value, f.name)) or "sparse" not in f.metadata
        }
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(annotation: Any, value: Any) -> Any:
    """The value of this type that `encode` wrote."""
    origin, inner = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        return decode(inner[0], value)
    if annotation is float:
        return float(value)
    if not isinstance(origin, type):  # Any, or one of some texts
        return value
    if dataclasses.is_dataclass(origin):
        return origin(
            **{
                name: decode(hint, value[stored])
                for name, stored, hint in _stored_fields(origin)
                if stored in value
            }
        )
    if origin is tuple:
        types_ = itertools.repeat(inner[0]) if inner[-1] is ... else inner
        return tuple(map(decode, types_, value))
    if origin is list:
        return [decode(inner[0], item) for item in value]
    if issubclass(origin, Mapping):
        return {key: decode(inner[1], item) for key, item in value.items()}
    return value


@functools.cache
def _stored_fields(annotation: Any) -> tuple[tuple[str, str, Any], ...]:
    """The name, stored name and type of each field."""
    hints = typing.get_type_hints(annotation)
    fields = dataclasses.fields(annotation)
    return tuple((f.name, f.metadata.get("stored", f.name), hints[f.name]) for f in fields)
