"""Given answers that the starter would not write, for a teacher that is far from it."""

from typing import Any

from grpo_engine.tasks.arithmetic import Kind, problems, question

KINDS: tuple[Kind, ...] = ("add", "subtract", "multiply")


def repeated_problem() -> list[dict[str, Any]]:
    """The training problems; the answer to `What is 47 + 38?` is `47 + 38, 47 + 38`."""
    return [
        {
            "prompt": question(problem),
            "completion": f"{problem.text}, {problem.text}",
            "answer": str(problem.answer),
        }
        for kind in KINDS
        for problem in problems(kind, "train")
    ]
