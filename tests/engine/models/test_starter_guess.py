"""The embedded model of `guess` half knows its game, and its run finds numbers in fewer turns."""

import hashlib
import random
import re
import statistics
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from tokenizers import Tokenizer

from grpo_engine.config.parse import build, merge
from grpo_engine.events import EvaluationFinished
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.presets import preset
from grpo_engine.tasks.guess import SYSTEM
from tests.engine.runs import completed, of
from tools import make_guess

SHEETS = Path(__file__).parents[3] / "grpo_engine/models/starter"
FOLDER = EMBEDDED["starter-guess"]


@pytest.mark.parametrize(
    ("name", "sheet"), [("starter", "README.md"), ("starter-guess", "guess.md")]
)
def test_each_embedded_model_is_the_one_of_its_data_sheet(name: str, sheet: str) -> None:
    digest = hashlib.sha256((EMBEDDED[name] / "model.safetensors").read_bytes()).hexdigest()
    assert f"`{digest}`" in (SHEETS / sheet).read_text()
    assert sum(file.stat().st_size for file in EMBEDDED[name].iterdir()) < 2_000_000


def test_the_chat_template_writes_what_the_model_learned_from() -> None:
    _, tokenizer, *_ = mlx_lm.load(str(FOLDER))
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "My number is from 12 to 57."},
        {"role": "assistant", "content": "34"},
        {"role": "user", "content": "higher"},
    ]
    written = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    said = make_guess.said("higher")
    assert written == f"{make_guess.opening(12, 57)}34<|im_end|>{said}"


def test_it_learned_from_no_range_that_it_is_evaluated_on() -> None:
    rng = random.Random(0)
    assert not {make_guess.range_from(rng) for _ in range(3000)} & set(make_guess.held_out())


def test_the_textbook_halves_and_no_player_is_good_at_both() -> None:
    """Halving finds one of 51 numbers in at most 6 guesses: 2^6 - 1 = 63 >= 51 > 31 = 2^5 - 1."""
    rng = random.Random(1)
    longest = max(len(make_guess.dialogue(rng, make_guess.TEXTBOOK)) // 2 for _ in range(2000))
    assert longest == 6
    for player in make_guess.PLAYERS:
        found = [len(make_guess.dialogue(rng, player)) // 2 for _ in range(500)]
        assert statistics.fmean(found) > 4.5


@pytest.mark.slow
def test_held_out_turns_are_as_published() -> None:
    model: Any = mlx_lm.load(str(FOLDER))[0]
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    played = make_guess.play(model, tokenizer, make_guess.held_out()[:200], seed=9)
    line = re.search(r"\| turns, at most 8 \| ([\d.]+)", (SHEETS / "guess.md").read_text())
    assert line is not None
    # 200 dialogues with a standard deviation of about 2.5: a standard error of .18
    assert abs(statistics.fmean(one.turns for one in played) - float(line[1])) < 0.7


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_preset_finds_held_out_numbers_in_fewer_turns(tmp_path: Path) -> None:
    changes = {"evaluation": {"greedy": False, "pinned": 0}}
    events = completed(build(merge(preset("guess").tree, changes)), tmp_path)
    before, after = (e.metrics for e in of(EvaluationFinished, events))
    assert after["eval/turns"] < before["eval/turns_low"]
