"""Search prompts and completions, as a stream, newest first.

The texts themselves are read: SQLite rules out most of them, and Python looks at the rest.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    Select,
    String,
    cast,
    func,
    not_,
    or_,
    select,
    true,
    type_coerce,
)

from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP, RUN
from grpo_tui.experiments.errors import QueryError, check_choice
from grpo_tui.experiments.read.connection import among
from grpo_tui.experiments.values import SearchHit

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

SORTS = {"newest": "", "reward": "reward", "advantage": "advantage", "length": "tokens", "kl": "kl",
         "clip": "clip_fraction"}  # fmt: skip
PAGE = 5_000  # rollouts whose texts are read at a time

GROUP, ANSWER = ROLLOUT_GROUP.c, ROLLOUT.c
HITS = select(
    ANSWER.id.label("rollout"), GROUP.id.label("group"), GROUP.run_id.label("run"), GROUP.step,
    GROUP.origin, GROUP.idx.label("group_index"), ANSWER.idx.label("index"), ANSWER.text,
    ANSWER.reward, GROUP.prompt_text.label("prompt"),
).join_from(ROLLOUT, ROLLOUT_GROUP)  # fmt: skip


def _span(text: str, literal: str) -> tuple[int, int] | None:
    """Return where the text contains the literal, but for case and spacing, as start and end."""
    if literal not in _folded(text):
        return None
    folded: list[str] = []
    positions: list[int] = []
    for position, char in enumerate(text):
        for part in " " if char.isspace() else char.casefold():
            if part != " " or folded[-1:] != [" "]:
                folded.append(part)
                positions.append(position)
    start = "".join(folded).find(literal)
    return positions[start], positions[start + len(literal) - 1] + 1


def _likely(literal: str) -> ColumnElement[bool]:
    """Return a condition that rules out texts before they are read."""
    # backslashes and what they escape are stored in another form
    longest = max(re.split(r"[\s\\\x00]+", literal), key=len)
    if not literal.isascii() or not longest:
        return true()
    pattern = "%" + re.sub(r"([\\%_])", r"\\\1", longest[:1000]) + "%"
    texts = [type_coerce(stored, String) for stored in (ANSWER.text, GROUP.prompt_text)]
    # LIKE folds only ASCII case; a text with other characters is checked in Python
    return or_(*(
        or_(
            stored.like(pattern, escape="\\"),
            func.length(cast(stored, LargeBinary)) > func.length(stored),
        )
        for stored in texts
    ))  # fmt: skip


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def search(reader: "StoreReader", typed: str, **options: Any) -> Iterator[SearchHit]:
    """Stream the hits of `searching`."""
    return (hit for hit in searching(reader, typed, **options) if hit is not None)


def searching(
    reader: "StoreReader", typed: str, *, run: int | None = None, sort: str = "newest",
    limit: int = 50, before: int | None = None, **columns: Any,
) -> Iterator[SearchHit | None]:  # fmt: skip
    """Stream rollouts whose completion or prompt contains the text.

    `sort` is newest, or within one run reward, advantage, length, kl or clip, largest first. To
    page through newest, pass the last hit's `rollout` as `before`. `columns` are values of the
    groups, such as their step; `limit` applies after them. None after each page lets a caller
    pause, and `reader.interrupt` from another thread stops the search with InterruptedError.
    """
    check_choice("order of hits", sort, SORTS, QueryError)
    if run is None and (sort != "newest" or "step" in columns):
        raise QueryError("steps and orders of hits are those of one run: name the run")
    literal = _folded(typed)
    if not literal:
        raise QueryError("the search text is empty; type a word or a phrase")
    deleted = select(RUN.c.id).where(not_(reader.not_deleted()))
    hits = HITS.where(ANSWER.run_id.not_in(deleted), _likely(literal))
    hits = hits.where(*(GROUP[name] == value for name, value in columns.items()), GROUP.hidden == 0)
    if run is not None:
        hits = hits.where(ANSWER.run_id + 0 == run)  # an id's page by the id, not by the run
    interrupts, count = reader.interrupts, 0
    if sort == "newest":
        pages = _newest(reader, run, hits, before)
    else:
        pages = _sorted(reader, run, hits, SORTS[sort])
    for rows in pages:
        hits_of_page = filter(None, (_hit(row, literal) for row in rows))
        for hit in chain(hits_of_page, (None,)):
            if reader.interrupts != interrupts:
                raise InterruptedError("the search was stopped")
            yield hit
            count += hit is not None
            if count >= limit:
                return


def _newest(
    reader: "StoreReader", run: int | None, hits: Select[Any], before: int | None
) -> Iterator[Sequence[Any]]:
    """Read what may match in pages, newest first."""
    bounds = select(func.min(ANSWER.id), func.max(ANSWER.id))
    if run is not None:
        bounds = bounds.filter_by(run_id=run)
    ((low, high),) = reader.rows(bounds)
    if low is None:
        return
    high, size = high if before is None else min(high, before - 1), min(100, PAGE)
    while high >= low:
        bottom = max(low, high - size + 1)
        page = hits.where(ANSWER.id.between(bottom, high))
        yield reader.rows(page.order_by(ANSWER.id.desc()))
        high, size = bottom - 1, PAGE


def _sorted(
    reader: "StoreReader", run: int | None, hits: Select[Any], name: str
) -> Iterator[Sequence[Any]]:
    """Read what may match in pages by descending value; those without one come last."""
    order = (ANSWER[name].desc().nulls_last(), ANSWER.id.desc())
    numbers = reader.column(select(ANSWER.id).filter_by(run_id=run).order_by(*order))
    for start in range(0, len(numbers), PAGE):
        page = among(ANSWER.id, numbers[start : start + PAGE])
        yield reader.rows(hits.where(page).order_by(*order))


def _hit(row: Any, literal: str) -> SearchHit | None:
    values = row._asdict()
    prompt = values.pop("prompt")
    for where, text in (("completion", row.text), ("prompt", prompt)):
        if span := _span(text, literal):
            values |= {"where": where, "text": text, "start": span[0], "end": span[1]}
            return SearchHit(**values)
    return None
