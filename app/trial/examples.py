"""The first problems of a run, exactly as the model would read them."""

import json
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.rewards.form import received
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.tasks.base import Example
from grpo_tui.app.trial.loaded import Loaded

MOST = 20_000


def describe(loaded: Loaded, config: RunConfig) -> dict[str, Any]:
    """The task in numbers, and its first problems."""
    render, skipped = loaded.renderer(config)
    task = render.task
    pairs = [(example, render.usable_prompt(example)) for example in loaded.first(config)]
    return {
        "about": task.description, "notes": [*task.notes, *skipped],
        "train": len(task.train), "held_out": len(task.held_out), "skipped": task.skipped,
        "gets": received(task, config.rewards.completions),
        "examples": [as_page(example, prompt) for example, prompt in pairs if prompt is not None],
    }  # fmt: skip


def as_page(example: Example, prompt: RenderedPrompt) -> dict[str, Any]:
    """One problem for the screen."""
    columns = {name: value for name, value in example.columns.items() if name != "answer"}
    return {
        "key": example.key, "text": prompt.text[:MOST], "tokens": len(prompt.ids),
        "folded": prompt.folded_system, "target": example.target[:MOST],
        "columns": json.dumps(columns, ensure_ascii=False, default=str)[:MOST] if columns else "",
    }  # fmt: skip
