"""`grpo-tui report`: a one-page summary of a run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import print_json, shown
from app.cli.params import Db, Json, RunRef
from app.cli.store_access import reading
from app.text.stderr import say

if TYPE_CHECKING:
    from experiments.reader import StoreReader
    from experiments.values import RunSummary


def report(
    run: RunRef,
    out: Annotated[Path | None, typer.Option(help="Write to this file, not to stdout.")] = None,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Summarize a run on one page of Markdown: results, settings, alerts, answers then and now.

    Example: grpo-tui report @last --out report.md
    """
    with reading(db) as reader:
        found = reader.resolve(run)
        facts = gather(reader, found)
        curves = [] if as_json else drawn(reader, found)
    if as_json:
        print_json(facts)
        return
    from experiments.export.files import whole

    text = page(facts, curves)
    if out is None or out == Path("-"):
        sys.stdout.write(text)
    else:
        with whole(out) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
        say(f"wrote {out}")


def gather(reader: "StoreReader", run: "RunSummary") -> dict[str, Any]:
    """Return the content of the page as plain values."""
    from experiments.export.rows import run_row
    from grpo_engine.metrics import spec

    detail = reader.run(run.key)
    keys = [key for key in detail.summary.metrics if not key.startswith("time/")]
    return {
        "run": run_row(detail.summary),
        "versions": dict(detail.versions),
        "settings": changed_settings(detail.settings),
        "metrics": [
            {
                "metric": key, "first": line.first, "last": line.last, "best": line.best,
                "best_step": line.best_step, "mean": line.mean, "direction": spec(key).direction,
            }
            for key, line in ((key, detail.summary.metrics[key]) for key in keys)
        ],
        "evaluations": [
            {"step": item.step, "mode": item.mode, "problems": item.problems, **item.metrics}
            for item in reader.evaluations(run.key)
        ],
        "alerts": [
            {"rule": item.rule, "count": item.count, "first_step": item.first_step,
             "last_step": item.last_step, "explanation": item.explanation, "remedy": item.remedy}
            for item in reader.alerts(run.key)
        ],
        "pinned": [
            {"prompt": item.prompt_text, "target": item.target, "steps": list(item.steps),
             "reward_means": list(item.reward_means)}
            for item in reader.pinned(run.key)
        ],
    }  # fmt: skip


def changed_settings(settings: Any) -> dict[str, Any]:
    """Return the settings that are not the defaults."""
    from grpo_engine.config.parse import flatten
    from grpo_engine.config.settings import RunConfig

    defaults = flatten(RunConfig())
    return {
        path: value for path, value in settings.items()
        if path not in defaults or defaults[path] != value
    }  # fmt: skip


def drawn(reader: "StoreReader", run: "RunSummary") -> list[str]:
    """Plot reward and held-out accuracy, as far as they exist."""
    from app.cli.curves import Canvas, metric_chart

    lines: list[str] = []
    for key in ("reward", "eval/accuracy"):
        series = reader.metric_series(run.key, key)
        if len(series.steps) > 1:
            lines += metric_chart(key, [(run.name, series)], Canvas(), height=10)
    return lines


def page(facts: dict[str, Any], curves: list[str]) -> str:
    """Format the page as Markdown."""
    from experiments.export.markdown import md_cell

    run = facts["run"]
    lines = [
        f"# {md_cell(run['name'])}", "",
        f"`{run['id']}` · {run['status']} · {md_cell(run['model'])} · {md_cell(run['task'])} · "
        f"{md_cell(run['recipe'])} · seed {run['seed']} · step {run['step']} of "
        f"{run['total_steps']} · {run['tokens']:,} tokens · {run['elapsed']:.0f} s · "
        f"{md_cell(run['device'])}", "",
    ]  # fmt: skip
    if run["error"]:
        lines += [f"**Ended with** {md_cell(run['error'])}", ""]
    if run["note"]:
        lines += [md_cell(run["note"]), ""]
    lines += _table("Held-out", facts["evaluations"])
    lines += ["## Curves", "", "```text", *curves, "```", ""] if curves else []
    lines += _table("Metrics", facts["metrics"])
    lines += _table(
        "Settings that are not the defaults",
        [{"setting": path, "value": value} for path, value in facts["settings"].items()],
    )
    lines += _table("Alerts", facts["alerts"])
    lines += _table(
        "Pinned prompts, mean reward by step",
        [
            {
                "prompt": item["prompt"], "target": item["target"],
                "mean reward": ", ".join(
                    f"{step}: {shown(mean)}"
                    for step, mean in zip(item["steps"], item["reward_means"], strict=True)
                ),
            }
            for item in facts["pinned"]
        ],
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def _table(title: str, rows: list[dict[str, Any]]) -> list[str]:
    from experiments.export.csv import header_of
    from experiments.export.markdown import table

    return [f"## {title}", "", *table(header_of(rows), rows, digits=4), ""] if rows else []
