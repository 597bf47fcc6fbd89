"""Installed packages bring tasks, rewards, environments and recipes; a broken one breaks itself."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.training import command, environment

CODE = """
from grpo_engine import recipe

def sums(count=8):
    return [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(count)]

def brief(completions, **_):
    return [-float(len(text)) for text in completions]

GENTLE = recipe("grpo", clip_high=0.4)

class Twice:
    def reset(self, row, seed):
        self.turns = 0
    def step(self, answer):
        from grpo_engine import Reply
        self.turns += 1
        return Reply([{"role": "user", "content": "again"}], done=self.turns == 2, reward=0.5)
"""
POINTS = """
[grpo_tui.tasks]
{name}-sums = {name}.code:sums
[grpo_tui.rewards]
{name}-brief = {name}.code:brief
[grpo_tui.environments]
{name}-twice = {name}.code:Twice
[grpo_tui.recipes]
{name}-grpo = {name}.code:GENTLE
"""


def install(site: Path, name: str, code: str) -> None:
    """Install a package as an installer does: its code, and what its metadata says."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").touch()
    (site / name / "code.py").write_text(code)
    info = site / f"{name}_rl-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-rl\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS.format(name=name))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    install(home / "site", "shop", CODE)
    install(home / "site", "lost", "import no_such_module_7\n")
    install(home / "site", "leaves", "raise SystemExit(3)\n")
    return home


def grpo_tui(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = environment(home)
    env["PYTHONPATH"] += f"{os.pathsep}{home}/site"
    return subprocess.run(
        command(*words), capture_output=True, text=True, env=env, timeout=240, check=False
    )


@pytest.mark.slow
def test_lists_name_what_packages_bring(home: Path) -> None:
    for verb, key in (("tasks", "task"), ("rewards", "reward")):
        done = grpo_tui(home, verb, "--json")
        rows = {row[key]: row["what"] for row in json.loads(done.stdout)}
        name = {"tasks": "shop-sums", "rewards": "shop-brief"}[verb]
        assert "From the package shop-rl" in rows[name], done.stderr
        assert {name.replace("shop", "lost"), name.replace("shop", "leaves")} <= set(rows)


@pytest.mark.slow
def test_a_recipe_that_cannot_be_imported_is_left_out_with_the_reason(home: Path) -> None:
    done = grpo_tui(home, "recipes", "--json")
    listed = [row["name"] for row in json.loads(done.stdout)]
    assert "shop-grpo" in listed
    assert {"lost-grpo", "leaves-grpo"}.isdisjoint(listed)
    assert "recipe 'lost-grpo' of the package lost-rl cannot be imported" in done.stderr
    assert "no_such_module_7" in done.stderr
    shown = grpo_tui(home, "recipes", "show", "shop-grpo")
    assert "0.4" in shown.stdout, shown.stderr


@pytest.mark.slow
def test_a_run_uses_a_packages_task_reward_environment_and_recipe(home: Path) -> None:
    done = grpo_tui(
        home,
        "train",
        "--no-store",
        str(home / "run"),
        "--json",
        "--set",
        "task.name=shop-sums",
        "--set",
        "task.options.count=9",
        "--set",
        "rewards.functions=shop-brief",
        "--set",
        "algorithm.recipe=shop-grpo",
        "--set",
        "task.environment=shop-twice",
        "--set",
        "task.held_out_size=0",
        "--set",
        "rollout.prompts=2",
        "--set",
        "rollout.group_size=2",
        "--set",
        "rollout.max_new_tokens=16",
        "--set",
        "steps=1",
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (step,) = [event for event in events if event["event"] == "StepFinished"]
    assert step["metrics"]["rewards/shop-brief/mean"] <= 0
    assert step["metrics"]["rewards/Twice/mean"] >= 0
    assert step["metrics"]["turns/max"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "setting"),
    [("lost", "rewards.functions={}-brief"), ("leaves", "algorithm.recipe={}-grpo")],
)
def test_a_broken_package_fails_only_who_uses_it_and_is_named(
    home: Path, broken: str, setting: str
) -> None:
    done = grpo_tui(
        home,
        "train",
        "--no-store",
        str(home / "run"),
        "--steps",
        "1",
        "--set",
        setting.format(broken),
    )
    assert done.returncode not in (0, 3)
    assert f"of the package {broken}-rl cannot be imported" in done.stderr
    assert "update or remove the package" in done.stderr
    assert "Traceback" not in done.stderr
