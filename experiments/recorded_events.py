"""Read the recorded events back in their order."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Column, ColumnElement, select

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.tables import (
    EVALUATION,
    EVENT,
    KEY_SET,
    METRIC,
    METRIC_KEY,
    ROLLOUT_GROUP,
    STEP,
    UPDATE_PASS,
)
from grpo_tui.experiments.read.connection import as_view
from grpo_tui.experiments.reader import StoreReader

Conditions = dict[Column[int], ColumnElement[bool]]  # by the column of the sequence number
TOKENS_SEQ = ROLLOUT_GROUP.c.tokens_seq


def events_after(
    reader: StoreReader,
    run: int,
    after: int = 0,
    *,
    limit: int = 500,
    groups_from: int = 0,
    tokens: bool = True,
) -> tuple[v.RecordedEvent, ...]:
    """Return recorded events beyond sequence number `after`, as the live feed shows them.

    Omits rows that a later attempt redid, groups and passes of steps before `groups_from`, and
    token numbers unless they are requested.
    """
    conditions: Conditions = {}
    numbers: list[int] = []
    for seq in SOURCES:
        if seq is not TOKENS_SEQ or tokens:
            conditions[seq] = seq > after
            if groups_from > 0 and seq.table in (ROLLOUT_GROUP, UPDATE_PASS):
                conditions[seq] &= seq.table.c.step >= groups_from
            query = select(seq).where(conditions[seq]).filter_by(run_id=run, hidden=False)
            numbers += reader.column(query.order_by(seq).limit(limit))
    # A damaged number reads as 0 and is dropped here.
    page = sorted(number for number in numbers if number > after)[:limit]
    return (
        _read(
            reader,
            run,
            {
                seq: condition & seq.between(page[0], page[-1])
                for seq, condition in conditions.items()
            },
        )
        if page
        else ()
    )


def events_of_step(reader: StoreReader, run: int, step: int) -> tuple[v.RecordedEvent, ...]:
    """Return what was recorded of one step: its groups, passes and metrics."""
    sources = (ROLLOUT_GROUP.c.seq, UPDATE_PASS.c.seq, STEP.c.seq)
    return _read(reader, run, {seq: seq.table.c.step == step for seq in sources})


def _read(reader: StoreReader, run: int, conditions: Conditions) -> tuple[v.RecordedEvent, ...]:
    """Return the events of the rows that meet the conditions."""
    events: list[v.RecordedEvent] = []
    for seq, condition in conditions.items():
        query = select(seq.table).where(condition).filter_by(run_id=run, hidden=False)
        rows = reader.rows(query.order_by(seq.table.c.id))
        events += [
            v.RecordedEvent(row._mapping[seq], row._mapping.get("at", 0.0), event)
            for row, event in zip(rows, SOURCES[seq](reader, rows), strict=True)
        ]
    return tuple(sorted(events, key=lambda event: event.seq))


def _steps(reader: StoreReader, rows: Sequence[Any]) -> Iterator[ev.Event]:
    key_sets = reader.pairs(select(KEY_SET.c.id, KEY_SET.c["keys"]))
    names = reader.pairs(select(METRIC_KEY.c.id, METRIC_KEY.c.name))
    for row in rows:
        reported = key_sets[row.key_set]
        query = select(METRIC.c.key_id, METRIC.c.value).where(METRIC.c.key_id.in_(reported))
        values = reader.pairs(query.filter_by(run_id=row.run_id, step=row.step))
        metrics = {names[key]: values.get(key, math.nan) for key in reported}
        yield as_view(ev.StepFinished, row, metrics=metrics)


def _groups(
    make: Callable[[v.GroupView, v.TokenView], ev.Event], reader: StoreReader, rows: Sequence[Any]
) -> Iterator[ev.Event]:
    """Make an event of each group from its rollouts and token numbers."""
    keys = [row.id for row in rows]
    tokens = reader.blobs(rows[0].run_id, keys) if rows else {}
    for view in reader.groups_by_key(keys):
        yield make(view, tokens.get(view.key, v.TokenView()))


def _group(view: v.GroupView, tokens: v.TokenView) -> ev.Event:
    rows = {row.index: row for row in tokens.rows}
    rollouts = tuple(_rollout(item, rows.get(item.index)) for item in view.rollouts)
    group = _as(ev.Group, view, prompt_ids=tokens.prompt_ids, rollouts=rollouts)
    return ev.GroupScored(step=view.step, group=group)


def _rollout(item: v.RolloutView, row: v.RecordedTokens | None) -> Any:
    if row is None or (not row.ids and item.tokens != 0):
        return _as(ev.Rollout, item, without_ids=True, length=item.tokens)
    return _as(ev.Rollout, item, ids=row.ids, sampler_logprobs=row.sampler, ends=row.ends)


def _tokens(view: v.GroupView, tokens: v.TokenView) -> ev.Event:
    rows: Mapping[int, ev.TokenNumbers] = {row.index: row for row in tokens.rows}
    numbers = tuple(
        _as(
            ev.TokenNumbers,
            rows.get(item.index) or ev.TokenNumbers(index=item.index, old=()),
            clip_fraction=item.clip_fraction,
            kl=item.kl,
        )
        for item in view.rollouts
    )
    return ev.TokensScored(step=view.step, group=view.index, origin=view.origin, numbers=numbers)


# Functions that make events from rows, by the column with the rows' place in the run's record.
SOURCES: dict[Column[int], Callable[[StoreReader, Sequence[Any]], Any]] = {
    EVENT.c.seq: lambda _, rows: (row.payload for row in rows),
    STEP.c.seq: _steps,
    UPDATE_PASS.c.seq: lambda _, rows: (
        as_view(ev.PassFinished, row, index=row._mapping["pass"]) for row in rows
    ),
    EVALUATION.c.seq: lambda reader, rows: (
        as_view(ev.EvaluationFinished, row, rows=reader.samples(row.id)) for row in rows
    ),
    ROLLOUT_GROUP.c.seq: partial(_groups, _group),
    TOKENS_SEQ: partial(_groups, _tokens),
}


def _as(cls: Any, stored: Any, **changes: Any) -> Any:
    """Build a value from the fields of a stored value, which has more, and from changes."""
    fields = dataclasses.fields(cls)
    return cls(**{field.name: getattr(stored, field.name) for field in fields} | changes)
