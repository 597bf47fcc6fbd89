"""Search prompts and completions of a run, as a stream.

The texts themselves are read: SQLite rules out most of them, and Python checks the others.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, LargeBinary, cast, func, or_, select

from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP
from grpo_tui.experiments.db.texts import escape, words_pattern
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.read.connection import among, as_view
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import SearchHit

SORTS = {
    "newest": "id",
    "reward": "reward",
    "advantage": "advantage",
    "length": "tokens",
    "kl": "kl",
    "clip": "clip_fraction",
}
PAGE = 5_000  # rollouts whose texts are read at a time

GROUP, COLUMNS = ROLLOUT_GROUP.c, ROLLOUT.c
JOINED = ROLLOUT.join(ROLLOUT_GROUP)
HITS = select(
    COLUMNS.id.label("rollout"),
    GROUP.id.label("group"),
    GROUP.step,
    GROUP.origin,
    GROUP.idx.label("group_index"),
    COLUMNS.idx.label("index"),
    COLUMNS.text,
    COLUMNS.reward,
    GROUP.prompt_text.label("prompt"),
).select_from(JOINED)
TEXTS = (COLUMNS.text, GROUP.prompt_text)


class Match(NamedTuple):
    """A rollout whose completion or prompt contains a text."""

    rollout: int
    step: int
    origin: str
    in_answer: bool  # else the prompt alone contains it


def _contains(column: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Return the condition that a column contains the text."""
    # Backslashes, and characters that are escaped with them, are stored in another form.
    longest = max(re.split(r"[\s\\\x00]+", text), key=len)
    pattern = escape(words_pattern(text))
    exact: ColumnElement[bool] = func.contains_words(pattern, cast(column, LargeBinary))
    if not text.isascii() or not longest:
        return exact
    return column.contains(longest[:1000], autoescape=True) & exact


def matches(
    reader: StoreReader, run: int, text: str, *, sort: str = "newest", **columns: Any
) -> Iterator[list[Match]]:
    """Stream all rollouts of a run whose completion or prompt contains the text, in pages.

    Case and spacing do not count. `sort` is newest, or reward, advantage, length, kl or clip,
    largest first. `columns` are values of the groups, such as their step. `reader.interrupt` from
    another thread stops the search with InterruptedError.
    """
    if not text.split():
        raise QueryError("the search text is empty; type a word or a phrase")
    columns = {"hidden": False, **columns}
    contain = or_(*(_contains(column, text) for column in TEXTS))
    in_answer = _contains(COLUMNS.text, text).label("in_answer")
    where = (contain, *(GROUP[name] == value for name, value in columns.items()))
    order = (COLUMNS[SORTS[sort]].desc().nulls_last(), COLUMNS.id.desc())
    interrupts = reader.interrupts
    ordered = select(COLUMNS.id).filter_by(run_id=run).order_by(*order).subquery()
    # A single JSON value: reading a hundred thousand rows takes ten times as long.
    numbers = json.loads(reader.value(select(func.json_group_array(ordered.c.id))))
    for start in range(0, len(numbers), PAGE):
        if reader.interrupts != interrupts:
            raise InterruptedError("the search was stopped")
        page = among(COLUMNS.id, numbers[start : start + PAGE])
        selected = select(COLUMNS.id, GROUP.step, GROUP.origin, in_answer).select_from(JOINED)
        rows = selected.where(page, *where).order_by(*order).subquery()
        values = func.json_group_array(func.json_array(*rows.c))
        yield [
            Match(rollout, step, origin, bool(in_answer))
            for rollout, step, origin, in_answer in json.loads(reader.value(select(values)))
        ]


def hits(reader: StoreReader, rollouts: Collection[int], text: str) -> list[SearchHit]:
    """Return what matched in these rollouts, in their order."""
    pattern = re.compile(words_pattern(text))
    rows = {row.rollout: row for row in reader.rows(HITS.where(among(COLUMNS.id, rollouts)))}
    return [
        hit for rollout in rollouts if rollout in rows and (hit := _hit(rows[rollout], pattern))
    ]


def search(
    reader: StoreReader, run: int, text: str, *, limit: int = 50, **options: Any
) -> Iterator[SearchHit | None]:
    """Stream what matches of a run, with its text; the options are those of `matches`.

    A None after each page lets the caller pause.
    """
    interrupts = reader.interrupts
    for page in matches(reader, run, text, **options):
        for hit in hits(reader, [match.rollout for match in page[:limit]], text):
            if reader.interrupts != interrupts:
                raise InterruptedError("the search was stopped")
            yield hit
            limit -= 1
        if not limit:
            return
        yield None


def _hit(row: Any, pattern: re.Pattern[str]) -> SearchHit | None:
    for where, text in (("completion", row.text), ("prompt", row.prompt)):
        if match := pattern.search(text):
            start, end = match.span()
            return as_view(SearchHit, row, where=where, text=text, start=start, end=end)
    return None
