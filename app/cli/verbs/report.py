"""`grpo-tui report`: a one-page summary of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_tui.app.cli.output import print_json, write_out
from grpo_tui.app.cli.params import Json, RunRef
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.jobs.report_table import with_interval
from grpo_tui.app.text.comparison import MAIN_METRICS, phase_times, run_verdict
from grpo_tui.app.text.event_text import device_text
from grpo_tui.app.text.numbers import share

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import RunSummary


METRIC_FIELDS = ("first", "last", "best", "best_step", "mean")
ALERT_FIELDS = ("rule", "count", "first_step", "last_step", "explanation", "remedy")


def report(
    run: RunRef,
    out: Annotated[Path | None, typer.Option(help="Write to this file, not to stdout.")] = None,
    all_metrics: Annotated[bool, typer.Option("--all", help="Include every metric.")] = False,
    as_json: Json = False,
) -> None:
    """Summarize a run on one page: has it learned, curves, times, results, settings.

    It is Markdown.

    Example: grpo-tui report @last --out report.md
    """
    if out is not None and out.suffix.lower() in (".html", ".htm"):
        raise typer.BadParameter(f"{out}: a report is Markdown; write for example report.md")
    with reading() as reader:
        target = reader.resolve(run)
        content = gather(reader, target)
        if not (all_metrics or as_json):
            content["metrics"] = [
                row for row in content["metrics"] if row["metric"] in MAIN_METRICS
            ]
        if not as_json:
            text = page(content, plots(reader, target))
    print_json(content) if as_json else write_out(text, out)


def gather(reader: "StoreReader", run: "RunSummary") -> dict[str, Any]:
    """Return the content of the page as plain values."""
    from grpo_engine.config.parse import changed
    from grpo_engine.metrics import PHASES, spec, time_of
    from grpo_tui.experiments.compare.runs import progress
    from grpo_tui.experiments.export.rows import run_row
    from grpo_tui.experiments.run_health import healths

    detail, state = reader.run(run.key), healths(reader, [run])[run.key]
    times, phases = phase_times([detail.summary]), set(map(time_of, PHASES))
    return {
        "run": run_row(detail.summary),
        "health": state.word,
        "health_reason": state.reason,
        "verdict": run_verdict(detail.summary, progress(reader, run)),
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
        "alerts": [
            {name: getattr(item, name) for name in ALERT_FIELDS} for item in reader.alerts(run.key)
        ],
    }


def plots(reader: "StoreReader", run: "RunSummary") -> list[str]:
    """Plot reward and held-out accuracy, as far as they exist."""
    from grpo_tui.app.cli.curves import ChartOptions, metric_chart

    lines: list[str] = []
    for key in ("reward", "eval/accuracy"):
        series = reader.metric_series(run.key, key)
        if len(series.steps) > 1:
            lines += metric_chart(key, [(run.name, series)], ChartOptions())
    return lines


def summary_of(run: Mapping[str, Any]) -> str:
    """Status, settings and cost of a run in one line."""
    device = f" on {device_text(run['device'])}" if run["device"] else ""
    parts = [
        run["status"],
        run["model"],
        run["task"],
        run["recipe"],
        f"seed {run['seed']}",
        f"step {run['step']} of {run['total_steps']}",
        f"{run['tokens']:,} tokens",
        f"{run['elapsed']:.0f} s{device}",
    ]
    return " · ".join(parts)


def tables(content: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The tables of a report, by title."""
    settings = [{"setting": path, "value": value} for path, value in content["settings"].items()]
    metrics = [
        row | ({"best": None, "best_step": None} if row.get("direction") == "none" else {})
        for row in content["metrics"]
        if not row["metric"].endswith(("_low", "_high"))
    ]
    return {
        "Phase times, means over all steps": content["phases"],
        "Held-out": [evaluation_row(row) for row in content["evaluations"]],
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


def page(content: dict[str, Any], curves: list[str]) -> str:
    """Format the page as Markdown."""
    from grpo_tui.app.cli.markdown import md_cell, table
    from grpo_tui.experiments.export.csv import header_of

    run = content["run"]
    lines = [
        f"# {md_cell(run['name'])}",
        "",
        f"`{run['id']}` · {md_cell(summary_of(run))}",
        "",
        f"**Health: {content['health']}.** {md_cell(content['health_reason'])}",
        "",
        f"**{md_cell(content['verdict'])}**",
        "",
    ]
    if run["error"]:
        lines += [f"**Ended with** {md_cell(run['error'])}", ""]
    if run["note"]:
        lines += [md_cell(run["note"]), ""]
    lines += ["## Curves", "", "```text", *curves, "```", ""] if curves else []
    for title, rows in tables(content).items():
        if rows:
            lines += [f"## {md_cell(title)}", "", *table(header_of(rows), rows), ""]
    return "\n".join(lines) + "\n"
