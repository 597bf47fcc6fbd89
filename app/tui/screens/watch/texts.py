"""What is on the Watch screen as CSV, JSON or Markdown: the curves and the step's answers.

The charts draw buckets of steps; the values of CSV and JSON are the stored ones.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from app.feed.run_state import Card, Snapshot
from app.text.safe_text import safe
from experiments.export.csv import csv_string
from experiments.export.files import header_for
from experiments.export.json import json_text
from experiments.export.markdown import table
from experiments.export.rows import Row, metric_rows
from experiments.reader import StoreReader
from grpo_engine.metrics import spec

ANSWER = ("prompt", "answer", "reward", "advantage", "tokens", "finish", "text")


def as_csv(reader: StoreReader, run: int, snapshot: Snapshot) -> str:
    """The metrics up to the shown step, as `grpo-tui export` writes them."""
    header = header_for("metrics", reader, [reader.run(run).summary])
    return csv_string(header, _metrics(reader, run, snapshot))


def _metrics(reader: StoreReader, run: int, snapshot: Snapshot) -> Iterator[Row]:
    rows = metric_rows(reader, [reader.run(run).summary])
    return takewhile(lambda row: row["step"] <= snapshot.step, rows)


def _answers(card: Card) -> list[dict[str, Any]]:
    return [
        dict(zip(ANSWER, (card.index + 1, cell.index + 1, cell.reward, cell.advantage,
                          cell.tokens, cell.finish, cell.text), strict=True))
        for cell in card.cells
    ]  # fmt: skip


def as_json(reader: StoreReader, run: int, snapshot: Snapshot) -> str:
    """The metrics, the step's prompts with their answers, and the alerts."""
    tree = {
        "run": snapshot.head.id, "name": snapshot.head.name, "status": snapshot.status,
        "step": snapshot.step, "total_steps": snapshot.head.total_steps,
        "metrics": list(_metrics(reader, run, snapshot)),
        "prompts": [
            {"prompt": card.index + 1, "origin": card.origin, "text": card.prompt,
             "target": card.target, "mean": card.mean, "no_signal": card.no_signal,
             "answers": _answers(card)}
            for card in snapshot.cards
        ],
        "alerts": [
            {"rule": alert.rule, "severity": alert.severity, "first_step": alert.first_step,
             "last_step": alert.last_step, "explanation": alert.explanation,
             "remedy": alert.remedy, "value": alert.value, "limit": alert.limit,
             "muted": alert.muted}
            for alert in snapshot.alerts
        ],
    }  # fmt: skip
    return json_text(tree, indent=2) + "\n"


def as_markdown(snapshot: Snapshot) -> str:
    """The metrics of the last step, the alerts that hold, and the step's answers."""
    head = snapshot.head
    lines = [f"# {safe(head.name or head.id)}, step {snapshot.step} of {head.total_steps}", ""]
    metrics = (
        {"metric": f"{spec(name).label} ({name})", "value": view.last, "smoothed": view.value}
        for name, view in snapshot.series.items()
    )
    lines += table(("metric", "value", "smoothed"), metrics, digits=6)
    for alert in snapshot.open_alerts:
        lines += ["", f"Alert: {safe(alert.explanation, ' ')} {safe(alert.remedy, ' ')}"]
    for card in snapshot.cards:
        lines += ["", f"## Prompt {card.index + 1}", "", safe(card.prompt, "\n"), ""]
        lines += table(("answer", "reward", "advantage", "text"), _answers(card), digits=4)
    return "\n".join(lines) + "\n"
