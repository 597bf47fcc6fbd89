"""Read the recorded events back in their order, as a viewer of the store needs them."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
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
from grpo_tui.experiments.read.metrics import MetricQuestions
from grpo_tui.experiments.read.rollouts import Blob, RolloutQuestions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")

# where the places of events in a run's record are
SOURCES: tuple[Column[int], ...] = (
    EVENT.c.seq, STEP.c.seq, UPDATE_PASS.c.seq, EVALUATION.c.seq, ROLLOUT_GROUP.c.seq,
    ROLLOUT_GROUP.c.tokens_seq,
)  # fmt: skip


class FactQuestions(MetricQuestions, RolloutQuestions):
    def facts(
        self, run: int, *, after: int = 0, limit: int = 500, groups_from: int = 0,
        tokens: bool = True,
    ) -> tuple[v.Fact, ...]:  # fmt: skip
        """Return recorded events beyond sequence number `after`, as the live feed shows them.

        Omits rows that a later attempt redid, groups and passes of steps before `groups_from`, and
        token numbers unless they are requested.
        """
        found: list[tuple[int, int, int]] = []
        for number, seq in enumerate(SOURCES):
            if seq is ROLLOUT_GROUP.c.tokens_seq and not tokens:
                continue
            columns = seq.table.c
            query = select(seq, columns.id).where(
                columns.run_id == run, seq > after, columns.hidden == 0
            )
            if groups_from > 0 and seq.table in (ROLLOUT_GROUP, UPDATE_PASS):
                query = query.where(columns.step >= groups_from)
            rows = self._all(query.order_by(seq).limit(limit))
            found += [(at, number, key) for at, key in rows if not isinstance(at, v.Unreadable)]
        found = sorted(found)[:limit]
        return self._facts(run, {
            seq: [key for _, source, key in found if source == number]
            for number, seq in enumerate(SOURCES)
        })  # fmt: skip

    def facts_of(self, run: int, step: int) -> tuple[v.Fact, ...]:
        """Return what was recorded of one step: its groups, passes and metrics."""
        keys = {}
        for seq in (ROLLOUT_GROUP.c.seq, UPDATE_PASS.c.seq, STEP.c.seq):
            columns = seq.table.c
            keys[seq] = self._column(
                select(columns.id).where(
                    columns.run_id == run, columns.step == step, columns.hidden == 0
                )
            )
        return self._facts(run, keys)

    def _facts(self, run: int, sources: "dict[Column[int], list[int]]") -> tuple[v.Fact, ...]:
        """Return the events of rows by the column of their place, in the order of their places."""
        readers = (
            self._other_facts, self._step_facts, self._pass_facts, self._evaluation_facts,
            self._group_facts, self._token_facts,
        )  # fmt: skip
        facts: dict[int, v.Fact] = {}
        for seq, read in zip(SOURCES, readers, strict=True):
            if keys := sources.get(seq):
                facts |= {fact.seq: fact for fact in read(run, keys)}
        return tuple(facts[seq] for seq in sorted(facts))

    def _other_facts(self, _: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        columns = EVENT.c
        query = select(columns.seq, columns.at, columns.payload).where(columns.id.in_(keys))
        for seq, at, event in self._all(query):
            yield v.Fact(seq=seq, at=at, event=event)

    def _step_facts(self, run: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        rows = self._all(
            select(STEP, KEY_SET.c["keys"].label("reported"))
            .join_from(STEP, KEY_SET)
            .where(STEP.c.id.in_(keys))
        )
        names = self._dict(select(METRIC_KEY.c.id, METRIC_KEY.c.name))
        for row in rows:
            values = self._dict(
                select(METRIC.c.key_id, METRIC.c.value).where(
                    METRIC.c.run_id == run,
                    METRIC.c.step == row.step,
                    METRIC.c.key_id.in_(row.reported),
                )
            )
            metrics = {names[key]: values.get(key, math.nan) for key in row.reported}
            event = as_view(ev.StepFinished, row, metrics=metrics)
            yield v.Fact(seq=row.seq, at=row.at, event=event)

    def _pass_facts(self, _: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        for row in self._all(self._passes().where(UPDATE_PASS.c.id.in_(keys))):
            yield v.Fact(seq=row.seq, at=None, event=as_view(ev.PassFinished, row))

    def _evaluation_facts(self, _: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        columns = EVALUATION.c
        query = self._select(ev.EvaluationFinished, EVALUATION, columns.id, columns.seq, columns.at)
        for row in self._all(query.where(columns.id.in_(keys))):
            samples = self._samples(row.id, row.metrics)
            event = as_view(ev.EvaluationFinished, row, rows=samples)
            yield v.Fact(seq=row.seq, at=row.at, event=event)

    def _group_facts(self, run: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        for seq, _, view, blob in self._with_blobs(run, keys):
            yield v.Fact(
                seq=seq, at=None, event=ev.GroupScored(step=view.step, group=_group(view, blob))
            )

    def _token_facts(self, run: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        for _, seq, view, blob in self._with_blobs(run, keys):
            rows = {row.index: row for row in blob[1]}
            event = ev.TokensScored(
                step=view.step, group=view.index, origin=view.origin,
                numbers=tuple(_numbers(item, rows.get(item.index)) for item in view.rollouts),
            )  # fmt: skip
            yield v.Fact(seq=seq, at=None, event=event)

    def _with_blobs(
        self, run: int, keys: Sequence[int]
    ) -> Iterable[tuple[int, int, v.GroupView, Blob]]:
        columns = ROLLOUT_GROUP.c
        query = select(columns.id, columns.seq, columns.tokens_seq).where(columns.id.in_(keys))
        seqs = {key: (seq, tokens) for key, seq, tokens in self._all(query)}
        blobs = self._blobs(run, [seq for seq, _ in seqs.values()])
        for view in self.groups_by_key(keys):
            seq, tokens = seqs[view.key]
            yield seq, tokens, view, blobs.get(seq, ((), ()))


def _as(kind: type[Value], stored: Any, **changes: Any) -> Value:
    """Build the event's value from a stored value, which has the same fields and more."""
    fields = dataclasses.fields(kind)
    return kind(**{field.name: getattr(stored, field.name) for field in fields} | changes)


def _group(view: v.GroupView, blob: Blob) -> ev.Group:
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
