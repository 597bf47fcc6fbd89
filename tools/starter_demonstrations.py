"""Training data of the embedded starter: a correct textbook, then the workbooks of three pupils.

Each pupil has a wording of the questions, a share of answers in the right format, a share that are
worked out, and a typical slip. The pupil with the best format works out the least, so no pupil is
good at both: reinforcement learning has to find the combination.
"""

import random
from dataclasses import dataclass, replace
from typing import Final

from grpo_engine.tasks.arithmetic import TURNS, Problem, problems, question, working

SPECIAL: Final = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
TAGS: Final = ("<think>", "</think>", "<answer>", "</answer>")
# Problems of the `making` set in these hash buckets are only used to measure the model.
CHECK: Final = range(40, 45)


@dataclass(frozen=True, slots=True)
class Pupil:
    """Shares of formatted and of worked-out answers; `slip` replaces the format in the others."""

    formatted: float
    careful: float
    slip: str

    def steered(self, formatted: float, careful: float) -> "Pupil":
        """The same pupil with both shares shifted."""
        return replace(
            self,
            formatted=min(0.95, max(0.05, self.formatted + formatted)),
            careful=min(0.95, max(0.05, self.careful + careful)),
        )


# One pupil per wording of the task.
PUPILS: Final = (
    Pupil(0.60, 0.35, "<think>{work}<answer>{answer}</answer><|im_end|>"),
    Pupil(0.40, 0.45, "<think>{work}</think>{answer}<|im_end|>"),
    Pupil(0.20, 0.55, "{work}, so {answer}<|endoftext|>"),
)


def problem_from(rng: random.Random) -> Problem:
    """A random problem from those that the model may train on."""
    while (problem := rng.choice(problems(rng.choice(TURNS), "making"))).bucket in CHECK:
        pass
    return problem


def prompt(problem: Problem, wording: int | None = None) -> str:
    """The chat prompt in the model's chat template."""
    asked = question(problem, wording)
    return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


def glance(problem: Problem) -> int:
    """A guess at the result: no carry, smaller digit from larger, tens only."""
    a, b = problem.a, problem.b
    if problem.operation == "multiply":
        return max(a, b) // 10 * 10 * min(a, b)
    (x, i), (y, j) = divmod(a, 10), divmod(b, 10)
    if problem.operation == "add":
        return (x + y) * 10 + (i + j) % 10
    return (x - y) * 10 + abs(i - j)


def textbook(problem: Problem) -> str:
    """A worked, correct and well-formed completion."""
    return f"<think>{working(problem)}</think><answer>{problem.answer}</answer><|im_end|>"


def workbook(problem: Problem, pupil: Pupil, rng: random.Random) -> str:
    work, answer = working(problem), problem.answer
    if rng.random() >= pupil.careful:
        answer = glance(problem)
        work = f"looks like {answer}"
    if rng.random() < pupil.formatted:
        return f"<think>{work}</think><answer>{answer}</answer><|im_end|>"
    return pupil.slip.format(work=work, answer=answer)
