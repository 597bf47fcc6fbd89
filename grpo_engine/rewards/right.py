"""Which answers count as right, by the score of one reward function."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from grpo_engine.config.conditions import OPERATORS, Term, Text, parse
from grpo_engine.errors import ConfigError
from grpo_engine.events import RewardValue

# Built-in functions whose score of 1 means right.
RIGHT_OR_WRONG = (
    "numeric_answer",
    "exact_answer",
    "math_equal",
    "gym_score",
    "countdown",
    "contains",
)
SOURCE = re.compile(r"\A[^\s\"]+:(?=\w)")  # `file.py:` before a function's name


class ScoresOfGroup(Protocol):
    """The scores of a group's rollouts; those of `rewards.scoring`, which needs MLX."""

    def of(self, name: str) -> list[RewardValue]: ...


@dataclass(frozen=True, slots=True)
class Right:
    """The rule for right answers: the function that says so, and from which score on."""

    function: str
    op: str = ">="
    limit: float = 1.0

    @classmethod
    def of(cls, text: str, accuracy: str, names: Sequence[str]) -> "Right":
        """The rule in the settings, else the task's, else that of a function that scores 0 or 1."""
        if not text:
            named = (name for name in names if "accuracy" in name)
            candidates = (accuracy, *named, *RIGHT_OR_WRONG)
            return cls(next((name for name in candidates if name in names), ""))
        rule, has_source = SOURCE.subn("", text)
        # A source does not tell two functions of one name apart.
        unique = [name for name in names if not (has_source and f"{name}_2" in names)]
        with suppress(ValueError):
            match parse(rule, "evaluation.accuracy"):
                case Text(name) if name in unique:
                    return cls(name)
                case Term(name, op, value) if name in unique and op in OPERATORS:
                    return cls(name, op, float(value))
        raise ConfigError(
            f"evaluation.accuracy must be a reward function of the run or `NAME >= NUMBER`, "
            f"got {text!r}; its functions are {', '.join(names)}",
            "evaluation.accuracy",
            "rewards.functions",
        )

    @classmethod
    def of_scores(cls, rule: str, scores: Mapping[str, float | None]) -> bool | None:
        """Whether recorded scores say that an answer is right; None if none of them says so.

        `rule` is the setting `evaluation.accuracy`; a function that failed has None.
        """
        with suppress(ConfigError):  # a rule for a function that did not score this answer
            right = cls.of(rule, "", list(scores))
            if (score := scores.get(right.function)) is not None:
                return right.accepts(score)
        return None

    def accepts(self, score: float | None) -> bool:
        return score is not None and OPERATORS[self.op](score, self.limit)

    def count(self, scores: ScoresOfGroup) -> tuple[int, int] | None:
        """How many answers of a group are right, of how many; None if none of them was judged.

        One to which the function does not apply is not right; one on which it failed is left out.
        """
        judged = [reward.value for reward in scores.of(self.function) if not reward.missing]
        if all(score is None for score in judged):
            return None
        return sum(map(self.accepts, judged)), len(judged)
