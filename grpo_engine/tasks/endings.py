"""Choose the right ending of a short story out of four, with the start of the answer prefilled.

"Mia put the kettle on the stove and waited until it whistled. … (B) She poured the boiling water
over the tea." The answer begins "The ending that fits is"; a right one continues " (B)".

Stories are generated here, or taken from HellaSwag if `options.path` has its file or hub id
(`Rowan/hellaswag`).
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import Example, RewardSpec, Task, digest_of, generated, user_message
from grpo_engine.tasks.files import load_splits, make_task, pick_splits
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import BadRows, Row

PREFILL: Final = "The ending that fits is"
REWARDS: Final = (RewardSpec(name="contains"),)
LETTERS: Final = "ABCD"
SIZE: Final = 100_000
NAMES: Final = (
    "Mia", "Jonas", "Aisha", "Pedro", "Yuki", "Lena", "Omar", "Sofia", "Tom", "Nadia", "Felix",
    "Priya", "Hugo", "Ines", "Karim", "Zoe",
)  # fmt: skip

# A story and its right ending; N is the name, {a|b} means one of several.
STORIES: Final = (
    ("N put the kettle on the {stove|fire} and waited until it whistled.",
     "N poured the boiling water over the tea."),
    ("N {heard|noticed} the rain starting while the washing hung outside.",
     "N ran out and took the wet shirts off the line."),
    ("N pushed the key into the {front|back} door, but it would not turn.",
     "N tried the other key on the ring."),
    ("N planted {tomato|pumpkin} seeds in spring and watered them every evening.",
     "By summer the plants carried fruit."),
    ("N felt the {bicycle|car} pull to one side and heard air hissing.",
     "N stopped and looked for the hole in the tyre."),
    ("N mixed flour, water and yeast and let the dough rise {overnight|for hours}.",
     "N put the loaf into the hot oven."),
    ("N had studied for the {history|chemistry} exam for three weeks.",
     "N handed in the paper early and smiled."),
    ("N saw smoke coming out of the {toaster|frying pan}.",
     "N switched it off and opened a window."),
    ("N lost hold of the dog's lead in the {park|street}.",
     "N called the dog and ran after it."),
    ("N wound the {old clock|alarm clock} and set it to seven.",
     "The next morning it rang on time."),
    ("N climbed the hill with a {red|paper} kite on a windy day.",
     "N let out the string and the kite rose."),
    ("N {read|followed} the map wrongly and walked north for an hour.",
     "N turned round and went back to the crossing."),
    ("N tuned the {guitar|violin} and went out on to the stage.",
     "The audience grew quiet and the first notes sounded."),
    ("N left the ice cream on the {table|window sill} in the sun.",
     "When N came back it had melted."),
    ("N wrote a long letter to {a cousin|an old teacher} and signed it.",
     "N folded it, put it in an envelope and bought a stamp."),
    ("N cast the fishing line into the {lake|river} and felt a hard pull.",
     "N wound in the reel and lifted out a trout."),
    ("N's {phone|laptop} showed one per cent of battery.",
     "N looked for the charger."),
    ("N spilled {ink|coffee} over the white tablecloth.",
     "N dabbed at the stain with a cloth."),
    ("N arrived at the {station|platform} just as the doors were closing.",
     "N watched the train leave and waited for the next one."),
    ("N threaded the needle and held the torn {sleeve|pocket} together.",
     "N sewed it up with small stitches."),
    ("N shook the {apple|plum} tree in autumn.",
     "Ripe fruit fell into the grass."),
    ("N built a tower of {blocks|cards} up to the ceiling and bumped into it.",
     "The tower fell down with a clatter."),
    ("N stood at the {pool's|lake's} edge and took a deep breath.",
     "N jumped and came up wet and laughing."),
    ("N {swept|shovelled} snow from the path all morning.",
     "By noon the way to the door was clear."),
)  # fmt: skip


def build(config: TaskConfig) -> Task:
    """Build the task from generated stories, or from HellaSwag if `options.path` is set."""
    options = read_options(config, {"path": "", "seed": 0})
    if options["path"]:
        return _hellaswag(config, str(options["path"]), options["seed"])
    train, held_out = generated(
        lambda index: story(index, options["seed"]),
        size=config.train_size or SIZE,
        held_out_size=config.held_out_size,
    )
    return Task(
        name="endings",
        description="Choose the ending that fits out of four; the answer's start is prefilled.",
        train=train,
        held_out=held_out,
        fingerprint=digest_of(["endings 1", str(options["seed"]), str(len(held_out))]),
        default_rewards=REWARDS,
        accuracy="contains",
        system_prompt=config.system_prompt or "",
        prefill=config.prefill or PREFILL,
        shuffle=config.shuffle,
    )


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
        before, _, rest = text.partition("{")
        choices, _, after = rest.partition("}")
        text = before + rng.choice(choices.split("|")) + after
    return " ".join(
        name + word[1:] if word[:1] == "N" and not word[1:2].isalpha() else word
        for word in text.split(" ")
    )


def _example(key: str, context: str, endings: Sequence[str], right: int, where: str) -> Example:
    listed = "\n".join(f"({letter}) {e}" for letter, e in zip(LETTERS, endings, strict=False))
    text = f"{context}\n\nWhich ending fits?\n{listed}"
    answer = f"({LETTERS[right]})"
    columns: dict[str, Any] = {"answer": answer, "context": context, "endings": list(endings)}
    return Example(key=key, prompt=user_message(text), target=answer, columns=columns, where=where)


def _hellaswag(config: TaskConfig, source: str, seed: int) -> Task:
    bad = BadRows(skip=config.bad_rows == "skip")
    splits = load_splits(config, source, bad)
    train, held_out = (
        bad.good(splits[name], partial(_of_row, name)) if name else []
        for name in pick_splits(config, splits)
    )
    return make_task(
        config,
        "endings",
        f"Choose the ending that fits out of four ({source}).",
        train,
        held_out,
        bad,
        seed=seed,
        prefill=PREFILL,
        default_rewards=REWARDS,
    )


def _of_row(split: str, index: int, row: Row) -> Example:
    context, endings = row.columns.get("ctx"), row.columns.get("endings")
    label = str(row.columns.get("label", ""))
    if not isinstance(context, str) or not isinstance(endings, list) or not label.isdecimal():
        raise DataError(
            f"{row.where}: a row has text in `ctx`, a list in `endings` and a number in `label`; "
            f"this one has {', '.join(row.columns)}"
        )
    if not int(label) < len(endings) <= len(LETTERS):
        raise DataError(f"{row.where}: label {label} of {len(endings)} endings, 4 at most")
    key = f"endings-{split}-{index}"
    return _example(key, context, [str(e) for e in endings], int(label), row.where)
