"""Writes docs/schema.md from the store itself: python docs/schema.py.

Tables, columns, keys and indices come from a fresh store, sentences on tables from their rows'
docstrings; a column without a meaning here is an error, so the page cannot go stale.
"""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sqlmodel import SQLModel

from experiments.db import tables
from experiments.db.connection import open_writer
from experiments.db.migrations import MIGRATIONS, migrate
from experiments.db.tokens import CODEC, FIELDS, TokenFile

PAGE = Path(__file__).with_name("schema.md")

MEANING = {
    "id": "Key of the row.", "run_id": "The run.", "attempt": "The attempt that did it.",
    "step": "The training step.", "seq": "Place in the run's record, from 1 on.",
    "at": "Seconds since 1970.", "hidden": "1 where a later attempt did the step again.",
    "uid": "UUIDv7; the same in every store that the row is copied to.", "name": "For people.",
    "note": "Free text.", "tokens": "Tokens.", "elapsed": "Seconds without pauses.",
    "config": "The configuration as it was given, JSON.",
    "config_hash": "Fingerprint of the configuration without its name.",
    "created_at": "ISO, UTC.", "started_at": "ISO, UTC.", "ended_at": "ISO, UTC.",
    "reward": "Weighted sum of the reward functions.", "mode": "sampled or greedy.",
    "nonfinite": "Names of the columns whose NULL is NaN and not absence.",
    "example_key": "The problem, the same over steps and runs.", "verb": "What is asked.",
    "number": "The value as a number, for comparisons; NULL for texts.", "path": "section.name",
    "samples": "Samples of it.", "count": "How many.", "severity": "info, warning or error.",
    "value": "The value.", "key_id": "The metric.", "weight": "Its weight.",
    "reason": "Why, in the function's words.", "position": "Place in its list.",
}  # fmt: skip

OF = {
    "run.short": "Eight characters to type.",
    "run.name": "Speakable, or chosen; unique while it can be.",
    "run.status": "As last reported; stalled, lost and unknown are derived when it is read.",
    "run.model": "`model.path`.", "run.task": "`task.name`.", "run.recipe": "The algorithm.",
    "run.seed": "`seed`.", "run.code_version": "grpo-tui's version.",
    "run.versions": "Versions of the packages, JSON.", "run.device": "What computed.",
    "run.dataset_fingerprint": "Of the problems; paired tests need equal ones.",
    "run.total_steps": "Steps asked for.", "run.step": "Last finished step.",
    "run.bytes": "Size of what was recorded, about.", "run.last_seq": "Last stored `seq`.",
    "run.error": "Why it failed.", "run.archived": "1 hides it from lists.",
    "run.parent_id": "The run it was cloned from.", "run.sweep_id": "The sweep it belongs to.",
    "attempt.n": "1, 2, …", "attempt.from_step": "The step it went on from.",
    "attempt.until_step": "Steps beyond were done again by a later attempt.",
    "attempt.host": "The machine.", "attempt.boot": "The machine's boot, to know a reused pid.",
    "attempt.pid": "The process.", "attempt.pid_start": "When the process began, for the same.",
    "attempt.heartbeat": "Last sign of life of the process.",
    "attempt.progress_at": "Last progress of the run.", "attempt.cause": "How it ended.",
    "attempt.rss_gb": "Memory at the last heartbeat.",
    "attempt.free_gb": "Memory that was free then.",
    "attempt.slept_s": "Seconds that the machine slept.",
    "run_param.value": "JSON.", "run_tag.tag": "The tag.", "event.kind": "Its class.",
    "event.payload": "The event, JSON.", "alert.rule": "The rule.",
    "alert.first_step": "Where it held first.", "alert.last_step": "Where it held last.",
    "alert.limit": "What it was held against.", "alert.group_index": "The group, if it is one.",
    "alert.explanation": "What it means.", "alert.remedy": "What to do.",
    "alert.muted": "1 where the user silenced it.", "key_set.keys": "Metric keys, JSON.",
    "step.key_set": "Which metrics it reported.", "step.skipped": "Why no update was made.",
    "update_pass.pass": "From 1 on.", "update_pass.minibatch": "From 0 on.",
    "update_pass.loss": "The objective.", "update_pass.clip_low": "Share clipped low.",
    "update_pass.clip_high": "Share clipped high.",
    "update_pass.kl_to_old": "Distance to the sampling policy.",
    "update_pass.grad_norm": "Before clipping.", "update_pass.learning_rate": "In this update.",
    "update_pass.stop_reason": "Why passes ended here.", "metric_key.name": "As the trainer says.",
    "metric_summary.first": "First finite value.", "metric_summary.first_step": "Its step.",
    "metric_summary.last": "Last finite value.", "metric_summary.last_step": "Its step.",
    "metric_summary.min": "Smallest.", "metric_summary.min_step": "Its step.",
    "metric_summary.max": "Largest.", "metric_summary.max_step": "Its step.",
    "metric_summary.mean": "Mean of the finite values.",
    "metric_summary.nonfinite": "How many are NaN or infinite.",
    "rollout_group.tokens_seq": "`seq` of the token numbers.",
    "rollout_group.idx": "Place in the step.", "rollout_group.origin": "train, eval or pinned.",
    "rollout_group.prompt_hash": "The prompt, the same over steps.",
    "rollout_group.prompt_text": "The prompt as the model saw it.",
    "rollout_group.target": "The expected answer.", "rollout_group.sampling": "JSON.",
    "rollout_group.reward_mean": "Over its rollouts.", "rollout_group.reward_std": "The same.",
    "rollout_group.no_signal": "Why it taught nothing.", "rollout_group.refill": "Refill round.",
    "rollout_group.has_tokens": "1 where tokens.db has its numbers.",
    "rollout.group_id": "The group.", "rollout.idx": "Place in the group.",
    "rollout.text": "The completion.", "rollout.advantage": "What it was worth.",
    "rollout.finish": "stop, length or stop_string.",
    "rollout.clip_fraction": "Share of its tokens that were clipped.",
    "rollout.kl": "Mean distance to the reference.", "rollout_reward.rollout_id": "The rollout.",
    "rollout_reward.function": "The reward function.",
    "rollout_reward.value": "Raw score; NULL where it does not apply.",
    "evaluation.moment": "before, during or after.", "evaluation.problems": "Problems asked.",
    "evaluation.samples": "Samples per problem.", "evaluation.metrics": "JSON.",
    "evaluation.seconds": "It took.", "evaluation_sample.evaluation_id": "The evaluation.",
    "evaluation_sample.correct": "Samples that were right.",
    "evaluation_sample.rewards": "Means by function, JSON.",
    "run_live.lease_until": "Seconds since 1970; no viewer looks after that.",
    "run_live.version": "Grows with each change.", "run_live.updated_at": "Seconds since 1970.",
    "run_live.board": "JSON.", "control.argument": "Of the verb.",
    "control.asked_at": "ISO, UTC.", "control.asked_by": "Who.",
    "control.taken_at": "When the run took it.", "control.outcome": "Empty while it is open.",
    "sweep.spec_hash": "Fingerprint of the grid.", "sweep.axes": "Paths and values, JSON.",
    "queue_item.sweep_id": "The sweep, if it is of one.", "queue_item.state": "queued, leased, "
    "done, failed, skipped or cancelled.", "queue_item.settings": "Of its point, JSON.",
    "queue_item.lease_owner": "Host, pid and its start, JSON.",
    "queue_item.lease_until": "Seconds since 1970.", "queue_item.run_id": "The run it became.",
    "migration.n": "Its number.", "migration.name": "Its name.", "migration.at": "ISO, UTC.",
}  # fmt: skip

HEAD = """# The store's schema

One SQLite file; per run a folder beside it, `runs/<id>/`, with checkpoints, log and `tokens.db`.
Written by `python docs/schema.py`; a test compares it with the store.

The file is in WAL mode, its application id is `GRPT`, and `PRAGMA user_version` counts the
migrations that it has had: {migrations}.

Texts are escaped so that NUL and lone surrogates
survive: `\\x00` and `\\udXXX`, with backslashes before such a sequence doubled. NaN is stored as
NULL, infinities as they are. Rows of steps that a later attempt did again stay, hidden.
"""

TAIL = """
## Full-text index

`rollout_words` over `rollout.text` and `prompt_words` over `rollout_group.prompt_text` are FTS5
tables without content of their own; their rowid is the row's `id`.

## tokens.db

One table:

    {table}

`seq` is that of the group's row, `codec` is {codec} so far, `data` is zlib
over a JSON header and byte planes (all first bytes of an array, then all second ones): prompt ids,
ids, ends, `old` as float32, then {fields}
one array per pass, and `sampled` where top-p and the like were used.
Log-probabilities other than `old` are float16 differences to it, so that
clipping is seen as it was; what does not fit in float16 is kept as float32. A blob is committed
before the row that points to it.
"""


def meaning(table: str, column: str) -> str:
    """What a column holds; KeyError where nobody wrote it down."""
    return OF.get(f"{table}.{column}") or MEANING[column]


def sentences() -> dict[str, str]:
    """What each table holds, from the docstrings of its rows."""
    found = {"migration": "A migration that the file has had."}
    for row in vars(tables).values():
        if isinstance(row, type) and issubclass(row, SQLModel) and hasattr(row, "__table__"):
            found[str(row.__tablename__)] = str(row.__doc__)
    return found


def render() -> str:
    """The page."""
    names = ", ".join(f"`{item.name}`" for item in MIGRATIONS)
    parts = [HEAD.format(migrations=names)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with closing(open_writer(path, create=True)) as conn:
            migrate(conn, path)
            parts += [_table(conn, name, text) for name, text in _in_order(conn)]
        file = TokenFile(path.with_name("tokens.db"))
        file.write([(1, b"")])
        file.close()
        with closing(sqlite3.connect(file.path)) as conn:
            ((table,),) = conn.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")
    fields = ", ".join(f"`{name}`" for name in FIELDS)
    signature = table.removeprefix("CREATE TABLE ")
    parts.append(TAIL.format(table=signature, codec=CODEC, fields=fields))
    return "\n".join(parts)


def _in_order(conn: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
    known = sentences()
    return [(row[0], known[row[0]]) for row in rows if "_words" not in row[0]]


def _table(conn: sqlite3.Connection, name: str, text: str) -> str:
    lines = [f"## {name}", "", text, "", "| column | type | | what |", "| --- | --- | --- | --- |"]
    targets = {row[3]: f"→ {row[2]}" for row in conn.execute(f"PRAGMA foreign_key_list({name})")}
    for _, column, kind, needed, _, key in conn.execute(f"PRAGMA table_info({name})"):
        marks = ["key"] * bool(key) + ["may be NULL"] * (not needed and not key)
        marks += [targets[column]] if column in targets else []
        lines.append(
            f"| `{column}` | {kind.lower()} | {', '.join(marks)} | {meaning(name, column)} |"
        )
    indices = [
        "(" + ", ".join(row[2] for row in conn.execute(f"PRAGMA index_info({index[1]})")) + ")"
        for index in conn.execute(f"PRAGMA index_list({name})")
        if index[3] != "pk"
    ]
    if indices:
        lines += ["", "Indices: " + ", ".join(sorted(indices)) + "."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
