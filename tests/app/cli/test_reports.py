"""`report` and `compare` begin with what was found."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.main import main
from grpo_tui.app.cli.markdown import md_cell
from grpo_tui.app.page.facts import tables
from tests.app.compared import cli, refs_of, sweep_of_settings
from tests.app.stored import record, run_events

EMPTY: dict[str, Any] = {
    name: [] for name in ("phases", "alerts", "evaluations", "benchmarks", "metrics")
} | {"settings": {}}


def test_a_report_says_first_whether_the_run_has_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04,), seeds=1)
    assert main(["report", "@last", "--db", str(path)]) == 0
    said = capsys.readouterr().out
    places = [
        said.index(part)
        for part in (
            "**Held-out accuracy rose: from ",
            "greedy answers, steps 0 and 6; p < .001",
            "sampled 4 times, steps 0 and 6",
            "## Curves",
            "## Phase times",
            "## Metrics",
        )
    ]
    assert places == sorted(places)
    assert "grad_norm" not in said
    assert main(["report", "@last", "--all", "--db", str(path)]) == 0
    assert "grad_norm" in capsys.readouterr().out


def test_text_is_no_html_and_a_comparison_is_read_on_a_terminal_too() -> None:
    for text in ("p < .001", "reward > .5 & kl <= 1"):
        assert md_cell(text) == text
    assert md_cell("<b>&lt;") == "&lt;b>&amp;lt;"
    assert md_cell("> a") == "&gt; a"


def test_a_metric_without_a_better_direction_has_no_best_value() -> None:
    metrics = [
        {"metric": name, "last": 1.0, "best": 2.0, "best_step": 3, "direction": direction}
        for name, direction in (("reward", "up"), ("entropy", "none"))
    ]
    reward, entropy = tables(EMPTY | {"metrics": metrics})["Metrics"]
    assert (reward["best"], reward["best_step"]) == (2.0, 3)
    assert (entropy["last"], entropy["best"], entropy["best_step"]) == (1.0, None, None)


def test_the_results_of_an_evaluation_have_their_intervals_beside_them() -> None:
    # before, each bound was a column, and the table was wider than most terminals
    results = {"eval/accuracy": 0.375, "eval/accuracy_low": 0.334, "eval/accuracy_high": 0.418}
    head = {"step": 4, "mode": "greedy", "problems": 512}
    rows = [
        head | results | {"eval/truncated": 0.0},
        head | {"eval/reward": 1.0, "eval/pass@4": 0.5},
    ]
    metrics = [{"metric": name} for name in results]
    shown = tables(EMPTY | {"evaluations": rows, "metrics": metrics})
    assert shown["Held-out"] == [
        head | {"accuracy": "0.375 [0.334, 0.418]"},
        head | {"accuracy": "not measured", "reward": "1.000", "pass@4": "0.500"},
    ]
    assert shown["Metrics"] == [{"metric": "eval/accuracy"}]


@pytest.mark.slow
def test_compare_begins_with_the_verdict_and_ranks_settings_not_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04, 0.4), seeds=2, steps=4)
    refs = refs_of(path)
    said = cli(capsys, *refs, "--db", str(path))
    first = said.splitlines()[0]
    assert first.startswith(("beta 0.4 (2 seeds) ", "No significant difference in sampled "))
    assert "t test over seeds and problems" in first
    places = [
        said.index(part)
        for part in (
            "sampled answers to 60 held-out problems; goal: ",
            "greedy answers to 60 held-out",
            "seconds a step",
            "algorithm.beta",
            "mean over seeds",
        )
    ]
    assert places == sorted(places)
    assert "grad_norm" not in said
    assert "grad_norm" in cli(capsys, *refs, "--all", "--db", str(path))
    assert main(["compare", *refs, "--reach", "high", "--db", str(path)]) == 2
    assert "nothing can reach 'high'" in capsys.readouterr().err


def busy(events: Iterator[ev.Event]) -> Iterator[ev.Event]:
    """The events of a run with an environment, on a machine that other programs use."""
    for event in events:
        if isinstance(event, ev.StepFinished):
            more = {"time/others": 7.0, "time/environment": 0.4}
            event = replace(event, metrics={**event.metrics, **more})
        yield event


def test_the_phases_of_report_and_compare_sum_to_the_time_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.db"
    for seed, name in enumerate(("first", "second")):
        record(path, busy(run_events(steps=3, seed=seed)), name=name)
    assert main(["report", "first", "--json", "--db", str(path)]) == 0
    facts = json.loads(capsys.readouterr().out)
    spent = {row["phase"]: row["seconds a step"] for row in facts["phases"]}
    assert list(spent) == ["generate", "score", "logprobs", "update", "other"]
    mean = {row["metric"]: row["mean"] for row in facts["metrics"]}
    assert sum(spent.values()) == pytest.approx(mean["step_time"])
    assert mean["time/others"] == 7.0
    said = cli(capsys, "first", "second", "--db", str(path))
    head = next(line for line in said.splitlines() if "seconds a step" in line)
    assert head.split() == ["seconds", "a", "step", *spent]
    assert main(["report", "first", "--db", str(path)]) == 0
    shares = re.findall(r"\| ([\d.]+)% \|", capsys.readouterr().out.partition("## Phase times")[2])
    assert sum(map(float, shares[: len(spent)])) == pytest.approx(100, abs=1)


@pytest.mark.slow
def test_the_extension_decides_and_what_only_a_page_has_needs_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04,), seeds=2, steps=2)
    words, out = ["report", *refs_of(path), "--db", str(path)], tmp_path / "r.html"
    assert main([*words, "--out", str(tmp_path / "r.md")]) == exit_codes.USAGE
    assert "need a page: --out run.html" in capsys.readouterr().err
    assert main([*words, "--steps", "1,x", "--out", str(out)]) == exit_codes.USAGE
    assert not out.exists()
    capsys.readouterr()
    assert main([*words, "--steps", "2,99", "--out", str(out)]) == exit_codes.OK
    said = capsys.readouterr().err
    assert said.count("has no answers at step 99 of --steps; it has 2 steps") == 2  # of each run
    assert main([*words, "--redact", "--out", str(out)]) == exit_codes.OK
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
