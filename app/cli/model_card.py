"""The README.md of an exported model: what it was trained on, how, and what came of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo_engine.config.parse import changed, flatten
from grpo_tui.app.text.numbers import share
from grpo_tui.experiments.values import EvaluationView

if TYPE_CHECKING:
    from grpo_engine.evaluation.target import Target

BESIDE = ("name", "model.path", "model.adapter")  # said elsewhere, or true of this machine alone


def card_of(name: str, target: "Target", held_out: Sequence[str] = ()) -> str:
    """The facts of a run in Markdown, with the front matter that model hubs read."""
    config = target.config
    lines = [
        "---", f"base_model: {target.base}", "tags: [grpo, reinforcement-learning]", "---",
        "", f"# {name}", "",
        f"{target.base}, trained for {target.step} steps with the recipe "
        f"`{config.algorithm.recipe}` on `{config.task.name}` by grpo-tui.", "",
        *held_out,
    ]  # fmt: skip
    lines += ["## Settings that differ from the defaults", ""]
    lines += ["| setting | value |", "| --- | --- |"]
    changes = changed(flatten(config)).items()
    lines += [f"| {path} | `{value}` |" for path, value in changes if path not in BESIDE]
    return "\n".join(lines) + "\n"


def held_out_table(evaluations: Sequence[EvaluationView]) -> list[str]:
    """A run's evaluations in Markdown; nothing where none says what is right."""
    rows = []
    for evaluation in evaluations:
        right = [evaluation.metrics.get(f"eval/accuracy{end}") for end in ("", "_low", "_high")]
        if right[0] is not None:
            accuracy, low, high = map(share, right)
            interval = f"{accuracy} ({low} to {high})"
            rows.append(
                f"| {evaluation.step} | {evaluation.mode} | {evaluation.problems} | {interval} |"
            )
    head = ["| step | answers | problems | right (95 %) |", "| ---: | --- | ---: | --- |"]
    return ["## Held-out problems", "", *head, *rows, ""] if rows else []
