"""Results of queries: frozen values of plain Python."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from grpo_engine.alerts.change import SPAN
from grpo_engine.events import (
    AlertRaised,
    EvaluationFinished,
    EvaluationSample,
    Event,
    Finish,
    Group,
    Origin,
    RewardValue,
    Rollout,
    Span,
    TokenNumbers,
)
from grpo_engine.frozen import frozen
from grpo_engine.metrics import Direction

Status = Literal[
    "running",
    "paused",
    "completed",
    "stopped",
    "aborted",
    "failed",
    "imported",
    "stalled",
    "lost",
    "unknown",
]

ACTIVE: frozenset[str] = frozenset({"running", "paused", "stalled"})
ENDED: frozenset[str] = frozenset({"completed", "stopped", "aborted", "failed", "imported", "lost"})


class Unreadable:
    """A stored value of a wrong type: it counts as missing and prints as what is stored, safely."""

    text: str

    @classmethod
    def of(cls, text: str) -> Self:
        value = cls()
        value.text = text
        return value

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return self.text


class UnreadableInt(Unreadable, int):
    """Counts as 0."""


class UnreadableFloat(Unreadable, float):
    """Counts as NaN."""

    def __new__(cls, value: float = math.nan) -> Self:
        return super().__new__(cls, value)


@frozen
class MetricSummary:
    key: str
    direction: Direction
    first: float | None
    last: float | None
    last_step: int | None
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None
    mean: float | None
    nonfinite: int
    first_step: int | None = None

    @property
    def best(self) -> float | None:
        """The extreme in the metric's direction; the last value if it has no direction."""
        return {"up": self.max, "down": self.min, "none": self.last}[self.direction]

    @property
    def best_step(self) -> int | None:
        return {"up": self.max_step, "down": self.min_step, "none": self.last_step}[self.direction]


@frozen
class RunSummary:
    """A row of the list of runs; `key` is the database's, `id` is for people.

    The fields up to `attempts` are the columns of an export. Fields that older files lack have a
    default.
    """

    id: str
    uid: str
    name: str
    status: Status
    model: str
    task: str
    recipe: str
    seed: int | None
    step: int
    total_steps: int | None
    tokens: int | None
    elapsed: float
    created_at: str
    started_at: str | None
    ended_at: str | None
    device: str
    dataset_fingerprint: str
    code_version: str
    tags: tuple[str, ...]
    note: str
    error: str
    archived: bool
    parent: str | None
    sweep: str | None
    attempts: int
    key: int
    status_since: str | None
    sweep_id: int | None = None
    waiting: str = ""  # describes the spilled events of the run
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)  # by `column_label`

    @property
    def title(self) -> str:
        """Its name, or its id if it has none."""
        return self.name or self.id

    @property
    def active(self) -> bool:
        """Whether a process is working on the run or should be."""
        return self.status in ACTIVE


@frozen
class RunDetail:
    summary: RunSummary
    config: Mapping[str, Any]
    settings: Mapping[str, Any]  # by path, with values that the engine settled on
    versions: Mapping[str, str]
    attempts: tuple["AttemptView", ...]
    folder: str
    origin: str  # "here", a trainer or "import of FILE", for people
    descent: str  # "step 20 of base" or "settings of base"; empty for a run from nothing

    @property
    def trainer(self) -> str:
        """The trainer of a run that this program only recorded; empty for its own."""
        return trainer_of(self.config)

    @property
    def files(self) -> "RunFiles | None":
        return files_of(self.config)


@frozen
class RunFiles:
    """The files of another trainer that a run was read from."""

    format: str
    path: str
    recorded: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # and what would record it


def files_of(config: Mapping[str, Any]) -> RunFiles | None:
    """The files that a run was read from; None for one that was recorded as it trained."""
    trainer = config.get("trainer")
    files = trainer.get("files") if isinstance(trainer, Mapping) else None
    if not isinstance(files, Mapping):
        return None
    recorded, missing = files.get("recorded"), files.get("missing")
    return RunFiles(
        format=str(files.get("format", "")),
        path=str(files.get("path", "")),
        recorded=tuple(map(str, recorded)) if isinstance(recorded, list) else (),
        missing={k: str(v) for k, v in missing.items()} if isinstance(missing, Mapping) else {},
    )


def trainer_of(config: Mapping[str, Any]) -> str:
    """The trainer that a run's settings name; empty for this program."""
    trainer = config.get("trainer")
    return str(trainer.get("name") or "another trainer") if isinstance(trainer, Mapping) else ""


@frozen
class AttemptView:
    """One process's work on a run; a later attempt redid the steps after `until_step`."""

    n: int
    from_step: int
    until_step: int | None
    host: str
    pid: int
    started_at: str
    heartbeat: str
    progress_at: str
    ended_at: str | None
    cause: str = ""


@frozen
class MetricSeries:
    """One metric over the steps; NaN is a gap."""

    run: int
    key: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@frozen
class RolloutView(Rollout):
    """A stored rollout with its database keys; its ids are read with its token numbers."""

    key: int
    group: int
    tokens: int | None
    clip_fraction: float | None
    kl: float | None
    ids: tuple[int, ...] = ()
    sampler_logprobs: tuple[float, ...] = ()
    rewards: tuple[RewardValue, ...] = ()


@frozen
class GroupView(Group):
    """The stored rollouts of one prompt in one step; `key` is the database's."""

    key: int
    run: int
    attempt: int
    step: int
    has_tokens: bool
    prompt_ids: tuple[int, ...] = ()
    rollouts: tuple[RolloutView, ...] = ()


@frozen
class RecordedTokens(TokenNumbers):
    """One rollout's tokens with their numbers.

    `sampler` are the log-probabilities under the sampling policy at its temperature. `spans` are
    stored with the rollout and left out where only numbers are read.
    """

    ids: tuple[int, ...]
    sampler: tuple[float, ...]
    ends: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()

    @property
    def model_positions(self) -> tuple[int, ...]:
        replies = self.reply_positions
        return tuple(position for position in range(len(self.ids)) if position not in replies)

    @property
    def reply_positions(self) -> frozenset[int]:
        """Positions of the environment's tokens."""
        return frozenset(
            position
            for span in self.spans
            if span.kind == "environment"
            for position in range(span.start, span.start + span.length)
        )


@frozen
class TokenView:
    """The token numbers of a group: the prompt's ids, and a row for each rollout."""

    prompt_ids: tuple[int, ...] = ()
    rows: tuple[RecordedTokens, ...] = ()


@frozen
class PromptMean:
    """A prompt over a run: its right answers, their mean reward, and where the newest one is."""

    prompt_text: str
    mean: float | None
    visits: int
    group: int
    step: int
    origin: Origin
    group_index: int
    index: int = 0  # of the rollout to open
    right: int | None = None  # answers, of so many that a score judges
    judged: int | None = None


@frozen
class ExtremeRollout:
    """The newest rollout with the lowest or the highest reward of a run, of how many."""

    step: int
    group_index: int
    index: int
    reward: float
    count: int


@frozen
class SearchHit:
    """A rollout whose completion or prompt contains the search text, from `start` to `end`."""

    rollout: int
    group: int
    step: int
    origin: Origin
    group_index: int
    index: int
    where: Literal["completion", "prompt"]
    text: str
    start: int
    end: int
    reward: float | None = None


TimedEvent = tuple[float | None, Event]  # with the time of its recording, if it has one


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event, its place in the record, and the time of its recording; 0 if unknown."""

    seq: int
    at: float
    event: Event


@frozen
class AlertView(AlertRaised):
    """All alerts of one rule: the latest text, the first step, and the count.

    `key` is the database's and `at` the wall time of the latest alert; 0 and None if unknown.
    """

    key: int = 0
    first_step: int
    count: int
    muted: bool = False
    at: float | None = None
    ended: bool = False  # False for alerts that are read from the store

    @property
    def last_step(self) -> int:
        return self.step

    def is_recent(self, step: int) -> bool:
        """Whether it held in the ten steps before this one; what holds is raised every ten."""
        return self.last_step >= step - SPAN


@frozen
class EvaluationView(EvaluationFinished):
    """A stored evaluation; `StoreReader.samples` returns its rows."""

    key: int
    rows: tuple[EvaluationSample, ...] = ()


@frozen
class PostMortem:
    """The circumstances of a run that ended without reporting it."""

    last_step: int
    checkpoint_step: int | None
    steps_to_redo: int
    last_seen: str
    cause: str
    log_lines: tuple[str, ...]


@frozen
class BoardRollout:
    """A rollout that is being sampled in the current step; it has no score yet.

    `spans` are the turns and replies of a dialogue so far, `waits_since` is the time of a call to
    its environment that has not returned.
    """

    index: int
    text: str = ""
    tokens: int | None = 0
    finish: Finish | None = None
    spans: tuple[Span, ...] = ()
    waits_since: float | None = None


@frozen
class BoardGroup:
    """A prompt whose completions are sampled in this step."""

    index: int
    origin: Origin = "train"
    prompt_text: str = ""
    target: str = ""
    rollouts: tuple[BoardRollout, ...] = field(default=(), metadata={"stored": "rows"})


@frozen
class BoardView:
    """The current state of a run, overwritten in place; a viewer may poll as rarely as it likes."""

    step: int = 0
    total_steps: int = 0
    phase: str = ""
    phase_detail: str = ""
    awaited: str = ""  # of a server
    phase_started: float = 0.0
    done: int = 0
    total: int = 0
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float = 0.0
    paused: bool = False
    store_warning: str = ""
    groups: tuple[BoardGroup, ...] = ()


ControlState = Literal["asked", "taken", "expired", "no answer"]


@frozen
class ControlView:
    """The state of a request to a run, explained in `message`."""

    state: ControlState
    message: str


@frozen
class QueueItemView:
    """A queued run: waiting, active or ended."""

    key: int
    sweep: str | None
    name: str
    state: Literal["queued", "leased", "done", "failed", "skipped", "cancelled"]
    settings: Mapping[str, Any]
    run: str | None
    note: str


def column_label(text: str) -> str:
    """The name of a column in the column language of `read.columns`."""
    body, _, label = text.partition(" as ")
    return label.strip() or setting_path(body) or body.strip()


def setting_path(body: str) -> str:
    """The path in `=path` or `cfg.path`; empty if it is neither."""
    path = re.match(r"\s*(?:=|cfg\.)(.*)", body)
    return path[1].strip() if path else ""
