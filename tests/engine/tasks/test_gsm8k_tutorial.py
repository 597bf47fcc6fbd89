"""The GSM8K tutorial's rewards: each edge of its rule by hand, and its rule as one expression."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_engine.config.parse import build, merge
from grpo_engine.control import Control
from grpo_engine.events import EvaluationFinished, GroupScored, RunFailed
from grpo_engine.presets import preset
from grpo_engine.rewards.load import load_reward
from grpo_engine.tasks.base import load_task
from grpo_engine.tasks.gsm8k import tutorial_accuracy, tutorial_number
from grpo_engine.trainer import evaluate_only
from tests.engine.runs import of
from tests.engine.tiny import write_model

PRESET = preset("gsm8k-tutorial").config
GOOD = "<think>8 * 9 = 72</think><answer>72</answer>"
# the rule as one expression, anchored at the beginning of the text and open at its end
RULE = re.compile(r"<think>.*?</think>.*?<answer>\D*(\d+)\D*</answer>", re.DOTALL)


def scores(text: str, answer: str = "72") -> tuple[float | None, ...]:
    """The scores of a text by the reward functions of the preset."""
    found = []
    for name in PRESET.rewards.functions:
        (score,) = load_reward(name, {}).function(
            prompts=["p"], completions=[text], completion_ids=[[1]], answer=[answer]
        )
        found.append(score)
    return tuple(found)


@pytest.mark.parametrize(
    ("text", "answer", "accuracy", "form"),
    [
        (GOOD, "72", 1, 0.5),
        (GOOD, "71", 0, 0.5),
        # accuracy counts only well-formed answers
        ("so it is 72", "72", 0, 0),
        # the format score needs a number
        ("<think>x</think><answer>seventy-two</answer>", "72", 0, 0),
        # text is allowed after the answer, not before `<think>`
        (f"{GOOD}\nI hope that helps: 73!", "72", 1, 0.5),
        (f"Question: how many?\n{GOOD}", "72", 0, 0),
        # words and signs around the number are skipped: a currency is not read
        ("<think></think><answer>$72 in all</answer>", "72", 1, 0.5),
        ("<think></think><answer>072</answer>", "72", 1, 0.5),
        # one number only: a comma makes two runs of digits
        ("<think></think><answer>1,072</answer>", "1072", 0, 0),
        # the first answer with one number counts
        ("<think></think><answer>71</answer><answer>72</answer>", "72", 0, 0.5),
        ("<think></think><answer>none</answer><answer>72</answer>", "72", 1, 0.5),
    ],
)
def test_the_preset_scores_each_text_as_the_tutorial_does(
    text: str, answer: str, accuracy: float, form: float
) -> None:
    assert scores(text, answer) == (accuracy, form)


PIECES = ["<think>", "</think>", "<answer>", "</answer>", "7", "72", " ", "\n", ",", "x", "٣", "-"]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example("<think></think><answer>none</answer> 5 </answer>")
@example("<think></think><answer>5</answer> and </answer>")
@example("<think></think><answer><answer>7<answer>2</answer>")
@example("<think></think><answer>7</answer></think><answer>8</answer>")
@settings(max_examples=300)
def test_the_number_is_the_one_that_the_rule_finds(text: str) -> None:
    found = RULE.match(text)
    assert tutorial_number(text) == (found[1] if found else None)


def test_a_long_text_of_tags_is_scored_at_once() -> None:
    # the expression tries each pair of tags, which takes hours here
    text = "<think>" + "</think><answer>" * 50_000
    assert tutorial_number(text) is None
    assert tutorial_number(f"{text}5</answer>") == "5"


def test_a_column_that_is_no_number_has_no_accuracy_and_the_reason_is_given() -> None:
    said: dict[str, list[str]] = {}
    texts = [GOOD, "72", GOOD]
    got = tutorial_accuracy(
        ["p"] * 3, texts, answer=["many", "72", "71"], log_extra=said.__setitem__
    )
    assert got == [None, 0.0, 0.0]
    assert said == {
        "reason": ["found 72, expected many", "not well formed", "found 72, expected 71"]
    }


def test_the_presets_evaluation_gives_the_two_columns_of_the_tutorials_table(
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "model", max_position_embeddings=2048)
    for split, count in (("train", 3), ("test", 5)):
        rows = [{"question": f"{split} {n}?", "answer": f"so #### {n}"} for n in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "options": {"path": str(tmp_path), "prefix": "Question: "},
        "chat_template": "plain",
        "prefill": "<think></think><answer>3</answer>",
    }
    changes = {"model": {"path": str(tmp_path / "model")}, "rollout": {"max_new_tokens": 4}}
    tree = merge(preset("gsm8k-tutorial").tree, {**changes, "task": task})
    config = build(tree)
    assert load_task(config.task).held_out[4].prompt[0]["content"] == "Question: test 4?"  # type: ignore[index]
    events = list(evaluate_only(config, Control(), folder=tmp_path, step=0, moment="before"))
    assert [str(event) for event in of(RunFailed, events)] == []
    (finished,) = of(EvaluationFinished, events)
    assert (finished.mode, finished.problems, finished.samples) == ("sampled", 5, 8)
    # every answer is 3, which is right for one question of five; the format gives .5 to each
    metrics = finished.metrics
    assert metrics["eval/rewards/tutorial_accuracy"] == metrics["eval/accuracy"] == 0.2
    assert metrics["eval/rewards/tutorial_format"] == 0.5
    assert metrics["eval/format"] == 1
    texts = [event.group.prompt_text for event in of(GroupScored, events)]
    assert len(texts) == 5
    assert all("Question: [question]" in text for text in texts)
    assert "Question: test 0?" in texts[0]
