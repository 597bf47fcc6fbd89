"""Read the recorded events back in their order, as a viewer of the store needs them."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Column, select

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
from grpo_tui.experiments.reader import StoreReader, grouped

Numbers = Mapping[int, v.TokenRow]


def events_after(
    reader: StoreReader, run: int, after: int = 0, *, limit: int = 500, groups_from: int = 0,
    tokens: bool = True,
) -> tuple[v.RecordedEvent, ...]:  # fmt: skip
    """Return recorded events beyond sequence number `after`, as the live feed shows them.

    Omits rows that a later attempt redid, groups and passes of steps before `groups_from`, and
    token numbers unless they are requested.
    """
    found: list[tuple[int, Column[int], int]] = []
    for seq in SOURCES:
        if seq is ROLLOUT_GROUP.c.tokens_seq and not tokens:
            continue
        columns = seq.table.c
        query = select(seq, columns.id).where(seq > after).filter_by(run_id=run, hidden=False)
        if groups_from > 0 and seq.table in (ROLLOUT_GROUP, UPDATE_PASS):
            query = query.where(columns.step >= groups_from)
        found += [
            (number, seq, key)
            for number, key in reader.rows(query.order_by(seq).limit(limit))
            if number > after  # unless it cannot be read
        ]
    found.sort(key=itemgetter(0))
    return _read(reader, run, grouped((seq, key) for _, seq, key in found[:limit]))


def events_of_step(reader: StoreReader, run: int, step: int) -> tuple[v.RecordedEvent, ...]:
    """Return what was recorded of one step: its groups, passes and metrics."""
    keys = {}
    for seq in (ROLLOUT_GROUP.c.seq, UPDATE_PASS.c.seq, STEP.c.seq):
        query = select(seq.table.c.id).filter_by(run_id=run, step=step, hidden=False)
        keys[seq] = reader.column(query)
    return _read(reader, run, keys)


def _read(
    reader: StoreReader, run: int, keys: Mapping[Column[int], Sequence[int]]
) -> tuple[v.RecordedEvent, ...]:
    """Return the events of rows by the column of their sequence number, in its order."""
    events: list[v.RecordedEvent] = []
    for seq, numbers in keys.items():
        if seq.table is ROLLOUT_GROUP:
            events += _of_groups(reader, run, numbers, seq)
        else:
            rows = reader.rows(select(seq.table).where(seq.table.c.id.in_(numbers)))
            events += [
                v.RecordedEvent(row.seq, row._mapping.get("at", 0.0), event)
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


def _group(view: v.GroupView, prompt_ids: Any, numbers: Numbers) -> ev.Event:
    rollouts = tuple(_completion(item, numbers.get(item.index)) for item in view.rollouts)
    group = _as(ev.Group, view, prompt_ids=prompt_ids, rollouts=rollouts)
    return ev.GroupScored(step=view.step, group=group)


def _completion(item: v.RolloutView, row: v.TokenRow | None) -> Any:
    tokens = {"ids": row.ids, "sampler_logprobs": row.sampler, "ends": row.ends} if row else {}
    return _as(ev.Completion, item, **tokens)


def _tokens(view: v.GroupView, _: Any, numbers: Numbers) -> ev.Event:
    rows = [
        _as(
            ev.TokenNumbers,
            numbers.get(item.index) or ev.TokenNumbers(index=item.index, old=()),
            clip_fraction=item.clip_fraction,
            kl=item.kl,
        )
        for item in view.rollouts
    ]
    return ev.TokensScored(
        step=view.step, group=view.index, origin=view.origin, numbers=tuple(rows)
    )


# what makes the events, by the column of their sequence number in the run's record
SOURCES: dict[Column[int], Callable[..., Any]] = {
    EVENT.c.seq: lambda _, rows: (row.payload for row in rows),
    STEP.c.seq: _steps,
    UPDATE_PASS.c.seq: lambda _, rows: (
        as_view(ev.PassFinished, row, index=row._mapping["pass"]) for row in rows
    ),
    EVALUATION.c.seq: lambda reader, rows: (
        as_view(ev.EvaluationFinished, row, rows=reader.samples(row.id)) for row in rows
    ),
    ROLLOUT_GROUP.c.seq: _group,
    ROLLOUT_GROUP.c.tokens_seq: _tokens,
}


def _of_groups(
    reader: StoreReader, run: int, keys: Sequence[int], seq: Column[int]
) -> Iterator[v.RecordedEvent]:
    """Yield the events of groups: the groups, or their token numbers."""
    numbers = reader.pairs(select(seq.table.c.id, seq).where(seq.table.c.id.in_(keys)))
    blobs = reader.blobs(run, keys)
    for view in reader.groups_by_key(keys):
        prompt_ids, rows = blobs.get(view.key, ((), ()))
        event = SOURCES[seq](view, prompt_ids, {row.index: row for row in rows})
        yield v.RecordedEvent(numbers[view.key], 0.0, event)


def _as(cls: Any, stored: Any, **changes: Any) -> Any:
    """Build the event's value from a stored value, which has the same fields and more."""
    fields = dataclasses.fields(cls)
    return cls(**{field.name: getattr(stored, field.name) for field in fields} | changes)
