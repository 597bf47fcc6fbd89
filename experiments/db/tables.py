"""The tables of a store, declared as SQLModel rows and used only inside `experiments`.

A new file is made from them. The migrations below bring older files up to date, and a test compares
the results.
"""

import re
from functools import cache
from typing import Annotated, Any

from sqlalchemy import Index, UniqueConstraint, text
from sqlalchemy import Table as TableClause
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import declared_attr
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement
from sqlmodel import Field, SQLModel

from grpo_engine.events import Event, Span
from grpo_tui.experiments.db.types import (
    Count,
    EscapedText,
    EventJson,
    Flag,
    Json,
    JsonList,
    JsonObject,
    Number,
    NumberOrAbsent,
    NumberOrNan,
    Numbers,
    Spans,
    StatusText,
    StoredInt,
    Time,
    Timestamp,
)

WITHOUT_ROWID = {"sqlite_with_rowid": False}

Text = Annotated[str, Field(sa_type=EscapedText)]
Unique = Annotated[str, Field(sa_type=EscapedText, unique=True)]
Int = Annotated[int, Field(sa_type=StoredInt)]
Key = Annotated[int, Field(sa_type=StoredInt, primary_key=True)]
IntOrNone = Annotated[int | None, Field(sa_type=StoredInt)]
Float = Annotated[float, Field(sa_type=Number)]
FloatOrNone = Annotated[float | None, Field(sa_type=Number)]
FloatOrNan = Annotated[float | None, Field(sa_type=NumberOrNan)]
FloatOrAbsent = Annotated[float | None, Field(sa_type=NumberOrAbsent, nullable=True)]
Known = Annotated[int | None, Field(sa_type=Count, nullable=False)]
Bool = Annotated[bool, Field(sa_type=Flag)]
Utc = Annotated[str, Field(sa_type=Time)]
UtcOrNone = Annotated[str | None, Field(default=None, sa_type=Time)]
Seconds = Annotated[float, Field(sa_type=Timestamp)]  # counted from 1970
Tree = Annotated[dict[str, Any], Field(sa_type=JsonObject)]
ByName = Annotated[dict[str, float], Field(sa_type=Numbers)]
NanColumns = Annotated[str, Field(sa_type=EscapedText)]  # names of columns where NULL means NaN

# The columns of an index that covers the list of runs, in its order: a row of `run` takes a whole
# page with its configuration.
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
    """Named like its class, in lower case and without `Row`."""

    model_config = {"defer_build": True}  # rows are written by statements and never validated

    @declared_attr  # type: ignore[arg-type]  # as SQLModel's own
    @classmethod
    def __tablename__(cls) -> str:
        return re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__.removesuffix("Row")).lower()


class Numbered(Table):
    """A row with a number as its key."""

    id: int | None = Field(sa_type=StoredInt, default=None, primary_key=True)


class OfRun(Numbered):
    """One of many rows of a run."""

    run_id: int = Field(sa_type=StoredInt, foreign_key="run.id", ondelete="CASCADE")


class InRun(Table):
    """A row whose key begins with the run."""

    run_id: int = Field(
        sa_type=StoredInt, primary_key=True, foreign_key="run.id", ondelete="CASCADE"
    )


class Recorded(OfRun):
    """What an attempt recorded, in its order."""

    attempt: Int
    step: Int
    # Place in the run's record, counted from 1.
    seq: Int
    # Whether a later attempt repeated the step.
    hidden: Bool


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

    # A UUID, the same in every store that the row is copied to.
    uid: Unique
    # Eight characters to type.
    short: Unique
    name: Text
    # The last report; stalled, lost and unknown are derived when it is read.
    status: str = Field(sa_type=StatusText)
    created_at: Utc
    started_at: UtcOrNone
    ended_at: UtcOrNone
    model: Text
    task: Text
    recipe: Text
    seed: Known
    # Hash of all settings but the name.
    config_hash: Text
    code_version: Text = ""
    # Versions by package.
    versions: dict[str, Any] = Field(default_factory=dict, sa_type=JsonObject)
    device: Text = ""
    # Fingerprint of the problems; paired tests need equal ones.
    dataset_fingerprint: Text = ""
    total_steps: Known = 0
    step: Int = 0
    tokens: Known = 0
    # Seconds without pauses.
    elapsed: Float = 0.0
    # Approximate size of the record, in files of earlier versions.
    bytes: Int = 0
    # The largest `seq` of the run.
    last_seq: Int = 0
    error: Text = ""
    note: Text = ""
    # Archived runs are left out of lists.
    archived: Bool = False
    # A deleted run is hidden until its purge.
    deleted_at: UtcOrNone
    # Once rows are being removed, the run cannot be brought back.
    purging: Bool = False
    sweep_id: int | None = Field(
        sa_type=StoredInt, default=None, foreign_key="sweep.id", ondelete="SET NULL"
    )
    # The run it was cloned from.
    parent_id: int | None = Field(
        sa_type=StoredInt, default=None, foreign_key="run.id", ondelete="SET NULL"
    )
    # `here`, another trainer, or the file of an import: for people, since nothing believes it.
    origin: Text = ""
    # The last column: what follows a text of several pages is slow to read.
    config: Tree


class AttemptRow(OfRun, table=True):
    """One process's work on a run."""

    __table_args__ = (UniqueConstraint("run_id", "n"),)

    # Counted from 1 in the run.
    n: Int
    # The last step that was kept; 0 for a new run.
    from_step: Int
    # A later attempt repeated the steps after this one.
    until_step: IntOrNone = None
    host: Text
    # The machine's boot ID; a pid is meaningless after a reboot.
    boot: Text
    pid: Int
    # Start time of the process: pids are reused.
    pid_start: Text
    started_at: Utc
    # The process was alive then.
    heartbeat: Utc
    # The run advanced then.
    progress_at: Utc
    ended_at: UtcOrNone
    cause: Text = ""
    # Memory of the process at the last heartbeat.
    rss_gb: Float = 0.0
    # Free memory at the last heartbeat.
    free_gb: Float = 0.0
    # Seconds asleep, in files of earlier versions.
    slept_s: Float = 0.0


class RunParamRow(InRun, table=True):
    """One setting of a run, flattened: what filters and differences read."""

    __table_args__ = (Index("run_param_path", "path"), WITHOUT_ROWID)

    path: str = Field(sa_type=EscapedText, primary_key=True)
    value: Any = Field(sa_type=Json, nullable=False)


class RunTagRow(InRun, table=True):
    """A tag on a run."""

    __table_args__ = (Index("run_tag_tag", "tag"), WITHOUT_ROWID)

    tag: str = Field(sa_type=EscapedText, primary_key=True)


class EventRow(Recorded, table=True):
    """An event that no other table holds, as JSON."""

    __table_args__ = (
        Index("event_run", "run_id", "seq"),
        Index("event_kind", "run_id", "kind", "seq"),
    )

    at: Seconds
    kind: Text
    payload: Event = Field(sa_type=EventJson)


class AlertRow(OfRun, table=True):
    """An alert: a rule that held once or for a while."""

    __table_args__ = (UniqueConstraint("run_id", "rule"),)

    rule: Text
    # info, warning or error.
    severity: Text
    first_step: Int
    last_step: Int
    count: Int
    value: FloatOrNone = None
    # The threshold that the value crossed.
    limit: FloatOrNone = None
    # NULL for an alert that is about no single group.
    group_index: IntOrNone = None
    explanation: Text
    remedy: Text
    muted: Bool = False


class KeySetRow(Numbered, table=True):
    """The metric keys that a step reported, as JSON."""

    keys: list[int] = Field(sa_type=JsonList, unique=True)


class StepRow(Recorded, table=True):
    """One finished step."""

    __table_args__ = (
        Index("step_run", "run_id", "step", "attempt", unique=True),
        Index("step_seq", "run_id", "seq"),
    )

    at: Seconds
    # Seconds without pauses.
    elapsed: FloatOrNan
    tokens: Known
    key_set: int = Field(sa_type=StoredInt, foreign_key="key_set.id")
    # The reason for no update, in files of earlier versions; later ones have an event.
    skipped: Text = ""


class UpdatePassRow(Recorded, table=True):
    """One optimiser update of a step."""

    __table_args__ = (
        Index("update_pass_run", "run_id", "step"),
        Index("update_pass_seq", "run_id", "seq"),
    )

    # Counted from 1.
    pass_: int = Field(sa_type=StoredInt, sa_column_kwargs={"name": "pass"})
    # Counted from 0.
    minibatch: Int
    loss: FloatOrAbsent
    clip_low: FloatOrAbsent
    clip_high: FloatOrAbsent
    # Distance to the sampling policy.
    kl_to_old: FloatOrAbsent
    # Before clipping.
    grad_norm: FloatOrAbsent
    learning_rate: FloatOrAbsent
    # The reason for no further pass; empty if there is none.
    stop_reason: Text


class MetricKeyRow(Numbered, table=True):
    """The name of a metric."""

    name: Unique


class MetricRow(InRun, table=True):
    """One value of one metric; NaN is NULL."""

    __table_args__ = (WITHOUT_ROWID,)

    key_id: int = Field(sa_type=StoredInt, primary_key=True, foreign_key="metric_key.id")
    step: Key
    value: FloatOrNan


class MetricSummaryRow(InRun, table=True):
    """First, last and extreme values of one metric of one run."""

    __table_args__ = (Index("metric_summary_max", "key_id", "max"), WITHOUT_ROWID)

    key_id: int = Field(sa_type=StoredInt, primary_key=True, foreign_key="metric_key.id")
    first: FloatOrNone
    first_step: IntOrNone
    last: FloatOrNone
    last_step: IntOrNone
    min: FloatOrNone
    min_step: IntOrNone
    max: FloatOrNone
    max_step: IntOrNone
    # Over the finite values.
    mean: FloatOrNone
    count: Int
    nonfinite: Int


class RolloutGroupRow(Recorded, table=True):
    """The completions of one prompt in one step."""

    __table_args__ = (
        Index("rollout_group_prompt", "run_id", "prompt_hash", "step"),
        Index("rollout_group_origin", "run_id", "origin", "step"),
        Index("rollout_group_seq", "run_id", "seq"),
        Index("rollout_group_tokens", "run_id", "tokens_seq"),
    )

    # Place of the token numbers in the run's record.
    tokens_seq: IntOrNone
    # Place among the groups of the step.
    idx: Int
    # train, eval or pinned.
    origin: Text
    # Equal for the same problem in all steps and runs.
    example_key: Text
    # Equal for the same prompt in all steps.
    prompt_hash: Text
    prompt_text: Text
    # The reference solution.
    target: Text
    sampling: ByName
    reward_mean: FloatOrNone
    reward_std: FloatOrNone
    # The reason for no learning signal; empty where there is one.
    no_signal: Text
    refill: Int
    # Whether tokens.db has its numbers.
    has_tokens: Bool
    nonfinite: NanColumns


class RolloutRow(OfRun, table=True):
    """One completion."""

    __table_args__ = (
        Index("rollout_reward_order", "run_id", "reward"),
        Index(
            "rollout_of_group", "group_id", "run_id", "advantage", "tokens", "kl", "clip_fraction"
        ),
    )

    group_id: int = Field(sa_type=StoredInt, foreign_key="rollout_group.id", ondelete="CASCADE")
    # Place among the rollouts of the group.
    idx: Int
    text: Text
    # Weighted sum of the reward functions.
    reward: FloatOrNone
    advantage: FloatOrNone
    tokens: Known
    # stop, length, stop_string, turns, context or environment_error; empty if unknown.
    finish: Text
    # Share of tokens that were clipped.
    clip_fraction: FloatOrNone
    # Mean over tokens of the distance to the reference.
    kl: FloatOrNone
    nonfinite: NanColumns
    # Turns and replies of the environment; empty for a single turn.
    spans: tuple[Span, ...] = Field(sa_type=Spans)


class RolloutRewardRow(Table, table=True):
    """One reward function's score of one completion."""

    __table_args__ = (WITHOUT_ROWID,)

    rollout_id: int = Field(
        sa_type=StoredInt, primary_key=True, foreign_key="rollout.id", ondelete="CASCADE"
    )
    # Place among the rewards of the rollout.
    position: Key
    function: Text
    # The score before weighting; NULL where the function does not apply.
    value: FloatOrNone
    weight: FloatOrNan
    # The function's own explanation.
    reason: Text
    nonfinite: NanColumns
    # Whether the function raised an error.
    failed: Bool = False


class EvaluationRow(Recorded, table=True):
    """One held-out evaluation."""

    __table_args__ = (Index("evaluation_run", "run_id", "seq"),)

    at: Seconds
    # before, during or after.
    moment: Text
    # sampled or greedy.
    mode: Text
    problems: Int
    samples: Int
    metrics: ByName
    seconds: FloatOrNan


class EvaluationSampleRow(Table, table=True):
    """One held-out problem in one evaluation."""

    __table_args__ = (WITHOUT_ROWID,)

    evaluation_id: int = Field(
        sa_type=StoredInt, primary_key=True, foreign_key="evaluation.id", ondelete="CASCADE"
    )
    # Place among the samples of the evaluation.
    position: Key
    # Equal for the same problem in all steps and runs.
    example_key: Text
    # Number of right samples; NULL if nothing judged them.
    correct: IntOrNone
    samples: Int
    # Means by function.
    rewards: ByName
    # The number of samples behind each mean.
    scored: ByName


class RunLiveRow(InRun, table=True):
    """The board of a run while a viewer's lease is fresh."""

    # Seconds since 1970; no viewer is watching after that.
    lease_until: Float
    # Grows with each change, in files of earlier versions.
    version: Int = 0
    # Seconds since 1970, in files of earlier versions.
    updated_at: Float = 0.0
    board: Tree


class ControlRow(OfRun, table=True):
    """A request to a run from another process."""

    __table_args__ = (
        Index("control_open", "run_id", "attempt", sqlite_where=text("outcome = ''")),
    )

    attempt: Int
    verb: Text
    # The object of the verb, such as a prompt to pin.
    argument: Text = ""
    asked_at: Utc
    # The host and pid of the sender, in files of earlier versions.
    asked_by: Text = ""
    taken_at: UtcOrNone
    # Empty while the request is open.
    outcome: Text = ""


class SweepRow(Numbered, table=True):
    """A grid of settings and seeds."""

    __table_args__ = (Index("sweep_spec", "spec_hash"),)

    # A UUID, the same in every store that the row is copied to.
    uid: Unique
    name: Text
    created_at: Utc
    # Fingerprint of the grid.
    spec_hash: Text
    # Values by path.
    axes: dict[str, list[Any]] = Field(sa_type=JsonObject)


class QueueItemRow(Numbered, table=True):
    """A queued run: waiting, active or ended."""

    __table_args__ = (
        Index("queue_item_state", "state", "id"),
        Index("queue_item_sweep", "sweep_id"),
    )

    sweep_id: int | None = Field(
        sa_type=StoredInt, default=None, foreign_key="sweep.id", ondelete="CASCADE"
    )
    name: Text
    # queued, leased, done, failed, skipped or cancelled.
    state: Text
    created_at: Utc
    # The values of the sweep's axes for this run.
    settings: Tree
    config: Tree
    # Hash of all settings but the name.
    config_hash: Text
    # Host, pid and start of the process as JSON.
    lease_owner: Text = ""
    # Seconds since 1970.
    lease_until: Float = 0.0
    run_id: int | None = Field(
        sa_type=StoredInt, default=None, foreign_key="run.id", ondelete="SET NULL"
    )
    note: Text = ""


class MigrationRow(Table, table=True):
    """A migration that the file has had."""

    n: int | None = Field(sa_type=StoredInt, primary_key=True)
    name: Text
    at: Utc


TABLES = SQLModel.metadata.tables
RUN = TABLES["run"]
ATTEMPT = TABLES["attempt"]
RUN_PARAM = TABLES["run_param"]
RUN_TAG = TABLES["run_tag"]
EVENT = TABLES["event"]
ALERT = TABLES["alert"]
KEY_SET = TABLES["key_set"]
STEP = TABLES["step"]
UPDATE_PASS = TABLES["update_pass"]
METRIC_KEY = TABLES["metric_key"]
METRIC = TABLES["metric"]
METRIC_SUMMARY = TABLES["metric_summary"]
ROLLOUT_GROUP = TABLES["rollout_group"]
ROLLOUT = TABLES["rollout"]
ROLLOUT_REWARD = TABLES["rollout_reward"]
EVALUATION = TABLES["evaluation"]
EVALUATION_SAMPLE = TABLES["evaluation_sample"]
RUN_LIVE = TABLES["run_live"]
CONTROL = TABLES["control"]
SWEEP = TABLES["sweep"]
QUEUE_ITEM = TABLES["queue_item"]

# The columns of fields with another name: in any table, and in one.
RENAMED = {"key": "id", "run": "run_id", "group": "group_id", "index": "idx"}
RENAMED_IN = {
    RUN: {"id": "short"},
    ALERT: {"step": "last_step", "group": "group_index"},
    UPDATE_PASS: {"index": "pass"},
    ROLLOUT_REWARD: {"name": "function"},
}


def column_of(table: TableClause, field: str) -> str:
    """The name of the column of a table that holds a field of a value."""
    return RENAMED_IN.get(table, {}).get(field) or RENAMED.get(field, field)


# Names and SQL of the migrations in order. None is edited after its release. A new file counts as
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

# The index covers the list of runs.
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

# A search reads the texts themselves. Nothing reads metrics of repeated steps. Evaluations without
# an accuracy had 0 right samples where nothing judged them.
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

# The origin is for people: nothing believes it.
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
        # The order counts: among equally good indices SQLite takes the one that was made last.
        options = getattr(row, "__table_args__", ())
        sql += [CreateIndex(index) for index in options if isinstance(index, Index)]
    return tuple(str(statement.compile(dialect=sqlite.dialect())) for statement in sql)
