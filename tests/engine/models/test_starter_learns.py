"""The starter's run does what the README says: it improves on unseen problems."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build, merge
from grpo_engine.events import (
    EvaluationFinished,
    Event,
    PassFinished,
)
from grpo_engine.presets import preset
from tests.engine.runs import completed


def starter_run(folder: Path, **changes: Any) -> list[Event]:
    return completed(build(merge(preset("starter").tree, changes)), folder)


def results(events: list[Event]) -> Iterator[dict[str, float]]:
    """The metrics of the sampled evaluations, from first to last."""
    for event in events:
        if isinstance(event, EvaluationFinished) and event.mode == "sampled":
            yield dict(event.metrics)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_preset_keeps_the_promise_of_the_readme(tmp_path: Path) -> None:
    events = starter_run(tmp_path, seed=11, evaluation={"problems": 512})
    before, *_, after = results(events)

    assert after["eval/accuracy"] - before["eval/accuracy"] >= 0.25
    assert after["eval/format"] > before["eval/format_high"]
    gain = after["eval/accuracy_of_formatted"] - before["eval/accuracy_of_formatted"]
    assert gain >= 0.10
    assert any(isinstance(event, PassFinished) and event.index == 2 for event in events)
