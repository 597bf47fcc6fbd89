"""Environments of verifiers packages, in an interpreter of their own.

Most tests need one that has verifiers 0.4.0 and uv: `GRPO_TUI_VERIFIERS`, or what they install once
in `~/.cache/grpo-tui-tests`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.events import GroupScored, StepFinished
from grpo_engine.tasks.base import load_task
from tests.engine.environments.pools import client_of, python
from tests.engine.environments.test_examples import replies
from tests.engine.runs import completed, of

EVEN = """
import verifiers.v1 as vf

__all__ = ["Even"]


class EvenTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def even(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip()[-1:] in list("02468"))


class Even(vf.Taskset[EvenTask, vf.TasksetConfig]):
    def load(self):
        for low in range(50):
            prompt = f"Say an even number from {low} to {low + 9}."
            yield EvenTask(vf.TaskData(prompt=prompt), self.config.task)
"""
OLD = """
def load_environment():
    raise AssertionError
"""
NULL = {"agent": {"harness": {"id": "null"}}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a taskset, and a package for 0.1."""
    (tmp_path / "even_v1.py").write_text(EVEN)
    (tmp_path / "old_env.py").write_text(OLD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def task(name: str, **options: Any) -> dict[str, Any]:
    return {"name": f"verifiers:{name}", "interpreter": python(), "options": {**NULL, **options}}


def test_environments_run_in_the_interpreter_that_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # users' files may import what lies in the working folder
    (tmp_path / "who.py").write_text(
        "import sys\nfrom grpo_engine.environments.protocol import Reply\n"
        "class Who:\n"
        "    def reset(self, row, seed): pass\n"
        "    def step(self, answer):\n"
        "        return Reply(done=True, info={'python': sys.executable, 'path': sys.path})\n"
    )
    link = tmp_path / "other-python"
    link.symlink_to(sys.executable)
    name = {"": f"{tmp_path}/who.py:Who"}
    with client_of((), name, tmp_path, 20, interpreter=str(link)) as pool:
        (reply,) = replies(pool, {}, "who?")
    assert reply.info["python"] == str(link)
    # what lies beside this package must not be found by another interpreter
    assert str(Path(__file__).parents[3]) not in reply.info["path"] or os.environ.get("PYTHONPATH")


def test_an_interpreter_without_verifiers_or_none_at_all_says_what_to_do() -> None:
    for interpreter, said in (
        (sys.executable, "has no verifiers 0.4"),
        ("/nowhere/python", "No such file"),
    ):
        with pytest.raises(DataError, match=said):
            load_task(TaskConfig(name="verifiers:even-v1", interpreter=interpreter))


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_what_is_no_taskset_of_one_agent_is_refused_in_a_sentence() -> None:
    for given in (task("old-env"), task("even-v1", id="best-of-n")):
        with pytest.raises(DataError, match="is no taskset of one agent"):
            load_task(TaskConfig(**given))


@pytest.mark.slow
def test_ten_steps_with_a_taskset(here: Path) -> None:
    """Its reward is 1 for an even number; the answers that it scores are those that are trained."""
    config = build(
        {
            "steps": 10,
            "model": {"path": "starter-guess"},
            "task": task("even-v1"),
            "rollout": {"prompts": 1, "group_size": 4, "max_new_tokens": 20},
            "rewards": {"time_limit": 120},
            "evaluation": {"problems": 1, "pinned": 0},
        }
    )
    events = completed(config, here / "run")
    steps = of(StepFinished, events)
    assert [e.step for e in steps] == list(range(1, 11))
    assert all(e.metrics["environment/errors"] == 0 for e in steps)
    assert all("env/even" in e.metrics for e in steps)
    groups = [e.group for e in of(GroupScored, events)]
    assert all(group.prompt_text.count("an even number") == 1 for group in groups)
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        (reward,) = rollout.rewards
        assert (reward.name, rollout.finish) == ("even-v1", "stop")
        assert reward.value == float(rollout.text.strip()[-1:] in list("02468"))
    assert {r.reward for group in groups for r in group.rollouts} == {0.0, 1.0}
