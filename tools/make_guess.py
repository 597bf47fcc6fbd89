"""Make the embedded model that half knows `guess`; see `grpo_engine/models/starter/guess.md`.

A textbook teaches to halve what remains; then two players with half of the skill each teach their
habits. The ranges of the held-out problems play no part in it.
"""

import argparse
import hashlib
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import mlx.core as mx
from mlx_lm.models import llama
from tokenizers import Tokenizer

from grpo_engine.config.settings import TaskConfig
from grpo_engine.environments.guess import Guess
from grpo_engine.evaluation.statistics import bootstrap, wilson
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.tasks import guess as task
from tools import make_starter as maker

TEXTBOOK_STEPS, PLAYERS_STEPS = 1000, 100
TURNS: Final = 8  # most of the model in a dialogue
MEASURED: Final = 256  # held-out ranges of the data sheet


TEXT: Final = """\
# The embedded model that half knows `guess`

`grpo-tui train --preset guess` trains this model, `model.path=starter-guess`. It is written by

    python -m tools.make_guess --seed {seed} --sheet grpo_engine/models/starter/guess.md

and so is this page.

A llama of {parameters} parameters in the shape of [the starter](README.md), float32, {megabytes}
MB, with a byte-level tokenizer of {tokens} tokens in which digits stand alone. It knows only
dialogues of the task `guess`. SHA-256 of `model.safetensors`: `{digest}`.

## How it was made

{textbook} steps on a textbook, which always guesses the middle of what is left; then {players}
steps on two players. No player is good at both: that replies must be heeded, and that halving is
best, is left for reinforcement learning to find.

| guesses that heed all replies | guesses in the middle of their range |
|---:|---:|
| {first} |
| {second} |

The others are anywhere in the range that is left, or in the one that was announced. None of the
{ranges} ranges of the held-out problems was among the dialogues.

## Held out, before any reinforcement learning

One dialogue for each of {measured} ranges at temperature 1, and a greedy one. A number that is not
found counts as all turns. Brackets are 95 % intervals.

| | sampled | greedy |
|---|---|---|
{results}

Examples, sampled:

    {examples}
"""


@dataclass(frozen=True, slots=True)
class Player:
    """The share of guesses that heed all replies, and of those in the middle of their range."""

    heeds: float
    halves: float


TEXTBOOK: Final = Player(1.0, 1.0)
# No player is good at both.
PLAYERS: Final = (Player(heeds=0.25, halves=0.75), Player(heeds=0.8, halves=0.1))


@dataclass(frozen=True, slots=True)
class Played:
    """A dialogue of the model: how many turns it had, whether it found the number, and its text."""

    turns: int
    found: bool
    text: str


@cache
def held_out() -> tuple[tuple[int, int], ...]:
    """The ranges of the task's held-out problems."""
    found = task.build(TaskConfig(name="guess")).held_out
    return tuple((one.columns["low"], one.columns["high"]) for one in found)


def range_from(rng: random.Random) -> tuple[int, int]:
    """A random range that is in no held-out problem."""
    smallest, largest, widest = (
        task.OPTIONS[name].default for name in ("smallest", "largest", "width")
    )
    while True:
        width = rng.randint(2, widest)
        low = rng.randint(smallest, largest - width)
        if (low, low + width) not in held_out():
            return low, low + width


def said(text: str) -> str:
    """What follows the end of an answer, up to the beginning of the next one."""
    return f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def opening(low: int, high: int) -> str:
    """The prompt in the model's chat template."""
    asked = said(f"My number is from {low} to {high}.")
    return f"<|im_start|>system\n{task.SYSTEM}<|im_end|>{asked}"


def dialogue(rng: random.Random, player: Player) -> tuple[str, ...]:
    """Prompt, guess, reply, guess, …, as this player might play."""
    low, high = range_from(rng)
    game, left = Guess(), (low, high)
    game.reset({"low": low, "high": high}, rng.getrandbits(32))
    texts = [opening(low, high)]
    for turn in range(TURNS):
        first, last = left if rng.random() < player.heeds else (low, high)
        halves = rng.random() < player.halves
        guess = (first + last) // 2 if halves else rng.randint(first, last)
        texts.append(f"{guess}<|im_end|>")
        reply = game.step(str(guess))
        if reply.done or turn == TURNS - 1:
            break
        texts.append(said(str(reply.messages[0]["content"])))
        if guess < game.number:
            left = max(left[0], guess + 1), left[1]
        else:
            left = left[0], min(left[1], guess - 1)
    return tuple(texts)


def play(
    model: llama.Model,
    tokenizer: Tokenizer,
    ranges: Sequence[tuple[int, int]],
    *,
    seed: int,
    temperature: float = 1.0,
) -> list[Played]:
    """Play one dialogue per range, all of them turn by turn."""
    games = [Guess() for _ in ranges]
    for number, (game, (low, high)) in enumerate(zip(games, ranges, strict=True)):
        game.reset({"low": low, "high": high}, seed * len(ranges) + number)
    ids = [tokenizer.encode(opening(*one)).ids for one in ranges]
    shown: list[list[str]] = [[] for _ in ranges]
    found: set[int] = set()
    for turn in range(TURNS):
        left = [place for place in range(len(ranges)) if place not in found]
        key = mx.random.key(seed * TURNS + turn)
        answers = maker.sample(model, [ids[place] for place in left], temperature, key)
        for place, answer in zip(left, answers, strict=True):
            text = tokenizer.decode(answer)
            reply = games[place].step(text)
            shown[place].append(text)
            if reply.done:
                found.add(place)
                continue
            told = str(reply.messages[0]["content"])
            ids[place] = [*ids[place], *answer, *tokenizer.encode(said(told)).ids]
            shown[place].append(told)
    return [
        Played(game.guesses, place in found, f"{low} to {high}: {' '.join(texts)}")
        for place, (game, (low, high), texts) in enumerate(zip(games, ranges, shown, strict=True))
    ]


def corpus(dialogues: int = 3000) -> Iterator[str]:
    """Texts to make a tokenizer from."""
    rng = random.Random("tokenizer")
    for _ in range(dialogues):
        yield "".join(dialogue(rng, rng.choice(PLAYERS)))


def make(seed: int) -> tuple[llama.Model, Tokenizer]:
    """Train a model; return it with its tokenizer."""
    rng, tokenizer = random.Random(seed), maker.tokenizer_of(corpus())
    model = maker.make_model(tokenizer.get_vocab_size(), mx.random.key(seed))
    lessons = maker.batches(tokenizer, lambda rng: dialogue(rng, TEXTBOOK), rng)
    maker.train(model, maker.make_optimizer(1.0, TEXTBOOK_STEPS), lessons, TEXTBOOK_STEPS)
    habits = maker.batches(tokenizer, lambda rng: dialogue(rng, rng.choice(PLAYERS)), rng)
    optimizer = maker.make_optimizer(maker.WORKBOOK_SHARE, None)
    model.update(maker.train(model, optimizer, habits, PLAYERS_STEPS))
    return model, tokenizer


def sheet(model: llama.Model, tokenizer: Tokenizer, weights: Path, seed: int) -> str:
    """The data sheet, with the model measured on the held-out ranges."""
    ranges = held_out()[:MEASURED]
    sampled = play(model, tokenizer, ranges, seed=0)
    greedy = play(model, tokenizer, ranges, seed=0, temperature=0)
    rows = [
        f"| turns, at most {TURNS} | {_turns(sampled)} | {_turns(greedy)} |",
        f"| number found | {_found(sampled)} | {_found(greedy)} |",
    ]
    return TEXT.format(
        seed=seed,
        parameters=f"{maker.parameters_of(model):,}",
        results="\n".join(rows),
        megabytes=f"{weights.stat().st_size / 1e6:.1f}",
        tokens=tokenizer.get_vocab_size(),
        digest=hashlib.sha256(weights.read_bytes()).hexdigest(),
        ranges=len(held_out()),
        first=_habits(PLAYERS[0]),
        second=_habits(PLAYERS[1]),
        measured=MEASURED,
        textbook=TEXTBOOK_STEPS,
        players=PLAYERS_STEPS,
        examples="\n    ".join(one.text for one in sampled[:8]),
    )


def _habits(player: Player) -> str:
    return f"{player.heeds:.0%} | {player.halves:.0%}"


def _turns(played: Sequence[Played]) -> str:
    turns = [float(one.turns) for one in played]
    low, high = bootstrap(turns)
    return f"{statistics.fmean(turns):.2f} [{low:.2f}, {high:.2f}]"


def _found(played: Sequence[Played]) -> str:
    found = sum(one.found for one in played)
    low, high = wilson(found, len(played))
    return f"{found / len(played):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Make the model, measure it on held-out ranges, and write its data sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=EMBEDDED["starter-guess"])
    parser.add_argument("--sheet", type=Path, help="where to write the data sheet")
    chosen = parser.parse_args()
    begun = time.monotonic()
    model, tokenizer = make(chosen.seed)
    maker.save(model, tokenizer, chosen.out)
    print(f"made in {time.monotonic() - begun:.0f} s")
    if chosen.sheet:
        weights = chosen.out / "model.safetensors"
        chosen.sheet.write_text(sheet(model, tokenizer, weights, chosen.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
