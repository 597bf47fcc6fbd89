"""What a standard benchmark measured of a run is stored with it, and shown with standard errors."""

from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app.cli.main import main
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.writer import add_events
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import config, recorded, started


def score(moment: str, value: float, stderr: float | None = 0.03) -> ev.BenchmarkScore:
    return ev.BenchmarkScore(
        task="sums",
        metric="acc",
        moment=moment,  # type: ignore[arg-type]
        value=value,
        stderr=stderr,
        samples=24,
    )


def measured(before: float, after: float, stderr: float | None = 0.03) -> ev.BenchmarksMeasured:
    scores = (score("before", before, stderr), score("after", after, stderr))
    return ev.BenchmarksMeasured(step=2, program="lm-eval 1", scores=scores, seconds=3.0)


def run_of(path: Path, name: str, seed: int = 0) -> int:
    steps = [
        ev.StepFinished(step=n, metrics={"reward": 0.1}, tokens=1, elapsed=1.0) for n in (1, 2)
    ]
    end = ev.RunFinished(step=2, reason="completed", summary={})
    return recorded(path, started(), *steps, end, tree=config(seed=seed), name=name).key


def test_results_are_metrics_of_the_steps_that_they_are_of(path: Path) -> None:
    key = run_of(path, "first")
    event = measured(0.25, 0.5)
    with ExperimentStore(path) as store:
        add_events(store, key, event)
    with StoreReader(path) as reader:
        assert reader.benchmarks(key) == (event,)
        assert events_after(reader, key)[-1].event == event
        series = reader.metric_series(key, "lm-eval/sums/acc")
        assert (series.steps, series.values) == ((0, 2), (0.25, 0.5))
        assert reader.metric_series(key, "lm-eval/sums/acc/stderr").values == (0.03, 0.03)
        assert reader.runs()[0].status == "completed"


def test_measured_again_a_benchmark_has_its_last_results(path: Path) -> None:
    key = run_of(path, "first")
    with ExperimentStore(path) as store:
        add_events(store, key, measured(0.25, 0.5))
        add_events(store, key, measured(0.25, 0.75))
    with StoreReader(path) as reader:
        assert [item.scores[1].value for item in reader.benchmarks(key)] == [0.5, 0.75]
        line = reader.metric_summaries([key], ["lm-eval/sums/acc"])[key]["lm-eval/sums/acc"]
    assert (line.first, line.last, line.best, line.mean) == (0.25, 0.75, 0.75, 0.5)


def test_a_run_is_shown_with_the_standard_errors(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = run_of(path, "first")
    with ExperimentStore(path) as store:
        add_events(store, key, measured(0.25, 0.5), measured(0.25, 0.625, None))
    assert main(["runs", "show", "first", "--db", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "sums  acc     24  0.25    0.625" in shown
    assert shown.count("lm-eval/") == 0  # a table of its own, and none among the metrics
    with ExperimentStore(path) as store:
        add_events(store, key, measured(0.25, 0.5))
    assert main(["runs", "show", "first", "--db", str(path)]) == 0
    assert "sums  acc     24  0.25 ± 0.03  0.5 ± 0.03" in capsys.readouterr().out


def test_compare_pools_seeds_and_their_standard_errors(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two seeds the mean (.5 + .7) / 2 with sqrt(.03² + .04²) / 2 = .025."""
    keys = [run_of(path, f"s{seed}", seed) for seed in (0, 1)]
    other = recorded(path, started(), tree=config(steps=11), name="other").key
    with ExperimentStore(path) as store:
        add_events(store, keys[0], measured(0.25, 0.5, 0.03))
        add_events(store, keys[1], measured(0.25, 0.7, 0.04))
        add_events(store, other, measured(0.25, 0.25, 0.02))
    assert main(["compare", "s0", "s1", "other", "--db", str(path)]) == 0
    table = capsys.readouterr().out.partition("lm-eval ± standard error")[2].splitlines()
    assert table[1].split("  ")[0] == "sums: acc ↑"
    assert "0.6 ± 0.025" in table[1]
    assert "0.25 ± 0.02" in table[1]
