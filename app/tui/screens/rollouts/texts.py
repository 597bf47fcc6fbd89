"""The Rollouts screen as text: CSV, JSON, Markdown, and plain text for the pager."""

import os
import shlex
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from textual.app import App, SuspendNotSupported

from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.screens.rollouts.view import View
from grpo_tui.experiments.export.csv import csv_string, header_of
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.values import GroupView, RolloutView

ASKED = ("step", "origin", "prompt", "target", "answer", "completion")
TOTALS = ("reward", "advantage", "tokens", "finish", "clip_fraction", "kl")


def as_csv(view: View) -> str:
    """One row per answer of the step, with a column for each reward."""
    rows = [_row(group, rollout) for group in _groups(view) for rollout in group.rollouts]
    rewards = [name for name in header_of(rows) if name not in (*ASKED, *TOTALS)]
    return csv_string([*ASKED, *rewards, *TOTALS], rows)


def _groups(view: View) -> tuple[GroupView, ...]:
    return view.step.groups if view.step else ()


def _row(group: GroupView, rollout: RolloutView) -> dict[str, Any]:
    row = {
        "step": group.step, "origin": group.origin, "prompt": group.prompt_text,
        "target": group.target, "answer": letter(rollout.index), "completion": rollout.text,
        "reward": rollout.reward, "advantage": rollout.advantage, "tokens": rollout.tokens,
        "finish": rollout.finish, "clip_fraction": rollout.clip_fraction, "kl": rollout.kl,
    }  # fmt: skip
    for item in rollout.rewards:
        row[f"reward/{item.name}" if item.name in row else item.name] = item.value
    return row


def as_json(view: View) -> str:
    """The step's groups as stored."""
    return json_text([_tree(group) for group in _groups(view)], indent=2) + "\n"


def _tree(group: GroupView) -> dict[str, Any]:
    """A group without its tokens, which are not loaded with it."""
    tree = asdict(group)
    del tree["prompt_ids"]
    for rollout in tree["rollouts"]:
        for name in ("ids", "ends", "sampler_logprobs"):
            del rollout[name]
    return tree


def as_markdown(view: View) -> str:
    """The selected group: prompt, answers with rewards and advantages."""
    group = view.chosen
    if group is None:
        return ""
    lines = [f"# Step {group.step}, prompt {group.index + 1}", "", safe(group.prompt_text, "\n")]
    lines += ["", f"Target: {safe(group.target)}", ""]
    for rollout in group.rollouts:
        rewards = ", ".join(f"{safe(w.name)} {w.value}" for w in rollout.rewards)
        lines += [
            f"## Answer {letter(rollout.index)}",
            "",
            f"reward {rollout.reward} ({rewards}), advantage {rollout.advantage}, "
            f"{rollout.tokens} tokens, {rollout.finish}",
            "",
            safe(rollout.text, "\n"),
            "",
        ]
    return "\n".join(lines)


def show_in_pager(app: App[int] | App[None] | App[object], text: str) -> None:
    """Hand the terminal to `$PAGER` until it exits; the text is escaped already."""
    command = shlex.split(os.environ.get("PAGER") or "less")
    with tempfile.NamedTemporaryFile("w", suffix=".md", delete=False, encoding="utf-8") as file:
        file.write(text)
    try:
        with app.suspend():
            subprocess.run([*command, file.name], check=False)
    except SuspendNotSupported:
        app.notify("There is no pager here; y copies the answer.", severity="warning")
    except OSError as error:
        app.notify(f"{command[0]} did not start: {error.strerror}; set PAGER", severity="error")
    finally:
        Path(file.name).unlink()
