"""Data for the next training: which answers are in it, and what is said of the others."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tuner.datasets import ChatDataset, load_local_dataset

from grpo_engine import events as ev
from grpo_engine.config.settings import TaskConfig
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.tasks.arithmetic import build
from grpo_engine.tasks.base import Example, load_task
from grpo_tui.app.cli.main import main
from grpo_tui.app.datasets.rows import Choice, DataRows
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.reader import StoreReader
from tests.experiments.made import CONFIG, recorded, started

PROBLEMS = load_task(TaskConfig(name="arithmetic")).held_out  # their keys are in any run's task
ANSWERS = {  # by reward; of each prompt the same
    "right": 2.0,
    "right and long": 1.0,
    "wrong": 0.5,
    "worse": 0.0,
}


def asked(example: Example) -> dict[str, Any]:
    """The message of a problem."""
    assert not isinstance(example.prompt, str)
    return dict(example.prompt[0])


def group(example: Example, *answers: ev.Rollout, index: int = 0, **changes: Any) -> ev.Group:
    text = f"<|im_start|>user\n{asked(example)['content']}<|im_end|>\n<|im_start|>assistant\n"
    made = ev.Group(
        index=index,
        origin="train",
        example_key=example.key,
        prompt_text=text,
        prompt_ids=(),
        prompt_hash=example.key,
        target=example.target,
        rollouts=tuple(replace(item, index=n) for n, item in enumerate(answers)),
        reward_mean=0.5,
        reward_std=0.5,
    )
    return replace(made, **changes)


def answer(text: str, reward: float | None, **changes: Any) -> ev.Rollout:
    """An answer whose first word says whether it is right."""
    score = ev.RewardValue(name="numeric_answer", value=float(text.startswith("right")), weight=1.0)
    rollout = ev.Rollout(
        index=0,
        ids=(),
        text=text,
        finish="stop",
        rewards=(score,),
        reward=reward,
        advantage=0.0,
        sampler_logprobs=(),
    )
    return replace(rollout, **changes)


def store_of(path: Path, *groups: ev.Group, tree: Any = None) -> Path:
    """A store with a run of these groups, one for each step."""
    events = [ev.GroupScored(step=step, group=item) for step, item in enumerate(groups, start=1)]
    recorded(path / "store.db", started(), *events, tree=tree or CONFIG)
    return path / "store.db"


def rows_of(store: Path, form: Any = "sft", **choice: Any) -> tuple[list[Any], dict[str, int]]:
    with StoreReader(store) as reader:
        rows = DataRows(reader, reader.runs(), form, Choice(**choice))
        written = list(rows)
        assert sum(rows.left_out.values()) + len(written) * (1 + (form != "sft")) == rows.answers
        return written, dict(rows.left_out)


def texts(rows: list[Any]) -> list[str]:
    return [row["messages"][-1]["content"] for row in rows]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two problems, each with four answers, of which the first was asked again."""
    answers = [answer(text, reward) for text, reward in ANSWERS.items()]
    first, second = PROBLEMS[:2]
    return store_of(
        tmp_path,
        group(first, *answers),
        group(second, *answers),
        group(first, answers[0], answers[3]),
    )


def test_the_best_right_answer_of_each_prompt_is_a_demonstration(store: Path) -> None:
    rows, left_out = rows_of(store)
    assert rows == [
        {"messages": [asked(p), {"role": "assistant", "content": "right"}]} for p in PROBLEMS[:2]
    ]
    assert left_out == {
        "that are wrong": 4,
        "that repeat another one": 2,
        "that are not the best of their prompt": 2,
    }


def test_more_answers_a_threshold_and_wrong_ones(store: Path) -> None:
    assert texts(rows_of(store, best=2)[0]) == ["right", "right and long"] * 2
    assert texts(rows_of(store, best=2, min_reward=1.5)[0]) == ["right"] * 2
    assert texts(rows_of(store, best=3, right=False)[0]) == [*list(ANSWERS)[:3]] * 2
    rows, left_out = rows_of(store, best=2, limit=1)
    assert (texts(rows), left_out["beyond --limit"]) == (["right"], 3)


def test_a_pair_has_the_best_and_the_worst_answer_with_their_margin(store: Path) -> None:
    """2.0 - 0.0, then 1.0 - 0.5, where more than one pair is asked for."""
    rows, left_out = rows_of(store, "preferences")
    (first, _) = rows
    assert first == {
        "prompt": [asked(PROBLEMS[0])],
        "chosen": [{"role": "assistant", "content": "right"}],
        "rejected": [{"role": "assistant", "content": "worse"}],
        "margin": 2.0,
    }
    assert left_out == {"that repeat another one": 2, "in no pair": 4}
    assert [row["margin"] for row in rows_of(store, "preferences", best=4)[0]] == [2.0, 0.5] * 2
    assert [row["margin"] for row in rows_of(store, "preferences", best=4, min_margin=1)[0]] == [
        2.0,
        2.0,
    ]


def test_the_filters_of_rollouts_apply(store: Path) -> None:
    assert len(rows_of(store, columns={"step": 2})[0]) == 1
    assert rows_of(store, columns={"origin": "eval"}) == ([], {})
    assert texts(rows_of(store, search="AND  long")[0]) == ["right and long"] * 2


def test_answers_that_nothing_can_be_learned_from_are_counted(tmp_path: Path) -> None:
    first, second = PROBLEMS[:2]
    failed = ev.RewardValue(name="numeric_answer", value=None, weight=1.0, failed=True)
    unjudged = answer(
        "a poem", 1.0, rewards=(ev.RewardValue(name="length", value=1.0, weight=1.0),)
    )
    store = store_of(
        tmp_path,
        group(
            first,
            answer("right", 1.0, finish="length"),
            answer("right", None),
            answer("right", float("nan")),
            answer("right", 0.0, rewards=(failed,)),
            unjudged,
        ),
        group(second, answer("right", 1.0), origin="pinned"),
    )
    rows, left_out = rows_of(store)
    assert texts(rows) == ["a poem"]
    assert left_out == {
        "cut by a limit": 1,
        "without a reward": 2,
        "on which a reward function failed": 1,
        "to held-out problems": 1,
    }
    assert rows_of(store, right=True)[1]["of which nothing says that they are right"] == 1
    assert texts(rows_of(store, columns={"origin": "pinned"})[0]) == ["right"]


def test_of_equally_good_answers_the_newest_is_taken(tmp_path: Path) -> None:
    old, new = (group(PROBLEMS[0], answer(f"right, {age}", 1.0)) for age in ("old", "new"))
    assert texts(rows_of(store_of(tmp_path, old, new))[0]) == ["right, new"]


def test_equal_rewards_make_no_pair(tmp_path: Path) -> None:
    equal = group(PROBLEMS[0], answer("right", 0.1 + 0.2), answer("right again", 0.3))
    rows, left_out = rows_of(store_of(tmp_path, equal), "preferences")
    assert (rows, left_out) == ([], {"whose prompt has no answer with another reward": 2})


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty prompts with one to eight answers of few rewards, drawn at random."""
    rng = random.Random(3)
    groups = [
        group(
            problem,
            *(
                answer(f"{rng.choice(('right', 'wrong'))} {n}", float(rng.randint(0, 3)))
                for n in range(rng.randint(1, 8))
            ),
        )
        for problem in PROBLEMS[:40]
    ]
    return store_of(tmp_path_factory.mktemp("many"), *groups)


@pytest.mark.parametrize("best", [1, 2, 4])
@pytest.mark.parametrize("form", ["sft", "preferences"])
def test_every_answer_is_in_a_row_or_counted_once(many: Path, form: Any, best: int) -> None:
    rows, _ = rows_of(many, form, best=best)
    assert len(rows) > 20
    for row in rows:
        good = row["messages"] if form == "sft" else row["chosen"]
        assert good[-1]["content"].startswith("right")
    if form == "preferences":
        assert all(row["margin"] > 0 for row in rows)
        sides = [json_text([row["prompt"], row[s]]) for row in rows for s in ("chosen", "rejected")]
        assert len(set(sides)) == len(sides)


def test_the_verb_says_what_was_left_out_and_refuses_what_has_no_effect(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "train.jsonl"
    words = ["export", "@last", "--db", str(store), "--out", str(out)]
    assert main([*words, "--format", "sft"]) == 0
    assert capsys.readouterr().err == (
        "2 rows from 10 answers\n"
        "left out: 4 that are wrong, 2 that repeat another one, "
        "2 that are not the best of their prompt\n"
        f"wrote {out}\n"
    )
    assert len(out.read_text().splitlines()) == 2
    assert main([*words, "--best", "2"]) != 0
    assert "filters of answers need --format sft or preferences" in capsys.readouterr().err
    assert main([*words, "--format", "sft", "--raw"]) != 0


def test_a_run_whose_task_cannot_be_opened_has_its_prompts_as_text(tmp_path: Path) -> None:
    """Another trainer's run has no task here; its prompts have no marks, or those of a template."""
    tree = {"name": "theirs", "trainer": {"name": "TRL"}}
    plain = group(PROBLEMS[0], answer("right", 1.0), prompt_text="Say 2.")
    marked = group(PROBLEMS[1], answer("right", 1.0))
    with StoreReader(store_of(tmp_path, plain, marked, tree=tree)) as reader:
        rows = DataRows(reader, reader.runs(), "sft", Choice())
        assert [row["messages"][0] for row in rows] == [
            {"role": "user", "content": "Say 2."},
            asked(PROBLEMS[1]),
        ]
        (note,) = rows.notes
    assert note.startswith(
        "1 prompt as the model got the text, as one message of the user: the task"
    )
    assert "trained by TRL" in note


def test_problems_of_a_generator_are_drawn_again(tmp_path: Path) -> None:
    from grpo_engine.tasks.base import draw

    task = build(TaskConfig(name="arithmetic"))
    (drawn,) = draw(task, CONFIG["seed"], 123, 1)  # type: ignore[arg-type]
    text = "[user] {}\n[model] ".format(asked(drawn)["content"])
    rows, _ = rows_of(store_of(tmp_path, group(drawn, answer("right", 1.0), prompt_text=text)))
    assert rows[0]["messages"][0] == asked(drawn)


def test_a_problem_that_has_changed_is_left_out(tmp_path: Path) -> None:
    changed = group(PROBLEMS[0], answer("right", 1.0), prompt_text="[user] 2 + 2 = ?\n[model] ")
    assert rows_of(store_of(tmp_path, changed)) == (
        [],
        {"whose problem is another one than it was": 1},
    )


def test_mlx_lm_reads_the_demonstrations(store: Path, tmp_path: Path) -> None:
    """Its own loader renders what the run had: the prompt and the answer.

    The starter's template leaves a last answer open.
    """
    from mlx_lm.utils import load_tokenizer

    out = tmp_path / "train.jsonl"
    assert main(["export", "@last", "--db", str(store), "--format", "sft", "--out", str(out)]) == 0
    tokenizer = load_tokenizer(EMBEDDED["starter"])
    train, valid, _ = load_local_dataset(tmp_path, tokenizer, None)
    assert isinstance(train, ChatDataset)
    assert (len(train), valid) == (2, [])
    ids, _ = train.process(train[0])
    question = asked(PROBLEMS[0])["content"]
    expected = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\nright"
    assert tokenizer.decode(ids) == expected
