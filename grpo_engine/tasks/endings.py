"""Choose the right ending of a short story out of four, with the start of the answer prefilled.

"Mia put the kettle on the stove and waited until it whistled. … (B) She poured the boiling water
over the tea." The answer begins "The ending that fits is"; a right one continues " (B)".
"""

import random
import re
from importlib.resources import files
from typing import Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.tasks.base import Example, RewardSpec, Task, generated_task, user_message
from grpo_engine.tasks.options import SEED, read_options

LETTERS: Final = "ABCD"
SIZE: Final = 100_000
_NAMES, *_LINES = (
    files(__package__).joinpath("endings.txt").read_text(encoding="utf-8").splitlines()[1:]
)
NAMES: Final = tuple(_NAMES.split())
OPTIONS: Final = {"seed": SEED}
STORIES: Final = tuple(zip(_LINES[::2], map(str.strip, _LINES[1::2]), strict=True))


def build(config: TaskConfig) -> Task:
    """Build the task; the option `seed` chooses the stories."""
    seed = read_options(config, OPTIONS)["seed"]
    return generated_task(
        config,
        "endings",
        lambda index: story(index, seed),
        ["endings 1", str(seed)],
        size=SIZE,
        prefill="The ending that fits is",
        default_rewards=(RewardSpec(name="contains"),),
        accuracy="contains",
        description="Choose the ending that fits out of four; the answer's start is prefilled.",
    )


def story(index: int, seed: int) -> Example:
    """Story `index`: its right ending among three of other stories."""
    rng = random.Random(f"endings/{seed}/{index}")
    chosen = rng.sample(STORIES, 4)
    name = rng.choice(NAMES)
    context = _filled(rng, chosen[0][0], name)
    order = rng.sample(range(4), 4)
    endings = [_filled(rng, chosen[i][1], name) for i in order]
    listed = "\n".join(f"({letter}) {e}" for letter, e in zip(LETTERS, endings, strict=True))
    answer = f"({LETTERS[order.index(0)]})"
    return Example(
        key=f"endings-{seed}-{index}",
        prompt=user_message(f"{context}\n\nWhich ending fits?\n{listed}"),
        target=answer,
        columns={"answer": answer, "context": context, "endings": endings},
    )


def _filled(rng: random.Random, text: str, name: str) -> str:
    """The text with the name for N and one of each list of alternatives chosen."""
    text = re.sub(r"{(.*?)}", lambda choices: rng.choice(choices[1].split("|")), text)
    return re.sub(r"\bN\b", name, text)
