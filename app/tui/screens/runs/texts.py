"""The runs table as text: CSV, JSON and Markdown, with the visible columns."""

from typing import Any

from grpo_tui.app.tui.screens.runs.columns import metric_of
from grpo_tui.app.tui.screens.runs.view import View
from grpo_tui.experiments.export.csv import csv_string, header_of
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.export.markdown import table
from grpo_tui.experiments.values import RunSummary

METRICS = ("reward", "eval/accuracy", "kl", "clip_ratio/region_mean", "tokens_per_second")
MAIN = ("name", "recipe", "task", "status", "step", "best reward", "best eval/accuracy")


def _record(run: RunSummary) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": run.id, "name": run.name, "status": run.status, "model": run.model,
        "task": run.task, "recipe": run.recipe, "seed": run.seed, "step": run.step,
        "total_steps": run.total_steps, "tokens": run.tokens, "elapsed": run.elapsed,
        "created_at": run.created_at, "tags": " ".join(run.tags), "note": run.note,
    }  # fmt: skip
    for key in METRICS:
        found = metric_of(run, key)
        record[f"best {key}"] = found.best if found else None
        record[f"best {key} step"] = found.best_step if found else None
        record[f"last {key}"] = found.last if found else None
    return {**record, **run.columns}


def records(view: View) -> list[dict[str, Any]]:
    """The listed runs in display order."""
    return [_record(row.run) for row in view.rows if row.run is not None]


def as_json(view: View) -> str:
    """One object per run."""
    return json_text(records(view), indent=2) + "\n"


def as_csv(view: View) -> str:
    """One row per run; text is escaped against formulas in spreadsheets."""
    found = records(view)
    return csv_string(header_of(found), found)


def as_markdown(view: View) -> str:
    """A table of the most important columns."""
    return "\n".join(table(MAIN, records(view))) + "\n"
