"""Environments of verifiers packages, in an interpreter of their own.

Most tests need one that has verifiers 0.1.14: `GRPO_TUI_VERIFIERS`, or what they install once in
`~/.cache/grpo-tui-tests`.
"""

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.environments.client import EnvironmentClient, Job
from grpo_engine.errors import BrokenEnvironmentError, DataError
from grpo_engine.events import GroupScored, RunFinished, StepFinished
from grpo_engine.tasks.base import load_task
from tests.engine.environments.test_examples import answers, blocks, call
from tests.engine.runs import events_of, settings, write_world
from tests.smollm2 import CACHE

VERIFIERS = "verifiers==0.1.14"


@functools.cache
def python() -> str:
    """An interpreter with verifiers; skips the test if it cannot be installed."""
    if given := os.environ.get("GRPO_TUI_VERIFIERS"):
        return given
    folder = CACHE / VERIFIERS.replace("==", "-")
    found, making = folder / "bin" / "python", folder.with_name("verifiers.making")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "verifiers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a parallel test may be installing it
        if not found.exists():
            shutil.rmtree(folder, ignore_errors=True)
            pip = [f"{making}/bin/python", "-m", "pip", "install", "-q", VERIFIERS]
            for command in ([sys.executable, "-m", "venv", str(making)], pip):
                made = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=1200
                )
                if made.returncode:
                    pytest.skip(f"{VERIFIERS} could not be installed: {made.stderr.strip()[-200:]}")
            making.rename(folder)  # Python finds its environment by its own place
    return str(found)


ODD = '''
import verifiers as vf
from datasets import Dataset

DATA = Dataset.from_list([{"question": "6 * 7?", "answer": "42"}] * 2)


def multiply(a: int, b: int) -> int:
    """Multiply.

    Args:
        a: One number.
        b: Another.
    """
    return a * b


def right(parser, completion, answer):
    return float(answer in str(parser.parse_answer(completion)))


def together(completions, **_):
    return [1.0 for _ in completions]


class Rewrites(vf.MultiTurnEnv):
    async def get_prompt_messages(self, state):
        if not state["trajectory"]:
            return state["prompt"]
        return [{"role": "user", "content": "something else"}]

    async def env_response(self, messages, state):
        return []


class Fails(vf.MultiTurnEnv):
    async def env_response(self, messages, state):
        raise ValueError("the board broke")


def load_environment(kind):
    rubric = vf.Rubric(funcs=[together if kind == "group" else right])
    if kind == "tools":
        return vf.ToolEnv(dataset=DATA, rubric=rubric, tools=[multiply])
    made = {"single": vf.SingleTurnEnv, "rewrites": Rewrites, "fails": Fails}
    return made.get(kind, vf.SingleTurnEnv)(dataset=DATA, rubric=rubric)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the packages of the page and of this file."""
    (tmp_path / "loud_env.py").write_text(blocks()["loud_env.py"])
    (tmp_path / "odd_env.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def odd(folder: Path, kind: str) -> EnvironmentClient:
    return EnvironmentClient(
        (), {"": "verifiers:odd-env"}, folder, 20, interpreter=python(), options={"kind": kind}
    )


ROW = {"prompt": [{"role": "user", "content": "6 * 7?"}], "answer": "42", "example_id": 0}


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
    with EnvironmentClient((), name, tmp_path, 20, interpreter=str(link)) as pool:
        (reply,) = answers(pool, {}, "who?")
    assert reply.info["python"] == str(link)
    # what lies beside this package must not be found by another interpreter
    assert str(Path(__file__).parents[3]) not in reply.info["path"] or os.environ.get("PYTHONPATH")


def test_an_interpreter_without_verifiers_or_none_at_all_says_what_to_do() -> None:
    for python, said in ((sys.executable, "install the environment with verifiers 0.1"),
                         ("/nowhere/python", "No such file")):  # fmt: skip
        with pytest.raises(DataError, match=said):
            load_task(TaskConfig(name="verifiers:loud-env", interpreter=python))


@pytest.mark.slow
def test_three_steps_with_the_environment_of_the_page(here: Path) -> None:
    """Its reward is 1 per loud answer of at most three turns, of which the last must be loud."""
    world = write_world(here)
    config = settings(
        world, steps=3, rewards={"functions": []},
        task={
            "name": "verifiers:loud-env", "interpreter": python(), "options": {"words": 9},
            "held_out_size": 2, "max_turns": 5,
        },
        rollout={"stop": ["!", "a", "1", " "], "max_new_tokens": 40},
        evaluation={"pinned": 0, "problems": 2},
    )  # fmt: skip
    events = events_of(config, here / "run")
    assert isinstance(events[-1], RunFinished), events[-1]
    assert [e.step for e in events if isinstance(e, StepFinished)] == [1, 2, 3]
    metrics = [e.metrics for e in events if isinstance(e, StepFinished)]
    assert all(row["environment/errors"] == 0 for row in metrics)
    assert any("env/loud" in row for row in metrics)
    found = [r for e in events if isinstance(e, GroupScored) for r in e.group.rollouts]
    several = [one for one in found if len(one.spans) > 2]
    assert several
    for one in found:
        (reward,) = one.rewards
        assert reward.name == "loud-env"
        # an answer that was cut is not shown to the environment
        ends = [span.start + span.length for span in one.spans if span.kind == "model"]
        shown = len(ends) - (one.finish == "length")
        assert reward.value is not None
        assert 0 <= reward.value <= shown


@pytest.mark.slow
def test_tools_are_offered_called_and_scored_by_the_rubric(here: Path) -> None:
    with odd(here, "tools") as pool:
        assert [tool["function"]["name"] for tool in pool.described[""].tools] == ["multiply"]
        good, bad, unknown, end = answers(
            pool, ROW, call("multiply", a=6, b=7), "<tool_call>multiply(6, 7)</tool_call>",
            call("divide", a=1), "It is 42.",
        )  # fmt: skip
        assert str(good.calls[0]) == "⚙ multiply(a=6, b=7) → 42"
        assert [message["content"] for message in good.messages] == ["42"]
        assert bad.calls[0].failed
        assert unknown.calls[0].failed
        assert not end.error
        assert end.done
        assert (end.info["right"], end.info["total_tool_calls"]) == (1.0, 3.0)
        (outcome,) = pool.finish([False])
    assert outcome.reward == 1.0
    assert outcome.state["stop_condition"] == "no_tools_called"
    assert "input" not in outcome.state


@pytest.mark.slow
def test_an_episode_that_is_cut_is_scored_on_what_was_said(here: Path) -> None:
    """One answer of one turn is right; of another, none was given: 0."""
    with odd(here, "single") as pool:
        pool.begin([Job(environment="", row=ROW, seed=1, index=i) for i in range(2)])
        pool.ask(0, "42")
        while not (found := pool.replies(0.1)):
            pass
        assert found[0][1].done
        outcomes = pool.finish([False, False])
    assert [one.reward for one in outcomes] == [1.0, 0.0]
    assert outcomes[1].state["stop_condition"] == "prompt_too_long"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [("rewrites", "changes earlier messages"), ("fails", "ValueError: the board broke")],
)
def test_what_cannot_be_used_fails_its_rollout_with_the_reason(
    here: Path, kind: str, said: str
) -> None:
    with odd(here, kind) as pool:
        (reply,) = answers(pool, ROW, "hm")
    assert said in reply.error


@pytest.mark.slow
def test_rewards_of_whole_groups_are_refused(here: Path) -> None:
    with pytest.raises(BrokenEnvironmentError, match="scores the answers to a prompt together"):
        odd(here, "group").__enter__()


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_package_brings_its_rows() -> None:
    given: dict[str, Any] = {"name": "verifiers:loud-env", "interpreter": python()}
    task = load_task(TaskConfig(**given, options={"words": 5}, held_out_size=2))
    assert (len(task.train), len(task.held_out)) == (3, 2)
    first = task.train[0]
    assert [message["role"] for message in first.prompt if isinstance(message, dict)] == [
        "system", "user",
    ]  # fmt: skip
    assert json.dumps(dict(first.columns))
    assert task.environment == "verifiers:loud-env"
