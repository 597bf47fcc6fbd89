"""GSM8K: grade-school word problems whose answer is a whole number, and a tutorial's rewards.

A row: question "Natalia sold clips to 48 of her friends in April, and then she sold half as many
clips in May. How many clips did Natalia sell altogether in April and May?", answer "Natalia sold
48/2 = <<48/2=24>>24 clips in May. … #### 72".

The rewards are those of https://pramodith.github.io/posts/2025-06-04-grpo-trainer/, to compare runs
with its table.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpo_engine.config.declaration import declared
from grpo_engine.config.settings import UNLIMITED, TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.answers import to_number
from grpo_engine.tasks.base import Example, RewardSpec, Task, user_message
from grpo_engine.tasks.by_text import Score, by_text
from grpo_engine.tasks.files import Problems, task_of_data
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import DataRow

HUB: Final = "openai/gsm8k:main"
CALCULATED: Final = re.compile("<<.*?>>")
SYSTEM: Final = (
    "Work through the problem step by step inside <think> and </think>, then give the final "
    "number inside <answer> and </answer>."
)
REWARDS: Final = (RewardSpec(name="numeric_answer"), RewardSpec(name="format_all"))
OPTIONS: Final = {
    "path": declared("", "A file or folder with the problems; empty for the hub or its cache."),
    "prefix": declared("", "Text before every question.", longest=UNLIMITED),
    "seed": declared(0, "Chooses the held-out rows if the data has one split.", ge=None),
}


def build(config: TaskConfig) -> Task:
    """Build the task from `options.path` (a file or folder), else from the hub or its cache.

    `options.prefix` comes before every question.
    """
    options = read_options(config, OPTIONS)
    source = options["path"] or HUB
    if options["path"] and not Path(source).expanduser().exists() and source.count("/") != 1:
        raise DataError(f"task.options.path: there is no file or folder {source}", "task.options")
    return task_of_data(
        config,
        source,
        "gsm8k",
        Problems(
            make=partial(example, options["prefix"]),
            description="Grade-school word problems with a whole number as the answer.",
            seed=options["seed"],
            system_prompt=SYSTEM,
            rewards=REWARDS,
        ),
    )


def example(prefix: str, split: str, index: int, row: DataRow) -> Example:
    """Convert a row to a problem; the number after `####` becomes the column `answer`."""
    question, solution = row.columns.get("question"), row.columns.get("answer")
    if not isinstance(question, str) or not isinstance(solution, str) or not question.strip():
        columns = ", ".join(row.columns)
        raise DataError(
            f"{row.location}: a GSM8K row has text in `question` and `answer`; this one "
            f"has {columns}"
        )
    working, mark, answer = solution.rpartition("####")
    if not mark:
        raise DataError(f"{row.location}: the answer has no `####` before its final number")
    answer = answer.strip().replace(",", "")
    return Example(
        key=f"gsm8k-{split}-{index}",
        prompt=user_message(prefix + question),
        target=answer,
        completion=f"<think>{CALCULATED.sub('', working).strip()}</think><answer>{answer}</answer>",
        columns={"question": question, "answer": answer, "solution": solution},
        where=row.location,
    )


@by_text
def tutorial_accuracy(text: str, answer: Any) -> Score:
    """Give 1 where the text is well formed and its number is the `answer` column, else 0.

    A row whose `answer` is no number gets None.
    """
    number, target = tutorial_number(text), to_number(str(answer))
    reason = "not well formed"
    if number is not None:
        reason = f"found {number[:40]}, expected {str(answer)[:40]}"
    if target is None:
        return None, reason
    return float(number is not None and float(number) == float(target)), reason


@by_text
def tutorial_format(text: str) -> Score:
    """Give 0.5 where the text is well formed, else 0."""
    return 0.0 if tutorial_number(text) is None else 0.5


def tutorial_number(text: str) -> str | None:
    """The digits in a well-formed text; None for any other.

    It begins with `<think>`, and after the first `</think>` come an `<answer>` and an `</answer>`
    with exactly one run of digits between them. Everything else may be any text.
    """
    begun, closed, tail = text.partition("</think>")
    if not closed or not begun.startswith("<think>"):
        return None
    parts = re.split(r"(\d+)", tail)  # text, digits, text, …
    runs = zip(parts[::2], parts[1::2], parts[2::2], strict=False)
    return next((run for a, run, b in runs if "<answer>" in a and "</answer>" in b), None)
