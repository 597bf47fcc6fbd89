"""The built-in reward functions by name, with their purpose; imported when they are called."""

import difflib
from collections.abc import Mapping
from typing import Final, NamedTuple


class BuiltIn(NamedTuple):
    """One built-in function; `target` is `module:function`."""

    target: str
    summary: str
    scores: str


_SCORING, _SHAPE = "grpo_engine.rewards.correctness", "grpo_engine.rewards.shape"
_GSM8K = "grpo_engine.tasks.gsm8k"

BUILT_IN: Final[Mapping[str, BuiltIn]] = {
    "numeric_answer": BuiltIn(
        f"{_SCORING}:numeric_answer",
        "The answer is the number in the `answer` column.",
        "0, 1",
    ),
    "exact_answer": BuiltIn(
        f"{_SCORING}:exact_answer", "The answer is the text in the `answer` column.", "0, 1"
    ),
    "math_equal": BuiltIn(
        f"{_SCORING}:math_equal",
        "The answer equals the `answer` or `solution` column mathematically (math-verify).",
        "0, 1, None",
    ),
    "contains": BuiltIn(f"{_SCORING}:contains", "The completion contains the answer.", "0, 1"),
    "regex": BuiltIn(f"{_SCORING}:regex", "The completion matches a regular expression.", "0, 1"),
    "json_valid": BuiltIn(
        f"{_SCORING}:json_valid", "The completion is JSON, with the keys asked for.", "0, 1"
    ),
    "equation_steps": BuiltIn(
        f"{_SCORING}:equation_steps",
        "Process reward: each equation that is worked out is right, then the answer is.",
        "0, 1 per step",
    ),
    "format_parts": BuiltIn(
        f"{_SHAPE}:format_parts", "0.1 for each of the four think and answer tags.", "0 to 0.4"
    ),
    "format_all": BuiltIn(
        f"{_SHAPE}:format_all",
        "The completion is `<think>…</think><answer>…</answer>` and nothing else.",
        "0, 0.5",
    ),
    "think_format": BuiltIn(
        f"{_SHAPE}:think_format", "The completion begins with one `<think>…</think>`.", "0, 1"
    ),
    "soft_overlong": BuiltIn(
        f"{_SHAPE}:soft_overlong",
        "Falls to -1 over the last tokens before the limit.",
        "-1 to 0",
    ),
    "repetition": BuiltIn(
        f"{_SHAPE}:repetition", "Minus the share of repeated n-grams of tokens.", "-1 to 0"
    ),
    "length": BuiltIn(
        f"{_SHAPE}:length", "1 for short completions, falling to 0 for long ones.", "0 to 1"
    ),
    "countdown": BuiltIn(
        "grpo_engine.tasks.countdown:countdown",
        "The expression uses the given numbers once and equals the target.",
        "0, 1",
    ),
    "tutorial_accuracy": BuiltIn(
        f"{_GSM8K}:tutorial_accuracy",
        "As in the GSM8K tutorial: the text is well formed, and its number is the answer.",
        "0, 1, None",
    ),
    "tutorial_format": BuiltIn(
        f"{_GSM8K}:tutorial_format",
        "As in the GSM8K tutorial: thoughts, then an answer with one number; text may follow.",
        "0, 0.5",
    ),
    "gym_score": BuiltIn(
        "grpo_engine.tasks.gym:gym_score", "The scorer of the reasoning-gym generator.", "0 to 1"
    ),
}


def nearest(name: str) -> str:
    """A hint at the built-in name closest to `name`."""
    found = difflib.get_close_matches(name, BUILT_IN, n=1)
    return f" (did you mean {found[0]}?)" if found else ""
