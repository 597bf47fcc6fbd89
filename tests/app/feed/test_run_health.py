"""Watch and Runs say the same of a run's health."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.run_health import healths
from tests import patience
from tests.app.script import CONFIG
from tests.app.stored import record, run_events

ALERT = ev.AlertRaised(
    step=24, rule="kl_above_limit", severity="warning", explanation="KL is .6.", remedy="Stop."
)
OWN = {"functions": ["mine.py:accuracy", "format"], "weights": [1.0, 0.1]}


def events(*more: ev.Event, evaluations: int = 2) -> Iterator[ev.Event]:
    """The scripted run with at most so many evaluations and with other events after step 24."""
    count = 0
    for event in run_events(steps=24):
        if isinstance(event, ev.RunStarted) and more == (OWN_REWARD,):
            event = replace(event, config={**CONFIG, "steps": 24, "rewards": OWN})
        if isinstance(event, ev.EvaluationFinished):
            count += 1
            if count > evaluations:
                continue
        if isinstance(event, ev.StepFinished) and RISING in more and event.step > 15:
            key = "rewards/accuracy/mean"
            event = replace(event, metrics={**event.metrics, key: 1 - event.step / 1000})
        yield event
        if isinstance(event, ev.StepFinished) and event.step == 24:
            yield from (other for other in more if other not in (OWN_REWARD, RISING))


OWN_REWARD, RISING = ev.NoteWritten(step=0, text="own"), ev.NoteWritten(step=0, text="rising")


@pytest.mark.parametrize(
    ("more", "evaluations", "word"),
    [
        ((), 2, "learned"),
        ((), 1, "flat"),  # in training
        ((ALERT,), 2, "unstable"),
        ((replace(ALERT, step=8),), 2, "learned"),  # long over
        ((RISING,), 2, "learning"),
        ((ALERT, ev.AlertEnded(step=24, rule="kl_above_limit")), 2, "unstable"),
        ((OWN_REWARD,), 2, "unjudged"),
    ],
)
def test_a_stored_run_and_the_shown_one_have_the_same_health(
    more: tuple[ev.Event, ...], evaluations: int, word: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    rewards = OWN if more == (OWN_REWARD,) else CONFIG["rewards"]
    record(path, events(*more, evaluations=evaluations), name="otter", rewards=rewards)
    session = Session(StoreFeed(path, "otter"))
    patience.until(lambda: session.pull().status == "completed", session.pull)
    with closing(StoreReader(path)) as reader:
        run = reader.resolve("otter")
        health = healths(reader, [run])[run.key]
    assert health.word == word, health
    assert session.pull().health == health
    session.close()
