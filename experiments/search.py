"""Search prompts and completions, as a stream, newest first.

A substring is looked for by reading the texts, whole words in the full-text index. The text is
always quoted, so that `<answer>` and `x = -5` are ordinary searches.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    Select,
    String,
    cast,
    column,
    func,
    not_,
    or_,
    select,
    table,
    true,
    type_coerce,
    union_all,
)

from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP, RUN
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import QueryError, check_choice
from grpo_tui.experiments.read.connection import among
from grpo_tui.experiments.values import SearchHit

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

Mode = Literal["substring", "words", "prefix"]
MODES = ("substring", "words", "prefix")
SORTS = {"newest": "", "reward": "reward", "advantage": "advantage", "length": "tokens", "kl": "kl",
         "clip": "clip_fraction"}  # fmt: skip
PAGE = 5_000  # rollouts whose texts are read at a time

GROUP, ANSWER = ROLLOUT_GROUP.c, ROLLOUT.c
HITS = select(
    ANSWER.id.label("rollout"), GROUP.id.label("group"), GROUP.run_id.label("run"), GROUP.step,
    GROUP.origin, GROUP.idx.label("group_index"), ANSWER.idx.label("index"), ANSWER.text,
    ANSWER.reward, GROUP.prompt_text.label("prompt"),
).join_from(ROLLOUT, ROLLOUT_GROUP)  # fmt: skip


@dataclass(frozen=True)
class Query:
    """A parsed search, for SQLite and for a check of the text itself."""

    typed: str
    words: tuple[str, ...]  # none in a search of a substring
    prefix: bool
    exact: bool  # whether signs and spaces between the words count

    @cached_property
    def literal(self) -> str:
        return _folded(self.typed)

    @cached_property
    def phrase(self) -> str:
        """The quoted phrase for the full-text index."""
        stored = _folded(escape(self.typed)).replace('"', '""')
        return f'"{stored}"' + "*" * self.prefix

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        end = "" if self.prefix else r"(?![^\W_])"
        words = r"[\W_]+".join(map(re.escape, self.words))
        return re.compile(r"(?<![^\W_])" + words + end, re.IGNORECASE)

    def matches(self, text: str) -> bool:
        """Whether the text contains the words, or the literal text but for case and spacing."""
        return (not self.exact or self.literal in _folded(text)) and (
            not self.words or self.pattern.search(text) is not None
        )

    def span(self, text: str) -> tuple[int, int]:
        """Return where the match is in the text, as start and end."""
        if not self.exact:
            match = self.pattern.search(text)
            return match.span() if match else (0, 0)
        folded: list[str] = []
        positions: list[int] = []
        for position, char in enumerate(text):
            for part in " " if char.isspace() else char.casefold():
                if part != " " or folded[-1:] != [" "]:
                    folded.append(part)
                    positions.append(position)
        start = "".join(folded).find(self.literal)
        if start < 0:
            return 0, 0
        return positions[start], positions[start + len(self.literal) - 1] + 1

    @property
    def likely(self) -> ColumnElement[bool]:
        """Return a condition that rules out texts before they are read."""
        # backslashes and what they escape are stored in another form
        longest = max(re.split(r"[\s\\\x00]+", self.literal), key=len)
        if not self.literal.isascii() or not longest:
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

    def indexed(self, low: int, high: int) -> ColumnElement[bool]:
        """Return the condition that the full-text index has the rollout between these ids."""
        prompts = table("prompt_words", column("rowid"), column("prompt_words"))
        texts = table("rollout_words", column("rowid"), column("rollout_words"))
        first = select(ANSWER.group_id).where(ANSWER.id >= low).order_by(ANSWER.id).limit(1)
        last = select(ANSWER.group_id).where(ANSWER.id <= high).order_by(ANSWER.id.desc()).limit(1)
        groups = select(prompts.c.rowid).where(
            prompts.c.prompt_words.op("MATCH")(self.phrase),
            prompts.c.rowid.between(first.scalar_subquery(), last.scalar_subquery()),
        )
        return ANSWER.id.in_(union_all(
            select(texts.c.rowid).where(
                texts.c.rollout_words.op("MATCH")(self.phrase), texts.c.rowid.between(low, high)
            ),
            select(ANSWER.id).where(ANSWER.group_id.in_(groups), ANSWER.id.between(low, high)),
        ))  # fmt: skip


def make_query(typed: str, mode: str) -> Query:
    """Parse a typed search; a text without a word is searched as a substring."""
    check_choice("search mode", mode, MODES, QueryError)
    if not typed.strip():
        raise QueryError("the search text is empty; type a word or a phrase")
    words = tuple(re.findall(r"[^\W_]+", typed)) if mode != "substring" else ()
    # the index omits punctuation between words, so the text itself is checked for it
    plain = words and re.fullmatch(r"[^\W_]+(?:\s+[^\W_]+)*", typed.strip())
    return Query(typed, words, prefix=mode == "prefix", exact=not plain)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def search(reader: "StoreReader", typed: str, **options: Any) -> Iterator[SearchHit]:
    """Stream the hits of `searching`."""
    return (hit for hit in searching(reader, typed, **options) if hit is not None)


def searching(
    reader: "StoreReader", typed: str, *, run: int | None = None, mode: str = "substring",
    sort: str = "newest", limit: int = 50, before: int | None = None, step: int | None = None,
    group: int | None = None, origin: str = "",
) -> Iterator[SearchHit | None]:  # fmt: skip
    """Stream rollouts whose completion or prompt contains the text.

    `sort` is newest, or within one run reward, advantage, length, kl or clip, largest first. To
    page through newest, pass the last hit's `rollout` as `before`. `step`, `group` (its index) and
    `origin` restrict the search; `limit` applies after them. None after each page lets a caller
    pause, and `reader.interrupt` from another thread stops the search with InterruptedError.
    """
    check_choice("order of hits", sort, SORTS, QueryError)
    if sort != "newest" and run is None:
        raise QueryError(f"hits are sorted by {sort} within one run: name the run")
    if step is not None and run is None:
        raise QueryError(f"step {step} is of one run: name the run")
    query = make_query(typed, mode)
    deleted = select(RUN.c.id).where(not_(reader.not_deleted()))
    conditions = [GROUP.hidden == 0, ANSWER.run_id.not_in(deleted)]
    if run is not None:
        conditions.append(ANSWER.run_id + 0 == run)  # an id's page by the id, not by the run
    for value, stored in ((step, GROUP.step), (group, GROUP.idx), (origin or None, GROUP.origin)):
        if value is not None:
            conditions.append(stored == value)
    hits, interrupts, count = HITS.where(*conditions), reader.interrupts, 0
    if sort == "newest":
        pages = _newest(reader, query, run, hits, before)
    else:
        pages = _sorted(reader, query, run, hits, SORTS[sort])
    for rows in pages:
        for row in rows:
            if reader.interrupts != interrupts:
                raise InterruptedError("the search was stopped")
            if hit := _hit(row, query):
                yield hit
                count += 1
                if count >= limit:
                    return
        yield None
        if reader.interrupts != interrupts:
            raise InterruptedError("the search was stopped")


def _newest(
    reader: "StoreReader", query: Query, run: int | None, hits: Select[Any], before: int | None
) -> Iterator[Sequence[Any]]:
    """Read what may match in growing pages, newest first."""
    bounds = select(func.min(ANSWER.id), func.max(ANSWER.id))
    if run is not None:
        bounds = bounds.filter_by(run_id=run)
    ((low, high),) = reader.rows(bounds)
    if low is None:
        return
    high, size = high if before is None else min(high, before - 1), min(100, PAGE)
    in_index = query.words and reader.schema >= 2
    while high >= low:
        bottom = max(low, high - size + 1)
        likely = query.indexed(bottom, high) if in_index else query.likely
        page = hits.where(ANSWER.id.between(bottom, high), likely)
        yield reader.rows(page.order_by(ANSWER.id.desc()))
        high, size = bottom - 1, 8 * size if in_index else PAGE


def _sorted(
    reader: "StoreReader", query: Query, run: int | None, hits: Select[Any], name: str
) -> Iterator[Sequence[Any]]:
    """Read what may match in pages by descending value; those without one come last."""
    keys = select(ANSWER.id).filter_by(run_id=run)
    if query.words and reader.schema >= 2:
        keys = keys.where(query.indexed(0, 2**62))
    order = (ANSWER[name].desc().nulls_last(), ANSWER.id.desc())
    numbers = reader.column(keys.order_by(*order))
    for start in range(0, len(numbers), PAGE):
        page = among(ANSWER.id, numbers[start : start + PAGE])
        yield reader.rows(hits.where(query.likely, page).order_by(*order))


def _hit(row: Any, query: Query) -> SearchHit | None:
    in_text = query.matches(row.text)
    if not in_text and not query.matches(row.prompt):
        return None
    values = row._asdict()
    prompt = values.pop("prompt")
    values["text"] = text = row.text if in_text else prompt
    start, end = query.span(text)
    return SearchHit(**values, where="completion" if in_text else "prompt", start=start, end=end)
