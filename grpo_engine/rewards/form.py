"""The form in which reward functions get completions: that of the data set's prompts, as in TRL."""

import re
from typing import TYPE_CHECKING, Any

from grpo_engine.rewards.outcome import RewardProblem

if TYPE_CHECKING:  # reward processes need neither tasks nor settings, which take long to import
    from grpo_engine.tasks.base import Task

MESSAGES = '[{"role": "assistant", "content": "…"}]'


def received(task: "Task", setting: str) -> str:
    """What functions get, why, and what changes it; `setting` is `rewards.completions`."""
    forms = task.prompt_forms
    if setting == "text" and "messages" in forms:
        return "completions as text, as rewards.completions says"
    if "messages" not in forms:
        return f"completions as text, because the prompts of {task.name} are text"
    which = "where" if "text" in forms else "because"
    return (
        f"completions as chat messages, {MESSAGES}, {which} the prompts of {task.name} are chats; "
        "rewards.completions text gives text"
    )


def hint(problem: RewardProblem, completion: Any) -> str:
    """What a function got, if it may have taken it for something else."""
    types, form = "list|dict", f"chat messages, {MESSAGES}; rewards.completions text gives text"
    if isinstance(completion, str):
        types, form = "str|string", "text; messages come after chat prompts"
    names_type = re.match(rf"(Attribute|Type)Error.*\b({types})\b", problem.message)
    return f". Each completion came as {form}" if names_type else ""
