"""Which answers count as right, by the score of one reward function."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_engine.config.conditions import OPERATORS, Term, Text, parse
from grpo_engine.errors import ConfigError

if TYPE_CHECKING:
    from grpo_engine.rewards.scoring import Scores

# built-in functions whose score of 1 means right, if the run does not use the task's own
RIGHT_OR_WRONG = (
    "numeric_answer", "exact_answer", "math_equal", "gym_score", "countdown", "contains",
)  # fmt: skip


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
        rule = _rule(text)
        if rule is None or rule.function not in names:
            raise ConfigError(
                f"evaluation.accuracy must be a reward function of the run or `NAME >= NUMBER`, "
                f"got {text!r}; its functions are {', '.join(names)}",
                "evaluation.accuracy",
                "rewards.functions",
            )
        return rule

    def holds(self, score: float | None) -> bool:
        return score is not None and OPERATORS[self.op](score, self.limit)

    def count(self, scores: "Scores") -> int | None:
        """How many answers of a group are right; None if none of them was judged."""
        judged = scores.column(self.function)
        if all(score is None for score in judged):
            return None
        return sum(map(self.holds, judged))


def _rule(text: str) -> Right | None:
    """The rule that a text describes; None if it is no comparison of a name with a number."""
    try:
        match parse(text, "evaluation.accuracy"):
            case Text(name):
                return Right(name)
            case Term(name, op, value) if op in OPERATORS:
                return Right(name, op, float(value))
    except ValueError:
        pass
    return None
