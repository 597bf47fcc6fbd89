"""Write events as rows of the tables: one transaction of the recorder."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
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
from grpo_tui.experiments.db.tokens import TokenFile, encode
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.recorded_events import SOURCES
from grpo_tui.experiments.values import RecordedEvent, TokenRow

PROGRESS = (ev.PhaseStarted, ev.PhaseAdvanced, ev.PromptsStarted, ev.RolloutsAdvanced)

Row = dict[str, Any]
Rows = defaultdict[Table, list[Row]]  # in the order in which they are inserted
Items = Sequence[RecordedEvent]
REPLACED = (STEP, METRIC)
OF_FIRST_ALERT = ("run_id", "rule", "first_step", "count", "muted")


@dataclass(frozen=True, slots=True)
class Scored:
    """A group, with its token numbers once they arrive."""

    seq: int
    step: int
    group: ev.Group
    numbers: ev.TokensScored | None = None
    numbers_seq: int | None = None

    def by_index(self) -> dict[int, ev.TokenNumbers]:
        return {row.index: row for row in self.numbers.numbers} if self.numbers else {}


class RunWriter:
    """Writes the events of one attempt, one transaction per call; `run` is the run's row."""

    def __init__(self, file: StoreFile, run: Any, attempt: int) -> None:
        self.file, self.run, self.short, self.attempt = file, run.id, run.short, attempt
        record = run.config.get("record") or {}
        self.recorded = str(record.get("tokens", "all"))  # which parts of the rollouts
        self.tokens = TokenFile(tokens_file(run_folder(file.store.path, run.short)))
        self._open: dict[tuple[int, str, int], Scored] = {}
        self._skipped: dict[int, str] = {}
        self._ids: dict[tuple[Column[Any], Any], int] = {}

    def close(self) -> None:
        self.tokens.close()

    def write(self, items: Items, limit: float) -> float:
        """Commit the events and return the seconds spent waiting for the lock."""
        before = dict(self._open)
        try:
            scored = self._pair(items)
            blobs = [
                (pair.seq, token_blob(pair))
                for pair in {pair.seq: pair for pair in scored.values()}.values()
                if self._has_tokens(pair)
            ]
            self.tokens.write(blobs)
            with self.file.transaction(limit) as waited:
                rows = self._rows(items, scored)
                for table, values in rows.items():
                    insertion = table.insert()
                    if table in REPLACED:
                        insertion = insertion.prefix_with("OR REPLACE")
                    if values:
                        self.file.sql.execute(insertion, values)
                if rows[METRIC]:
                    summaries.add(self.file.sql, rows[METRIC])
                self._totals(items, _size(rows) + sum(len(blob) for _, blob in blobs))
        except BaseException:
            self._open = before
            self._ids.clear()
            raise
        done = max((item.event.step for item in items if isinstance(item.event, ev.StepFinished)),
                   default=-1)  # fmt: skip
        self._open = {key: pair for key, pair in self._open.items() if key[0] > done}
        return waited

    def _has_tokens(self, pair: Scored) -> bool:
        if self.recorded in ("none", "nothing"):
            return False
        return (
            self.recorded == "all"
            or pair.group.origin == "pinned"
            or (self.recorded == "every" and pair.step % 10 == 0)
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

    def _pair(self, items: Items) -> dict[int, Scored]:
        """Pair groups with their token numbers, keyed by the sequence number of either."""
        pairs: dict[int, Scored] = {}
        for item in items:
            event = item.event
            if isinstance(event, ev.GroupScored):
                key = (event.step, event.group.origin, event.group.index)
                pairs[item.seq] = self._open[key] = Scored(item.seq, event.step, event.group)
            elif isinstance(event, ev.TokensScored):
                key = (event.step, event.origin, event.group)
                if (old := self._open.get(key)) and old.numbers is None:
                    pair = Scored(old.seq, old.step, old.group, event, item.seq)
                    pairs[old.seq] = pairs[item.seq] = self._open[key] = pair
        return pairs

    def _rows(self, items: Items, scored: Mapping[int, Scored]) -> Rows:
        """Return the rows to insert; make the changes of rows that are there."""
        rows = Rows(list)
        group, rollout = (
            self.file.sql.scalar(select(func.max(table.c.id))) or 0
            for table in (ROLLOUT_GROUP, ROLLOUT)
        )
        seqs = {item.seq for item in items}
        for item in items:
            match item.event:
                case ev.GroupScored():
                    group += 1
                    row = {"id": group, **self._common(item)}
                    rollout = self._group(rows, row, scored[item.seq], rollout)
                case ev.TokensScored() if item.seq in scored:
                    if scored[item.seq].seq not in seqs:
                        self._late_numbers(scored[item.seq])
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

    def _late_numbers(self, pair: Scored) -> None:
        """Add token numbers to a group that an earlier transaction wrote."""
        group = {"run_id": self.run, "seq": pair.seq}
        late = ROLLOUT_GROUP.update().filter_by(**group).values(tokens_seq=pair.numbers_seq)
        self.file.sql.execute(late)
        key = select(ROLLOUT_GROUP.c.id).filter_by(**group).scalar_subquery()
        numbers = pair.by_index()
        rows = [
            {"index": item.index, **of_numbers(item, numbers[item.index])}
            for item in pair.group.rollouts
            if item.index in numbers
        ]
        if rows:
            self.file.sql.execute(
                ROLLOUT.update().filter_by(group_id=key, idx=bindparam("index")), rows
            )

    def _group(self, rows: Rows, row: Row, scored: Scored, rollout: int) -> int:
        """Add a group and its rollouts after the last one, and return the id of the new last."""
        group, numbers = scored.group, scored.by_index()
        rows[ROLLOUT_GROUP].append({
            **row, **of_event(ROLLOUT_GROUP, group), "idx": group.index,
            "tokens_seq": scored.numbers_seq, "has_tokens": self._has_tokens(scored),
            "nonfinite": nan_names(reward_mean=group.reward_mean, reward_std=group.reward_std),
        })  # fmt: skip
        for item in group.rollouts:
            rollout += 1
            rows[ROLLOUT].append({
                "id": rollout, "group_id": row["id"], "run_id": self.run,
                **of_event(ROLLOUT, item), "idx": item.index,
                "text": item.text if self.recorded != "nothing" else "",
                "tokens": ev.model_tokens(item.ids, item.spans),
                **of_numbers(item, numbers.get(item.index)),
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


def of_numbers(item: ev.Completion, numbers: ev.TokenNumbers | None) -> Row:
    """Return the columns of a rollout that depend on its token numbers."""
    clip = numbers.clip_fraction if numbers else None
    kl = numbers.kl if numbers else None
    nonfinite = nan_names(reward=item.reward, advantage=item.advantage, clip_fraction=clip, kl=kl)
    return {"clip_fraction": clip, "kl": kl, "nonfinite": nonfinite}


def nan_names(**values: float | None) -> str:
    """Return the names of the numbers that are NaN, as opposed to missing."""
    return ",".join([name for name, value in values.items() if value != value])


def of_event(target: Table, event: Any) -> Row:
    """Return the columns of a table that are fields of the event, too."""
    return {name: getattr(event, name) for name in event.__dataclass_fields__ if name in target.c}


def token_blob(scored: Scored) -> bytes:
    numbers = scored.by_index()
    rows = []
    for rollout in scored.group.rollouts:
        row = numbers.get(rollout.index) or ev.TokenNumbers(index=rollout.index, old=())
        rows.append(
            TokenRow(
                **{field.name: getattr(row, field.name) for field in fields(row)},
                ids=rollout.ids,
                ends=rollout.ends,
                sampler=rollout.sampler_logprobs,
            )
        )
    return encode(scored.group.prompt_ids, rows)
