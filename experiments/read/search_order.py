"""Page through a run's rollouts ordered by one of their numbers, so that a search can stream."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from grpo_engine.events import Origin
from grpo_tui.experiments.read.connection import Reading, marks, text

PAGE = 500
FIRST_PAGE = 200

HIT = (
    "SELECT r.id, g.id, g.run_id, g.step, g.origin, g.idx, r.idx, r.text, r.reward, g.prompt_text "
    "FROM rollout r JOIN rollout_group g ON g.id = r.group_id WHERE g.hidden = 0 "
)


class Found(NamedTuple):
    """A row of `HIT`."""

    rollout: int
    group: int
    run: int
    step: int
    origin: Origin
    group_index: int
    rollout_index: int
    text: str
    reward: float | None
    prompt: str


class OrderedRollouts(Reading):
    """All rollouts of a run by descending reward, advantage, length, KL or clip fraction."""

    def _found(self, rest: str, values: Sequence[Any]) -> list[Found]:
        return [
            Found._make((*row[:7], text(row[7]), row[8], text(row[9])))
            for row in self._all(HIT + rest, values)
        ]

    def _ordered(self, run: int | None, column: str) -> Iterator[Found]:
        """Yield the rollouts of a run by descending `column`, page by page."""
        if column == "reward":
            yield from self._walk_index(run)
            return
        for keys in self._keys_by(run, column):
            for place in range(0, len(keys), 100):
                part = keys[place : place + 100]
                rows = self._found(f"AND r.id IN ({marks(part)})", part)
                found = {row.rollout: row for row in rows}
                yield from (found[key] for key in part if key in found)

    def _keys_by(self, run: int | None, column: str) -> Iterator[list[int]]:
        """Yield ids of a run's rollouts by descending `column`, in growing pages; NULLs last."""
        edges = [
            self._value(
                f"SELECT id FROM rollout_group WHERE run_id = ? ORDER BY seq {way} LIMIT 1", (run,)
            )
            for way in ("ASC", "DESC")
        ]
        oldest, newest = edges
        if oldest is None or newest is None:
            return
        table = "rollout INDEXED BY rollout_of_group" if self.schema >= 4 else "rollout"
        where = f"FROM {table} WHERE group_id BETWEEN ? AND ? AND run_id = ?"
        values = (oldest, newest, run)
        rows = self._first_by(column, where, values)
        size = FIRST_PAGE
        while True:
            yield [key for key, _ in rows]
            if len(rows) < size:
                break
            (key, value), size = rows[-1], 20 * size
            rows = self._all(
                f"SELECT id, {column} {where} AND {column} IS NOT NULL AND ({column}, id) < (?, ?) "
                f"ORDER BY {column} DESC, id DESC LIMIT ?",
                [*values, value, key, size],
            )
        group, key, size = newest + 1, 0, FIRST_PAGE
        while True:
            rows = self._all(
                f"SELECT id, group_id {where} AND {column} IS NULL AND (group_id, id) < (?, ?) "
                "ORDER BY group_id DESC, id DESC LIMIT ?",
                [*values, group, key, size],
            )
            yield [key for key, _ in rows]
            if len(rows) < size:
                return
            (key, group), size = rows[-1], 20 * size

    def _first_by(self, column: str, where: str, values: tuple[int, int, int | None]) -> list[Any]:
        """Return the FIRST_PAGE highest ids by (column, id), searching the newest groups first.

        SQLite's sort keeps every row that beats its current worst, which is nearly every row when
        many values are equal and the higher id wins. Older rows rarely beat the rows of the newest
        groups.
        """
        oldest, newest, run = values
        cut = newest - (newest - oldest) // 16
        page = f"ORDER BY {column} DESC, id DESC LIMIT {FIRST_PAGE}"
        found = self._all(
            f"SELECT id, {column} {where} AND {column} IS NOT NULL {page}", [cut, newest, run]
        )
        better, worst = f"{column} IS NOT NULL", []
        if len(found) == FIRST_PAGE:
            key, value = found[-1]
            better, worst = f"({column}, id) > (?, ?)", [value, key]
        found += self._all(
            f"SELECT id, {column} {where} AND {better} {page}", [oldest, cut - 1, run, *worst]
        )
        return sorted(found, key=itemgetter(1, 0), reverse=True)[:FIRST_PAGE]

    def _walk_index(self, run: int | None) -> Iterator[Found]:
        value = self._value("SELECT max(reward) FROM rollout WHERE run_id = ?", (run,))
        key, size = 1 << 62, 100
        while value is not None:
            rows = self._found(
                "AND r.run_id = ?1 AND (r.reward, r.id) < (?2, ?3) "
                "ORDER BY r.run_id DESC, r.reward DESC, r.id DESC LIMIT ?4",
                (run, value, key, size),
            )
            yield from rows
            if len(rows) < size:
                break
            value, key, size = rows[-1].reward, rows[-1].rollout, PAGE
        yield from self._found("AND r.run_id = ? AND r.reward IS NULL ORDER BY r.id DESC", (run,))
