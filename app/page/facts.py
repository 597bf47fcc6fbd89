"""What a report says of a run, as plain values."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from grpo_engine.events import BENCHMARK
from grpo_tui.app.jobs.report_table import with_interval
from grpo_tui.app.text.comparison import phase_times, run_verdict
from grpo_tui.app.text.event_text import device_text
from grpo_tui.app.text.numbers import share, with_stderr
from grpo_tui.app.text.words import step_of

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import RunSummary

METRIC_FIELDS = ("first", "last", "best", "best_step", "mean", "first_step", "last_step")
ONCE = {"first": None}  # a metric that was measured once has no first and last value
ALERT_FIELDS = ("rule", "count", "first_step", "last_step", "explanation", "remedy")


def gather(reader: "StoreReader", run: "RunSummary") -> dict[str, Any]:
    """Return the content of the page as plain values."""
    from grpo_engine.config.parse import changed
    from grpo_engine.metrics import PHASES, spec, time_of
    from grpo_tui.experiments.compare.runs import progress, setbacks
    from grpo_tui.experiments.export.rows import run_row
    from grpo_tui.experiments.run_health import healths

    detail, state = reader.run(run.key), healths(reader, [run])[run.key]
    times, phases = phase_times([detail.summary]), set(map(time_of, PHASES))
    return {
        "run": run_row(detail.summary),
        "health": state.label,
        "health_reason": state.reason,
        "verdict": run_verdict(detail.summary, progress(reader, run), setbacks(reader, run)),
        "versions": dict(detail.versions),
        "settings": changed(detail.settings),
        "phases": [
            {"phase": name, "seconds a step": mean, "share": share(mean / sum(times.values()))}
            for name, mean in times.items()
        ],
        "metrics": [
            {
                "metric": key,
                **{name: getattr(line, name) for name in METRIC_FIELDS},
                "direction": spec(key).direction,
            }
            for key, line in detail.summary.metrics.items()
            if key not in phases
        ],
        "evaluations": [
            {"step": item.step, "mode": item.mode, "problems": item.problems, **item.metrics}
            for item in reader.evaluations(run.key)
        ],
        "benchmarks": [asdict(item) for item in reader.benchmarks(run.key)],
        "alerts": [
            {name: getattr(item, name) for name in ALERT_FIELDS} for item in reader.alerts(run.key)
        ],
    }


def summary_of(run: Mapping[str, Any]) -> str:
    """Status, settings and cost of a run in one line."""
    device = f" on {device_text(run['device'])}" if run["device"] else ""
    parts = [
        run["status"],
        run["model"],
        run["task"],
        run["recipe"],
        "" if run["seed"] is None else f"seed {run['seed']}",
        step_of(run["step"], run["total_steps"]),
        "" if run["tokens"] is None else f"{run['tokens']:,} tokens",
        f"{run['elapsed']:.0f} s{device}" if run["elapsed"] else "",
    ]
    return " · ".join(filter(None, parts))


def tables(content: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The tables of a report, by title."""
    settings = [{"setting": path, "value": value} for path, value in content["settings"].items()]
    metrics = [
        {name: value for name, value in row.items() if name not in ("first_step", "last_step")}
        | ({"best": None, "best_step": None} if row.get("direction") == "none" else {})
        | (ONCE if "first_step" in row and row["first_step"] == row["last_step"] else {})
        for row in content["metrics"]
        if not (row["metric"].endswith(("_low", "_high")) or row["metric"].startswith(BENCHMARK))
    ]
    return {
        "Phase times, means over all steps": content["phases"],
        "Held-out": [evaluation_row(row) for row in content["evaluations"]],
        "Standard benchmarks, ± standard error": benchmark_rows(content["benchmarks"]),
        "Alerts": content["alerts"],
        "Metrics": metrics,
        "Settings that are not the defaults": settings,
    }


def evaluation_row(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """The main results of an evaluation with their intervals; the others are among the metrics."""
    passes = (name for name in evaluation if name.startswith("eval/pass@"))
    rewards = ("eval/reward",) if "eval/reward" in evaluation else ()
    return {name: evaluation[name] for name in ("step", "mode", "problems")} | {
        name.removeprefix("eval/"): with_interval(evaluation, name)
        for name in ("eval/accuracy", *rewards, *passes)
    }


def benchmark_rows(measured: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The latest results of each benchmark: of the model before, and of each trained checkpoint."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for event in measured:
        for score in event["scores"]:
            row = rows.setdefault((score["task"], score["metric"]), {})
            error = score["stderr"]
            row |= {"task": score["task"], "metric": score["metric"], "n": score["samples"]}
            step = 0 if score["moment"] == "before" else event["step"]
            row[f"step {step}"] = with_stderr(score["value"], () if error is None else (error,))
    steps = sorted(
        {name for row in rows.values() for name in row if name.startswith("step ")}, key=_number
    )
    names = ["task", "metric", "n", *steps]
    return [{name: row.get(name) for name in names} for row in rows.values()]


def _number(step: str) -> int:
    return int(step.removeprefix("step "))
