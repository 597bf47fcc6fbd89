"""The store's tables as SQLModel rows, used only inside `experiments`.

They are the declaration: a new file is made from them. The migrations after them bring older files
up to date, and a test compares the results.
"""

import re
from functools import cache
from typing import Annotated, Any

from sqlalchemy import Boolean, Float, Index, Integer, UniqueConstraint, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import declared_attr
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement
from sqlmodel import Field, SQLModel
from sqlmodel.sql.sqltypes import AutoString

from grpo_engine.events import Event, Span
from grpo_tui.experiments.db.types import (
    EscapedText,
    EventJson,
    Flag,
    Json,
    JsonList,
    JsonObject,
    Number,
    Numbers,
    Readable,
    Real,
    Spans,
    StatusText,
    Time,
    Timestamp,
    WholeNumber,
)

WITHOUT_ROWID = {"sqlite_with_rowid": False}

Utc = Annotated[str, Field(sa_type=Time)]
UtcOrNone = Annotated[str | None, Field(default=None, sa_type=Time)]
Seconds = Annotated[float, Field(sa_type=Timestamp)]
RealOrNan = Annotated[float | None, Field(sa_type=Real)]
Tree = Annotated[dict[str, Any], Field(sa_type=JsonObject)]
ByName = Annotated[dict[str, float], Field(sa_type=Numbers)]

# Covers the list of runs in its order: a row of `run` takes a whole page with its configuration.
RUN_LIST = (
    "archived",
    "created_at",
    "short",
    "uid",
    "name",
    "status",
    "model",
    "task",
    "recipe",
    "seed",
    "step",
    "total_steps",
    "tokens",
    "elapsed",
    "started_at",
    "ended_at",
    "device",
    "dataset_fingerprint",
    "code_version",
    "error",
    "note",
    "bytes",
    "config_hash",
    "deleted_at",
)


class Table(SQLModel):
    """A table has the name of its class in lower case, without `Row`."""

    model_config = {"defer_build": True}  # no row is ever validated

    @declared_attr  # type: ignore[arg-type]  # as SQLModel's own
    @classmethod
    def __tablename__(cls) -> str:
        return re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__.removesuffix("Row")).lower()


class Numbered(Table):
    """A row with a number of its own."""

    # Key of the row.
    id: int | None = Field(default=None, primary_key=True)


class OfRun(Numbered):
    """One of many rows of a run."""

    # The run.
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")


class InRun(Table):
    """A row whose key begins with the run."""

    # The run.
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")


class Recorded(OfRun):
    """What an attempt recorded, in its order."""

    # The attempt it belongs to.
    attempt: int
    # The training step.
    step: int
    # Position in the run's record, counted from 1.
    seq: int
    # 1 if a later attempt repeated the step.
    hidden: bool


class RunRow(Numbered, table=True):
    """One run; the configuration is kept as it was given."""

    __table_args__ = (
        Index("run_name", "name"),
        Index("run_status", "status"),
        Index("run_parent", "parent_id", sqlite_where=text("parent_id IS NOT NULL")),
        Index("run_config", "config_hash"),
        Index("run_sweep", "sweep_id", sqlite_where=text("sweep_id IS NOT NULL")),
        Index("run_list", *RUN_LIST),
    )

    # UUID; the same in every store that the row is copied to.
    uid: str = Field(unique=True)
    # Eight characters to type.
    short: str = Field(unique=True)
    # Generated or chosen; unique if possible.
    name: str
    # As last reported; stalled, lost and unknown are derived when it is read.
    status: str = Field(sa_type=StatusText)
    # ISO, UTC.
    created_at: Utc
    # ISO, UTC.
    started_at: UtcOrNone
    # ISO, UTC.
    ended_at: UtcOrNone
    # `model.path`.
    model: str
    # `task.name`.
    task: str
    # The algorithm.
    recipe: str
    # `seed`.
    seed: int
    # Fingerprint of the configuration without its name.
    config_hash: str
    # grpo-tui's version.
    code_version: str = ""
    # Versions of the packages, JSON.
    versions: dict[str, Any] = Field(default_factory=dict, sa_type=JsonObject)
    # The device used.
    device: str = ""
    # Fingerprint of the problems; paired tests need equal ones.
    dataset_fingerprint: str = ""
    # Steps requested.
    total_steps: int = 0
    # Last finished step.
    step: int = 0
    # Tokens.
    tokens: int = 0
    # Seconds without pauses.
    elapsed: float = 0.0
    # Approximate size of the recorded data, in files of earlier versions.
    bytes: int = 0
    # Last stored `seq`.
    last_seq: int = 0
    # Why it failed.
    error: str = ""
    # Free text.
    note: str = ""
    # 1 hides it from lists.
    archived: bool = False
    # ISO, UTC; a deleted run is hidden until its purge.
    deleted_at: UtcOrNone
    # 1 once its rows are being removed: it cannot be brought back.
    purging: bool = False
    # The sweep it belongs to.
    sweep_id: int | None = Field(default=None, foreign_key="sweep.id", ondelete="SET NULL")
    # The run it was cloned from.
    parent_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL")
    # Where it began: `here`, or the file that it was imported from; only for people.
    origin: str = ""
    # last, since what follows a text of several pages is slow to read
    # The configuration as it was given, JSON.
    config: Tree


class AttemptRow(OfRun, table=True):
    """One process's work on a run."""

    __table_args__ = (UniqueConstraint("run_id", "n"),)

    # Its number in the run, counted from 1.
    n: int
    # The last step it kept; 0 for a new run.
    from_step: int
    # Later steps were repeated by a later attempt.
    until_step: int | None = None
    # The machine.
    host: str
    # The machine's boot ID; a pid is meaningless after a reboot.
    boot: str
    # The process.
    pid: int
    # When the process began; pids are reused.
    pid_start: str
    # ISO, UTC.
    started_at: Utc
    # Last sign of life of the process.
    heartbeat: Utc
    # Last progress of the run.
    progress_at: Utc
    # ISO, UTC.
    ended_at: UtcOrNone
    # How it ended.
    cause: str = ""
    # Memory at the last heartbeat.
    rss_gb: float = 0.0
    # Memory that was free then.
    free_gb: float = 0.0
    # Seconds the machine was suspended, in files of earlier versions.
    slept_s: float = 0.0


class RunParamRow(InRun, table=True):
    """One setting of a run, flattened: what filters and differences read."""

    __table_args__ = (Index("run_param_path", "path"), WITHOUT_ROWID)

    # section.name
    path: str = Field(primary_key=True)
    # JSON.
    value: Any = Field(sa_type=Json, nullable=False)


class RunTagRow(InRun, table=True):
    """A tag on a run."""

    __table_args__ = (Index("run_tag_tag", "tag"), WITHOUT_ROWID)

    # The tag.
    tag: str = Field(primary_key=True)


class EventRow(Recorded, table=True):
    """An event that no other table holds, as JSON."""

    __table_args__ = (
        Index("event_run", "run_id", "seq"),
        Index("event_kind", "run_id", "kind", "seq"),
    )

    # Seconds since 1970.
    at: Seconds
    # Its class.
    kind: str
    # The event, JSON.
    payload: Event = Field(sa_type=EventJson)


class AlertRow(OfRun, table=True):
    """A rule that held, once or for a while."""

    __table_args__ = (UniqueConstraint("run_id", "rule"),)

    # The rule.
    rule: str
    # info, warning or error.
    severity: str
    # First step where it held.
    first_step: int
    # Last step where it held.
    last_step: int
    # How many.
    count: int
    # The value.
    value: float | None = None
    # The limit that the value crossed.
    limit: float | None = None
    # The group, if it is one.
    group_index: int | None = None
    # What it means.
    explanation: str
    # What to do.
    remedy: str
    # 1 if the user muted it.
    muted: bool = False


class KeySetRow(Numbered, table=True):
    """The metric keys that a step reported, as JSON."""

    # Metric keys, JSON.
    keys: list[int] = Field(sa_type=JsonList, unique=True)


class StepRow(Recorded, table=True):
    """One finished step."""

    __table_args__ = (
        Index("step_run", "run_id", "step", "attempt", unique=True),
        Index("step_seq", "run_id", "seq"),
    )

    # Seconds since 1970.
    at: Seconds
    # Seconds without pauses.
    elapsed: RealOrNan
    # Tokens.
    tokens: int
    # Which metrics it reported.
    key_set: int = Field(foreign_key="key_set.id")
    # Why no update was made, in files of earlier versions; now only the event says it.
    skipped: str = ""


class UpdatePassRow(Recorded, table=True):
    """One optimiser update of a step."""

    __table_args__ = (
        Index("update_pass_run", "run_id", "step"),
        Index("update_pass_seq", "run_id", "seq"),
    )

    # Counted from 1.
    pass_: int = Field(sa_column_kwargs={"name": "pass"})
    # Counted from 0.
    minibatch: int
    # The objective.
    loss: RealOrNan
    # Share clipped low.
    clip_low: RealOrNan
    # Share clipped high.
    clip_high: RealOrNan
    # Distance to the sampling policy.
    kl_to_old: RealOrNan
    # Before clipping.
    grad_norm: RealOrNan
    # In this update.
    learning_rate: RealOrNan
    # Why passes ended here.
    stop_reason: str


class MetricKeyRow(Numbered, table=True):
    """The name of a metric."""

    # As the trainer reports it.
    name: str = Field(unique=True)


class MetricRow(InRun, table=True):
    """One value of one metric; NaN is NULL."""

    __table_args__ = (WITHOUT_ROWID,)

    # The metric.
    key_id: int = Field(primary_key=True, foreign_key="metric_key.id")
    # The training step.
    step: int = Field(primary_key=True)
    # The value.
    value: RealOrNan


class MetricSummaryRow(InRun, table=True):
    """One metric of one run in a line."""

    __table_args__ = (Index("metric_summary_max", "key_id", "max"), WITHOUT_ROWID)

    # The metric.
    key_id: int = Field(primary_key=True, foreign_key="metric_key.id")
    # First finite value.
    first: float | None
    # Its step.
    first_step: int | None
    # Last finite value.
    last: float | None
    # Its step.
    last_step: int | None
    # Smallest.
    min: float | None
    # Its step.
    min_step: int | None
    # Largest.
    max: float | None
    # Its step.
    max_step: int | None
    # Mean of the finite values.
    mean: float | None
    # How many.
    count: int
    # How many are NaN or infinite.
    nonfinite: int


class RolloutGroupRow(Recorded, table=True):
    """The completions of one prompt in one step."""

    __table_args__ = (
        Index("rollout_group_prompt", "run_id", "prompt_hash", "step"),
        Index("rollout_group_origin", "run_id", "origin", "step"),
        Index("rollout_group_seq", "run_id", "seq"),
        Index("rollout_group_tokens", "run_id", "tokens_seq"),
    )

    # `seq` of the token numbers.
    tokens_seq: int | None
    # Place in the step.
    idx: int
    # train, eval or pinned.
    origin: str
    # The problem, the same over steps and runs.
    example_key: str
    # The prompt, the same over steps.
    prompt_hash: str
    # The prompt as the model saw it.
    prompt_text: str
    # The expected answer.
    target: str
    # JSON.
    sampling: ByName
    # Over its rollouts.
    reward_mean: float | None
    # The same.
    reward_std: float | None
    # Why it gave no learning signal.
    no_signal: str
    # Refill round.
    refill: int
    # 1 if tokens.db has its numbers.
    has_tokens: bool
    # Columns where NULL means NaN, not a missing value.
    nonfinite: str


class RolloutRow(OfRun, table=True):
    """One completion."""

    __table_args__ = (
        Index("rollout_reward_order", "run_id", "reward"),
        Index(
            "rollout_of_group", "group_id", "run_id", "advantage", "tokens", "kl", "clip_fraction"
        ),
    )

    # The group.
    group_id: int = Field(foreign_key="rollout_group.id", ondelete="CASCADE")
    # Place in the group.
    idx: int
    # The completion.
    text: str
    # Weighted sum of the reward functions.
    reward: float | None
    # The advantage used in the update.
    advantage: float | None
    # Tokens.
    tokens: int
    # stop, length, stop_string, turns, context or environment_error.
    finish: str
    # Share of its tokens that were clipped.
    clip_fraction: float | None
    # Mean distance to the reference.
    kl: float | None
    # Columns where NULL means NaN, not a missing value.
    nonfinite: str
    # Turns and their environment's replies, JSON; empty for one turn.
    spans: tuple[Span, ...] = Field(sa_type=Spans)


class RolloutRewardRow(Table, table=True):
    """One reward function's score of one completion."""

    __table_args__ = (WITHOUT_ROWID,)

    # The rollout.
    rollout_id: int = Field(primary_key=True, foreign_key="rollout.id", ondelete="CASCADE")
    # Place in its list.
    position: int = Field(primary_key=True)
    # The reward function.
    function: str
    # Raw score; NULL where it does not apply.
    value: float | None
    # Its weight.
    weight: RealOrNan
    # Why, in the function's words.
    reason: str
    # Columns where NULL means NaN, not a missing value.
    nonfinite: str
    # 1 if the function failed.
    failed: bool = False


class EvaluationRow(Recorded, table=True):
    """One held-out evaluation."""

    __table_args__ = (Index("evaluation_run", "run_id", "seq"),)

    # Seconds since 1970.
    at: Seconds
    # before, during or after.
    moment: str
    # sampled or greedy.
    mode: str
    # Problems asked.
    problems: int
    # Samples per problem.
    samples: int
    # JSON.
    metrics: ByName
    # How long it took.
    seconds: RealOrNan


class EvaluationSampleRow(Table, table=True):
    """One held-out problem in one evaluation."""

    __table_args__ = (WITHOUT_ROWID,)

    # The evaluation.
    evaluation_id: int = Field(primary_key=True, foreign_key="evaluation.id", ondelete="CASCADE")
    # Place in its list.
    position: int = Field(primary_key=True)
    # The problem, the same over steps and runs.
    example_key: str
    # Samples that were right; NULL if nothing says so.
    correct: int | None
    # Samples of it.
    samples: int
    # Means by function, JSON.
    rewards: ByName
    # The answers of each mean, JSON.
    scored: ByName


class RunLiveRow(InRun, table=True):
    """The board of a run while a viewer's lease is fresh."""

    # Seconds since 1970; no viewer is watching after that.
    lease_until: float
    # Grows with each change, in files of earlier versions.
    version: int = 0
    # Seconds since 1970, in files of earlier versions.
    updated_at: float = 0.0
    # JSON.
    board: Tree


class ControlRow(OfRun, table=True):
    """A request to a run from another process."""

    __table_args__ = (
        Index("control_open", "run_id", "attempt", sqlite_where=text("outcome = ''")),
    )

    # The attempt it belongs to.
    attempt: int
    # What is asked.
    verb: str
    # What the verb applies to.
    argument: str = ""
    # ISO, UTC.
    asked_at: Utc
    # Who, in files of earlier versions.
    asked_by: str = ""
    # When the run accepted it.
    taken_at: UtcOrNone
    # Empty while it is open.
    outcome: str = ""


class SweepRow(Numbered, table=True):
    """A grid of settings and seeds."""

    __table_args__ = (Index("sweep_spec", "spec_hash"),)

    # UUID; the same in every store that the row is copied to.
    uid: str = Field(unique=True)
    # For people.
    name: str
    # ISO, UTC.
    created_at: Utc
    # Fingerprint of the grid.
    spec_hash: str
    # Paths and values, JSON.
    axes: dict[str, list[Any]] = Field(sa_type=JsonObject)


class QueueItemRow(Numbered, table=True):
    """A queued run: waiting, active or ended."""

    __table_args__ = (
        Index("queue_item_state", "state", "id"),
        Index("queue_item_sweep", "sweep_id"),
    )

    # The sweep it belongs to, if any.
    sweep_id: int | None = Field(default=None, foreign_key="sweep.id", ondelete="CASCADE")
    # For people.
    name: str
    # queued, leased, done, failed, skipped or cancelled.
    state: str
    # ISO, UTC.
    created_at: Utc
    # Its settings in the sweep, JSON.
    settings: Tree
    # The configuration as it was given, JSON.
    config: Tree
    # Fingerprint of the configuration without its name.
    config_hash: str
    # Host, pid and its start, JSON.
    lease_owner: str = ""
    # Seconds since 1970.
    lease_until: float = 0.0
    # The run it became.
    run_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL")
    # Free text.
    note: str = ""


class MigrationRow(Table, table=True):
    """A migration that the file has had."""

    # Its number.
    n: int | None = Field(primary_key=True)
    # Its name.
    name: str
    # ISO, UTC.
    at: Utc


# The migrations in order, as names and SQL; never edit one after its release. A new file counts as
# having had all of them.

QUEUE = """
CREATE TABLE sweep (
  id INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  created_at TEXT NOT NULL,
  spec_hash TEXT NOT NULL,
  axes TEXT NOT NULL
);
CREATE INDEX sweep_spec ON sweep (spec_hash);

CREATE TABLE queue_item (
  id INTEGER PRIMARY KEY,
  sweep_id INTEGER REFERENCES sweep (id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  created_at TEXT NOT NULL,
  settings TEXT NOT NULL,
  config TEXT NOT NULL,
  config_hash TEXT NOT NULL,
  lease_owner TEXT NOT NULL,
  lease_until REAL NOT NULL,
  run_id INTEGER REFERENCES run (id) ON DELETE SET NULL,
  note TEXT NOT NULL
);
CREATE INDEX queue_item_state ON queue_item (state, id);
CREATE INDEX queue_item_sweep ON queue_item (sweep_id);

CREATE INDEX run_config ON run (config_hash);
ALTER TABLE run ADD COLUMN sweep_id INTEGER REFERENCES sweep (id) ON DELETE SET NULL;
CREATE INDEX run_sweep ON run (sweep_id) WHERE sweep_id IS NOT NULL;
"""

# Narrow and append-only, so that a long run's rollouts can be sorted without reading texts.
ORDER = """
DROP INDEX IF EXISTS rollout_group_id;
CREATE INDEX IF NOT EXISTS rollout_of_group ON rollout (
  group_id, run_id, advantage, tokens, kl, clip_fraction
);
"""

# Covers the list of runs in its order: a row of `run` takes a whole page with its configuration.
LIST = """
CREATE INDEX IF NOT EXISTS run_list ON run (
  archived, created_at, short, uid, name, status, model, task, recipe, seed, step, total_steps,
  tokens, elapsed, started_at, ended_at, device, dataset_fingerprint, code_version, error, note,
  bytes, config_hash
);
"""

SPANS = """
ALTER TABLE rollout ADD COLUMN spans TEXT NOT NULL DEFAULT '';
"""

# A problem that nothing judged has no number of right samples.
UNJUDGED = """
CREATE TABLE judged_sample (
  evaluation_id INTEGER NOT NULL REFERENCES evaluation (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  example_key TEXT NOT NULL,
  correct INTEGER,
  samples INTEGER NOT NULL,
  rewards TEXT NOT NULL,
  PRIMARY KEY (evaluation_id, position)
) WITHOUT ROWID;
INSERT INTO judged_sample SELECT evaluation_id, position, example_key, correct, samples, rewards
FROM evaluation_sample;
DROP TABLE evaluation_sample;
ALTER TABLE judged_sample RENAME TO evaluation_sample;
"""

# A deleted run is hidden until it is purged.
DELETED = """
ALTER TABLE run ADD COLUMN deleted_at TEXT;
ALTER TABLE run ADD COLUMN purging INTEGER NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS run_list;
CREATE INDEX run_list ON run (
  archived, created_at, short, uid, name, status, model, task, recipe, seed, step, total_steps,
  tokens, elapsed, started_at, ended_at, device, dataset_fingerprint, code_version, error, note,
  bytes, config_hash, deleted_at
);
"""

# Texts are read to search them, nothing reads metrics of steps that were done again, and 0 right
# without an accuracy was written where nothing judged the answers.
UNUSED = """
UPDATE evaluation_sample SET correct = NULL WHERE correct = 0 AND evaluation_id IN (
  SELECT id FROM evaluation WHERE metrics NOT LIKE '%/accuracy"%'
);
DROP TABLE IF EXISTS rollout_words;
DROP TABLE IF EXISTS prompt_words;
DROP TABLE IF EXISTS metric_hidden;
DROP INDEX IF EXISTS run_param_path;
ALTER TABLE run_param DROP COLUMN number;
CREATE INDEX run_param_path ON run_param (path);
"""

# Where a run began, for people: nothing believes it.
ORIGIN = """
ALTER TABLE run ADD COLUMN origin TEXT NOT NULL DEFAULT '';
"""
FAILED = """
ALTER TABLE rollout_reward ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE evaluation_sample ADD COLUMN scored TEXT NOT NULL DEFAULT '{}';
"""

MIGRATIONS = {
    "m001_runs": "",  # every file has had it
    "m002_search": "",  # a full-text index that a later one dropped
    "m003_queue": QUEUE,
    "m004_order": ORDER,
    "m005_list": LIST,
    "m006_spans": SPANS,
    "m007_unjudged": UNJUDGED,
    "m008_deleted": DELETED,
    "m009_unused": UNUSED,
    "m010_origin": ORIGIN,
    "m011_failed": FAILED,
}
CURRENT = len(MIGRATIONS)


@cache
def schema() -> tuple[str, ...]:
    """The statements that make an empty file a store."""
    sql: list[DDLElement] = []
    for row in [row for row in globals().values() if hasattr(row, "__table__")]:
        sql.append(CreateTable(row.__table__))
        # in their order: among indices that are as good, SQLite takes the one made last
        options = getattr(row, "__table_args__", ())
        sql += [CreateIndex(index) for index in options if isinstance(index, Index)]
    return tuple(str(statement.compile(dialect=sqlite.dialect())) for statement in sql)


# for SQLModel's types of what is declared as `str`, `int`, `float` or `bool`
_TYPES: dict[type, type[Readable]] = {
    AutoString: EscapedText,
    Integer: WholeNumber,
    Float: Number,
    Boolean: Flag,
}
for _table in SQLModel.metadata.tables.values():
    for _column in _table.columns:
        if not isinstance(_column.type, Readable):
            _column.type = _TYPES[type(_column.type)]()  # type: ignore[assignment]
        _column.type.column = str(_column)  # type: ignore[attr-defined]

(
    RUN,
    ATTEMPT,
    RUN_PARAM,
    RUN_TAG,
    EVENT,
    ALERT,
    KEY_SET,
    STEP,
    UPDATE_PASS,
    METRIC_KEY,
    METRIC,
    METRIC_SUMMARY,
    ROLLOUT_GROUP,
    ROLLOUT,
    ROLLOUT_REWARD,
    EVALUATION,
    EVALUATION_SAMPLE,
    RUN_LIVE,
    CONTROL,
    SWEEP,
    QUEUE_ITEM,
    MIGRATION,
) = SQLModel.metadata.tables.values()
