"""The runs table as text: CSV, JSON, Markdown, with the columns that are shown."""

import csv
import io
import json
from typing import Any

from app.text.safe_text import safe
from app.tui.screens.runs.columns import metric_of
from app.tui.screens.runs.view import View
from experiments.db.texts import escape, guard
from experiments.values import RunSummary

METRICS = ("reward", "eval/accuracy", "kl", "clip_ratio/region_mean", "tokens_per_second")


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
    """The runs that are listed, in their order."""
    return [_record(row.run) for row in view.rows if row.run is not None]


def as_json(view: View) -> str:
    """One object per run."""
    return json.dumps(records(view), indent=1)


def as_csv(view: View) -> str:
    """One row per run; text is guarded against spreadsheets."""
    found = records(view)
    file = io.StringIO()
    names = list(dict.fromkeys(name for record in found for name in record))
    writer = csv.DictWriter(file, names)
    writer.writeheader()
    for record in found:
        writer.writerow(
            {k: guard(escape(v)) if isinstance(v, str) else v for k, v in record.items()}
        )
    return file.getvalue()


def as_markdown(view: View) -> str:
    """A table of the most important columns."""
    from experiments.export.rows import md_cell

    names = ("name", "recipe", "task", "status", "step", "best reward", "best eval/accuracy")
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for record in records(view):
        values = (record.get(name) for name in names)
        cells = (md_cell(safe(v) if isinstance(v, str) else "" if v is None else v) for v in values)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
