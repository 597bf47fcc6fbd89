"""Write events as rows of the tables: one transaction of the recorder."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
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
from grpo_tui.experiments.store import ExperimentStore, last_attempt
from grpo_tui.experiments.values import RecordedEvent, TokenRow

PROGRESS = (ev.PhaseStarted, ev.PhaseAdvanced, ev.PromptsStarted, ev.RolloutsAdvanced)

Row = dict[str, Any]
Rows = defaultdict[Table, list[Row]]  # in the order in which they are inserted
Items = Sequence[RecordedEvent]
COLUMNS = {"index": "idx", "name": "function"}  # of these fields
OF_FIRST_ALERT = ("run_id", "rule", "first_step", "count", "muted")


class RunWriter(StoreFile):
    """Writes events of a run's last attempt, one transaction per call; `run` is the run's row."""

    def __init__(self, store: ExperimentStore, run: Any) -> None:
        super().__init__(store)
        self.run, self.short = run.id, run.short
        self.attempt = last_attempt(self.sql, run.id) or 1
        record = run.config.get("record") or {}
        self.recorded = str(record.get("tokens", "all"))  # which parts of the rollouts
        self.tokens = tokens_file(run_folder(store.path, run.short))
        self._ids: dict[tuple[Column[Any], Any], int] = {}

    def write(self, items: Items, limit: float) -> None:
        """Commit the events, or raise if the store is locked for longer than the limit."""
        write_blobs(
            self.tokens, [(item.seq, blob) for item in items if (blob := self._blob(item.event))]
        )
        try:
            with self.transaction(limit):
                rows = self._rows(items)
                for table, values in rows.items():
                    if values:
                        self.sql.execute(table.insert().prefix_with("OR REPLACE"), values)
                if rows[METRIC]:
                    summaries.add(self.sql, rows[METRIC])
                scored = [
                    (item.seq, item.event)
                    for item in items
                    if isinstance(item.event, ev.TokensScored)
                ]
                if scored:
                    self._numbers(scored)
                self._totals(items)
        except BaseException:
            self._ids.clear()
            raise

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
        pinned = origin == "pinned"
        has_tokens = {"all": True, "every": pinned or step % 10 == 0, "pinned": pinned}
        return has_tokens.get(self.recorded, False)

    def stored(self, seqs: Sequence[int]) -> set[int]:
        """Return which of these sequence numbers of the run are already in the store."""
        stored: set[int] = set()
        for seq in SOURCES:
            query = select(seq).where(seq.in_(seqs)).filter_by(run_id=self.run)
            stored.update(self.sql.scalars(query))
        return stored

    def reserve(self, count: int) -> None:
        """Reserve the next sequence numbers for events that arrive later."""
        self._update_run(last_seq=RUN.c.last_seq + count)

    # -- rows -----------------------------------------------------------------------------------

    def _rows(self, items: Items) -> Rows:
        """Return the rows to insert; make the changes of rows that are there."""
        rows = Rows(list)
        group_ids, rollout_ids = (
            count((self.sql.scalar(select(func.max(table.c.id))) or 0) + 1)
            for table in (ROLLOUT_GROUP, ROLLOUT)
        )
        for item in items:
            match item.event:
                case ev.GroupScored(group=group):
                    row = self._row(ROLLOUT_GROUP, item, group)
                    self._group(rows, row | {"id": next(group_ids)}, group, rollout_ids)
                case ev.TokensScored():
                    pass  # once its group is there
                case ev.PassFinished(index=number):
                    rows[UPDATE_PASS].append(self._row(UPDATE_PASS, item) | {"pass": number})
                case ev.StepFinished() as event:
                    self._step(rows, item, event)
                case ev.EvaluationFinished() as event:
                    self._evaluation(rows, item, event)
                case _:
                    self._event(rows, item)
        return rows

    def _row(self, table: Table, item: RecordedEvent, value: Any = None) -> Row:
        """Return the columns of a recorded event, and those that are fields of a value of it."""
        at = {"at": item.at} if "at" in table.c else {}
        return of_event(table, value or item.event) | at | {
            "run_id": self.run, "attempt": self.attempt, "step": item.event.step, "seq": item.seq,
            "hidden": False,
        }  # fmt: skip

    def _numbers(self, scored: Sequence[tuple[int, Any]]) -> None:
        """Add token numbers to the groups that have none yet, by the numbers of their events."""
        columns = ROLLOUT_GROUP.c
        group = select(func.max(columns.id)).filter_by(
            run_id=self.run, attempt=self.attempt, tokens_seq=None, step=bindparam("at"),
            origin=bindparam("of"), idx=bindparam("group"),
        )  # fmt: skip
        groups = [
            {"at": event.step, "of": event.origin, "group": event.group, "tokens_seq": seq}
            for seq, event in scored
        ]
        self.sql.execute(
            ROLLOUT_GROUP.update().where(columns.id == group.scalar_subquery()), groups
        )
        rollouts: list[Row] = []
        for seq, event in scored:
            for row in event.numbers:
                numbers = {"clip_fraction": row.clip_fraction, "kl": row.kl}
                rollouts.append(
                    numbers | {"seq": seq, "index": row.index, "nan": nan_names(numbers)}
                )
        of_event = select(columns.id).filter_by(run_id=self.run, tokens_seq=bindparam("seq"))
        key = {"group_id": of_event.scalar_subquery(), "idx": bindparam("index")}
        nonfinite = ROLLOUT.c.nonfinite + "," + bindparam("nan")
        if rollouts:
            changed = ROLLOUT.update().filter_by(**key).values(nonfinite=nonfinite)
            self.sql.execute(changed, rollouts)

    def _group(self, rows: Rows, row: Row, group: ev.Group, ids: Iterator[int]) -> None:
        """Add a group and its rollouts, which get the next ids."""
        has_tokens = self._has_tokens(row["step"], group.origin)
        rows[ROLLOUT_GROUP].append(row | {"tokens_seq": None, "has_tokens": has_tokens})
        for item in group.rollouts:
            rollout = next(ids)
            rows[ROLLOUT].append(of_event(ROLLOUT, item) | {
                "id": rollout, "group_id": row["id"], "run_id": self.run,
                "text": item.text if self.recorded != "nothing" else "",
                "tokens": ev.model_tokens(item.ids, item.spans), "clip_fraction": None, "kl": None,
            })  # fmt: skip
            rows[ROLLOUT_REWARD] += [
                of_event(ROLLOUT_REWARD, reward) | {"rollout_id": rollout, "position": position}
                for position, reward in enumerate(item.rewards)
            ]

    def _step(self, rows: Rows, item: RecordedEvent, event: ev.StepFinished) -> None:
        self._metrics(rows, event.step, event.metrics)
        keys = tuple(self._id(METRIC_KEY.c.name, name) for name in event.metrics)
        key_set = self._id(KEY_SET.c["keys"], keys)
        rows[STEP].append(self._row(STEP, item) | {"key_set": key_set})

    def _evaluation(self, rows: Rows, item: RecordedEvent, event: ev.EvaluationFinished) -> None:
        insertion = EVALUATION.insert().returning(EVALUATION.c.id)
        key = self.sql.execute(insertion, self._row(EVALUATION, item)).scalar_one()
        rows[EVALUATION_SAMPLE] += [
            of_event(EVALUATION_SAMPLE, sample) | {"evaluation_id": key, "position": position}
            for position, sample in enumerate(event.rows)
        ]
        self._metrics(rows, event.step, ev.evaluation_series(event))

    def _event(self, rows: Rows, item: RecordedEvent) -> None:
        match item.event:
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
        kind = ev.kind_of(item.event)
        rows[EVENT].append(self._row(EVENT, item) | {"kind": kind, "payload": item.event})

    def _alert(self, event: ev.AlertRaised) -> None:
        row = {
            **of_event(ALERT, event), "run_id": self.run, "first_step": event.step,
            "last_step": event.step, "count": 1, "group_index": event.group, "muted": False,
        }  # fmt: skip
        new = sqlite.insert(ALERT)
        latest = {name: new.excluded[name] for name in row if name not in OF_FIRST_ALERT}
        self.sql.execute(
            new.on_conflict_do_update(
                index_elements=["run_id", "rule"], set_=latest | {"count": ALERT.c.count + 1}
            ),
            row,
        )

    def _update_run(self, **values: Any) -> None:
        self.sql.execute(RUN.update().filter_by(id=self.run).values(values))

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
            self.sql.execute(column.table.insert().prefix_with("OR IGNORE"), {column.key: value})
            self._ids[key] = self.sql.execute(select(ids).where(column == value)).scalar_one()
        return self._ids[key]

    def _totals(self, items: Items) -> None:
        totals = {"last_seq": items[-1].seq}
        for item in items:
            if isinstance(item.event, ev.StepFinished):
                totals |= of_event(RUN, item.event)
        # a spilled step may be read in after later ones
        self._update_run(
            **{name: func.max(RUN.c[name], func.coalesce(n, 0)) for name, n in totals.items()}
        )


def nan_names(row: Row) -> str:
    """Return the names of the numbers that are NaN, as opposed to missing."""
    return ",".join([name for name, value in row.items() if value != value])


def of_event(target: Table, event: Any) -> Row:
    """Return the columns of a table that are fields of the event, too."""
    row = {column: getattr(event, name) for column, name in _shared(target, event.__class__)}
    return row | {"nonfinite": nan_names(row)} if "nonfinite" in target.c else row


@cache
def _shared(target: Table, cls: Any) -> list[tuple[str, str]]:
    """The columns of a table with the fields of a class that they hold."""
    names = ((COLUMNS.get(name, name), name) for name in cls.__dataclass_fields__)
    return [(column, name) for column, name in names if column in target.c]
