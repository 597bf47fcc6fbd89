"""The form in which reward functions get completions: that of the data set's prompts, as in TRL."""

from collections.abc import Sequence
from typing import Any

from grpo_engine.rewards.outcome import RewardProblem
from grpo_engine.tasks.base import Task

MESSAGES = '[{"role": "assistant", "content": "…"}]'


def received(task: Task, setting: str) -> str:
    """What functions get, why, and what changes it; `setting` is `rewards.completions`."""
    forms = task.prompt_forms
    if setting == "text" and "messages" in forms:
        return "completions as text, as rewards.completions says"
    if forms == {"messages"}:
        return (
            f"completions as chat messages, {MESSAGES}, because the prompts of {task.name} are "
            "chats; rewards.completions text gives text"
        )
    if len(forms) > 1:
        return (
            f"completions as text after a text prompt, and as chat messages, {MESSAGES}, after a "
            "chat; rewards.completions text always gives text"
        )
    return f"completions as text, because the prompts of {task.name} are text"


def note(functions: Sequence[str], task: Task, setting: str) -> str:
    """Which functions get what; empty without a function."""
    if not functions:
        return ""
    several = len(functions) > 1
    head = f"reward{'s' * several} {', '.join(functions)} get{'s' * (not several)}"
    return f"{head} {received(task, setting)}"


def hint(problem: RewardProblem, completions: Sequence[Any]) -> str:
    """What a function got, if its exception says that it took it for something else."""
    message = problem.message
    if problem.cause != "exception" or not message.startswith(("AttributeError", "TypeError")):
        return ""
    if isinstance(completions[problem.completion or 0], str):
        is_cause, got = "'str'" in message or "string indices" in message, "text"
        remedy = "messages come after chat prompts"
    else:
        is_cause = any(name in message for name in ("list", "dict", "string or bytes-like"))
        got, remedy = f"chat messages, {MESSAGES}", "rewards.completions text gives text"
    return f". Each completion came as {got}; {remedy}" if is_cause else ""
