"""How a number changed, and how much of that is chance; imported without pydantic."""

import math
from collections.abc import Sequence

from grpo_engine.frozen import frozen
from grpo_engine.numbers import percent, short

SURE, LIKELY = 4.0, 2.0  # standard errors that a change must exceed
TINY = 1e-6  # a change that rounding explains
SPAN = 10  # steps that are averaged
PROBLEMS = 128  # of an evaluation whose number is not known


@frozen
class MetricChange:
    """How a number changed between two samples of it, and the standard error of the difference.

    `steps` says which steps were averaged, where they were.
    """

    before: float
    after: float
    error: float
    steps: str = ""

    @property
    def size(self) -> float:
        return self.after - self.before

    def rose(self, errors: float = SURE) -> bool:
        return self.size > max(errors * self.error, TINY)

    def fell(self, errors: float = SURE) -> bool:
        return -self.size > max(errors * self.error, TINY)

    def __str__(self) -> str:
        return f"from {short(self.before)} to {short(self.after)}"

    @property
    def in_percent(self) -> str:
        """The change of a share."""
        return f"from {percent(self.before)} to {percent(self.after)}"


@frozen
class Evaluation:
    """Accuracy on held-out problems: share of right answers among `answers`.

    `reward` is their mean reward where its 95 % interval is known, whose half is 1.96 errors.
    """

    step: int
    accuracy: float
    answers: int
    reward: float | None = None
    reward_error: float = 0.0

    @classmethod
    def of(cls, step: int, accuracy: float, answers: object) -> "Evaluation":
        """An evaluation of a store or of another trainer, which may lack the number of answers."""
        count = answers if isinstance(answers, int | float) and math.isfinite(answers) else 0
        share = min(1.0, max(0.0, accuracy))
        return cls(step=step, accuracy=share, answers=max(0, int(count)) or PROBLEMS)

    def change(self, later: "Evaluation") -> MetricChange:
        """The change to a later evaluation; the problems are taken as different ones."""
        error = math.sqrt(self._variance + later._variance)
        return MetricChange(before=self.accuracy, after=later.accuracy, error=error)

    def reward_change(self, later: "Evaluation") -> MetricChange | None:
        """The change of the mean reward to a later evaluation; None where one has none."""
        if self.reward is None or later.reward is None:
            return None
        error = math.hypot(self.reward_error, later.reward_error)
        return MetricChange(before=self.reward, after=later.reward, error=error)

    @property
    def _variance(self) -> float:
        # one more right and one more wrong answer, so that 0 of 10 is not certain
        share = (self.accuracy * self.answers + 1) / (self.answers + 2)
        return share * (1 - share) / self.answers


def go_back(best: Evaluation) -> str:
    """What to do after a fall; a checkpoint may be called the best for the reward that is hacked.

    No checkpoint is of step 0.
    """
    if not best.step:
        return "Start again from the untrained model"
    return f"Go back to a checkpoint from before the fall (step {best.step} or earlier)"


def mean(values: Sequence[float]) -> float:
    # a metric may be infinite or near the largest float, which fsum and ** refuse
    return sum(values) / len(values) if values else 0.0


def variance(values: Sequence[float]) -> float:
    middle = mean(values)
    return sum((value - middle) * (value - middle) for value in values) / (len(values) - 1)


def change_of(early: Sequence[float], late: Sequence[float]) -> MetricChange:
    """The change of the mean from some steps, two or more, to later ones."""
    error = math.sqrt(variance(early) / len(early) + variance(late) / len(late))
    return MetricChange(before=mean(early), after=mean(late), error=error)
