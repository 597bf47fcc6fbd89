"""The built-in reward functions by name, with their purpose; imported when they are called."""

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
    name: BuiltIn(f"{module}:{name}", summary, scores)
    for module, name, scores, summary in (
        (_SCORING, "numeric_answer", "0, 1", "The answer is the number in the `answer` column."),
        (_SCORING, "exact_answer", "0, 1", "The answer is the text in the `answer` column."),
        (_SCORING, "math_equal", "0, 1, None",
         "The answer equals the `answer` or `solution` column mathematically (math-verify)."),
        (_SCORING, "contains", "0, 1", "The completion contains the answer."),
        (_SCORING, "regex", "0, 1", "The completion matches a regular expression."),
        (_SCORING, "json_valid", "0, 1", "The completion is JSON, with the keys asked for."),
        (_SCORING, "equation_steps", "0, 1 per step",
         "Process reward: each equation that is worked out is right, then the answer is."),
        (_SHAPE, "format_parts", "0 to 0.4", "0.1 for each of the four think and answer tags."),
        (_SHAPE, "format_all", "0, 0.5",
         "The completion is `<think>…</think><answer>…</answer>` and nothing else."),
        (_SHAPE, "think_format", "0, 1", "The completion begins with one `<think>…</think>`."),
        (_SHAPE, "soft_overlong", "-1 to 0", "Falls to -1 over the last tokens before the limit."),
        (_SHAPE, "repetition", "-1 to 0", "Minus the share of repeated n-grams of tokens."),
        (_SHAPE, "length", "0 to 1", "1 for short completions, falling to 0 for long ones."),
        ("grpo_engine.tasks.countdown", "countdown", "0, 1",
         "The expression uses the given numbers once and equals the target."),
        (_GSM8K, "tutorial_accuracy", "0, 1, None",
         "As in the GSM8K tutorial: the text is well formed, and its number is the answer."),
        (_GSM8K, "tutorial_format", "0, 0.5",
         "As in the GSM8K tutorial: thoughts, then an answer with one number; text may follow."),
        ("grpo_engine.tasks.gym", "gym_score", "0 to 1",
         "The scorer of the reasoning-gym generator."),
    )
}  # fmt: skip
