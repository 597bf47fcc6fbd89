"""Search prompts and completions of a run, as a stream.

The texts themselves are read: SQLite rules out most of them, and Python checks the others.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, true

from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP
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
HITS = select(
    COLUMNS.id.label("rollout"),
    GROUP.id.label("group"),
    GROUP.step,
    GROUP.origin,
    GROUP.idx.label("group_index"),
    COLUMNS.idx.label("index"),
    COLUMNS.text,
    GROUP.prompt_text.label("prompt"),
).join_from(ROLLOUT, ROLLOUT_GROUP)


def _likely(text: str) -> ColumnElement[bool]:
    """Return a condition that rules out texts before they are read."""
    # Backslashes, and characters that are escaped with them, are stored in another form.
    longest = max(re.split(r"[\s\\\x00]+", text), key=len)
    if not text.isascii() or not longest:
        return true()
    columns = (COLUMNS.text, GROUP.prompt_text)
    return or_(*(column.contains(longest[:1000], autoescape=True) for column in columns))


def search(
    reader: StoreReader,
    run: int,
    text: str,
    *,
    sort: str = "newest",
    limit: int = 50,
    **columns: Any,
) -> Iterator[SearchHit | None]:
    """Stream a run's rollouts whose completion or prompt contains the text.

    Case and spacing do not count. `sort` is newest, or reward, advantage, length, kl or clip,
    largest first. `columns` are values of the groups, such as their step; `limit` applies after
    them. A None after each page lets the caller pause. `reader.interrupt` from another thread stops
    the search with InterruptedError.
    """
    terms = text.split()
    if not terms:
        raise QueryError("the search text is empty; type a word or a phrase")
    pattern = re.compile(r"\s+".join(map(re.escape, terms)), re.IGNORECASE)
    columns = {"hidden": False, **columns}
    hits = HITS.where(_likely(text), *(GROUP[name] == value for name, value in columns.items()))
    order = (COLUMNS[SORTS[sort]].desc().nulls_last(), COLUMNS.id.desc())
    interrupts = reader.interrupts
    ordered = select(COLUMNS.id).filter_by(run_id=run).order_by(*order).subquery()
    # A single JSON value: reading a hundred thousand rows takes ten times as long.
    numbers = json.loads(reader.value(select(func.json_group_array(ordered.c.id))))
    for start in range(0, len(numbers), PAGE):
        page = among(COLUMNS.id, numbers[start : start + PAGE])
        for row in reader.rows(hits.where(page).order_by(*order)):
            if reader.interrupts != interrupts:
                raise InterruptedError("the search was stopped")
            if hit := _hit(row, pattern):
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
