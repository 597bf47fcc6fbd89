"""Page through a run's rollouts ordered by one of their numbers, so that a search can stream."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal, select, tuple_

from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP
from grpo_tui.experiments.read.connection import Reading, among

PAGE = 500
FIRST_PAGE = 200

GROUP, ANSWER = ROLLOUT_GROUP.c, ROLLOUT.c
HITS = (
    select(
        ANSWER.id.label("rollout"), GROUP.id.label("group"), GROUP.run_id.label("run"), GROUP.step,
        GROUP.origin, GROUP.idx.label("group_index"), ANSWER.idx.label("rollout_index"),
        ANSWER.text, ANSWER.reward, GROUP.prompt_text.label("prompt"),
    )
    .join_from(ROLLOUT, ROLLOUT_GROUP)
    .where(GROUP.hidden == 0)
)  # fmt: skip


class OrderedRollouts(Reading):
    """All rollouts of a run by descending reward, advantage, length, KL or clip fraction."""

    def _ordered(self, run: int | None, column: str) -> Iterator[Any]:
        """Yield the rollouts of a run by descending `column`, page by page."""
        if column == "reward":
            yield from self._by_reward(run)
            return
        for keys in self._keys_by(run, column):
            for start in range(0, len(keys), 100):
                page = keys[start : start + 100]
                rows = self._all(HITS.where(among(ANSWER.id, page)))
                hits = {row.rollout: row for row in rows}
                yield from (hits[key] for key in page if key in hits)

    def _keys_by(self, run: int | None, column: str) -> Iterator[list[int]]:
        """Yield ids of a run's rollouts by descending `column`, in growing pages; NULLs last."""
        oldest, newest = self._group_edge(run), self._group_edge(run, newest=True)
        if oldest is None or newest is None:
            return
        value = ANSWER[column]
        # with + 0, so that SQLite takes the narrow index of groups instead of a run's index
        of_run = and_(ANSWER.group_id.between(oldest, newest), ANSWER.run_id + 0 == run)
        query = select(ANSWER.id, value).where(of_run, value.is_not(None))
        query = query.order_by(value.desc(), ANSWER.id.desc())
        rows = self._highest(value, of_run, oldest, newest)
        size = FIRST_PAGE
        while True:
            yield [key for key, _ in rows]
            if len(rows) < size:
                break
            last, size = _pair(rows[-1]), 20 * size
            rows = self._all(query.where(tuple_(value, ANSWER.id) < last).limit(size))
        query = select(ANSWER.id, ANSWER.group_id).where(of_run, value.is_(None))
        query = query.order_by(ANSWER.group_id.desc(), ANSWER.id.desc())
        rows, size = self._all(query.limit(FIRST_PAGE)), FIRST_PAGE
        while True:
            yield [key for key, _ in rows]
            if len(rows) < size:
                return
            last, size = _pair(rows[-1]), 20 * size
            rows = self._all(query.where(tuple_(ANSWER.group_id, ANSWER.id) < last).limit(size))

    def _group_edge(self, run: int | None, *, newest: bool = False) -> int | None:
        """Return the oldest or newest group of a run."""
        order = GROUP.seq.desc() if newest else GROUP.seq
        query = select(GROUP.id).where(GROUP.run_id == run).order_by(order).limit(1)
        group: int | None = self._value(query)
        return group

    def _highest(
        self, value: ColumnElement[Any], of_run: ColumnElement[bool], oldest: int, newest: int
    ) -> Sequence[Any]:
        """Return the FIRST_PAGE highest ids by (column, id), searching the newest groups first.

        SQLite's sort keeps every row that beats its current worst, which is nearly every row when
        many values are equal and the higher id wins. Older rows rarely beat the rows of the newest
        groups.
        """
        middle = newest - (newest - oldest) // 16
        query = select(ANSWER.id, value).where(of_run, value.is_not(None))
        query = query.order_by(value.desc(), ANSWER.id.desc()).limit(FIRST_PAGE)
        rows = [*self._all(query.where(ANSWER.group_id >= middle))]
        query = query.where(ANSWER.group_id < middle)
        if len(rows) == FIRST_PAGE:
            query = query.where(tuple_(value, ANSWER.id) > _pair(rows[-1]))
        rows += self._all(query)
        return sorted(rows, key=itemgetter(1, 0), reverse=True)[:FIRST_PAGE]

    def _by_reward(self, run: int | None) -> Iterator[Any]:
        of_run = HITS.where(ANSWER.run_id == run)
        value = self._value(select(func.max(ANSWER.reward)).where(ANSWER.run_id == run))
        last, size = tuple_(literal(value), literal(1 << 62)), 100
        query = of_run.order_by(ANSWER.run_id.desc(), ANSWER.reward.desc(), ANSWER.id.desc())
        while value is not None:
            rows = self._all(query.where(tuple_(ANSWER.reward, ANSWER.id) < last).limit(size))
            yield from rows
            if len(rows) < size:
                break
            last, size = tuple_(literal(rows[-1].reward), literal(rows[-1].rollout)), PAGE
        yield from self._all(of_run.where(ANSWER.reward.is_(None)).order_by(ANSWER.id.desc()))


def _pair(row: Any) -> ColumnElement[Any]:
    """The second and first value of a row, to compare with."""
    return tuple_(literal(row[1]), literal(row[0]))
