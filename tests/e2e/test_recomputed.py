"""Metrics of stored runs equal what pandas makes of their exports, by a script of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.recompute import TABLES
from tests.e2e.training import grpo_tui, write_config
from tests.engine.runs import write_world

SCRIPT = Path(__file__).with_name("recompute.py")
RECIPES = ("grpo", "dapo", "dr-grpo", "cispo", "rloo", "ppo", "how-much")
REWARDS = """
def format_open(completions, **_):
    return [float(text[:1].isalnum()) for text in completions]
"""
TURNS = """
import random
from grpo_engine.environments.protocol import Reply

class Turns:
    def reset(self, row, seed, index):
        self.random = random.Random(seed * 1000 + index)
        self.left, self.said = self.random.randint(0, 3), 0
    def step(self, answer):
        self.said += 1
        if self.random.random() < 0.1:
            raise ValueError("the board broke")
        if self.said > self.left:
            return Reply(done=True, reward=len(answer) % 3, info={"said": self.said})
        text = "again " * self.random.randint(1, 3)
        return Reply([{"role": "user", "content": text}], reward=0.1, info={"said": self.said})
"""
STOPS = ["a", "e", "i", "o", "u", " ", "1", "2", "3"]
EVALUATION = {"every": 2, "problems": 4, "samples": 2, "before_and_after": True}


def runs(world: Path) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """The words of `sweep` and the settings, by the names of sweeps of one or more runs."""
    names = ("rewards.py:letters", "rewards.py:accuracy", "format.py:format_open")
    own = {"functions": [f"{world}/{name}" for name in names], "weights": [1.0, 0.5, 0.25]}
    rows = [{"prompt": f"write {n}: ", "answer": str(n)} for n in range(12)]
    (world / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (world / "format.py").write_text(REWARDS)
    (world / "turns.py").write_text(TURNS)
    other = {
        "name": f"{world}/other.jsonl",
        "weight": 0.7,
        "held_out_size": 3,
        "rewards": {f"{world}/rewards.py:letters": 0.25},
    }
    return {
        "recipes": ([f"algorithm.recipe={','.join(RECIPES)}"], {"rewards": own}),
        "rates": (
            ["optimizer.learning_rate=0.003,0.01"],
            {
                "rewards": own,
                "algorithm": {"passes": 3},
                "rollout": {"stop": STOPS, "max_new_tokens": 20},
            },
        ),
        "turns": (
            [],
            {
                "task": {"environment": f"{world}/turns.py:Turns", "max_turns": 4},
                "rollout": {"stop": STOPS, "max_new_tokens": 40},
                "algorithm": {"passes": 2},
            },
        ),
        "tasks": (
            [],
            {"rewards": own, "task": {"others": {"other": other}}, "rollout": {"prompts": 3}},
        ),
        "measured": (
            [],
            {
                "task": {"name": "arithmetic", "held_out_size": 6},
                "rewards": {"functions": ["format_parts"]},
            },
        ),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of twelve runs, as the command line exports them."""
    home = tmp_path_factory.mktemp("home")
    world = write_world(tmp_path_factory.mktemp("world"))
    for name, (grid, changes) in runs(world).items():
        config = write_config(
            world, home / f"{name}.yaml", steps=3, evaluation=EVALUATION, **changes
        )
        words = [word for one in grid for word in ("--set", one)]
        done = grpo_tui(home, "sweep", config, *words, "--name", name)
        assert done.returncode == 0, done.stderr
    ids = [row["id"] for row in json.loads(grpo_tui(home, "runs", "--json").stdout)]
    assert len(ids) == 12
    for table in TABLES:
        done = grpo_tui(home, "export", *ids, "--what", table, "--out", home / f"{table}.jsonl")
        assert done.returncode == 0, done.stderr
    done = grpo_tui(home, "export", *ids, "--what", "metrics", "--out", home / "metrics.csv")
    assert done.returncode == 0, done.stderr
    return home


def recomputed(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", SCRIPT, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_every_metric_that_exports_determine_is_what_pandas_makes_of_them(exported: Path) -> None:
    found = recomputed(exported)
    assert found["wrong"] == [], "\n".join(found["wrong"])
    assert found["unknown"] == [], "\n".join(found["unknown"])
    assert found["missing"] == []
