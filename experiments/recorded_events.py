"""Read the recorded events back in their order, as a viewer of the store needs them."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

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

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from grpo_tui.experiments.reader import Blob, StoreReader

Value = TypeVar("Value", bound="DataclassInstance")
Recorded = Iterator[v.RecordedEvent]


def events_after(
    reader: "StoreReader", run: int, after: int = 0, *, limit: int = 500, groups_from: int = 0,
    tokens: bool = True,
) -> tuple[v.RecordedEvent, ...]:  # fmt: skip
    """Return recorded events beyond sequence number `after`, as the live feed shows them.

    Omits rows that a later attempt redid, groups and passes of steps before `groups_from`, and
    token numbers unless they are requested.
    """
    keys: list[tuple[int, int, int]] = []
    for source, seq in enumerate(SOURCES):
        if seq is ROLLOUT_GROUP.c.tokens_seq and not tokens:
            continue
        columns = seq.table.c
        query = select(seq, columns.id).where(
            columns.run_id == run, seq > after, columns.hidden == 0
        )
        if groups_from > 0 and seq.table in (ROLLOUT_GROUP, UPDATE_PASS):
            query = query.where(columns.step >= groups_from)
        keys += [
            (number, source, key)
            for number, key in reader.rows(query.order_by(seq).limit(limit))
            if not isinstance(number, v.Unreadable)
        ]
    keys = sorted(keys)[:limit]
    return _read(reader, run, {
        seq: [key for _, index, key in keys if index == source]
        for source, seq in enumerate(SOURCES)
    })  # fmt: skip


def events_of_step(reader: "StoreReader", run: int, step: int) -> tuple[v.RecordedEvent, ...]:
    """Return what was recorded of one step: its groups, passes and metrics."""
    keys = {}
    for seq in (ROLLOUT_GROUP.c.seq, UPDATE_PASS.c.seq, STEP.c.seq):
        columns = seq.table.c
        of_step = (columns.run_id == run, columns.step == step, columns.hidden == 0)
        keys[seq] = reader.column(select(columns.id).where(*of_step))
    return _read(reader, run, keys)


def _read(
    reader: "StoreReader", run: int, keys: "dict[Column[int], list[int]]"
) -> tuple[v.RecordedEvent, ...]:
    """Return the events of rows by the column of their sequence number, in its order."""
    events = (event for seq in keys if keys[seq] for event in SOURCES[seq](reader, run, keys[seq]))
    return tuple(sorted(events, key=lambda event: event.seq))


def _other_events(reader: "StoreReader", _: int, keys: Sequence[int]) -> Recorded:
    columns = EVENT.c
    query = select(columns.seq, columns.at, columns.payload).where(columns.id.in_(keys))
    for seq, at, event in reader.rows(query):
        yield v.RecordedEvent(seq, at, event)


def _steps(reader: "StoreReader", run: int, keys: Sequence[int]) -> Recorded:
    query = select(STEP, KEY_SET.c["keys"].label("reported")).join_from(STEP, KEY_SET)
    names = reader.pairs(select(METRIC_KEY.c.id, METRIC_KEY.c.name))
    metric = METRIC.c
    for row in reader.rows(query.where(STEP.c.id.in_(keys))):
        of_step = (metric.run_id == run, metric.step == row.step, metric.key_id.in_(row.reported))
        values = reader.pairs(select(metric.key_id, metric.value).where(*of_step))
        metrics = {names[key]: values.get(key, math.nan) for key in row.reported}
        event = as_view(ev.StepFinished, row, metrics=metrics)
        yield v.RecordedEvent(row.seq, row.at, event)


def _passes(reader: "StoreReader", _: int, keys: Sequence[int]) -> Recorded:
    query = reader.select(ev.PassFinished, UPDATE_PASS, UPDATE_PASS.c.seq, index="pass")
    for row in reader.rows(query.where(UPDATE_PASS.c.id.in_(keys))):
        yield v.RecordedEvent(row.seq, 0.0, as_view(ev.PassFinished, row))


def _evaluations(reader: "StoreReader", _: int, keys: Sequence[int]) -> Recorded:
    columns = EVALUATION.c
    query = select(columns.id, columns.seq, columns.at).where(columns.id.in_(keys))
    for key, seq, at in reader.rows(query):
        event = _as(ev.EvaluationFinished, reader.evaluation(key))
        yield v.RecordedEvent(seq, at, event)


def _groups(reader: "StoreReader", run: int, keys: Sequence[int]) -> Recorded:
    for seq, _, view, blob in _with_blobs(reader, run, keys):
        event = ev.GroupScored(step=view.step, group=_group(view, blob))
        yield v.RecordedEvent(seq, 0.0, event)


def _tokens(reader: "StoreReader", run: int, keys: Sequence[int]) -> Recorded:
    for _, seq, view, (_, rows) in _with_blobs(reader, run, keys):
        by_index = {row.index: row for row in rows}
        event = ev.TokensScored(
            step=view.step, group=view.index, origin=view.origin,
            numbers=tuple(_numbers(item, by_index.get(item.index)) for item in view.rollouts),
        )  # fmt: skip
        yield v.RecordedEvent(seq, 0.0, event)


# what reads the events back, by the column of their sequence number in the run's record
SOURCES = {
    EVENT.c.seq: _other_events, STEP.c.seq: _steps, UPDATE_PASS.c.seq: _passes,
    EVALUATION.c.seq: _evaluations, ROLLOUT_GROUP.c.seq: _groups,
    ROLLOUT_GROUP.c.tokens_seq: _tokens,
}  # fmt: skip


def _with_blobs(
    reader: "StoreReader", run: int, keys: Sequence[int]
) -> "Iterator[tuple[int, int, v.GroupView, Blob]]":
    columns = ROLLOUT_GROUP.c
    query = select(columns.id, columns.seq, columns.tokens_seq).where(columns.id.in_(keys))
    seqs = {key: (seq, tokens) for key, seq, tokens in reader.rows(query)}
    blobs = reader.blobs(run, [seq for seq, _ in seqs.values()])
    for view in reader.groups_by_key(keys):
        seq, tokens = seqs[view.key]
        yield seq, tokens, view, blobs.get(seq, ((), ()))


def _as(cls: type[Value], stored: Any, **changes: Any) -> Value:
    """Build the event's value from a stored value, which has the same fields and more."""
    fields = dataclasses.fields(cls)
    return cls(**{field.name: getattr(stored, field.name) for field in fields} | changes)


def _group(view: v.GroupView, blob: "Blob") -> ev.Group:
    prompt_ids, rows = blob
    by_index = {row.index: row for row in rows}
    rollouts = tuple(_completion(item, by_index.get(item.index)) for item in view.rollouts)
    return _as(ev.Group, view, prompt_ids=prompt_ids, rollouts=rollouts)


def _completion(item: v.RolloutView, row: v.TokenRow | None) -> ev.Completion:
    if row is None:
        return _as(ev.Completion, item)
    return _as(ev.Completion, item, ids=row.ids, sampler_logprobs=row.sampler, ends=row.ends)


def _numbers(item: v.RolloutView, row: v.TokenRow | None) -> ev.TokenNumbers:
    numbers = row or ev.TokenNumbers(index=item.index, old=())
    return _as(ev.TokenNumbers, numbers, clip_fraction=item.clip_fraction, kl=item.kl)
