"""Search: text matches literally, newest first, streamed and interruptible."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine import events as ev
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.search import search
from tests.experiments.made import (
    finished,
    group,
    hits_of,
    record_run,
    recorded,
    sql,
    started,
    step_events,
)

TEXTS = [
    ("<answer>42</answer>", "the cat sat"),
    ("x = -5 or x=-5", "Answer: 42"),
    ('he said "hello" OR NOT', "a\x00b caf\u00e9 na\u00efve 数学题"),
    ("prefixed word", "x equals 5"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "s.db"
    for name in ("one", "two"):
        groups = (
            group(texts=texts, prompt=f"problem {step}", rewards=(step / 10, None))
            for step, texts in enumerate(TEXTS, start=1)
        )
        scored = (ev.GroupScored(step=step, group=item) for step, item in enumerate(groups, 1))
        recorded(path, started(), *scored, name=name)
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[StoreReader]:
    with StoreReader(path) as opened:
        yield opened


def found(reader: StoreReader, text: str, **options: object) -> list[tuple[int, int]]:
    return [(hit.step, hit.index) for hit in hits_of(reader, text, "one", **options)]


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("<answer>", [(1, 0)]),
        ("42", [(2, 1), (1, 0)]),
        ("x = -5", [(2, 0)]),
        ('"hello" OR', [(3, 0)]),
        ("NEAR", []),
        ("EFIX", [(4, 0)]),
        ("café", [(3, 1)]),
        ("a\x00b", [(3, 1)]),
        ("problem 3", [(3, 1), (3, 0)]),
    ],
)
def test_text_is_taken_as_it_is_typed(
    reader: StoreReader, text: str, hits: list[tuple[int, int]]
) -> None:
    assert found(reader, text) == hits


def test_an_empty_text_is_refused(reader: StoreReader) -> None:
    with pytest.raises(QueryError, match="empty"):
        found(reader, "  ")


def test_hits_sort_by_reward_with_none_last(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.experiments.search.PAGE", 1)
    hits = hits_of(reader, "problem", "one", sort="reward")
    groups = reader.groups_by_key({hit.group for hit in hits})
    of_rollout = {item.key: item.reward for group in groups for item in group.rollouts}
    rewards = [of_rollout[hit.rollout] for hit in hits]
    assert rewards == [0.4, 0.3, 0.2, 0.1, None, None, None, None]


@pytest.mark.parametrize("sort", ["newest", "reward"])
def test_the_limit_counts_what_the_narrowing_leaves(reader: StoreReader, sort: str) -> None:
    def narrowed(**within: object) -> list[tuple[int, int]]:
        return found(reader, "roblem", sort=sort, limit=2, **within)

    assert sorted(narrowed(step=1)) == [(1, 0), (1, 1)]
    assert len(narrowed(idx=0)) == 2
    assert narrowed(idx=1) == narrowed(origin="eval") == narrowed(step=9) == []
    assert len(narrowed(step=2, idx=0, origin="train")) == 2


ODD = st.text(alphabet="abcABC xX \n\tßéÉ\x00\\_%<'", max_size=12)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], StoreReader]:
    """Records the texts as the answers of one group, in a store of their own."""
    folder = tmp_path_factory.mktemp("odd")
    numbers = count()

    def write(texts: tuple[str, ...]) -> StoreReader:
        place = folder / str(next(numbers))
        place.mkdir()
        recorded(place / "s.db", started(), ev.GroupScored(step=1, group=group(0, texts)))
        return StoreReader(place / "s.db")

    return write


def evened(text: str) -> str:
    return " ".join(text.lower().split())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(texts=st.lists(ODD, min_size=1, max_size=6), sought=st.lists(ODD, min_size=1, max_size=6))
def test_the_answers_that_contain_a_text_are_found_and_the_match_is_in_its_place(
    written: Callable[[tuple[str, ...]], StoreReader], texts: list[str], sought: list[str]
) -> None:
    with closing(written(tuple(texts))) as reader:
        for typed in (part for part in (*sought, *(text[1:5] for text in texts)) if part.strip()):
            hits = [hit for hit in hits_of(reader, typed) if hit.where == "completion"]
            wanted = [index for index, text in enumerate(texts) if evened(typed) in evened(text)]
            assert sorted(hit.index for hit in hits) == wanted
            for hit in hits:
                assert evened(typed) in evened(hit.text[hit.start : hit.end])


def test_a_search_pauses_after_every_few_thousand_texts(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.experiments.search.PAGE", 2)
    run = reader.resolve("one").key
    steps = list(search(reader, run, "cat"))
    assert [hit.text for hit in steps if hit] == ["the cat sat"]
    nothing = list(search(reader, run, "nowhere"))
    assert nothing == [None] * len(nothing)
    assert len(nothing) >= 1


def test_a_search_can_be_stopped(reader: StoreReader) -> None:
    hits = search(reader, reader.resolve("one").key, "problem")
    next(hits)
    reader.interrupt()
    with pytest.raises(InterruptedError):
        list(hits)
    assert found(reader, "cat") == [(1, 1)]


def test_a_substring_is_found_beyond_ascii_and_past_the_first_pages(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    odd = ("d\u00c9fined in 5 \u212a", "a_b 50% c\\d")
    texts = [odd, *([tuple(f"filler {number}" for number in range(60))] * 3)]
    scored = (ev.GroupScored(step=n, group=group(0, part)) for n, part in enumerate(texts, 1))
    recorded(path, started(), *scored)
    with StoreReader(path) as reader:

        def found(text: str) -> list[str]:
            return [hit.text for hit in hits_of(reader, text)]

        assert found("d\u00e9fine") == [odd[0]]
        assert found("5 k") == [odd[0]]
        assert found("A_B") == found("50% ") == found("c\\D") == [odd[1]]
        assert found("a%b") == []
        assert len(found("ILLER 5")) == 33


@pytest.mark.parametrize("sort", ["advantage", "length", "kl", "clip"])
def test_every_order_gives_each_hit_once_over_all_pages(
    tmp_path: Path, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.experiments.search.PAGE", 2)
    last = ev.GroupScored(step=3, group=group(0, ("yes", "yes", "no")))
    recorded(tmp_path / "s.db", *step_events(1), *step_events(2), last, finished(3))
    with StoreReader(tmp_path / "s.db") as reader:
        hits = [hit.rollout for hit in hits_of(reader, "1 + 1", sort=sort)]
    assert sorted(hits) == list(range(1, 12))
    if sort in ("kl", "clip"):
        assert hits[-3:] == [11, 10, 9]


@pytest.mark.parametrize("column", ["advantage", "tokens"])
def test_the_highest_come_first_whether_they_are_old_or_new_and_the_newer_of_equals(
    tmp_path: Path, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.experiments.search.PAGE", 3)
    path = tmp_path / "s.db"
    record_run(path, steps=8)
    # five values, each in both old and new groups
    sql(path, f"UPDATE rollout SET {column} = 1 + (id * 7919) % 5")
    wanted = sql(path, f"SELECT id FROM rollout ORDER BY {column} DESC, id DESC")
    with StoreReader(path) as reader:
        sort = {"tokens": "length"}.get(column, column)
        hits = [hit.rollout for hit in hits_of(reader, "1 + 1", sort=sort, limit=200)]
    assert hits == [row[0] for row in wanted]
