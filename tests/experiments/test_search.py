"""Search: what is typed is looked for as it stands, newest first, streamed and stoppable."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from experiments.errors import QueryError
from experiments.reader import StoreReader
from experiments.recorder import Recorder
from grpo_engine import events as ev
from tests.experiments.made import CONFIG, finished, group, started

TEXTS = [
    ("<answer>42</answer>", "the cat sat"),
    ("x = -5 or x=-5", "Answer: 42"),
    ('he said "hello" OR NOT', "a\x00b caf\u00e9 na\u00efve 数学题"),
    ("prefixed word", "x equals 5"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "s.db"
    recorder = Recorder(path)
    for name in ("one", "two"):
        handle = recorder.start_run(CONFIG, name=name)
        handle.put(started())
        for step, texts in enumerate(TEXTS, start=1):
            scored = group(texts=texts, prompt=f"problem {step}", rewards=(step / 10, None))
            handle.put(ev.GroupScored(step=step, group=scored))
            handle.put(finished(step))
        handle.close()
    recorder.close()
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[StoreReader]:
    with closing(StoreReader(path)) as opened:
        yield opened


def found(reader: StoreReader, text: str, **options: object) -> list[tuple[int, int]]:
    run = reader.resolve("one").key
    hits = reader.search(text, run=run, **options)  # type: ignore[arg-type]
    return [(hit.step, hit.index) for hit in hits]


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("<answer>", [(1, 0)]),
        ("answer", [(2, 1), (1, 0)]),
        ("42", [(2, 1), (1, 0)]),
        ("x = -5", [(2, 0)]),
        ('"hello" OR', [(3, 0)]),
        ("hello OR NOT", [(3, 0)]),
        ("NEAR", []),
        ("cat", [(1, 1)]),
        ("ca", []),
        ("café", [(3, 1)]),
        ("数学题", [(3, 1)]),
        ("a\x00b", [(3, 1)]),
        ("problem 3", [(3, 1), (3, 0)]),
        ("= -", [(2, 0)]),
    ],
)
def test_text_is_quoted_and_never_full_text_syntax(
    reader: StoreReader, text: str, hits: list[tuple[int, int]]
) -> None:
    assert found(reader, text) == hits


def test_prefix_and_substring_modes(reader: StoreReader) -> None:
    assert found(reader, "pref", mode="prefix") == [(4, 0)]
    assert found(reader, "efix", mode="prefix") == []
    assert found(reader, "EFIX", mode="substring") == [(4, 0)]
    with pytest.raises(QueryError, match="choose from words"):
        found(reader, "x", mode="regex")
    with pytest.raises(QueryError, match="empty"):
        found(reader, "  ")


def test_hits_sort_by_reward_with_none_last(reader: StoreReader) -> None:
    rewards = [
        hit.reward for hit in reader.search("problem", run=reader.resolve("one").key, sort="reward")
    ]
    assert rewards == [0.4, 0.3, 0.2, 0.1, None, None, None, None]


def test_walking_the_sorted_rollouts_gives_what_sorting_the_hits_gives(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = found(reader, "problem", sort="reward")
    monkeypatch.setattr("experiments.search.FEW", 1)
    assert found(reader, "problem", sort="reward") == wanted
    by_length = found(reader, "problem", sort="length")
    assert sorted(by_length) == sorted(wanted)


def test_a_search_stays_in_its_run_and_goes_on_before_a_hit(reader: StoreReader) -> None:
    run = reader.resolve("two").key
    hits = list(reader.search("problem", run=run, limit=3))
    more = list(reader.search("problem", run=run, before=hits[-1].rollout))
    assert {hit.run for hit in hits + more} == {run}
    keys = [hit.rollout for hit in hits + more]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 8
    assert len(list(reader.search("problem", limit=100))) == 16


def test_a_search_can_be_stopped(reader: StoreReader) -> None:
    hits = reader.search("problem", limit=100)
    next(hits)
    reader.interrupt()
    with pytest.raises(InterruptedError):
        list(hits)
    assert found(reader, "cat") == [(1, 1)]
