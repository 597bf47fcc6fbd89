"""Examples first, then GRPO; and a model's own best answers as examples."""

import json
from pathlib import Path

import pytest

from grpo_tui.app.cli.main import main
from grpo_tui.app.text.prompt_text import last_question
from grpo_tui.experiments.reader import StoreReader

SMALL = [
    "rollout.prompts=4",
    "evaluation.problems=16",
    "evaluation.samples=0",
    "evaluation.pinned=0",
]


def trained(db: Path, name: str, *words: str) -> None:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    assert main(["train", "--db", str(db), "--name", name, *sets, *words]) == 0


@pytest.mark.slow
def test_grpo_goes_on_with_what_was_learned_and_the_best_answers_are_learned(
    tmp_path: Path,
) -> None:
    db, best = tmp_path / "store.db", tmp_path / "best.jsonl"
    learn = ["--set", "algorithm.recipe=sft", "--set", "optimizer.learning_rate=1e-3"]
    trained(db, "warm", "--steps", "6", *learn)
    trained(db, "further", "--from", "warm", "--set", "algorithm.recipe=grpo", "--steps", "2")
    words = ["export", "further", "--db", str(db), "--format", "sft", "--out", str(best)]
    assert main(words) == 0
    rows = [json.loads(line)["messages"] for line in best.read_text().splitlines()]
    assert rows
    sets = ["--set", f"task.name={best}"]
    trained(db, "best", "--from", "further", "--steps", "2", *learn, *sets)
    with StoreReader(db) as reader:
        runs = {name: reader.resolve(name) for name in ("warm", "further", "best")}
        tried = {name: reader.evaluations(run.key) for name, run in runs.items()}
        key = runs["best"].key
        groups = reader.groups(key, step=1)
    # greedy answers to the same problems by the same weights
    after, before = tried["warm"][-1], tried["further"][0]
    assert before.metrics == after.metrics != tried["warm"][0].metrics
    learned = {(question["content"], answer["content"]) for question, answer in rows}
    for group in groups:
        if group.origin == "train":
            assert (last_question(group.prompt_text), group.rollouts[0].text) in learned
