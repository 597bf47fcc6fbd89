"""The rows of the store's tables for plain sqlite3; written by docs/schema.py."""

from typing import Any, NamedTuple

from experiments.db.texts import Escaped

NEW: Any = None  # the `id` of a row to insert; SQLite gives it the next number


class Run(NamedTuple):
    """One run; the configuration is kept as it was given."""

    id: int
    uid: str
    short: str
    name: Escaped
    status: str
    created_at: str
    model: Escaped
    task: Escaped
    recipe: Escaped
    seed: int
    config_hash: str
    config: str
    started_at: str | None = None
    ended_at: str | None = None
    code_version: Escaped = ""
    versions: str = ""
    device: Escaped = ""
    dataset_fingerprint: Escaped = ""
    total_steps: int = 0
    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0
    bytes: int = 0
    last_seq: int = 0
    error: Escaped = ""
    note: Escaped = ""
    archived: int = 0
    sweep_id: int | None = None
    parent_id: int | None = None


class Attempt(NamedTuple):
    """One process's work on a run."""

    id: int
    run_id: int
    n: int
    from_step: int
    host: str
    boot: str
    pid: int
    pid_start: str
    started_at: str
    heartbeat: str
    progress_at: str
    until_step: int | None = None
    ended_at: str | None = None
    cause: Escaped = ""
    rss_gb: float = 0.0
    free_gb: float = 0.0
    slept_s: float = 0.0


class Event(NamedTuple):
    """An event that no other table holds, as JSON."""

    id: int
    run_id: int
    attempt: int
    step: int
    seq: int
    at: float
    kind: str
    payload: str
    hidden: int = 0


class Alert(NamedTuple):
    """A rule that held, once or for a while."""

    id: int
    run_id: int
    rule: Escaped
    severity: str
    first_step: int
    last_step: int
    count: int  # type: ignore[assignment]  # a column, not the method of tuple
    explanation: Escaped
    remedy: Escaped
    value: float | None = None
    limit: float | None = None
    group_index: int | None = None
    muted: int = 0


class Step(NamedTuple):
    """One finished step."""

    id: int
    run_id: int
    attempt: int
    step: int
    seq: int
    at: float
    tokens: int
    key_set: int
    skipped: Escaped
    hidden: int = 0
    elapsed: float | None = None


class UpdatePass(NamedTuple):
    """One optimiser update of a step."""

    id: int
    run_id: int
    attempt: int
    step: int
    seq: int
    pass_: int
    minibatch: int
    stop_reason: Escaped
    hidden: int = 0
    loss: float | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    kl_to_old: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None


class Metric(NamedTuple):
    """One value of one metric; NaN is NULL."""

    run_id: int
    key_id: int
    step: int
    value: float | None = None


class MetricSummary(NamedTuple):
    """One metric of one run in a line."""

    run_id: int
    key_id: int
    count: int  # type: ignore[assignment]  # a column, not the method of tuple
    nonfinite: int
    first: float | None = None
    first_step: int | None = None
    last: float | None = None
    last_step: int | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    mean: float | None = None


class RolloutGroup(NamedTuple):
    """The completions of one prompt in one step."""

    id: int
    run_id: int
    attempt: int
    step: int
    seq: int
    idx: int
    origin: str
    example_key: Escaped
    prompt_hash: Escaped
    prompt_text: Escaped
    target: Escaped
    sampling: str
    no_signal: Escaped
    refill: int
    has_tokens: int
    nonfinite: str
    hidden: int = 0
    tokens_seq: int | None = None
    reward_mean: float | None = None
    reward_std: float | None = None


class Rollout(NamedTuple):
    """One completion."""

    id: int
    run_id: int
    group_id: int
    idx: int
    text: Escaped
    tokens: int
    finish: str
    nonfinite: str
    reward: float | None = None
    advantage: float | None = None
    clip_fraction: float | None = None
    kl: float | None = None
    spans: str = ""


class RolloutReward(NamedTuple):
    """One reward function's score of one completion."""

    rollout_id: int
    position: int
    function: Escaped
    reason: Escaped
    nonfinite: str
    value: float | None = None
    weight: float | None = None


class Evaluation(NamedTuple):
    """One held-out evaluation."""

    id: int
    run_id: int
    attempt: int
    step: int
    seq: int
    at: float
    moment: str
    mode: str
    problems: int
    samples: int
    metrics: str
    hidden: int = 0
    seconds: float | None = None


class EvaluationSample(NamedTuple):
    """One held-out problem in one evaluation."""

    evaluation_id: int
    position: int
    example_key: Escaped
    correct: int
    samples: int
    rewards: str


class RunLive(NamedTuple):
    """The board of a run while a viewer's lease is fresh."""

    run_id: int
    lease_until: float
    version: int
    updated_at: float
    board: str


class Sweep(NamedTuple):
    """A grid of settings and seeds."""

    id: int
    uid: str
    name: Escaped
    created_at: str
    spec_hash: str
    axes: str


class QueueItem(NamedTuple):
    """A queued run: waiting, active or ended."""

    id: int
    name: Escaped
    state: str
    created_at: str
    settings: str
    config: str
    config_hash: str
    sweep_id: int | None = None
    lease_owner: str = ""
    lease_until: float = 0.0
    run_id: int | None = None
    note: Escaped = ""


TABLES = {
    Run: "run",
    Attempt: "attempt",
    Event: "event",
    Alert: "alert",
    Step: "step",
    UpdatePass: "update_pass",
    Metric: "metric",
    MetricSummary: "metric_summary",
    RolloutGroup: "rollout_group",
    Rollout: "rollout",
    RolloutReward: "rollout_reward",
    Evaluation: "evaluation",
    EvaluationSample: "evaluation_sample",
    RunLive: "run_live",
    Sweep: "sweep",
    QueueItem: "queue_item",
}
NAMES = (
    *TABLES.values(),
    "run_param",
    "run_tag",
    "key_set",
    "metric_key",
    "metric_hidden",
    "control",
    "migration",
)
