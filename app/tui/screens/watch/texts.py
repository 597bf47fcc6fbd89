"""What is on the Watch screen as CSV, JSON or Markdown: the curves and the step's answers."""

import csv
import io
import json
import math
from typing import Any

from app.feed.snapshot import ShownGroup, Snapshot
from app.text.safe_text import safe
from experiments.db.texts import escape, guard
from experiments.values import BoardGroup
from grpo_engine.events import Group
from grpo_engine.metrics import spec

ANSWER = ("prompt", "answer", "reward", "advantage", "tokens", "finish", "text")


def curves(snapshot: Snapshot) -> tuple[tuple[str, ...], list[list[float | None]]]:
    """Column names, and a row per step: of each metric its mean over the drawn bucket of steps.

    Up to 2,048 steps a bucket is one step, and the values are exact.
    """
    names = tuple(snapshot.series)
    columns: list[dict[int, float]] = []
    for name in names:
        view = snapshot.series[name]
        middle = [(low + high) / 2 for low, high in zip(view.low, view.high, strict=True)]
        columns.append(
            {step: value for step, value in zip(view.steps(), middle, strict=True)
             if math.isfinite(value)}
        )  # fmt: skip
    steps = sorted({step for column in columns for step in column})
    return names, [[float(step), *(column.get(step) for column in columns)] for step in steps]


def _answers(group: ShownGroup) -> list[dict[str, Any]]:
    return [dict(zip(ANSWER, (group.index + 1, *answer), strict=True)) for answer in _rows(group)]


def _rows(group: ShownGroup) -> list[tuple[int, float | None, float | None, int, str | None, str]]:
    """Number, reward, advantage, tokens, finish and text of each answer."""
    if isinstance(group, BoardGroup):
        return [(one.index + 1, None, None, one.tokens, one.finish, one.text)
                for one in group.rollouts]  # fmt: skip
    return [(one.index + 1, one.reward, one.advantage, len(one.ids), one.finish, one.text)
            for one in group.rollouts]  # fmt: skip


def as_csv(snapshot: Snapshot) -> str:
    """The curves: a row per step, a column per metric."""
    names, rows = curves(snapshot)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["step", *(guard(escape(name)) for name in names)])
    writer.writerows([f"{row[0]:.0f}", *row[1:]] for row in rows)
    return file.getvalue()


def as_json(snapshot: Snapshot) -> str:
    """The curves, the step's prompts with their answers, and the alerts."""
    names, rows = curves(snapshot)
    tree = {
        "run": snapshot.head.id, "name": snapshot.head.name, "status": snapshot.status,
        "step": snapshot.step, "total_steps": snapshot.head.total_steps,
        "metrics": [dict(zip(("step", *names), (int(row[0] or 0), *row[1:]), strict=True))
                    for row in rows],
        "prompts": [
            {"prompt": group.index + 1, "origin": group.origin, "text": group.prompt_text,
             "target": group.target,
             "mean": group.reward_mean if isinstance(group, Group) else None,
             "no_signal": group.no_signal if isinstance(group, Group) else "",
             "answers": _answers(group)}
            for group in snapshot.groups
        ],
        "alerts": [
            {"rule": alert.rule, "severity": alert.severity, "first_step": alert.first_step,
             "last_step": alert.last_step, "explanation": alert.explanation,
             "remedy": alert.remedy, "value": alert.value, "limit": alert.limit,
             "muted": alert.muted}
            for alert in snapshot.alerts
        ],
    }  # fmt: skip
    return json.dumps(tree, ensure_ascii=True, indent=1)


def as_markdown(snapshot: Snapshot) -> str:
    """The metrics of the last step, the alerts that hold, and the step's answers."""
    head = snapshot.head
    lines = [f"# {safe(head.name or head.id)}, step {snapshot.step} of {head.total_steps}", ""]
    lines += ["| metric | value | smoothed |", "| --- | ---: | ---: |"]
    for name, view in snapshot.series.items():
        label = _cell(spec(name).label)
        lines.append(f"| {label} (`{_cell(name)}`) | {view.last:.6g} | {view.value:.6g} |")
    for alert in snapshot.open_alerts:
        lines += ["", f"Alert: {safe(alert.explanation, ' ')} {safe(alert.remedy, ' ')}"]
    for group in snapshot.groups:
        lines += ["", f"## Prompt {group.index + 1}", "", safe(group.prompt_text, "\n"), ""]
        lines += ["| answer | reward | advantage | text |", "| --- | ---: | ---: | --- |"]
        for number, reward, advantage, _, _, text in _rows(group):
            numbers = " | ".join(
                "" if value is None else f"{value:.4g}" for value in (reward, advantage)
            )
            lines.append(f"| {number} | {numbers} | {_cell(text)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return safe(text, " ").replace("|", "\\|")
