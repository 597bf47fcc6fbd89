"""The task of every tool: prompts, sampling and sizes of one training step.

It imports only the standard library, so that each peer's environment can import it.
"""

from dataclasses import dataclass

GROUP = 8
RANK = 8
SCALE = 2.0  # alpha / r
BETA = 0.04
LEARNING_RATE = 1e-5

ITEMS = ("apples", "books", "shells", "coins", "cards", "stamps", "marbles", "pencils")


@dataclass(frozen=True)
class Work:
    """One kind of step: `prompts` chat prompts, each answered `GROUP` times."""

    name: str
    what: str
    prompts: tuple[str, ...]
    new_tokens: int
    passes: int
    ignore_end: bool

    @property
    def rows(self) -> int:
        """Number of answers in one step."""
        return len(self.prompts) * GROUP


def question(item: str, number: int) -> str:
    """Return a sum in words."""
    return f"Janet has {number} {item} and buys {number + 4} more. How many {item} does she have?"


def worked_example(number: int) -> str:
    """Return a question with its answer, as an example before the question asked."""
    item = ITEMS[number % len(ITEMS)]
    return f"Question: {question(item, number)} Answer: {number} + {number + 4} = {2 * number + 4}."


SHORT = (question("apples", 3),)
EIGHT = tuple(question(item, 3 + offset) for offset, item in enumerate(ITEMS))
FEW_SHOT = (" ".join([worked_example(n) for n in range(3, 11)]) + " Question: " + SHORT[0],)

WORKS = {
    "a": Work("a", "one short prompt, exactly 64 new tokens", SHORT, 64, 1, True),
    "a'": Work("a'", "eight short prompts, up to 64 new tokens", EIGHT, 64, 1, False),
    "b": Work("b", "one 400-token prompt, up to 128 new tokens", FEW_SHOT, 128, 1, False),
    "c": Work("c", "as a', four passes over the answers", EIGHT, 64, 4, False),
}


def reward(text: str) -> float:
    """Return the share of the letter e: cheap, and different between the answers of a group."""
    return text.count("e") / max(1, len(text))
