"""The recorded starter runs, which are healthy, raise no alert."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.feed import demo
from docs.screens import SEVERAL
from experiments.presets import preset
from experiments.reader import StoreReader
from grpo_engine.alerts.state import Alerts, Limits
from grpo_engine.events import EvaluationFinished, Event, StepFinished


def events(reader: StoreReader, run: int, *, between: bool) -> Iterator[Event]:
    """The steps and evaluations of a stored run, as they happened."""
    tried = reader.evaluations(run)
    last = reader.last_metric_step(run)
    for step in range(last + 1):
        if step:
            yield StepFinished(
                step=step, metrics=reader.metrics_at(run, step), tokens=0, elapsed=0.0
            )
        for one in tried:
            if one.step == step and (between or one.moment != "during"):
                yield EvaluationFinished(
                    step=step, moment="during", mode=one.mode, problems=one.problems,
                    samples=one.samples, metrics=one.metrics, rows=(), seconds=0.0,
                )  # fmt: skip


@pytest.mark.parametrize("between", [True, False], ids=["evaluated between", "at the ends only"])
@pytest.mark.parametrize(
    "unpack", [demo.unpack, lambda folder: demo.unpacked(SEVERAL, folder)], ids=["demo", "several"]
)
def test_recorded_starter_runs_raise_no_alert(
    unpack: Callable[[Path], Path], between: bool, tmp_path: Path
) -> None:
    config = preset("starter").config
    limits = Limits(
        updates_per_step=2, accuracy="numeric_answer", memory_gb=8.0, thresholds=config.alerts,
        weights=dict(zip(config.rewards.functions, config.rewards.weights, strict=True)),
    )  # fmt: skip
    with closing(StoreReader(unpack(tmp_path))) as reader:
        for run in reader.runs():
            alerts = Alerts(limits)
            raised = [
                (alert.step, alert.rule)
                for event in events(reader, run.key, between=between)
                for alert in alerts.observe(event)
            ]
            assert raised == [], run.name
