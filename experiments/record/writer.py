"""Write events as rows of the tables: one transaction of the recorder."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from itertools import count
from math import isnan
from typing import Any

from sqlalchemy import Insert, Table, Update, bindparam, func, select
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
    column_of,
)
from grpo_tui.experiments.db.texts import iso
from grpo_tui.experiments.db.tokens import encode, write_blobs
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.recorded_events import SOURCES
from grpo_tui.experiments.store import ExperimentStore, last_attempt
from grpo_tui.experiments.values import RecordedEvent, RecordedTokens

LOCK_LIMIT_S = 10.0  # of what is written once
PROGRESS = (
    ev.PhaseStarted,
    ev.PhaseAdvanced,
    ev.ServerAwaited,
    ev.PromptsStarted,
    ev.RolloutsAdvanced,
)

Row = dict[str, Any]
Rows = defaultdict[Table, list[Row]]  # in the order in which they are inserted
Items = Sequence[RecordedEvent]
OF_FIRST_ALERT = ("run_id", "rule", "first_step", "count", "muted")
# Statements of every commit are built once: to build one takes as long as to execute it.
LAST_IDS = [select(func.max(table.c.id)) for table in (ROLLOUT_GROUP, ROLLOUT)]
METRIC_NAMES = METRIC_KEY.insert().prefix_with("OR IGNORE")
METRIC_IDS = select(METRIC_KEY.c.name, METRIC_KEY.c.id).where(
    METRIC_KEY.c.name.in_(bindparam("names", expanding=True))
)


class RunWriter(StoreFile):
    """Writes events of a run's last attempt, one transaction per call; `run` is the run's row."""

    def __init__(self, store: ExperimentStore, run: Any) -> None:
        super().__init__(store)
        self.run, self.short = run.id, run.short
        self.attempt = last_attempt(self.sql, run.id) or 1
        record = run.config.get("record") or {}
        self.recorded = str(record.get("tokens", "all"))  # a choice of `record.tokens`
        self.tokens = tokens_file(run_folder(store.path, run.short))
        self._metric_keys: dict[str, int] = {}
        self._key_sets: dict[tuple[int, ...], int] = {}

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
                        self.sql.execute(_insertion(table), values)
                if rows[METRIC]:
                    summaries.add(self.sql, rows[METRIC])
                self._totals(items)
        except BaseException:
            self._metric_keys.clear()
            self._key_sets.clear()
            raise

    def _blob(self, event: ev.Event) -> bytes:
        """Encode the token numbers of an event; empty if none are recorded."""
        match event:
            case ev.GroupScored(group=group) if self._has_tokens(event.step, group.origin, group):
                return encode(
                    group.prompt_ids,
                    [
                        RecordedTokens(
                            index=item.index,
                            ids=item.ids,
                            ends=item.ends,
                            old=(),
                            sampler=item.sampler_logprobs,
                        )
                        for item in group.rollouts
                    ],
                )
            case ev.TokensScored() if self._has_tokens(event.step, event.origin):
                return encode((), event.numbers)
        return b""

    def _has_tokens(self, step: int, origin: str, group: ev.Group | None = None) -> bool:
        if group and not group.prompt_ids and all(item.without_ids for item in group.rollouts):
            return False
        pinned = origin == "pinned"
        has_tokens = {"all": True, "every": pinned or step % 10 == 0, "pinned": pinned}
        return has_tokens.get(self.recorded, False)

    def stored(self, seqs: Sequence[int]) -> set[int]:
        """Return which of these sequence numbers of the run are already in the store."""
        queries = (select(seq).where(seq.in_(seqs)) for seq in SOURCES)
        return {
            seq for query in queries for seq in self.sql.scalars(query.filter_by(run_id=self.run))
        }

    # -- rows -----------------------------------------------------------------------------------

    def _rows(self, items: Items) -> Rows:
        """Return the rows to insert, and change rows that exist."""
        rows = Rows(list)
        tokens: dict[Any, Any] = {
            (event.step, event.origin, event.group): item
            for item in items
            if isinstance(event := item.event, ev.TokensScored)
        }
        group_ids, rollout_ids = (count((self.sql.scalar(last) or 0) + 1) for last in LAST_IDS)
        for item in items:
            match item.event:
                case ev.GroupScored(group=group):
                    row = self._row(ROLLOUT_GROUP, item, group) | {"id": next(group_ids)}
                    scored = tokens.pop((row["step"], group.origin, group.index), None)
                    self._group(rows, row, group, scored, rollout_ids)
                case ev.TokensScored():
                    pass  # written with its group
                case ev.PassFinished():
                    rows[UPDATE_PASS].append(self._row(UPDATE_PASS, item))
                case ev.StepFinished() as event:
                    self._step(rows, item, event)
                case ev.EvaluationFinished() as event:
                    self._evaluation(rows, item, event)
                case _:
                    self._event(rows, item)
        if tokens:
            self._numbers(tokens)
        return rows

    def _row(self, table: Table, item: RecordedEvent, value: Any = None) -> Row:
        """Return the columns of a recorded event and of a value in it."""
        at = {"at": item.at} if "at" in table.c else {}
        return (
            of_event(table, value or item.event)
            | at
            | {
                "run_id": self.run,
                "attempt": self.attempt,
                "step": item.event.step,
                "seq": item.seq,
                "hidden": False,
            }
        )

    def _numbers(self, tokens: Mapping[Any, Any]) -> None:
        """Add token numbers, by step, origin and group, to groups of earlier transactions."""
        groups = ROLLOUT_GROUP.c
        steps, origins, _ = map(set, zip(*tokens, strict=True))
        query = (
            select(groups.step, groups.origin, groups.idx, groups.id)
            .where(groups.step.in_(steps), groups.origin.in_(origins))
            .filter_by(run_id=self.run, attempt=self.attempt, tokens_seq=None)
            .order_by(groups.id)  # the last group of a key wins below
        )
        ids = {tuple(key): group for *key, group in self.sql.execute(query)}
        scored = [(ids[key], item) for key, item in tokens.items() if key in ids]
        if scored:
            self.sql.execute(
                ROLLOUT_GROUP.update().where(groups.id == bindparam("group")),
                [{"group": group, "tokens_seq": item.seq} for group, item in scored],
            )
        rollouts = [
            {
                "group": group,
                "index": row.index,
                "clip_fraction": row.clip_fraction,
                "kl": row.kl,
                "nan": of_event(ROLLOUT, row)["nonfinite"],
            }
            for group, item in scored
            for row in item.event.numbers
        ]
        if rollouts:
            nonfinite = ROLLOUT.c.nonfinite + "," + bindparam("nan")
            rollout: Row = {"group_id": bindparam("group"), "idx": bindparam("index")}
            changed = ROLLOUT.update().filter_by(**rollout).values(nonfinite=nonfinite)
            self.sql.execute(changed, rollouts)

    def _group(
        self, rows: Rows, row: Row, group: ev.Group, scored: Any, ids: Iterator[int]
    ) -> None:
        """Add a group and its rollouts, which get the next ids."""
        has_tokens = self._has_tokens(row["step"], group.origin, group)
        tokens_seq = scored.seq if scored else None
        of_tokens = scored.event.numbers if scored else ()
        numbers = {item.index: of_event(ROLLOUT, item) for item in of_tokens}
        rows[ROLLOUT_GROUP].append(row | {"tokens_seq": tokens_seq, "has_tokens": has_tokens})
        for item in group.rollouts:
            rollout = next(ids)
            values = of_event(ROLLOUT, item) | {
                "clip_fraction": None,
                "kl": None,
                **numbers.get(item.index, {}),
                "id": rollout,
                "group_id": row["id"],
                "run_id": self.run,
                "text": item.text if self.recorded != "nothing" else "",
                "tokens": item.model_tokens,
            }
            values["nonfinite"] = nan_names(values)
            rows[ROLLOUT].append(values)
            rows[ROLLOUT_REWARD] += [
                of_event(ROLLOUT_REWARD, reward) | {"rollout_id": rollout, "position": position}
                for position, reward in enumerate(item.rewards)
            ]

    def _step(self, rows: Rows, item: RecordedEvent, event: ev.StepFinished) -> None:
        self._metrics(rows, event.step, event.metrics)
        keys = tuple(self._metric_keys[name] for name in event.metrics)
        rows[STEP].append(self._row(STEP, item) | {"key_set": self._key_set(keys)})

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
            case ev.AlertEnded() as event:
                alert = ALERT.update().filter_by(run_id=self.run, rule=event.rule)
                last = func.max(ALERT.c.last_step, event.step - 1)
                self.sql.execute(alert.values(last_step=last))
            case ev.RunStarted() as event:
                self.update_run(
                    status="running",
                    error="",
                    ended_at=None,
                    total_steps=event.total_steps,
                    started_at=func.coalesce(RUN.c.started_at, iso(item.at)),
                    recipe=event.recipe,
                    device=event.device,
                    versions=event.versions,
                    dataset_fingerprint=event.dataset_fingerprint,
                )
            case ev.BenchmarksMeasured() as event:
                self._metrics(rows, 0, event.series("before"))
                self._metrics(rows, event.step, event.series("after"))
            case ev.RunPaused():
                self.update_run(status="paused")
            case ev.RunResumed():
                self.update_run(status="running")
            case ev.RunFinished() as event:
                self.update_run(status=event.reason, error="", ended_at=iso(item.at))
            case ev.RunFailed() as event:
                error = f"{event.error}: {event.message}"
                self.update_run(status="failed", error=error, ended_at=iso(item.at))
        kind = ev.kind_of(item.event)
        rows[EVENT].append(self._row(EVENT, item) | {"kind": kind, "payload": item.event})

    def _alert(self, event: ev.AlertRaised) -> None:
        row = {
            **of_event(ALERT, event),
            "run_id": self.run,
            "first_step": event.step,
            "count": 1,
            "muted": False,
        }
        new = sqlite.insert(ALERT)
        latest = {name: new.excluded[name] for name in row if name not in OF_FIRST_ALERT}
        self.sql.execute(
            new.on_conflict_do_update(
                index_elements=["run_id", "rule"], set_=latest | {"count": ALERT.c.count + 1}
            ),
            row,
        )

    def update_run(self, **values: Any) -> None:
        """Change columns of the run."""
        self.sql.execute(RUN.update().filter_by(id=self.run).values(values))

    # -- metrics --------------------------------------------------------------------------------

    def _metrics(self, rows: Rows, step: int, values: Mapping[str, float]) -> None:
        if new := values.keys() - self._metric_keys.keys():
            self.sql.execute(METRIC_NAMES, [{"name": name} for name in values if name in new])
            for name, key in self.sql.execute(METRIC_IDS, {"names": list(new)}):
                self._metric_keys[name] = key
        rows[METRIC] += [
            {
                "run_id": self.run,
                "key_id": self._metric_keys[name],
                "step": step,
                "value": float(value),
            }
            for name, value in values.items()
        ]

    def _key_set(self, keys: tuple[int, ...]) -> int:
        """Return the id of the metrics of a step, which are inserted if they are new."""
        if keys not in self._key_sets:
            column = KEY_SET.c["keys"]
            self.sql.execute(KEY_SET.insert().prefix_with("OR IGNORE"), {"keys": keys})
            query = select(KEY_SET.c.id).where(column == keys)
            self._key_sets[keys] = self.sql.execute(query).scalar_one()
        return self._key_sets[keys]

    def _totals(self, items: Items) -> None:
        totals = {"last_seq": items[-1].seq}
        for item in items:
            if isinstance(item.event, ev.StepFinished):
                totals |= of_event(RUN, item.event)
        if totals.get("tokens", 0) is None:
            self.update_run(tokens=totals.pop("tokens"))
        # An import has no time of training where its trainer wrote none.
        known = {name: value for name, value in totals.items() if value and not isnan(value)}
        new = {f"new_{name}": known.get(name, 0) for name in totals}
        self.sql.execute(_increase(tuple(totals)), {"run": self.run, **new})


@cache
def _insertion(table: Table) -> Insert:
    return table.insert().prefix_with("OR REPLACE")


@cache
def _increase(columns: tuple[str, ...]) -> Update:
    """Raise columns of the run: a spilled step may be read in after later ones."""
    larger = {name: func.max(RUN.c[name], bindparam(f"new_{name}")) for name in columns}
    return RUN.update().where(RUN.c.id == bindparam("run")).values(larger)


def add_events(store: ExperimentStore, run: int, *events: ev.Event) -> None:
    """Append events to the record of a run that no process records."""
    row = store.run_row(run)
    items = [
        RecordedEvent(seq, time.time(), event)
        for seq, event in enumerate(events, start=row.last_seq + 1)
    ]
    with closing(RunWriter(store, row)) as writer:
        writer.write(items, LOCK_LIMIT_S)
    with store.transaction() as conn:
        summaries.rebuild(conn, run)  # values of an earlier measurement were replaced


def nan_names(row: Row) -> str:
    """Return the names of the numbers that are NaN, as opposed to missing."""
    return ",".join([name for name, value in row.items() if value != value])


def of_event(target: Table, event: Any) -> Row:
    """Return the columns of a table that hold fields of the event."""
    row = {column: getattr(event, name) for column, name in _shared(target, event.__class__)}
    return row | {"nonfinite": nan_names(row)} if "nonfinite" in target.c else row


@cache
def _shared(target: Table, cls: Any) -> list[tuple[str, str]]:
    """The columns of a table that hold fields of a class, with these fields."""
    names = ((column_of(target, field), field) for field in cls.__dataclass_fields__)
    return [(column, field) for column, field in names if column in target.c]
