"""Choose the right ending of a short story out of four, with the start of the answer prefilled.

"Mia put the kettle on the stove and waited until it whistled. … (B) She poured the boiling water
over the tea." The answer begins "The ending that fits is"; a right one continues " (B)".

Stories are generated here, or taken from HellaSwag if `options.path` has its file or hub id
(`Rowan/hellaswag`).
"""

import random
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import Example, RewardSpec, Task, generated_task, user_message
from grpo_engine.tasks.files import Problems, task_of_data
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import Row

PREFILL: Final = "The ending that fits is"
REWARDS: Final = (RewardSpec(name="contains"),)
LETTERS: Final = "ABCD"
SIZE: Final = 100_000
NAMES: Final = (
    "Mia", "Jonas", "Aisha", "Pedro", "Yuki", "Lena", "Omar", "Sofia", "Tom", "Nadia", "Felix",
    "Priya", "Hugo", "Ines", "Karim", "Zoe",
)  # fmt: skip

_LINES = files(__package__).joinpath("endings.txt").read_text(encoding="utf-8").splitlines()[1:]
STORIES: Final = tuple(zip(_LINES[::2], map(str.strip, _LINES[1::2]), strict=True))


def build(config: TaskConfig) -> Task:
    """Build the task from generated stories, or from HellaSwag if `options.path` is set."""
    options = read_options(config, {"path": "", "seed": 0})
    path, seed = options["path"], options["seed"]
    if path:
        problems = Problems(
            make=_hellaswag, seed=seed, prefill=PREFILL, rewards=REWARDS,
            description=f"Choose the ending that fits out of four ({path}).",
        )  # fmt: skip
        return task_of_data(config, path, "endings", problems)
    return generated_task(
        config, "endings", lambda index: story(index, seed), ["endings 1", str(seed)],
        size=SIZE, prefill=PREFILL, default_rewards=REWARDS, accuracy="contains",
        description="Choose the ending that fits out of four; the answer's start is prefilled.",
    )  # fmt: skip


def story(index: int, seed: int) -> Example:
    """Story `index`: its right ending among three of other stories."""
    rng = random.Random(f"endings/{seed}/{index}")
    chosen = rng.sample(STORIES, 4)
    name = rng.choice(NAMES)
    context = _filled(rng, chosen[0][0], name)
    order = rng.sample(range(4), 4)
    endings = [_filled(rng, chosen[i][1], name) for i in order]
    return _example(f"endings-{seed}-{index}", context, endings, order.index(0), "")


def _filled(rng: random.Random, text: str, name: str) -> str:
    """The text with the name filled in and one of each list of alternatives chosen."""
    while "{" in text:
        before, _, tail = text.partition("{")
        choices, _, after = tail.partition("}")
        text = before + rng.choice(choices.split("|")) + after
    return " ".join(
        name + token[1:] if token[:1] == "N" and not token[1:2].isalpha() else token
        for token in text.split(" ")
    )


def _example(key: str, context: str, endings: Sequence[str], right: int, location: str) -> Example:
    listed = "\n".join(f"({letter}) {e}" for letter, e in zip(LETTERS, endings, strict=False))
    text = f"{context}\n\nWhich ending fits?\n{listed}"
    answer = f"({LETTERS[right]})"
    return Example(
        key=key, prompt=user_message(text), target=answer, where=location,
        columns={"answer": answer, "context": context, "endings": list(endings)},
    )  # fmt: skip


def _hellaswag(split: str, index: int, row: Row) -> Example:
    context, endings = row.columns.get("ctx"), row.columns.get("endings")
    label = str(row.columns.get("label", ""))
    if not isinstance(context, str) or not isinstance(endings, list) or not label.isdecimal():
        raise DataError(
            f"{row.location}: a row has text in `ctx`, a list in `endings` and a number in "
            f"`label`; this one has {', '.join(row.columns)}"
        )
    if not int(label) < len(endings) <= len(LETTERS):
        raise DataError(f"{row.location}: label {label} of {len(endings)} endings, 4 at most")
    key = f"endings-{split}-{index}"
    return _example(key, context, [str(e) for e in endings], int(label), row.location)
