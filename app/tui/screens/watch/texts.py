"""The Watch screen as CSV, JSON or Markdown: the curves and the step's answers.

The charts draw buckets of steps; CSV and JSON contain the stored values.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from grpo_engine.events import Group
from grpo_engine.metrics import spec
from grpo_tui.app.feed.snapshot import Snapshot, StepGroup, StepRollout
from grpo_tui.app.text.safe_text import safe
from grpo_tui.experiments.export.csv import csv_string
from grpo_tui.experiments.export.files import header_for
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.export.markdown import table
from grpo_tui.experiments.export.rows import Row, metric_rows
from grpo_tui.experiments.values import BoardRollout

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

ANSWER = ("prompt", "answer", "reward", "advantage", "tokens", "finish", "text")


def as_csv(reader: "StoreReader", run: int, snapshot: Snapshot) -> str:
    """The metrics up to the shown step, in the format of `grpo-tui export`."""
    header = header_for("metrics", reader, [reader.run(run).summary])
    return csv_string(header, _metrics(reader, run, snapshot))


def _metrics(reader: "StoreReader", run: int, snapshot: Snapshot) -> Iterator[Row]:
    rows = metric_rows(reader, [reader.run(run).summary])
    return takewhile(lambda row: row["step"] <= snapshot.step, rows)


def _answers(group: StepGroup) -> list[dict[str, Any]]:
    return [
        dict(zip(ANSWER, (group.index + 1, one.index + 1, *_scores(one), one.finish, one.text),
                 strict=True))
        for one in group.rollouts
    ]  # fmt: skip


def _scores(rollout: StepRollout) -> tuple[float | None, float | None, int]:
    """Reward, advantage and tokens of an answer; one on the board has no scores yet."""
    if isinstance(rollout, BoardRollout):
        return None, None, rollout.tokens
    return rollout.reward, rollout.advantage, len(rollout.ids)


def as_json(reader: "StoreReader", run: int, snapshot: Snapshot) -> str:
    """The metrics, the step's prompts with their answers, and the alerts."""
    tree = {
        "run": snapshot.head.id, "name": snapshot.head.name, "status": snapshot.status,
        "step": snapshot.step, "total_steps": snapshot.head.total_steps,
        "metrics": list(_metrics(reader, run, snapshot)),
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
    return json_text(tree, indent=2) + "\n"


def as_markdown(snapshot: Snapshot) -> str:
    """The metrics of the last step, the active alerts, and the step's answers."""
    head = snapshot.head
    lines = [f"# {safe(head.name or head.id)}, step {snapshot.step} of {head.total_steps}", ""]
    metrics = (
        {"metric": f"{spec(name).label} ({name})", "value": view.last, "smoothed": view.value}
        for name, view in snapshot.series.items()
    )
    lines += table(("metric", "value", "smoothed"), metrics, digits=6)
    for alert in snapshot.open_alerts:
        lines += ["", f"Alert: {safe(alert.explanation, ' ')} {safe(alert.remedy, ' ')}"]
    for group in snapshot.groups:
        lines += ["", f"## Prompt {group.index + 1}", "", safe(group.prompt_text, "\n"), ""]
        lines += table(("answer", "reward", "advantage", "text"), _answers(group), digits=4)
    return "\n".join(lines) + "\n"
