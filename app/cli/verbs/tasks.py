"""`grpo-tui tasks`: list the tasks, or show examples exactly as the model sees them."""

import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from grpo_engine import names
from grpo_engine.config.parse import build, merge, parse_sets
from grpo_engine.config.safe_json import parse_json
from grpo_engine.tasks.base import BUILT_IN, draw, load_task
from grpo_tui.app.cli.output import dim, print_json, print_rows
from grpo_tui.app.cli.params import Json, Sets
from grpo_tui.app.text.safe_text import safe

app = typer.Typer(help="List the tasks; show or play one. Example: grpo-tui tasks show countdown")


TASK_FIELDS = (
    "name",
    "description",
    "skipped",
    "fingerprint",
    "system_prompt",
    "prefill",
    "accuracy",
    "notes",
)
EXAMPLE_FIELDS = ("key", "where", "target", "columns")
RULE, WIDTH = "──", 72


@app.command("list")
def list_(
    as_json: Json = False,
    gym: Annotated[bool, typer.Option("--gym", help="List reasoning-gym's generators.")] = False,
) -> None:
    """List the tasks that are built in or brought by packages, or reasoning-gym's generators.

    Example: grpo-tui tasks list --gym
    """
    if gym:
        from grpo_engine.tasks import gym as generators

        rows = [{"task": f"reasoning-gym:{name}"} for name in generators.names()]
    else:
        rows = [{"task": name, "what": what} for name, (_, what) in BUILT_IN.items()]
        rows += [{"task": name, "what": what} for name, what in names.summaries("tasks")]
    print_rows(rows, as_json=as_json)
    if not (as_json or gym):
        print(
            "\nA data file, a folder, a hub id or file.py:function is a task as well.\n"
            "grpo-tui tasks show NAME: three examples exactly as the model sees them"
        )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A task, a data file, a folder or a hub id.")],
    count: Annotated[int, typer.Option(help="How many examples.", min=1, max=1000)] = 3,
    held_out: Annotated[bool, typer.Option("--held-out", help="Show held-out examples.")] = False,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Print three examples exactly as the model sees them; model.path has the chat template.

    Example: grpo-tui tasks show gsm8k --set model.path=starter --set task.options.path=gsm8k/
    """
    from grpo_engine.policy.source import find_folder, opening
    from grpo_engine.policy.tokenizer import load_tokenizer
    from grpo_engine.rollouts.prompts import PromptRenderer

    config = build(merge({"task": {"name": name}}, parse_sets(sets)), "the command line")
    task = load_task(config.task)
    path = config.model.path
    folder = find_folder(path)
    with opening(path):
        tokenizer = load_tokenizer(folder)
    render = PromptRenderer(tokenizer=tokenizer, task=task, config=config.task, model=path)
    render, notes = render.usable()
    task = replace(render.task, notes=(*task.notes, *notes))
    examples = task.held_out[:count] if held_out else draw(task, config.seed, 0, count)
    rendered = [(example, render(example)) for example in examples]
    if as_json:
        return print_json(as_page(task, rendered))
    for line in page(task, rendered):
        print(dim(safe(line)) if line.startswith(RULE) else safe(line, "\n"))
    return None


@app.command("test")
def play(
    name: Annotated[str, typer.Argument(help="A task, or an environment: file.py:Class.")],
    row: Annotated[str, typer.Option(help="The row of data, JSON; the first by default.")] = "",
    sets: Sets = None,
) -> None:
    """Play one episode of an environment at the keyboard, in the model's place.

    Each line of standard input is an answer; \\n in it is a line break.

    Example: grpo-tui tasks test guess
    """
    from grpo_tui.app.trial.episode import episode

    config = build(merge({"task": {"name": name}}, parse_sets(sets)), "the command line")
    completions = (line.rstrip("\n").replace("\\n", "\n") for line in sys.stdin)
    kind = ""
    for kind, text in episode(config, completions, _row(row)):
        print((dim if kind == "hint" else str)(safe(text, "\n")), flush=True)
    if kind == "error":
        raise typer.Exit(1)


def _row(text: str) -> dict[str, Any] | None:
    """The row that was given as JSON."""
    if not text:
        return None
    try:
        row = parse_json(text)
    except ValueError as error:
        raise typer.BadParameter(f"--row is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise typer.BadParameter('--row is not a JSON object, like \'{"answer": "5"}\'')
    return row


def as_page(task: Any, rendered: Any) -> dict[str, Any]:
    """Return the task and its examples, for programs."""
    return {name: getattr(task, name) for name in TASK_FIELDS} | {
        "train": len(task.train),
        "held_out": len(task.held_out),
        "rewards": [{"name": s.name, "weight": s.weight} for s in task.default_rewards],
        "examples": [
            {name: getattr(example, name) for name in EXAMPLE_FIELDS}
            | {name: getattr(prompt, name) for name in ("text", "ids", "prompt")}
            for example, prompt in rendered
        ],
    }


def page(task: Any, rendered: Any) -> list[str]:
    """Format the task and its examples for people, with rules around what the model sees."""
    rewards = ", ".join(f"{s.name} x {s.weight:g}" for s in task.default_rewards) or "none"
    size = f"{len(task.train)} for training, {len(task.held_out)} held out"
    if task.skipped:
        size += f", {task.skipped} skipped"
    lines = [task.name, task.description, "", f"problems     {size}", f"rewards      {rewards}"]
    lines += [f"fingerprint  {task.fingerprint}", *(f"note         {n}" for n in task.notes)]
    for number, (example, prompt) in enumerate(rendered, 1):
        title = f"{RULE} example {number} of {len(rendered)}: {example.key} "
        lines += ["", title.ljust(WIDTH, "─"), prompt.text, "─" * WIDTH]
        lines += [f"target       {example.target}", f"tokens       {len(prompt.ids)}"]
        columns = [name for name in example.columns if name != "answer"]
        if columns:
            lines.append(f"columns      {', '.join(columns)}")
        if example.where:
            lines.append(f"from         {example.where}")
    return lines
