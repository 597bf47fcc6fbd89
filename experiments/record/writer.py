"""Convert events to rows: one transaction of the recorder."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from grpo_engine import events as ev
from grpo_tui.experiments.db import summaries
from grpo_tui.experiments.db.connection import begin, hurried
from grpo_tui.experiments.db.numbers import dumps, known
from grpo_tui.experiments.db.paths import tokens_file
from grpo_tui.experiments.db.statements import REPLACE, Row, insert, insert_into
from grpo_tui.experiments.db.texts import escape, iso
from grpo_tui.experiments.db.tokens import TokenFile, encode
from grpo_tui.experiments.read.facts import SOURCES
from grpo_tui.experiments.record.rows import (
    GroupRows,
    Item,
    RecordedParts,
    Rows,
    Scored,
    of_numbers,
    recorded,
)  # fmt: skip
from grpo_tui.experiments.values import TokenRow

NAP_S = 5e-4
REPLACED = ("metric", "metric_summary")
OF_THE_FIRST_ALERT = {"run_id", "rule", "first_step", "count", "muted"}  # kept when it is repeated


class RunWriter:
    """Writes the events of one attempt, one transaction per call."""

    def __init__(
        self, conn: sqlite3.Connection, run: int, attempt: int, folder: Path, parts: RecordedParts
    ) -> None:
        self.conn, self.run, self.attempt, self.parts = conn, run, attempt, parts
        self.groups = GroupRows(run, attempt, parts)
        self.tokens = TokenFile(tokens_file(folder))
        self._open: dict[tuple[int, str, int], Scored] = {}
        self._keys: dict[str, int] = {}
        self._sets: dict[tuple[str, ...], int] = {}
        self._summaries: dict[int, summaries.Summary] | None = None
        self._skipped: dict[int, str] = {}

    def write(self, items: Sequence[Item], limit: float) -> float:
        """Commit the events and return the seconds spent waiting for the lock.

        Rows are prepared before taking the lock, because another recorder may be waiting for it.
        """
        before = dict(self._open)
        try:
            numbers = self._take_groups(items)
            blobs = self._blobs(items)
            self.tokens.write(blobs)
            grouped = any(isinstance(item.event, ev.GroupScored) for item in items)
            last = self._last_ids() if grouped else (0, 0)
            rows = self._group_rows(items, numbers, last)
            if blobs:
                # a thread that just slept is rarely preempted while it holds the lock
                time.sleep(NAP_S)
            with hurried():
                waited = begin(self.conn, limit)
                try:
                    # another recorder may have written in the meantime
                    if grouped and (now := self._last_ids()) != last:
                        rows = self._group_rows(items, numbers, now)
                    rows.sizes += sum(len(blob) for _, blob in blobs)
                    self._insert(items, numbers, rows)
                    self.conn.execute("COMMIT")
                except BaseException:
                    self._roll_back()
                    raise
        except BaseException:
            self._open = before
            raise
        for item in items:
            if isinstance(item.event, ev.StepFinished):
                done = item.event.step
                self._open = {key: value for key, value in self._open.items() if key[0] > done}
        return waited

    def use(self, conn: sqlite3.Connection) -> None:
        """Write through this connection from here on."""
        if conn is not self.conn:
            self.conn = conn
            self._keys, self._sets, self._summaries = {}, {}, None

    def stored(self, seqs: Sequence[int]) -> set[int]:
        """Return which of these sequence numbers of the run are already in the store."""
        found: set[int] = set()
        marks = ",".join("?" * len(seqs))
        for column in SOURCES:
            name, table = column.name, column.table.name
            rows = self.conn.execute(
                f"SELECT {name} FROM {table} WHERE run_id = ? AND {name} IN ({marks})",
                (self.run, *seqs),
            )
            found.update(seq for (seq,) in rows)
        return found

    def reserve(self, seq: int) -> None:
        """Reserve the sequence numbers up to this one for events that arrive later."""
        self.conn.execute(
            "UPDATE run SET last_seq = max(last_seq, ?) WHERE id = ?", (seq, self.run)
        )

    def _roll_back(self) -> None:
        if self.conn.in_transaction:
            self.conn.execute("ROLLBACK")
        self._keys, self._sets, self._summaries = {}, {}, None

    def close(self) -> None:
        self.tokens.close()

    # -- groups and their tokens ------------------------------------------------------------

    def _take_groups(self, items: Sequence[Item]) -> dict[int, Scored]:
        """Pair groups with their token numbers, keyed by the sequence number of either."""
        pairs: dict[int, Scored] = {}
        for item in items:
            event = item.event
            if isinstance(event, ev.GroupScored):
                key = (event.step, event.group.origin, event.group.index)
                pairs[item.seq] = self._open[key] = Scored(item.seq, event.group)
            elif isinstance(event, ev.TokensScored):
                key = (event.step, event.origin, event.group)
                if key in self._open and self._open[key].numbers is None:
                    old = self._open[key]
                    pair = Scored(old.seq, old.group, event, item.seq)
                    pairs[old.seq] = pairs[item.seq] = self._open[key] = pair
        return pairs

    def _blobs(self, items: Sequence[Item]) -> list[tuple[int, bytes]]:
        touched: dict[int, Scored] = {}
        for item in items:
            event = item.event
            if not isinstance(event, ev.GroupScored | ev.TokensScored):
                continue
            origin = event.origin if isinstance(event, ev.TokensScored) else event.group.origin
            if self.parts.tokens_of(event.step, origin):
                for pair in self._open.values():
                    if item.seq in (pair.seq, pair.numbers_seq):
                        touched[pair.seq] = pair
        return [(seq, token_blob(pair)) for seq, pair in touched.items()]

    # -- rows -----------------------------------------------------------------------------------

    def _last_ids(self) -> tuple[int, int]:
        last_group, last_rollout = (
            self.conn.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0]
            for table in ("rollout_group", "rollout")
        )
        return last_group, last_rollout

    def _group_rows(
        self, items: Sequence[Item], pairs: Mapping[int, Scored], last: tuple[int, int]
    ) -> Rows:
        """Build the rows of groups; ids continue from the last stored ones."""
        rows = Rows()
        for item in items:
            if isinstance(item.event, ev.GroupScored):
                self.groups.add(rows, item.event.step, pairs[item.seq], *last)
        return rows

    def _insert(self, items: Sequence[Item], pairs: Mapping[int, Scored], rows: Rows) -> None:
        inserted: set[int] = set()
        for item in items:
            match item.event:
                case ev.GroupScored():
                    inserted.add(item.seq)
                case ev.TokensScored():
                    if item.seq not in pairs:
                        self._event(rows, item)
                    elif pairs[item.seq].seq not in inserted:
                        self._late_numbers(pairs[item.seq])
                case ev.PassFinished():
                    self._pass(rows, item, item.event)
                case ev.StepFinished():
                    self._step(rows, item, item.event)
                case ev.EvaluationFinished():
                    self._evaluation(rows, item, item.event)
                case _:
                    self._other(rows, item)
        self._flush(rows)
        self._totals(items, rows.sizes)

    def _flush(self, rows: Rows) -> None:
        if self._summaries is not None:
            rows.tables["metric_summary"] = [
                self._summaries[key].row(self.run, key)
                for key in {row["key_id"] for row in rows.tables["metric"]}
            ]
        for table, found in rows.tables.items():
            insert(self.conn, table, found, REPLACE if table in REPLACED else "INSERT")

    def _late_numbers(self, pair: Scored) -> None:
        """Add token numbers to a group that an earlier transaction wrote."""
        assert pair.numbers is not None
        self.conn.execute(
            "UPDATE rollout_group SET tokens_seq = ? WHERE run_id = ? AND seq = ?",
            (pair.numbers_seq, self.run, pair.seq),
        )
        numbers = {row.index: row for row in pair.numbers.numbers}
        for completion in pair.group.rollouts:
            if completion.index in numbers:
                found = of_numbers(completion, numbers[completion.index])
                self.conn.execute(
                    f"UPDATE rollout SET {', '.join(f'{name} = ?' for name in found)} WHERE "
                    "group_id = (SELECT id FROM rollout_group WHERE run_id = ? AND seq = ?) "
                    "AND idx = ?",
                    (*found.values(), self.run, pair.seq, completion.index),
                )

    def _pass(self, rows: Rows, item: Item, event: ev.PassFinished) -> None:
        rows.tables["update_pass"].append({
            **self._recorded(item), "pass": event.index, "minibatch": event.minibatch,
            "loss": known(event.loss), "clip_low": known(event.clip_low),
            "clip_high": known(event.clip_high), "kl_to_old": known(event.kl_to_old),
            "grad_norm": known(event.grad_norm), "learning_rate": known(event.learning_rate),
            "stop_reason": escape(event.stop_reason),
        })  # fmt: skip

    def _step(self, rows: Rows, item: Item, event: ev.StepFinished) -> None:
        self._metrics(rows, event.step, event.metrics)
        row = {
            **self._recorded(item), "at": item.at, "elapsed": known(event.elapsed),
            "tokens": event.tokens, "key_set": self._key_set(tuple(event.metrics)),
            "skipped": escape(self._skipped.pop(event.step, "")),
        }  # fmt: skip
        insert(self.conn, "step", [row], REPLACE)
        rows.sizes += 60 + 25 * len(event.metrics)

    def _evaluation(self, rows: Rows, item: Item, event: ev.EvaluationFinished) -> None:
        row = {
            **self._recorded(item), "at": item.at, "moment": event.moment, "mode": event.mode,
            "problems": event.problems, "samples": event.samples, "metrics": dumps(event.metrics),
            "seconds": known(event.seconds),
        }  # fmt: skip
        cursor = self.conn.execute(insert_into("evaluation", row), tuple(row.values()))
        samples = [
            {
                "evaluation_id": cursor.lastrowid, "position": position,
                "example_key": escape(one.example_key), "correct": one.correct,
                "samples": one.samples, "rewards": dumps(one.rewards),
            }
            for position, one in enumerate(event.rows)
        ]  # fmt: skip
        insert(self.conn, "evaluation_sample", samples)
        self._metrics(rows, event.step, ev.evaluation_series(event))
        rows.sizes += 200 + 80 * len(event.rows)

    def _other(self, rows: Rows, item: Item) -> None:
        event = item.event
        if isinstance(event, ev.StepSkipped):
            self._skipped[event.step] = event.reason
            self.conn.execute(
                "UPDATE step SET skipped = ? WHERE run_id = ? AND step = ? AND attempt = ?",
                (escape(event.reason), self.run, event.step, self.attempt),
            )
        elif isinstance(event, ev.AlertRaised):
            self._alert(event)
        elif isinstance(event, ev.RunStarted):
            self._started(event, item.at)
        elif isinstance(event, ev.RunPaused | ev.RunResumed):
            status = "paused" if isinstance(event, ev.RunPaused) else "running"
            self.conn.execute("UPDATE run SET status = ? WHERE id = ?", (status, self.run))
        elif isinstance(event, ev.RunFinished):
            self._ended(event.reason, "", item.at)
        elif isinstance(event, ev.RunFailed):
            self._ended("failed", escape(f"{event.error}: {event.message}"), item.at)
        self._event(rows, item)

    def _recorded(self, item: Item) -> Row:
        return recorded(self.run, self.attempt, item.event.step, item.seq)

    def _event(self, rows: Rows, item: Item) -> None:
        event = item.event
        payload = json.dumps(ev.to_json(event), separators=(",", ":"), allow_nan=False)
        rows.tables["event"].append({
            **self._recorded(item), "at": item.at, "kind": ev.kind_of(event), "payload": payload,
        })  # fmt: skip
        rows.sizes += 60 + len(payload)

    def _started(self, event: ev.RunStarted, at: float) -> None:
        self.conn.execute(
            "UPDATE run SET status = 'running', started_at = coalesce(started_at, ?), "
            "ended_at = NULL, error = '', total_steps = ?, device = ?, versions = ?, "
            "dataset_fingerprint = ?, recipe = ? WHERE id = ?",
            (
                iso(at), event.total_steps, escape(event.device), dumps(event.versions),
                escape(event.dataset_fingerprint), escape(event.recipe), self.run,
            ),
        )  # fmt: skip

    def _ended(self, status: str, error: str, at: float) -> None:
        self.conn.execute(
            "UPDATE run SET status = ?, error = ?, ended_at = ? WHERE id = ?",
            (status, error, iso(at), self.run),
        )

    def _alert(self, event: ev.AlertRaised) -> None:
        row = {
            "run_id": self.run, "rule": escape(event.rule), "severity": event.severity,
            "first_step": event.step, "last_step": event.step, "count": 1,
            "value": known(event.value), "limit": known(event.limit), "group_index": event.group,
            "explanation": escape(event.explanation), "remedy": escape(event.remedy), "muted": 0,
        }  # fmt: skip
        latest = ", ".join(
            f'"{name}" = excluded."{name}"' for name in row if name not in OF_THE_FIRST_ALERT
        )
        self.conn.execute(
            f"{insert_into('alert', row)} ON CONFLICT (run_id, rule) DO UPDATE "
            f"SET count = count + 1, {latest}",
            tuple(row.values()),
        )

    # -- metrics --------------------------------------------------------------------------------

    def _metrics(self, rows: Rows, step: int, values: Mapping[str, float]) -> None:
        if self._summaries is None:
            self._summaries = summaries.load(self.conn, self.run)
        for name, value in values.items():
            key = self._keys.get(name) or self._key(name)
            number = float(value)
            rows.tables["metric"].append(
                {"run_id": self.run, "key_id": key, "step": step, "value": known(number)}
            )
            if key not in self._summaries:
                self._summaries[key] = summaries.Summary()
            self._summaries[key].add(step, number)

    def _key(self, name: str) -> int:
        escaped = escape(name)
        self.conn.execute("INSERT OR IGNORE INTO metric_key (name) VALUES (?)", (escaped,))
        found = self.conn.execute("SELECT id FROM metric_key WHERE name = ?", (escaped,))
        self._keys[name] = key = int(found.fetchone()[0])
        return key

    def _key_set(self, names: tuple[str, ...]) -> int:
        if names not in self._sets:
            keys = json.dumps([self._keys.get(name) or self._key(name) for name in names])
            self.conn.execute("INSERT OR IGNORE INTO key_set (keys) VALUES (?)", (keys,))
            found = self.conn.execute("SELECT id FROM key_set WHERE keys = ?", (keys,))
            self._sets[names] = int(found.fetchone()[0])
        return self._sets[names]

    def _totals(self, items: Sequence[Item], size: int) -> None:
        last = items[-1]
        steps = [item.event for item in items if isinstance(item.event, ev.StepFinished)]
        self.conn.execute(
            "UPDATE run SET bytes = bytes + ?, last_seq = max(last_seq, ?) WHERE id = ?",
            (size, last.seq, self.run),
        )
        if steps:
            done = steps[-1]
            # a spilled step may be imported after later ones
            self.conn.execute(
                "UPDATE run SET step = ?, tokens = ?, elapsed = ? WHERE id = ? AND step <= ?",
                (done.step, done.tokens, known(done.elapsed) or 0.0, self.run, done.step),
            )
        self.conn.execute(
            "UPDATE attempt SET progress_at = ? WHERE run_id = ? AND n = ?",
            (iso(last.at), self.run, self.attempt),
        )


def token_blob(pair: Scored) -> bytes:
    numbers = {row.index: row for row in pair.numbers.numbers} if pair.numbers else {}
    rows = []
    for rollout in pair.group.rollouts:
        row = numbers.get(rollout.index) or ev.TokenNumbers(index=rollout.index, old=())
        rows.append(
            TokenRow(
                **{field.name: getattr(row, field.name) for field in fields(row)},
                ids=rollout.ids, ends=rollout.ends, sampler=rollout.sampler_logprobs,
            )
        )  # fmt: skip
    return encode(pair.group.prompt_ids, rows)
