"""The embedded starter loads with stock mlx-lm, stops by itself, and partly knows its task."""

import random
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from tokenizers import Tokenizer

from grpo_engine.policy.source import STARTER
from grpo_engine.tasks.arithmetic import SYMBOLS, Problem, mixed, problems, question
from tools import make_starter
from tools import starter_demonstrations as demonstrations

SHEET = Path(__file__).parents[3] / "grpo_engine/models/starter/README.md"


@pytest.fixture(scope="module")
def starter() -> tuple[Any, Any]:
    model, tokenizer, *_ = mlx_lm.load(str(STARTER))
    return model, tokenizer


def test_the_chat_template_writes_what_the_model_learned_from(starter: tuple[Any, Any]) -> None:
    _, tokenizer = starter
    problem = Problem("add", 47, 38)
    messages = [{"role": "user", "content": question(problem)}]

    written = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    assert written == demonstrations.prompt(problem)


def test_an_answer_that_was_begun_for_it_is_left_open(starter: tuple[Any, Any]) -> None:
    _, tokenizer = starter
    messages = [
        {"role": "user", "content": "What is 47 + 38?"},
        {"role": "assistant", "content": "<think>7+8"},
    ]

    written = tokenizer.apply_chat_template(messages, continue_final_message=True, tokenize=False)

    assert written.endswith("<|im_start|>assistant\n<think>7+8")


def test_any_text_survives_the_tokenizer_and_tags_are_one_visible_token(
    starter: tuple[Any, Any],
) -> None:
    _, tokenizer = starter
    text = "<think>é 漢 🙂\n\t 1085</think><answer>85</answer>"

    ids = tokenizer.encode(text, add_special_tokens=False)

    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert all(
        len(tokenizer.encode(tag, add_special_tokens=False)) == 1 for tag in demonstrations.TAGS
    )
    digits = tokenizer.convert_ids_to_tokens(tokenizer.encode("1085", add_special_tokens=False))
    assert digits == list("1085")


def test_it_learned_from_no_problem_that_it_is_trained_or_evaluated_on() -> None:
    rng = random.Random(0)
    seen = {demonstrations.problem_from(rng) for _ in range(5000)}
    others = {
        p for kind in SYMBOLS for split in ("train", "held_out") for p in problems(kind, split)
    }

    assert not seen & others
    assert not any(problem.bucket in demonstrations.CHECK for problem in seen)
    assert not seen & {Problem(p.operation, p.b, p.a) for p in others}


@pytest.mark.slow
def test_held_out_accuracy_and_format_are_as_published(starter: tuple[Any, Any]) -> None:
    model, _ = starter
    asked = mixed(tuple(SYMBOLS), "held_out")
    tokenizer = Tokenizer.from_file(str(STARTER / "tokenizer.json"))

    found = make_starter.measure(model, tokenizer, asked, seed=5)
    right, formed = float(found.right.mean()), float(found.formed.mean())

    # 1000 samples: a standard error of .015
    assert abs(right - published("accuracy")) < 0.05
    assert abs(formed - published("format")) < 0.05
    assert 0.25 < published("accuracy") < 0.5
    assert 0.25 < published("format") < 0.5


def test_a_glance_is_wrong_and_working_is_right() -> None:
    for problem in mixed(tuple(SYMBOLS), "making"):
        assert demonstrations.glance(problem) != problem.answer
        assert f"<answer>{problem.answer}</answer>" in demonstrations.textbook(problem)


def published(row: str) -> float:
    """The sampled share in a row of the data sheet."""
    line = next(line for line in SHEET.read_text().splitlines() if line.startswith(f"| {row} |"))
    return float(line.split("|")[2].split()[0])
