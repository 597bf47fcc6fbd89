"""Read the recorded events back in their order, as a viewer of the store needs them."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.numbers import number
from grpo_tui.experiments.db.paths import run_folder, tokens_file
from grpo_tui.experiments.read.connection import marks, text
from grpo_tui.experiments.read.metrics import PASS, MetricQuestions
from grpo_tui.experiments.read.rollouts import RolloutQuestions
from grpo_tui.experiments.read.shapes import Shape

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")
Blob = tuple[tuple[int, ...], tuple[v.TokenRow, ...]]

EVALUATION = Shape(ev.EvaluationFinished, "evaluation")
SOURCES = (
    ("event", "seq"), ("step", "seq"), ("update_pass", "seq"), ("evaluation", "seq"),
    ("rollout_group", "seq"), ("rollout_group", "tokens_seq"),
)  # fmt: skip


class FactQuestions(MetricQuestions, RolloutQuestions):
    def facts(
        self, run: int, *, after: int = 0, limit: int = 500, groups_from: int = 0,
        tokens: bool = True,
    ) -> tuple[v.Fact, ...]:  # fmt: skip
        """Return recorded events beyond sequence number `after`, as the live feed shows them.

        Omits rows that a later attempt redid, groups and passes of steps before `groups_from`, and
        token numbers unless they are wanted.
        """
        found: list[tuple[int, str, str, int]] = []
        for table, column in SOURCES:
            if column == "tokens_seq" and not tokens:
                continue
            late = groups_from if table in ("rollout_group", "update_pass") else -1
            rows = self._all(
                f"SELECT {column}, id FROM {table} WHERE run_id = ? AND {column} > ? "
                f"AND hidden = 0 {'AND step >= ?' if late > 0 else ''} "
                f"ORDER BY {column} LIMIT ?",
                (run, after, *((late,) if late > 0 else ()), limit),
            )
            found += [(seq, table, column, key) for seq, key in rows]
        found.sort()
        facts: dict[int, v.Fact] = {}
        for table, column in SOURCES:
            keys = [key for _, *of, key in found[:limit] if of == [table, column]]
            if keys:
                for fact in self._reader_of(table, column)(run, keys):
                    facts[fact.seq] = fact
        return tuple(facts[seq] for seq in sorted(facts))

    def facts_of(self, run: int, step: int) -> tuple[v.Fact, ...]:
        """Return what was recorded of one step: its groups, passes and metrics."""
        found: list[v.Fact] = []
        for table in ("rollout_group", "update_pass", "step"):
            rows = self._all(
                f"SELECT id FROM {table} WHERE run_id = ? AND step = ? AND hidden = 0 ORDER BY seq",
                (run, step),
            )
            if rows:
                found += self._reader_of(table, "seq")(run, [key for (key,) in rows])
        return tuple(sorted(found, key=lambda fact: fact.seq))

    def _reader_of(
        self, table: str, column: str
    ) -> Callable[[int, Sequence[int]], Iterable[v.Fact]]:
        if column == "tokens_seq":
            return self._token_facts
        return {
            "event": self._other_facts, "step": self._step_facts,
            "update_pass": self._pass_facts, "evaluation": self._evaluation_facts,
            "rollout_group": self._group_facts,
        }[table]  # fmt: skip

    def _other_facts(self, _: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        rows = self._all(f"SELECT seq, at, payload FROM event WHERE id IN ({marks(keys)})", keys)
        for seq, at, payload in rows:
            yield v.Fact(seq=seq, at=at, event=ev.from_json(json.loads(payload)))

    def _step_facts(self, run: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        rows = self._all(
            "SELECT seq, at, step, tokens, elapsed, keys FROM step "
            f"JOIN key_set ON key_set.id = key_set WHERE step.id IN ({marks(keys)})",
            keys,
        )
        names = {key: text(name) for key, name in self._all("SELECT id, name FROM metric_key")}
        for seq, at, step, tokens, elapsed, keys_json in rows:
            wanted = json.loads(keys_json)
            values = dict(
                self._all(
                    "SELECT key_id, value FROM metric WHERE run_id = ? AND step = ? "
                    f"AND key_id IN ({marks(wanted)})",
                    [run, step, *wanted],
                )
            )
            event = ev.StepFinished(
                step=step, metrics={names[key]: number(values.get(key)) for key in wanted},
                tokens=tokens, elapsed=number(elapsed),
            )  # fmt: skip
            yield v.Fact(seq=seq, at=at, event=event)

    def _pass_facts(self, _: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        rest = f"WHERE id IN ({marks(keys)})"
        columns = self._columns(PASS, rest, keys, "seq")
        for seq, event in zip(columns["seq"], PASS.make(columns), strict=True):
            yield v.Fact(seq=seq, at=None, event=event)

    def _evaluation_facts(self, _: int, keys: Sequence[int]) -> Iterable[v.Fact]:
        rest = f"WHERE id IN ({marks(keys)})"
        columns = self._columns(EVALUATION, rest, keys, "id", "seq", "at")
        columns["rows"] = [self._evaluation_rows(key) for key in columns["id"]]
        events = EVALUATION.make(columns)
        for seq, at, event in zip(columns["seq"], columns["at"], events, strict=True):
            yield v.Fact(seq=seq, at=at, event=event)

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
        from grpo_tui.experiments.db.tokens import read_blobs

        seqs = {
            key: (seq, tokens)
            for key, seq, tokens in self._all(
                f"SELECT id, seq, tokens_seq FROM rollout_group WHERE id IN ({marks(keys)})", keys
            )
        }
        path = tokens_file(run_folder(self.path, self._short(run)))
        blobs = read_blobs(path, [seq for seq, _ in seqs.values()])
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
