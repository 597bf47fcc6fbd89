"""Any written sequence of events is read back equal."""

import tempfile
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_engine import events as ev
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.recorded_events import events_after
from tests.experiments.made import CONFIG, same, trouble

TEXT = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(
    ["", "\x00", "\\x00", '"', "'", "\r\n", "😀", "\ud800", "=1+1", "x" * 300]
)
NUMBER = st.floats(width=64)
MAYBE = st.none() | NUMBER
NAMES = st.text("abcdefgh/_", min_size=1, max_size=8)
# differences to old are float16: multiples of 1/8 in a small range are exact in it
LOGP = st.integers(-64, 0).map(lambda eighths: eighths / 8)


BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    float: NUMBER,
    int: st.integers(0, 2**40),
    float | None: MAYBE,
    int | None: st.none() | st.integers(0, 9),
    bool: st.booleans(),
}


def built(kind: type, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of a class: plain fields by their types, the others as given or by default."""
    plain = {name: BY_TYPE[hint] for name, hint in get_type_hints(kind).items() if hint in BY_TYPE}
    return st.builds(kind, **plain | fields)


SPANS = (
    ev.Span(start=0, length=3, kind="model", turn=0),
    ev.Span(start=3, length=1, kind="environment", turn=0, reward=0.5, info={"a": "\0"}),
)


@st.composite
def groups(draw: st.DrawFn, index: int, step: int) -> list[ev.Event]:
    origin: ev.Origin = draw(st.sampled_from(["train", "eval", "pinned"]))
    rollouts, numbers = [], []
    for place in range(draw(st.integers(0, 3))):
        length = draw(st.integers(0, 4))

        def row(length: int = length) -> tuple[float, ...]:
            return tuple(draw(st.lists(LOGP, min_size=length, max_size=length)))

        rewards = tuple(draw(st.lists(built(ev.RewardValue), max_size=2)))
        rollouts.append(
            ev.Rollout(
                index=place,
                ids=tuple(int(-8 * x) for x in row()),
                text=draw(TEXT),
                spans=draw(st.sampled_from([(), SPANS])),
                finish=draw(st.sampled_from(["stop", "length", "stop_string"])),
                rewards=rewards,
                reward=draw(MAYBE),
                advantage=draw(MAYBE),
                sampler_logprobs=row(),
                ends=tuple(np.cumsum([int(-8 * x) for x in row()]).tolist()),
            )
        )
        loss_parts: dict[str, Any] = {}
        if draw(st.booleans()):  # an empty row of a pass is as good as none
            passes = (lambda: (row(), row())) if length else tuple
            loss_parts = {
                "mask": tuple(int(x < -1) for x in row()),
                "entropies": passes(),
                "values": passes(),
                "old_values": row(),
                "returns": row(),
                "teacher": row(),
                "updates": (
                    ev.UpdateTotals(rows=8, tokens=40),
                    ev.UpdateTotals(
                        rows=8,
                        tokens=40,
                        minibatch=1,
                        micro_batches=3,
                        batch_tokens=20,
                        entropy_bonus=0.1,
                        entropy_floor=float(np.float32(1.3)),
                        updated_tokens=9,
                    ),
                ),
            }
        numbers.append(
            ev.TokenNumbers(
                index=place,
                old=row(),
                reference=draw(st.just(())) if place else row(),
                passes=(row(), row()),
                after=row(),
                entropy=tuple(-x for x in row()),
                advantages=row(),
                sampled=row(),
                clip_fraction=draw(MAYBE),
                kl=draw(MAYBE),
                **loss_parts,
            )
        )
    group = ev.Group(
        index=index,
        origin=origin,
        example_key=draw(TEXT),
        prompt_text=draw(TEXT),
        prompt_ids=(1, 2),
        prompt_hash=draw(TEXT),
        target=draw(TEXT),
        refill=draw(st.integers(0, 3)),
        rollouts=tuple(rollouts),
        reward_mean=draw(MAYBE),
        reward_std=draw(MAYBE),
        no_signal=draw(TEXT),
        sampling=draw(st.dictionaries(NAMES, NUMBER, max_size=2)),
    )
    events: list[ev.Event] = [ev.GroupScored(step=step, group=group)]
    if draw(st.booleans()):
        events.append(
            ev.TokensScored(step=step, group=index, origin=origin, numbers=tuple(numbers))
        )
    return events


PLAIN = (
    ev.NoteWritten,
    ev.AlertRaised,
    ev.AlertEnded,
    ev.StepSkipped,
    ev.CheckpointSaved,
    ev.RunPaused,
    ev.RunResumed,
    ev.PassFinished,
    ev.RunFailed,
)
BY_TEXT = st.dictionaries(TEXT, NUMBER, max_size=2)
SAMPLES = st.tuples(built(ev.EvaluationSample, rewards=BY_TEXT, scored=BY_TEXT))


def others(step: int) -> st.SearchStrategy[ev.Event]:
    now = st.just(step)
    metrics = st.dictionaries(NAMES.map(lambda name: f"eval/{name}"), NUMBER)
    settled = st.dictionaries(NAMES, st.one_of(NUMBER, TEXT))
    return st.one_of(
        *(built(kind, step=now) for kind in PLAIN),
        built(ev.ModelLoaded, step=now, notes=st.tuples(TEXT), settled=settled),
        built(ev.BenchmarksMeasured, step=now, scores=st.tuples(built(ev.BenchmarkScore))),
        built(ev.EvaluationFinished, step=now, metrics=metrics, rows=SAMPLES),
    )


@st.composite
def scripts(draw: st.DrawFn) -> list[ev.Event]:
    versions, tree = st.dictionaries(TEXT, TEXT, max_size=1), st.fixed_dictionaries({"a": TEXT})
    first = built(ev.RunStarted, step=st.just(0), versions=versions, config=tree)
    events: list[ev.Event] = [draw(first)]
    for step in range(1, draw(st.integers(1, 3)) + 1):
        for index in range(draw(st.integers(0, 2))):
            events += draw(groups(index, step))
        events += [draw(others(step)) for _ in range(draw(st.integers(0, 3)))]
        metrics = st.dictionaries(NAMES, NUMBER, max_size=3)
        events.append(draw(built(ev.StepFinished, step=st.just(step), metrics=metrics)))
    return events


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(scripts(), st.booleans())
def test_any_events_written_are_read_back_equal(events: list[ev.Event], alone: bool) -> None:
    """Token numbers come in the transaction of their group, or in a later one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        handle = start_run(path, CONFIG)
        for event in events:
            handle.put(event)
            if alone:
                handle.flush()
        assert handle.close(), trouble(handle)
        reader = StoreReader(path)
        found = [fact.event for fact in events_after(reader, handle.key, limit=10_000)]
        reader.close()
    assert len(found) == len(events)
    for got, wanted in zip(found, events, strict=True):
        assert same(ev.to_json(got), ev.to_json(wanted))


def test_facts_come_in_pages_that_join_without_gap(tmp_path: Path) -> None:
    from tests.experiments.made import record_run

    record_run(tmp_path / "s.db", steps=3)
    reader = StoreReader(tmp_path / "s.db")
    run = reader.resolve("@last").key
    whole = [fact.seq for fact in events_after(reader, run, limit=1000)]
    pages, after = [], 0
    while page := events_after(reader, run, after=after, limit=4):
        pages += [fact.seq for fact in page]
        after = page[-1].seq
    reader.close()
    assert pages == whole == list(range(1, len(whole) + 1))
