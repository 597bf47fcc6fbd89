"""GSM8K: grade-school word problems whose answer is a whole number.

A row: question "Natalia sold clips to 48 of her friends in April, and then she sold half as many
clips in May. How many clips did Natalia sell altogether in April and May?", answer "Natalia sold
48/2 = <<48/2=24>>24 clips in May. … #### 72".
"""

from pathlib import Path
from typing import Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import Example, RewardSpec, Task, user_message
from grpo_engine.tasks.files import load_splits, make_task, pick_splits
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import Row

HUB: Final = "openai/gsm8k:main"
SYSTEM: Final = (
    "Work through the problem step by step inside <think> and </think>, then give the final "
    "number inside <answer> and </answer>."
)
REWARDS: Final = (RewardSpec(name="numeric_answer"), RewardSpec(name="format_all"))


def build(config: TaskConfig) -> Task:
    """Build the task from `options.path` (a file or folder), else from the hub or its cache."""
    options = read_options(config, {"path": "", "seed": 0})
    source = str(options["path"]) or HUB
    if options["path"] and not Path(source).expanduser().exists() and source.count("/") != 1:
        raise DataError(f"task.options.path: there is no file or folder {source}")
    splits = load_splits(config, source)
    train, held_out = (
        [example(row, name, index) for index, row in enumerate(splits[name])] if name else []
        for name in pick_splits(config, splits)
    )
    return make_task(
        config,
        "gsm8k",
        "Grade-school word problems with a whole number as the answer.",
        train,
        held_out,
        seed=options["seed"],
        system_prompt=SYSTEM,
        default_rewards=REWARDS,
    )


def example(row: Row, split: str, index: int) -> Example:
    """Convert a row to a problem; the number after `####` becomes the column `answer`."""
    question, solution = row.columns.get("question"), row.columns.get("answer")
    if not isinstance(question, str) or not isinstance(solution, str) or not question.strip():
        have = ", ".join(row.columns)
        raise DataError(
            f"{row.where}: a GSM8K row has text in `question` and `answer`; this one has {have}"
        )
    _, mark, answer = solution.rpartition("####")
    if not mark:
        raise DataError(f"{row.where}: the answer has no `####` before its final number")
    answer = answer.strip().replace(",", "")
    return Example(
        key=f"gsm8k-{split}-{index}",
        prompt=user_message(question),
        target=answer,
        columns={"question": question, "answer": answer, "solution": solution},
        where=row.where,
    )
