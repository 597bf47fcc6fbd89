"""Write events as rows of the tables: one transaction of the recorder."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Table, bindparam, func, select
from sqlalchemy.dialects import sqlite

from grpo_engine import events as ev
from grpo_tui.experiments.db import summaries
from grpo_tui.experiments.db.paths import run_folder, tokens_file
from grpo_tui.experiments.db.tables import (
    ALERT,
    EVALUATION,
    EVALUATION_SAMPLE,
    EVENT,
    KEY_SET,
    METRIC,
    METRIC_KEY,
    ROLLOUT,
    ROLLOUT_GROUP,
    ROLLOUT_REWARD,
    RUN,
    STEP,
    UPDATE_PASS,
)
from grpo_tui.experiments.db.texts import iso
from grpo_tui.experiments.db.tokens import encode, write_blobs
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.recorded_events import SOURCES
from grpo_tui.experiments.values import RecordedEvent, TokenRow

PROGRESS = (ev.PhaseStarted, ev.PhaseAdvanced, ev.PromptsStarted, ev.RolloutsAdvanced)

Row = dict[str, Any]
Rows = defaultdict[Table, list[Row]]  # in the order in which they are inserted
Items = Sequence[RecordedEvent]
REPLACED = (STEP, METRIC)
OF_FIRST_ALERT = ("run_id", "rule", "first_step", "count", "muted")


class RunWriter:
    """Writes the events of one attempt, one transaction per call; `run` is the run's row."""

    def __init__(self, file: StoreFile, run: Any, attempt: int) -> None:
        self.file, self.run, self.short, self.attempt = file, run.id, run.short, attempt
        record = run.config.get("record") or {}
        self.recorded = str(record.get("tokens", "all"))  # which parts of the rollouts
        self.tokens = tokens_file(run_folder(file.store.path, run.short))
        self._skipped: dict[int, str] = {}
        self._ids: dict[tuple[Column[Any], Any], int] = {}

    def write(self, items: Items, limit: float) -> float:
        """Commit the events and return the seconds spent waiting for the lock."""
        blobs = [(item.seq, blob) for item in items if (blob := self._blob(item.event))]
        write_blobs(self.tokens, blobs)
        try:
            with self.file.transaction(limit) as waited:
                rows = self._rows(items)
                for table, values in rows.items():
                    insertion = table.insert()
                    if table in REPLACED:
                        insertion = insertion.prefix_with("OR REPLACE")
                    if values:
                        self.file.sql.execute(insertion, values)
                if rows[METRIC]:
                    summaries.add(self.file.sql, rows[METRIC])
                self._numbers([item for item in items if isinstance(item.event, ev.TokensScored)])
                self._totals(items, _size(rows) + sum(len(blob) for _, blob in blobs))
        except BaseException:
            self._ids.clear()
            raise
        return waited

    def _blob(self, event: ev.Event) -> bytes:
        """The token numbers of an event that are recorded; empty for none."""
        match event:
            case ev.GroupScored(group=group) if self._has_tokens(event.step, group.origin):
                return encode(group.prompt_ids, [
                    TokenRow(index=item.index, ids=item.ids, ends=item.ends, old=(),
                             sampler=item.sampler_logprobs)
                    for item in group.rollouts
                ])  # fmt: skip
            case ev.TokensScored() if self._has_tokens(event.step, event.origin):
                return encode((), event.numbers)
        return b""

    def _has_tokens(self, step: int, origin: str) -> bool:
        if self.recorded in ("none", "nothing"):
            return False
        return (
            self.recorded == "all"
            or origin == "pinned"
            or (self.recorded == "every" and step % 10 == 0)
        )

    def stored(self, seqs: Sequence[int]) -> set[int]:
        """Return which of these sequence numbers of the run are already in the store."""
        stored: set[int] = set()
        for seq in SOURCES:
            query = select(seq).where(seq.in_(seqs)).filter_by(run_id=self.run)
            stored.update(self.file.sql.scalars(query))
        return stored

    def reserve(self, seq: int) -> None:
        """Reserve the sequence numbers up to this one for events that arrive later."""
        self._update_run(last_seq=func.max(RUN.c.last_seq, seq))

    # -- rows -----------------------------------------------------------------------------------

    def _rows(self, items: Items) -> Rows:
        """Return the rows to insert; make the changes of rows that are there."""
        rows = Rows(list)
        group, rollout = (
            self.file.sql.scalar(select(func.max(table.c.id))) or 0
            for table in (ROLLOUT_GROUP, ROLLOUT)
        )
        for item in items:
            match item.event:
                case ev.GroupScored() as event:
                    group += 1
                    row = {"id": group, **self._common(item)}
                    rollout = self._group(rows, row, event.group, rollout)
                case ev.TokensScored():
                    pass  # once its group is there
                case ev.PassFinished() as event:
                    row = {**of_event(UPDATE_PASS, event), "pass": event.index}
                    rows[UPDATE_PASS].append(row | self._common(item))
                case ev.StepFinished() as event:
                    self._step(rows, item, event)
                case ev.EvaluationFinished() as event:
                    self._evaluation(rows, item, event)
                case _:
                    self._event(rows, item)
        return rows

    def _common(self, item: RecordedEvent) -> Row:
        """Return the columns of everything that is recorded in its order."""
        return {
            "run_id": self.run, "attempt": self.attempt, "step": item.event.step, "seq": item.seq,
            "hidden": False,
        }  # fmt: skip

    def _numbers(self, items: Items) -> None:
        """Add token numbers to the groups that have none yet."""
        columns = ROLLOUT_GROUP.c
        group = select(func.max(columns.id)).where(
            columns.step == bindparam("at"), columns.origin == bindparam("of"),
            columns.idx == bindparam("group"),
        )  # fmt: skip
        group = group.filter_by(run_id=self.run, attempt=self.attempt, tokens_seq=None)
        groups: list[Row] = []
        rollouts: list[Row] = []
        for item in items:
            event: Any = item.event
            groups.append({
                "at": event.step, "of": event.origin, "group": event.group, "tokens_seq": item.seq
            })  # fmt: skip
            rollouts += [
                {
                    "seq": item.seq, "index": row.index, "clip_fraction": row.clip_fraction,
                    "kl": row.kl, "nan": nan_names(clip_fraction=row.clip_fraction, kl=row.kl),
                }
                for row in event.numbers
            ]  # fmt: skip
        if groups:
            update = ROLLOUT_GROUP.update().where(columns.id == group.scalar_subquery())
            self.file.sql.execute(update.values(tokens_seq=bindparam("tokens_seq")), groups)
        if rollouts:
            found = select(columns.id).filter_by(run_id=self.run, tokens_seq=bindparam("seq"))
            key = {"group_id": found.scalar_subquery(), "idx": bindparam("index")}
            nonfinite = ROLLOUT.c.nonfinite + "," + bindparam("nan")
            changed = ROLLOUT.update().filter_by(**key).values(
                clip_fraction=bindparam("clip_fraction"), kl=bindparam("kl"), nonfinite=nonfinite
            )  # fmt: skip
            self.file.sql.execute(changed, rollouts)

    def _group(self, rows: Rows, row: Row, group: ev.Group, rollout: int) -> int:
        """Add a group and its rollouts after the last one, and return the id of the new last."""
        rows[ROLLOUT_GROUP].append({
            **row, **of_event(ROLLOUT_GROUP, group), "idx": group.index,
            "tokens_seq": None, "has_tokens": self._has_tokens(row["step"], group.origin),
            "nonfinite": nan_names(reward_mean=group.reward_mean, reward_std=group.reward_std),
        })  # fmt: skip
        for item in group.rollouts:
            rollout += 1
            rows[ROLLOUT].append({
                "id": rollout, "group_id": row["id"], "run_id": self.run,
                **of_event(ROLLOUT, item), "idx": item.index,
                "text": item.text if self.recorded != "nothing" else "",
                "tokens": ev.model_tokens(item.ids, item.spans), "clip_fraction": None, "kl": None,
                "nonfinite": nan_names(reward=item.reward, advantage=item.advantage),
            })  # fmt: skip
            rows[ROLLOUT_REWARD] += [
                {
                    "rollout_id": rollout, "position": position, "function": reward.name,
                    **of_event(ROLLOUT_REWARD, reward), "nonfinite": nan_names(value=reward.value),
                }
                for position, reward in enumerate(item.rewards)
            ]  # fmt: skip
        return rollout

    def _step(self, rows: Rows, item: RecordedEvent, event: ev.StepFinished) -> None:
        self._metrics(rows, event.step, event.metrics)
        keys = tuple(self._id(METRIC_KEY.c.name, name) for name in event.metrics)
        rows[STEP].append({
            **of_event(STEP, event), **self._common(item), "at": item.at,
            "key_set": self._id(KEY_SET.c["keys"], keys),
            "skipped": self._skipped.get(event.step, ""),
        })  # fmt: skip

    def _evaluation(self, rows: Rows, item: RecordedEvent, event: ev.EvaluationFinished) -> None:
        row = {**of_event(EVALUATION, event), **self._common(item), "at": item.at}
        (key,) = self.file.sql.execute(EVALUATION.insert(), row).inserted_primary_key or (None,)
        rows[EVALUATION_SAMPLE] += [
            {"evaluation_id": key, "position": position, **of_event(EVALUATION_SAMPLE, sample)}
            for position, sample in enumerate(event.rows)
        ]
        self._metrics(rows, event.step, ev.evaluation_series(event))

    def _event(self, rows: Rows, item: RecordedEvent) -> None:
        match item.event:
            case ev.StepSkipped() as event:
                self._skipped[event.step] = event.reason
            case ev.AlertRaised() as event:
                self._alert(event)
            case ev.RunStarted() as event:
                self._update_run(
                    status="running", error="", ended_at=None, total_steps=event.total_steps,
                    started_at=func.coalesce(RUN.c.started_at, iso(item.at)), recipe=event.recipe,
                    device=event.device, versions=event.versions,
                    dataset_fingerprint=event.dataset_fingerprint,
                )  # fmt: skip
            case ev.RunPaused():
                self._update_run(status="paused")
            case ev.RunResumed():
                self._update_run(status="running")
            case ev.RunFinished() as event:
                self._update_run(status=event.reason, error="", ended_at=iso(item.at))
            case ev.RunFailed() as event:
                error = f"{event.error}: {event.message}"
                self._update_run(status="failed", error=error, ended_at=iso(item.at))
        rows[EVENT].append({
            **self._common(item), "at": item.at, "kind": ev.kind_of(item.event),
            "payload": item.event,
        })  # fmt: skip

    def _alert(self, event: ev.AlertRaised) -> None:
        row = {
            **of_event(ALERT, event), "run_id": self.run, "first_step": event.step,
            "last_step": event.step, "count": 1, "group_index": event.group, "muted": False,
        }  # fmt: skip
        new = sqlite.insert(ALERT)
        latest = {name: new.excluded[name] for name in row if name not in OF_FIRST_ALERT}
        self.file.sql.execute(
            new.on_conflict_do_update(
                index_elements=["run_id", "rule"], set_=latest | {"count": ALERT.c.count + 1}
            ),
            row,
        )

    def _update_run(self, **values: Any) -> None:
        self.file.sql.execute(RUN.update().filter_by(id=self.run).values(values))

    # -- metrics --------------------------------------------------------------------------------

    def _metrics(self, rows: Rows, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            key = self._id(METRIC_KEY.c.name, name)
            row = {"run_id": self.run, "key_id": key, "step": step, "value": float(value)}
            rows[METRIC].append(row)

    def _id(self, column: Column[Any], value: Any) -> int:
        """Return the id of the row with this value, which is inserted if there is none."""
        key = column, value
        if key not in self._ids:
            ids = column.table.c.id
            self.file.sql.execute(
                column.table.insert().prefix_with("OR IGNORE"), {column.key: value}
            )
            self._ids[key] = self.file.sql.execute(select(ids).where(column == value)).scalar_one()
        return self._ids[key]

    def _totals(self, items: Items, size: int) -> None:
        self._update_run(bytes=RUN.c.bytes + size, last_seq=func.max(RUN.c.last_seq, items[-1].seq))
        steps = [item.event for item in items if isinstance(item.event, ev.StepFinished)]
        if steps:
            done = steps[-1]
            elapsed = 0.0 if math.isnan(done.elapsed) else done.elapsed
            # a spilled step may be read in after later ones
            self.file.sql.execute(
                RUN.update()
                .where(RUN.c.step <= done.step)
                .filter_by(id=self.run)
                .values(step=done.step, tokens=done.tokens, elapsed=elapsed)
            )


def _size(rows: Rows) -> int:
    """Return roughly the bytes of rows."""
    return sum(
        len(value) if isinstance(value, str) else 8
        for values in rows.values() for row in values for value in row.values()
    )  # fmt: skip


def nan_names(**values: float | None) -> str:
    """Return the names of the numbers that are NaN, as opposed to missing."""
    return ",".join([name for name, value in values.items() if value != value])


def of_event(target: Table, event: Any) -> Row:
    """Return the columns of a table that are fields of the event, too."""
    return {name: getattr(event, name) for name in event.__dataclass_fields__ if name in target.c}
