"""The first problems of a run, exactly as the model would read them."""

import json
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import MissingPackageError, ModelError
from grpo_engine.rewards.form import received
from grpo_engine.rollouts.prompts import RenderedPrompt, conversation
from grpo_engine.tasks.base import Example, Task
from grpo_tui.app.trial.loaded import Loaded

MOST = 20_000


def describe(loaded: Loaded, config: RunConfig) -> dict[str, Any]:
    """The task in numbers, and its first problems."""
    task, examples = loaded.task(config), loaded.first(config)
    lacking, notes = "", task.notes
    rendered: list[RenderedPrompt | None] = [None] * len(examples)
    try:
        render, skipped = loaded.renderer(config)
        task, notes = render.task, (*notes, *skipped)
        rendered = [render.usable_prompt(example) for example in examples]
        examples = [e for e, prompt in zip(examples, rendered, strict=True) if prompt is not None]
        rendered = [prompt for prompt in rendered if prompt is not None]
    except (ModelError, MissingPackageError) as error:
        # without the tokenizer only the messages can be shown
        lacking = f"{error} Until then they are shown without the model's chat template."
    return {
        "name": task.name, "about": task.description,
        "train": len(task.train), "held_out": len(task.held_out), "skipped": task.skipped,
        "notes": list(notes), "lacking": lacking,
        "gets": received(task, config.rewards.completions),
        "examples": [as_page(task, *pair) for pair in zip(examples, rendered, strict=True)],
    }  # fmt: skip


def as_page(task: Task, example: Example, prompt: RenderedPrompt | None) -> dict[str, Any]:
    """One problem for the screen."""
    columns = {name: value for name, value in example.columns.items() if name != "answer"}
    return {
        "key": example.key,
        "text": (prompt.text if prompt is not None else bare(task, example))[:MOST],
        "tokens": len(prompt.ids) if prompt is not None else None,
        "folded": prompt is not None and prompt.folded_system,
        "target": example.target[:MOST],
        "columns": json.dumps(columns, ensure_ascii=False, default=str)[:MOST] if columns else "",
    }


def bare(task: Task, example: Example) -> str:
    """The messages of a problem, one below another."""
    prompt = conversation(task, example)
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt)
