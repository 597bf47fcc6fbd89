"""What is on the Rollouts screen as text: CSV, JSON, Markdown, and for the pager."""

import csv
import io
import json
import os
import shlex
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from textual.app import App, SuspendNotSupported

from app.inspector.groups import letter
from app.text.safe_text import safe
from app.tui.screens.rollouts.view import View
from experiments.db.texts import escape, guard
from experiments.values import GroupView


def as_csv(view: View) -> str:
    """One row per answer of the step, with each reward in its own column."""
    groups = view.step.groups if view.step else ()
    names = list(dict.fromkeys(w.name for g in groups for r in g.rollouts for w in r.rewards))
    head = ["step", "origin", "prompt", "target", "answer", "completion", *names]
    head += ["reward", "advantage", "tokens", "finish", "clip_fraction", "kl"]
    rows: list[list[object]] = []
    for group in groups:
        for rollout in group.rollouts:
            scores = {w.name: w.value for w in rollout.rewards}
            rows.append(
                [group.step, group.origin, group.prompt_text, group.target, letter(rollout.index),
                 rollout.text, *(scores.get(name) for name in names), rollout.reward,
                 rollout.advantage, rollout.tokens, rollout.finish, rollout.clip_fraction,
                 rollout.kl]
            )  # fmt: skip
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(head)
    writer.writerows([guard(escape(c)) if isinstance(c, str) else c for c in row] for row in rows)
    return file.getvalue()


def as_json(view: View) -> str:
    """The groups of the step as they are stored."""
    groups = view.step.groups if view.step else ()
    return json.dumps([_tree(group) for group in groups], ensure_ascii=True, indent=1)


def _tree(group: GroupView) -> dict[str, Any]:
    """A group without its tokens, which are not read with it."""
    tree = asdict(group)
    del tree["prompt_ids"]
    for rollout in tree["rollouts"]:
        for name in ("ids", "ends", "sampler_logprobs"):
            del rollout[name]
    return tree


def as_markdown(view: View) -> str:
    """The chosen group: prompt, answers with rewards and advantages."""
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
    """Give the terminal to `$PAGER` until it is left; the text is safe already."""
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
