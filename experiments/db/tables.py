"""The store's tables as SQLModel rows, used only inside `experiments`.

They are the declaration: a new file and `grpo-tui explain schema` are made from them. The
migrations after them bring older files up to date, and a test compares the results.
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
    Text,
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
    "archived", "created_at", "short", "uid", "name", "status", "model", "task", "recipe", "seed",
    "step", "total_steps", "tokens", "elapsed", "started_at", "ended_at", "device",
    "dataset_fingerprint", "code_version", "error", "note", "bytes", "config_hash",
    "deleted_at",
)  # fmt: skip


class Table(SQLModel):
    """A table has the name of its class in lower case, without `Row`."""

    @declared_attr  # type: ignore[arg-type]  # as SQLModel's own
    @classmethod
    def __tablename__(cls) -> str:
        return re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__.removesuffix("Row")).lower()


class Numbered(Table):
    """A row with a number of its own."""

    id: int | None = Field(default=None, primary_key=True)
    """Key of the row."""


class OfRun(Numbered):
    """One of many rows of a run."""

    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    """The run."""


class InRun(Table):
    """A row whose key begins with the run."""

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    """The run."""


class Recorded(OfRun):
    """What an attempt recorded, in its order."""

    attempt: int
    """The attempt it belongs to."""
    step: int
    """The training step."""
    seq: int
    """Position in the run's record, counted from 1."""
    hidden: bool
    """1 if a later attempt repeated the step."""


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

    uid: str = Field(unique=True)
    """UUID; the same in every store that the row is copied to."""
    short: str = Field(unique=True)
    """Eight characters to type."""
    name: str
    """Generated or chosen; unique if possible."""
    status: str = Field(sa_type=StatusText)
    """As last reported; stalled, lost and unknown are derived when it is read."""
    created_at: Utc
    """ISO, UTC."""
    started_at: UtcOrNone
    """ISO, UTC."""
    ended_at: UtcOrNone
    """ISO, UTC."""
    model: str
    """`model.path`."""
    task: str
    """`task.name`."""
    recipe: str
    """The algorithm."""
    seed: int
    """`seed`."""
    config_hash: str
    """Fingerprint of the configuration without its name."""
    code_version: str = ""
    """grpo-tui's version."""
    versions: dict[str, Any] = Field(default_factory=dict, sa_type=JsonObject)
    """Versions of the packages, JSON."""
    device: str = ""
    """The device used."""
    dataset_fingerprint: str = ""
    """Fingerprint of the problems; paired tests need equal ones."""
    total_steps: int = 0
    """Steps requested."""
    step: int = 0
    """Last finished step."""
    tokens: int = 0
    """Tokens."""
    elapsed: float = 0.0
    """Seconds without pauses."""
    bytes: int = 0
    """Approximate size of the recorded data."""
    last_seq: int = 0
    """Last stored `seq`."""
    error: str = ""
    """Why it failed."""
    note: str = ""
    """Free text."""
    archived: bool = False
    """1 hides it from lists."""
    deleted_at: UtcOrNone
    """ISO, UTC; a deleted run is hidden until its purge."""
    purging: bool = False
    """1 once its rows are being removed: it cannot be brought back."""
    sweep_id: int | None = Field(default=None, foreign_key="sweep.id", ondelete="SET NULL")
    """The sweep it belongs to."""
    parent_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL")
    """The run it was cloned from."""
    # last, since what follows a text of several pages is slow to read
    config: Tree
    """The configuration as it was given, JSON."""


class AttemptRow(OfRun, table=True):
    """One process's work on a run."""

    __table_args__ = (UniqueConstraint("run_id", "n"),)

    n: int
    """Its number in the run, counted from 1."""
    from_step: int
    """The last step it kept; 0 for a new run."""
    until_step: int | None = None
    """Later steps were repeated by a later attempt."""
    host: str
    """The machine."""
    boot: str
    """The machine's boot ID; a pid is meaningless after a reboot."""
    pid: int
    """The process."""
    pid_start: str
    """When the process began; pids are reused."""
    started_at: Utc
    """ISO, UTC."""
    heartbeat: Utc
    """Last sign of life of the process."""
    progress_at: Utc
    """Last progress of the run."""
    ended_at: UtcOrNone
    """ISO, UTC."""
    cause: str = ""
    """How it ended."""
    rss_gb: float = 0.0
    """Memory at the last heartbeat."""
    free_gb: float = 0.0
    """Memory that was free then."""
    slept_s: float = 0.0
    """Seconds the machine was suspended."""


class RunParamRow(InRun, table=True):
    """One setting of a run, flattened: what filters and differences read."""

    __table_args__ = (Index("run_param_path", "path"), WITHOUT_ROWID)

    path: str = Field(primary_key=True)
    """section.name"""
    value: Any = Field(sa_type=Json, nullable=False)
    """JSON."""


class RunTagRow(InRun, table=True):
    """A tag on a run."""

    __table_args__ = (Index("run_tag_tag", "tag"), WITHOUT_ROWID)

    tag: str = Field(primary_key=True)
    """The tag."""


class EventRow(Recorded, table=True):
    """An event that no other table holds, as JSON."""

    __table_args__ = (
        Index("event_run", "run_id", "seq"),
        Index("event_kind", "run_id", "kind", "seq"),
    )

    at: Seconds
    """Seconds since 1970."""
    kind: str
    """Its class."""
    payload: Event = Field(sa_type=EventJson)
    """The event, JSON."""


class AlertRow(OfRun, table=True):
    """A rule that held, once or for a while."""

    __table_args__ = (UniqueConstraint("run_id", "rule"),)

    rule: str
    """The rule."""
    severity: str
    """info, warning or error."""
    first_step: int
    """First step where it held."""
    last_step: int
    """Last step where it held."""
    count: int
    """How many."""
    value: float | None = None
    """The value."""
    limit: float | None = None
    """The limit that the value crossed."""
    group_index: int | None = None
    """The group, if it is one."""
    explanation: str
    """What it means."""
    remedy: str
    """What to do."""
    muted: bool = False
    """1 if the user muted it."""


class KeySetRow(Numbered, table=True):
    """The metric keys that a step reported, as JSON."""

    keys: list[int] = Field(sa_type=JsonList, unique=True)
    """Metric keys, JSON."""


class StepRow(Recorded, table=True):
    """One finished step."""

    __table_args__ = (
        Index("step_run", "run_id", "step", "attempt", unique=True),
        Index("step_seq", "run_id", "seq"),
    )

    at: Seconds
    """Seconds since 1970."""
    elapsed: RealOrNan
    """Seconds without pauses."""
    tokens: int
    """Tokens."""
    key_set: int = Field(foreign_key="key_set.id")
    """Which metrics it reported."""
    skipped: str
    """Why no update was made."""


class UpdatePassRow(Recorded, table=True):
    """One optimiser update of a step."""

    __table_args__ = (
        Index("update_pass_run", "run_id", "step"),
        Index("update_pass_seq", "run_id", "seq"),
    )

    pass_: int = Field(sa_column_kwargs={"name": "pass"})
    """Counted from 1."""
    minibatch: int
    """Counted from 0."""
    loss: RealOrNan
    """The objective."""
    clip_low: RealOrNan
    """Share clipped low."""
    clip_high: RealOrNan
    """Share clipped high."""
    kl_to_old: RealOrNan
    """Distance to the sampling policy."""
    grad_norm: RealOrNan
    """Before clipping."""
    learning_rate: RealOrNan
    """In this update."""
    stop_reason: str
    """Why passes ended here."""


class MetricKeyRow(Numbered, table=True):
    """The name of a metric."""

    name: str = Field(unique=True)
    """As the trainer reports it."""


class MetricRow(InRun, table=True):
    """One value of one metric; NaN is NULL."""

    __table_args__ = (WITHOUT_ROWID,)

    key_id: int = Field(primary_key=True, foreign_key="metric_key.id")
    """The metric."""
    step: int = Field(primary_key=True)
    """The training step."""
    value: RealOrNan
    """The value."""


class MetricSummaryRow(InRun, table=True):
    """One metric of one run in a line."""

    __table_args__ = (Index("metric_summary_max", "key_id", "max"), WITHOUT_ROWID)

    key_id: int = Field(primary_key=True, foreign_key="metric_key.id")
    """The metric."""
    first: float | None
    """First finite value."""
    first_step: int | None
    """Its step."""
    last: float | None
    """Last finite value."""
    last_step: int | None
    """Its step."""
    min: float | None
    """Smallest."""
    min_step: int | None
    """Its step."""
    max: float | None
    """Largest."""
    max_step: int | None
    """Its step."""
    mean: float | None
    """Mean of the finite values."""
    count: int
    """How many."""
    nonfinite: int
    """How many are NaN or infinite."""


class RolloutGroupRow(Recorded, table=True):
    """The completions of one prompt in one step."""

    __table_args__ = (
        Index("rollout_group_prompt", "run_id", "prompt_hash", "step"),
        Index("rollout_group_origin", "run_id", "origin", "step"),
        Index("rollout_group_seq", "run_id", "seq"),
        Index("rollout_group_tokens", "run_id", "tokens_seq"),
    )

    tokens_seq: int | None
    """`seq` of the token numbers."""
    idx: int
    """Place in the step."""
    origin: str
    """train, eval or pinned."""
    example_key: str
    """The problem, the same over steps and runs."""
    prompt_hash: str
    """The prompt, the same over steps."""
    prompt_text: str
    """The prompt as the model saw it."""
    target: str
    """The expected answer."""
    sampling: ByName
    """JSON."""
    reward_mean: float | None
    """Over its rollouts."""
    reward_std: float | None
    """The same."""
    no_signal: str
    """Why it gave no learning signal."""
    refill: int
    """Refill round."""
    has_tokens: bool
    """1 if tokens.db has its numbers."""
    nonfinite: str
    """Columns where NULL means NaN, not a missing value."""


class RolloutRow(OfRun, table=True):
    """One completion."""

    __table_args__ = (
        Index("rollout_reward_order", "run_id", "reward"),
        Index(
            "rollout_of_group", "group_id", "run_id", "advantage", "tokens", "kl", "clip_fraction"
        ),
    )

    group_id: int = Field(foreign_key="rollout_group.id", ondelete="CASCADE")
    """The group."""
    idx: int
    """Place in the group."""
    text: str
    """The completion."""
    reward: float | None
    """Weighted sum of the reward functions."""
    advantage: float | None
    """The advantage used in the update."""
    tokens: int
    """Tokens."""
    finish: str
    """stop, length, stop_string, turns, context or environment_error."""
    clip_fraction: float | None
    """Share of its tokens that were clipped."""
    kl: float | None
    """Mean distance to the reference."""
    nonfinite: str
    """Columns where NULL means NaN, not a missing value."""
    spans: tuple[Span, ...] = Field(sa_type=Spans)
    """Turns and their environment's replies, JSON; empty for one turn."""


class RolloutRewardRow(Table, table=True):
    """One reward function's score of one completion."""

    __table_args__ = (WITHOUT_ROWID,)

    rollout_id: int = Field(primary_key=True, foreign_key="rollout.id", ondelete="CASCADE")
    """The rollout."""
    position: int = Field(primary_key=True)
    """Place in its list."""
    function: str
    """The reward function."""
    value: float | None
    """Raw score; NULL where it does not apply."""
    weight: RealOrNan
    """Its weight."""
    reason: str
    """Why, in the function's words."""
    nonfinite: str
    """Columns where NULL means NaN, not a missing value."""


class EvaluationRow(Recorded, table=True):
    """One held-out evaluation."""

    __table_args__ = (Index("evaluation_run", "run_id", "seq"),)

    at: Seconds
    """Seconds since 1970."""
    moment: str
    """before, during or after."""
    mode: str
    """sampled or greedy."""
    problems: int
    """Problems asked."""
    samples: int
    """Samples per problem."""
    metrics: ByName
    """JSON."""
    seconds: RealOrNan
    """How long it took."""


class EvaluationSampleRow(Table, table=True):
    """One held-out problem in one evaluation."""

    __table_args__ = (WITHOUT_ROWID,)

    evaluation_id: int = Field(primary_key=True, foreign_key="evaluation.id", ondelete="CASCADE")
    """The evaluation."""
    position: int = Field(primary_key=True)
    """Place in its list."""
    example_key: str
    """The problem, the same over steps and runs."""
    correct: int | None
    """Samples that were right; NULL if nothing says so."""
    samples: int
    """Samples of it."""
    rewards: ByName
    """Means by function, JSON."""


class RunLiveRow(InRun, table=True):
    """The board of a run while a viewer's lease is fresh."""

    lease_until: float
    """Seconds since 1970; no viewer is watching after that."""
    version: int
    """Grows with each change."""
    updated_at: float
    """Seconds since 1970."""
    board: Tree
    """JSON."""


class ControlRow(OfRun, table=True):
    """A request to a run from another process."""

    __table_args__ = (
        Index("control_open", "run_id", "attempt", sqlite_where=text("outcome = ''")),
    )

    attempt: int
    """The attempt it belongs to."""
    verb: str
    """What is asked."""
    argument: str = ""
    """What the verb applies to."""
    asked_at: Utc
    """ISO, UTC."""
    asked_by: str
    """Who."""
    taken_at: UtcOrNone
    """When the run accepted it."""
    outcome: str = ""
    """Empty while it is open."""


class SweepRow(Numbered, table=True):
    """A grid of settings and seeds."""

    __table_args__ = (Index("sweep_spec", "spec_hash"),)

    uid: str = Field(unique=True)
    """UUID; the same in every store that the row is copied to."""
    name: str
    """For people."""
    created_at: Utc
    """ISO, UTC."""
    spec_hash: str
    """Fingerprint of the grid."""
    axes: dict[str, list[Any]] = Field(sa_type=JsonObject)
    """Paths and values, JSON."""


class QueueItemRow(Numbered, table=True):
    """A queued run: waiting, active or ended."""

    __table_args__ = (
        Index("queue_item_state", "state", "id"),
        Index("queue_item_sweep", "sweep_id"),
    )

    sweep_id: int | None = Field(default=None, foreign_key="sweep.id", ondelete="CASCADE")
    """The sweep it belongs to, if any."""
    name: str
    """For people."""
    state: str
    """queued, leased, done, failed, skipped or cancelled."""
    created_at: Utc
    """ISO, UTC."""
    settings: Tree
    """Its settings in the sweep, JSON."""
    config: Tree
    """The configuration as it was given, JSON."""
    config_hash: str
    """Fingerprint of the configuration without its name."""
    lease_owner: str = ""
    """Host, pid and its start, JSON."""
    lease_until: float = 0.0
    """Seconds since 1970."""
    run_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL")
    """The run it became."""
    note: str = ""
    """Free text."""


class MigrationRow(Table, table=True):
    """A migration that the file has had."""

    n: int | None = Field(primary_key=True)
    """Its number."""
    name: str
    """Its name."""
    at: Utc
    """ISO, UTC."""


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
}
CURRENT = len(MIGRATIONS)


def declared() -> list[type[SQLModel]]:
    """The tables in the order of their declaration."""
    return [
        row
        for row in globals().values()
        if isinstance(row, type) and issubclass(row, SQLModel) and hasattr(row, "__table__")
    ]


@cache
def schema() -> tuple[str, ...]:
    """The statements that make an empty file a store."""
    sql: list[DDLElement] = []
    for row in declared():
        sql.append(CreateTable(SQLModel.metadata.tables[str(row.__tablename__)]))
        # in their order: among indices that are as good, SQLite takes the one made last
        options = getattr(row, "__table_args__", ())
        sql += [CreateIndex(index) for index in options if isinstance(index, Index)]
    return tuple(str(statement.compile(dialect=sqlite.dialect())) for statement in sql)


# for SQLModel's types of what is declared as `str`, `int`, `float` or `bool`
_TYPES: dict[type, type[Readable]] = {
    AutoString: Text, Integer: WholeNumber, Float: Number, Boolean: Flag
}  # fmt: skip
for _table in SQLModel.metadata.tables.values():
    for _column in _table.columns:
        if not isinstance(_column.type, Readable):
            _column.type = _TYPES[type(_column.type)]()  # type: ignore[assignment]
        _column.type.column = str(_column)  # type: ignore[attr-defined]

(
    RUN, ATTEMPT, RUN_PARAM, RUN_TAG, EVENT, ALERT, KEY_SET, STEP, UPDATE_PASS, METRIC_KEY, METRIC,
    METRIC_SUMMARY, ROLLOUT_GROUP, ROLLOUT, ROLLOUT_REWARD, EVALUATION,
    EVALUATION_SAMPLE, RUN_LIVE, CONTROL, SWEEP, QUEUE_ITEM, MIGRATION,
) = (SQLModel.metadata.tables[str(row.__tablename__)] for row in declared())  # fmt: skip
