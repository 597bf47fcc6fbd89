"""Search prompts and completions, as a stream, newest first.

A substring is looked for by reading the texts, whole words in the full-text index. The text is
always quoted, so that `<answer>` and `x = -5` are ordinary searches.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

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
)

from grpo_engine.errors import quoted
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP, RUN
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.read.connection import among
from grpo_tui.experiments.read.search_order import ANSWER, GROUP, HITS, PAGE, OrderedRollouts

Mode = Literal["substring", "words", "prefix"]
MODES = ("substring", "words", "prefix")
SORTS = {"newest": "", "reward": "reward", "advantage": "advantage", "length": "tokens", "kl": "kl",
         "clip": "clip_fraction"}  # fmt: skip
ORIGINS = ("train", "eval", "pinned")
FEW = 20_000
SCANNED = 5_000  # rollouts whose texts are read at a time


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed search, for SQLite and for a check of the text itself."""

    typed: str
    literal: str
    words: tuple[str, ...]
    mode: Mode
    exact: bool

    @property
    def match(self) -> str:
        """Return the quoted phrase for the full-text index; empty if it contains no word."""
        if not self.words:
            return ""
        stored = _even(escape(self.typed)).replace('"', '""')
        return f'"{stored}"' + ("*" if self.mode == "prefix" else "")

    def holds(self, candidate: str) -> bool:
        """Return whether the text contains the phrase, ignoring case and the kind of spacing."""
        return not self.exact or self.literal in _even(candidate)

    def span(self, candidate: str) -> tuple[int, int]:
        """Return where the phrase is in a text that contains it, as start and end."""
        if not self.exact:
            match = self._pattern.search(candidate)
            return match.span() if match else (0, 0)
        folded: list[str] = []
        places: list[int] = []
        for place, char in enumerate(candidate):
            for part in " " if char.isspace() else char.casefold():
                if part != " " or folded[-1:] != [" "]:
                    folded.append(part)
                    places.append(place)
        at = "".join(folded).find(self.literal)
        return (places[at], places[at + len(self.literal) - 1] + 1) if at >= 0 else (0, 0)

    @property
    def _pattern(self) -> re.Pattern[str]:
        end = "" if self.mode == "prefix" else r"(?![^\W_])"
        words = r"[\W_]+".join(map(re.escape, self.words))
        return re.compile(r"(?<![^\W_])" + words + end, re.IGNORECASE)

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

    def found_in(self, candidate: str) -> bool:
        """Return whether the text contains the phrase word by word, without using the index."""
        if not self.holds(candidate):
            return False
        return self.mode == "substring" or self._pattern.search(candidate) is not None


def make_query(typed: str, mode: str) -> Query:
    """Parse a typed search; a text without a word is searched as a substring."""
    if mode not in MODES:
        raise QueryError(f"there is no search mode {quoted(mode)}; choose from {', '.join(MODES)}")
    if not typed.strip():
        raise QueryError("the search text is empty; type a word or a phrase")
    words = tuple(re.findall(r"[^\W_]+", typed))
    literal = _even(typed)
    if mode == "substring" or not words:
        return Query(typed, literal, (), "substring", True)
    # the index omits punctuation between words, so the text itself is checked for it
    bare = re.fullmatch(r"[^\W_]+(?:\s+[^\W_]+)*", typed.strip()) is not None
    return Query(typed, literal, words, "prefix" if mode == "prefix" else "words", not bare)


def _even(candidate: str) -> str:
    return " ".join(candidate.casefold().split())


class SearchQuestions(OrderedRollouts):
    """Search queries; `interrupt` from another thread stops one with InterruptedError."""

    def search(
        self, typed: str, *, run: int | None = None, mode: str = "substring",
        sort: str = "newest", limit: int = 50, before: int | None = None, step: int | None = None,
        group: int | None = None, origin: str = "",
    ) -> Iterator[v.SearchHit]:  # fmt: skip
        """Stream rollouts whose completion or prompt contains the text.

        `sort` is newest, or within one run reward, advantage, length, kl or clip, largest first. To
        page through newest, pass the last hit's `rollout` as `before`. `step`, `group` (its index)
        and `origin` restrict the search; `limit` applies after them.
        """
        found = self.searching(
            typed, run=run, mode=mode, sort=sort, limit=limit, before=before, step=step,
            group=group, origin=origin,
        )  # fmt: skip
        yield from (hit for hit in found if hit is not None)

    def searching(
        self, typed: str, *, run: int | None, mode: str = "substring", sort: str = "newest",
        limit: int = 50, before: int | None = None, step: int | None = None,
        group: int | None = None, origin: str = "",
    ) -> Iterator[v.SearchHit | None]:  # fmt: skip
        """Stream the same hits, and None now and then, so that a caller can pause in between."""
        if sort not in SORTS:
            raise QueryError(f"cannot sort hits by {quoted(sort)}; choose from {', '.join(SORTS)}")
        if sort != "newest" and run is None:
            raise QueryError(f"hits are sorted by {sort} within one run: name the run")
        if step is not None and run is None:
            raise QueryError(f"step {step} is of one run: name the run")
        query = make_query(typed, mode)
        bounds = self._bounds(run, step, before)
        if bounds is None:
            return
        if sort != "newest":
            hits = self._sorted(query, run, SORTS[sort], bounds)
        elif query.match and self.schema >= 2:
            hits = self._newest(query, run, bounds)
        else:
            hits = self._scan(query, run, bounds)
        stops, count = self._stops, 0
        deleted = {*self._column(select(RUN.c.id).where(not_(self._not_deleted())))}
        for hit in hits:
            if self._stops != stops:
                raise InterruptedError("the search was stopped")
            if hit is None or hit.run in deleted or not (
                step in (None, hit.step) and group in (None, hit.group_index)
                and origin in ("", hit.origin)
            ):  # fmt: skip
                yield None
                continue
            yield hit
            count += 1
            if count >= limit:
                return

    def _bounds(
        self, run: int | None, step: int | None, before: int | None
    ) -> tuple[int, int] | None:
        """Return the first and last id of the rollouts of a run, or of one of its steps."""
        first, last = func.min(ANSWER.id), func.max(ANSWER.id)
        if step is not None:
            query = select(first, last).select_from(ROLLOUT).join(ROLLOUT_GROUP).where(
                GROUP.run_id == run, GROUP.step == step, GROUP.origin.in_(ORIGINS)
            )  # fmt: skip
            ((low, high),) = self._all(query)
        elif run is None:  # both in one query would scan the whole table
            low, high = self._value(select(first)), self._value(select(last))
        else:
            low = self._value(select(first).where(ANSWER.group_id == self._group_edge(run)))
            newest = self._group_edge(run, newest=True)
            high = self._value(select(last).where(ANSWER.group_id == newest))
        if low is None or high is None:
            return None
        return low, min(high, before - 1) if before is not None else high

    # -- newest first ---------------------------------------------------------------------------

    def _newest(
        self, query: Query, run: int | None, bounds: tuple[int, int]
    ) -> Iterator[v.SearchHit | None]:
        """Merge hits in completions and hits in prompts by descending id."""
        texts = self._pages(query, bounds)
        prompts = self._prompt_pages(query, bounds)
        one, two = next(texts, None), next(prompts, None)
        while one is not None or two is not None:
            key = max(page for page in (one, two) if page is not None)
            in_text = one == key
            if in_text:
                one = next(texts, None)
            if two == key:
                two = next(prompts, None)
            yield self._hit(key, query, run, in_text)

    def _pages(self, query: Query, bounds: tuple[int, int]) -> Iterator[int]:
        low, high = bounds
        size = 64
        while high >= low:
            keys = self._column(_newest("rollout_words", query, low, high).limit(size))
            yield from keys
            if len(keys) < size:
                return
            high, size = keys[-1] - 1, PAGE

    def _prompt_pages(self, query: Query, bounds: tuple[int, int]) -> Iterator[int]:
        first, last = self._groups_of(bounds)
        if last is None or first is None:
            return
        while last >= first:
            groups = self._column(_newest("prompt_words", query, first, last).limit(16))
            for group in groups:
                rollouts = select(ANSWER.id).where(
                    ANSWER.group_id == group, ANSWER.id.between(*bounds)
                )
                yield from self._column(rollouts.order_by(ANSWER.id.desc()))
            if len(groups) < 16:
                return
            last = groups[-1] - 1

    def _groups_of(self, bounds: tuple[int, int]) -> tuple[int | None, int | None]:
        """Return the groups of the first and last rollout within the bounds."""
        low, high = bounds
        first = select(ANSWER.group_id).where(ANSWER.id >= low).order_by(ANSWER.id).limit(1)
        last = select(ANSWER.group_id).where(ANSWER.id <= high).order_by(ANSWER.id.desc()).limit(1)
        return self._value(first), self._value(last)

    def _hit(self, key: int, query: Query, run: int | None, in_text: bool) -> v.SearchHit | None:
        """Read an index hit; None if it is another run's or differs from the typed text."""
        row = self._first(HITS.where(ANSWER.id == key))
        if row is None or run not in (None, row.run):
            return None
        if query.exact:
            in_text = query.holds(row.text)
            if not in_text and not query.holds(row.prompt):
                return None
        return _as_hit(row, query, in_text)

    # -- without the index, and in other orders ---------------------------------------------------

    def _scan(
        self, query: Query, run: int | None, bounds: tuple[int, int]
    ) -> Iterator[v.SearchHit | None]:
        """Scan the rollouts, newest first."""
        low, high = bounds
        hits = HITS.where(query.likely).order_by(ANSWER.id.desc())
        size, stops = min(100, SCANNED), self._stops
        while high >= low:
            if self._stops != stops:
                raise InterruptedError("the search was stopped")
            bottom = max(low, high - size + 1)
            rows = self._all(hits.where(ANSWER.id.between(bottom, high)))
            yield from (hit for hit in self._among(rows, query, run) if hit is not None)
            yield None
            high, size = bottom - 1, SCANNED

    def _among(
        self, rows: Iterable[Any], query: Query, run: int | None
    ) -> Iterator[v.SearchHit | None]:
        for row in rows:
            in_text = query.found_in(row.text)
            mine = run is None or row.run == run
            fits = mine and (in_text or query.found_in(row.prompt))
            yield _as_hit(row, query, in_text) if fits else None

    def _sorted(
        self, query: Query, run: int | None, column: str, bounds: tuple[int, int]
    ) -> Iterator[v.SearchHit | None]:
        """Sort the hits if they are few; otherwise filter the sorted rollouts."""
        few = self._few(query, run, bounds)
        if few is None:
            yield from self._among(self._ordered(run, column), query, run)
        else:
            yield from self._sort_few(few, query, run, column)

    def _few(
        self, query: Query, run: int | None, bounds: tuple[int, int]
    ) -> dict[int, bool] | None:
        """Return all hits by id, and whether each is in the completion; None if many."""
        if not query.match or self.schema < 2:
            hits = (hit for hit in self._scan(query, run, bounds) if hit is not None)
            most = FEW // 10  # a text that more rollouts contain is soon met in any order
            few = {hit.rollout: hit.where == "completion" for hit in islice(hits, most + 1)}
            return few if len(few) <= most else None
        first, last = self._groups_of(bounds)
        texts = self._column(_newest("rollout_words", query, *bounds).limit(FEW + 1))
        groups = self._column(_newest("prompt_words", query, first, last).limit(FEW // 8 + 1))
        if len(texts) > FEW or len(groups) > FEW // 8:
            return None
        by_prompt = self._column(select(ANSWER.id).where(among(ANSWER.group_id, groups)))
        return dict.fromkeys(by_prompt, False) | dict.fromkeys(texts, True)

    def _sort_few(
        self, found: dict[int, bool], query: Query, run: int | None, column: str
    ) -> Iterator[v.SearchHit | None]:
        rows = self._column(
            select(ANSWER.id)
            .where(among(ANSWER.id, found), ANSWER.run_id == run)
            .order_by(ANSWER[column].desc().nulls_last(), ANSWER.id.desc())
        )
        for key in rows:
            yield self._hit(key, query, run, found[key])


def _newest(index: str, query: Query, low: int | None, high: int | None) -> Select[Any]:
    """Select the rows of a full-text index that match, newest first."""
    words = table(index, column("rowid"), column(index))
    return (
        select(words.c.rowid)
        .where(words.c[index].op("MATCH")(query.match), words.c.rowid.between(low, high))
        .order_by(words.c.rowid.desc())
    )


def _as_hit(row: Any, query: Query, in_text: bool) -> v.SearchHit:
    text = row.text if in_text else row.prompt
    start, end = query.span(text)
    return v.SearchHit(
        rollout=row.rollout, group=row.group, run=row.run, step=row.step, origin=row.origin,
        group_index=row.group_index, index=row.rollout_index,
        where="completion" if in_text else "prompt", text=text, start=start, end=end,
        reward=row.reward,
    )  # fmt: skip
