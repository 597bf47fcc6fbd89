"""The store's tables as SQLModel rows; they never leave `experiments`."""

from typing import ClassVar

from sqlmodel import Field, SQLModel


class RunRow(SQLModel, table=True):
    """One run; the configuration is kept as it was given."""

    __tablename__: ClassVar[str] = "run"

    id: int | None = Field(default=None, primary_key=True)
    uid: str = Field(unique=True)
    short: str = Field(unique=True)
    name: str
    status: str
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    model: str
    task: str
    recipe: str
    seed: int
    config: str
    config_hash: str
    code_version: str = ""
    versions: str = ""
    device: str = ""
    dataset_fingerprint: str = ""
    total_steps: int = 0
    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0
    bytes: int = 0
    last_seq: int = 0
    error: str = ""
    note: str = ""
    archived: int = 0
    sweep_id: int | None = Field(default=None, foreign_key="sweep.id", ondelete="SET NULL")
    parent_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL")


class AttemptRow(SQLModel, table=True):
    """One process's work on a run."""

    __tablename__: ClassVar[str] = "attempt"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    n: int
    from_step: int
    until_step: int | None = None
    host: str
    boot: str
    pid: int
    pid_start: str
    started_at: str
    heartbeat: str
    progress_at: str
    ended_at: str | None = None
    cause: str = ""
    rss_gb: float = 0.0
    free_gb: float = 0.0
    slept_s: float = 0.0


class RunParamRow(SQLModel, table=True):
    """One setting of a run, flattened: what filters and differences read."""

    __tablename__: ClassVar[str] = "run_param"
    __table_args__: ClassVar[dict[str, bool]] = {"sqlite_with_rowid": False}

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    path: str = Field(primary_key=True)
    value: str
    number: float | None = None


class RunTagRow(SQLModel, table=True):
    """A tag on a run."""

    __tablename__: ClassVar[str] = "run_tag"
    __table_args__: ClassVar[dict[str, bool]] = {"sqlite_with_rowid": False}

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    tag: str = Field(primary_key=True)


class EventRow(SQLModel, table=True):
    """An event that no other table holds, as JSON."""

    __tablename__: ClassVar[str] = "event"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    seq: int
    at: float
    step: int
    kind: str
    payload: str
    hidden: int


class AlertRow(SQLModel, table=True):
    """A rule that held, once or for a while."""

    __tablename__: ClassVar[str] = "alert"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    rule: str
    severity: str
    first_step: int
    last_step: int
    count: int
    value: float | None = None
    limit: float | None = None
    group_index: int | None = None
    explanation: str
    remedy: str
    muted: int


class KeySetRow(SQLModel, table=True):
    """The metric keys that a step reported, as JSON."""

    __tablename__: ClassVar[str] = "key_set"

    id: int | None = Field(default=None, primary_key=True)
    keys: str = Field(unique=True)


class StepRow(SQLModel, table=True):
    """One finished step."""

    __tablename__: ClassVar[str] = "step"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    step: int
    seq: int
    at: float
    elapsed: float | None = None
    tokens: int
    key_set: int = Field(foreign_key="key_set.id")
    skipped: str
    hidden: int


class UpdatePassRow(SQLModel, table=True):
    """One optimiser update of a step."""

    __tablename__: ClassVar[str] = "update_pass"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    step: int
    seq: int
    pass_: int = Field(sa_column_kwargs={"name": "pass"})
    minibatch: int
    loss: float | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    kl_to_old: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    stop_reason: str
    hidden: int


class MetricKeyRow(SQLModel, table=True):
    """The name of a metric."""

    __tablename__: ClassVar[str] = "metric_key"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)


class MetricRow(SQLModel, table=True):
    """One value of one metric; NaN is NULL."""

    __tablename__: ClassVar[str] = "metric"
    __table_args__: ClassVar[dict[str, bool]] = {"sqlite_with_rowid": False}

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    key_id: int = Field(primary_key=True, foreign_key="metric_key.id")
    step: int = Field(primary_key=True)
    value: float | None = None


class MetricHiddenRow(SQLModel, table=True):
    """Values of steps that a later attempt did again."""

    __tablename__: ClassVar[str] = "metric_hidden"
    __table_args__: ClassVar[dict[str, bool]] = {"sqlite_with_rowid": False}

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    attempt: int = Field(primary_key=True)
    key_id: int = Field(primary_key=True, foreign_key="metric_key.id")
    step: int = Field(primary_key=True)
    value: float | None = None


class MetricSummaryRow(SQLModel, table=True):
    """One metric of one run in a line."""

    __tablename__: ClassVar[str] = "metric_summary"
    __table_args__: ClassVar[dict[str, bool]] = {"sqlite_with_rowid": False}

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    key_id: int = Field(primary_key=True, foreign_key="metric_key.id")
    first: float | None = None
    first_step: int | None = None
    last: float | None = None
    last_step: int | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    mean: float | None = None
    count: int
    nonfinite: int


class RolloutGroupRow(SQLModel, table=True):
    """The completions of one prompt in one step."""

    __tablename__: ClassVar[str] = "rollout_group"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    step: int
    seq: int
    tokens_seq: int | None = None
    idx: int
    origin: str
    example_key: str
    prompt_hash: str
    prompt_text: str
    target: str
    sampling: str
    reward_mean: float | None = None
    reward_std: float | None = None
    no_signal: str
    refill: int
    has_tokens: int
    nonfinite: str
    hidden: int


class RolloutRow(SQLModel, table=True):
    """One completion."""

    __tablename__: ClassVar[str] = "rollout"

    id: int | None = Field(default=None, primary_key=True)
    group_id: int = Field(foreign_key="rollout_group.id", ondelete="CASCADE")
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    idx: int
    text: str
    reward: float | None = None
    advantage: float | None = None
    tokens: int
    finish: str
    clip_fraction: float | None = None
    kl: float | None = None
    nonfinite: str


class RolloutRewardRow(SQLModel, table=True):
    """One reward function's score of one completion."""

    __tablename__: ClassVar[str] = "rollout_reward"
    __table_args__: ClassVar[dict[str, bool]] = {"sqlite_with_rowid": False}

    rollout_id: int = Field(primary_key=True, foreign_key="rollout.id", ondelete="CASCADE")
    position: int = Field(primary_key=True)
    function: str
    value: float | None = None
    weight: float | None = None
    reason: str
    nonfinite: str


class EvaluationRow(SQLModel, table=True):
    """One held-out evaluation."""

    __tablename__: ClassVar[str] = "evaluation"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    step: int
    seq: int
    at: float
    moment: str
    mode: str
    problems: int
    samples: int
    metrics: str
    seconds: float | None = None
    hidden: int


class EvaluationSampleRow(SQLModel, table=True):
    """One held-out problem in one evaluation."""

    __tablename__: ClassVar[str] = "evaluation_sample"
    __table_args__: ClassVar[dict[str, bool]] = {"sqlite_with_rowid": False}

    evaluation_id: int = Field(primary_key=True, foreign_key="evaluation.id", ondelete="CASCADE")
    position: int = Field(primary_key=True)
    example_key: str
    correct: int
    samples: int
    rewards: str


class RunLiveRow(SQLModel, table=True):
    """The board of a run while a viewer's lease is fresh."""

    __tablename__: ClassVar[str] = "run_live"

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    lease_until: float
    version: int
    updated_at: float
    board: str


class ControlRow(SQLModel, table=True):
    """A request to a run from another process."""

    __tablename__: ClassVar[str] = "control"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    verb: str
    argument: str = ""
    asked_at: str
    asked_by: str
    taken_at: str | None = None
    outcome: str = ""


class SweepRow(SQLModel, table=True):
    """A grid of settings and seeds."""

    __tablename__: ClassVar[str] = "sweep"

    id: int | None = Field(default=None, primary_key=True)
    uid: str = Field(unique=True)
    name: str
    created_at: str
    spec_hash: str
    axes: str


class QueueItemRow(SQLModel, table=True):
    """A run that waits for its turn, or had it."""

    __tablename__: ClassVar[str] = "queue_item"

    id: int | None = Field(default=None, primary_key=True)
    sweep_id: int | None = Field(default=None, foreign_key="sweep.id", ondelete="CASCADE")
    name: str
    state: str
    created_at: str
    settings: str
    config: str
    config_hash: str
    lease_owner: str = ""
    lease_until: float = 0.0
    run_id: int | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL")
    note: str = ""
