"""The processes of environments: what hangs, crashes or lies fails alone, and nothing is left."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import StopNow
from grpo_engine.environments.client import EnvironmentClient, Episode
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.sandbox.process import LOG_LIMIT
from grpo_engine.tasks.base import Task
from tests.engine.environments.pools import client_of, play
from tests.engine.rewards.judges import write_rubric

HOSTILE = f"{Path(__file__).parent}/hostile.py:Hostile"
SAID = {
    "behaves": "",
    "hangs in reset": "reset: took longer than ",
    "raises in reset": "reset: ValueError: no board (at ",
    "exits in reset": "reset: its process exited with status 7",
    "hangs": "step: took longer than ",
    "spins": "step: took longer than ",
    "holds the interpreter": "step: took longer than ",
    "exits": "step: its process exited with status 3",
    "sys.exit": "step: called sys.exit(4) (at ",
    "crashes": "step: its process was killed by SIGSEGV",
    "raises": "step: RuntimeError: broke (at ",
    "5 GB": "step: needs more than 4 GB of memory (at ",
    "100 MB": "step: its reply has 1000000",
    "a number": "step: it returned int '42', not a Reply; `return Reply(",
    "a text for messages": "step: it returned str 't'; a message",
    "a number as content": "step: it returned dict \"{'role': 'user', 'content': 5}\"; a message",
    "no role": "step: it returned dict \"{'content': 'x'}\"; a message has a role and a text",
    "a reward in words": "step: the reward is str 'much', not a number",
    "NaN": "step: the reward is float 'nan', not a number that can be added",
    "nothing": "step: it returned a Reply without messages that is not done",
    "10 MB of info": "step: its reply has 100000",
    "hangs in a coroutine": "step: took longer than ",
    "leaves a child": "",
    "prints": "",
    "garbage": "step: its process wrote into the pipe of its replies",
    "behaves as well": "",
}


def pool(
    folder: Path, name: str = HOSTILE, *, tools: Sequence[str] = (), limit: float = 1.0
) -> EnvironmentClient:
    return client_of(tools, {"": name}, folder, limit)


@pytest.mark.slow
def test_each_hostile_environment_fails_with_its_reason_and_the_others_end(tmp_path: Path) -> None:
    with pool(tmp_path) as environments:
        found = play(environments, [{"kind": kind} for kind in SAID], "a")
        for (kind, said), replies in zip(SAID.items(), found, strict=True):
            assert replies[-1].error.startswith(said), kind
            assert bool(replies[-1].error) == bool(said), kind
            if not said:
                assert [reply.reward for reply in replies] == [1.0] * 4, kind
        failed = [bool(replies[-1].error) for replies in found]
        states = [outcome.state for outcome in environments.finish(failed)]
        assert states[0] == {"kind": "behaves", "turns": 4}
    left = subprocess.run(["pgrep", "-f", "sleep 1234"], capture_output=True, check=False)
    assert left.stdout == b""
    log = max((log.read_bytes() for log in tmp_path.glob("*.log")), key=len)
    assert LOG_LIMIT <= len(log) <= LOG_LIMIT + 200
    assert b"further output is dropped" in log


def test_an_environment_has_no_key_of_a_judge_or_of_the_server_with_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUDGE_KEY", "SERVER_KEY", "MINE"):
        monkeypatch.setenv(name, "secret")
    (tmp_path / "looks.py").write_text(
        "import os\nfrom grpo_engine.environments.protocol import Reply\n"
        "class Looks:\n  def reset(self, row, seed): pass\n"
        "  def step(self, answer): return Reply(\n"
        "    [{'role': 'user', 'content': ' '.join(os.environ)}], done=True)\n"
    )
    rubric = write_rubric(tmp_path / "r.yaml", "http://127.0.0.1:9", key_variable="JUDGE_KEY")
    config = RunConfig.model_validate(
        {
            "task": {"environment": f"{tmp_path}/looks.py:Looks"},
            "rewards": {"time_limit": 20, "functions": [rubric]},
            "remote": {"url": "http://127.0.0.1:9", "model": "m", "key_env": "SERVER_KEY"},
        }
    )
    with EnvironmentClient(config, Task(name="t", train=()), tmp_path) as environments:
        ((reply,),) = play(environments, [{}], "a")
    (message,) = reply.messages
    names = message["content"].split()
    assert "MINE" in names
    assert not {"JUDGE_KEY", "SERVER_KEY"} & {*names}


COUNTING = """
from grpo_engine.environments.protocol import Reply
import os, random, time
made = []
class Count:
    def __init__(self):
        made.append(self)
    def reset(self, row, seed, index):
        self.row, self.seed, self.index, self.n = dict(row), seed, index, 0
        self.random = random.Random(seed)
    def step(self, answer):
        self.n += 1
        mark = self.row.get("mark", "")
        if self.row.get("dies") and self.n == 2 and not os.path.exists(mark):
            while self.row.get("together") and not os.path.exists(mark + " there"):
                time.sleep(0.01)
            open(mark, "w").close()
            os._exit(1)
        if self.row.get("lost") and self.n == 2 and not os.path.exists(mark):
            open(mark + " there", "w").close()
            time.sleep(1000)
        self.instances, self.process = len(made), os.getpid()
        draw = time.monotonic_ns() if self.row.get("by the clock") else self.random.random()
        return Reply([{"role": "user", "content": f"{answer} {self.n} {draw}"}], done=self.n == 3)
"""


def test_episodes_of_a_lost_process_are_repeated_and_continue_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    (tmp_path / "count.py").write_text(COUNTING)
    with pool(tmp_path / "a", f"{tmp_path}/count.py:Count", limit=20) as environments:
        expected = play(environments, [{}] * 4, "a")
    with pool(tmp_path / "b", f"{tmp_path}/count.py:Count", limit=20) as environments:
        # the process of places 0, 2 and 4 is lost once, in the second turn of place 2
        mark = str(tmp_path / "mark")
        dies = {"dies": True, "together": True, "mark": mark}
        found = play(
            environments, [{"lost": True, "mark": mark}, {}, dies, {}, {"by the clock": True}], "a"
        )
    assert [[r.messages for r in each] for each in found[:4]] == [
        [r.messages for r in each] for each in expected
    ]
    assert (tmp_path / "mark").exists()
    assert found[4][-1].done or "does not repeat its replies" in found[4][-1].error


@pytest.mark.slow
def test_the_limit_that_was_set_is_reported_after_a_process_was_lost(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("""
import os, time
class Hangs:
    def reset(self, row, seed):
        self.row = dict(row)
    def step(self, answer):
        if "dies" in self.row:
            time.sleep(0.3)
            os._exit(1)
        time.sleep(1000)
""")
    with pool(tmp_path, f"{tmp_path}/hangs.py:Hangs") as environments:
        *_, (late,) = play(environments, [{"dies": True}, {}, {}], "a")
    assert late.error.startswith("step: took longer than 1 s")


def test_an_instance_serves_one_rollout_and_is_reset_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNTING)
    with pool(tmp_path, f"{tmp_path}/count.py:Count", limit=20) as environments:
        for _ in range(3):
            play(environments, [{"x": 1}] * 6, "a")
            states = [outcome.state for outcome in environments.finish([False] * 6)]
    # three in each of two processes, beside the one that was made to describe the class
    assert {state["instances"] for state in states} == {4}
    assert [state["index"] for state in states] == [0, 1, 2, 3, 4, 5]
    assert {state["seed"] for state in states} == {3}


LARGE = '''
def large(gigabytes: int) -> int:
    """Fill memory.

    Args:
        gigabytes: How much.
    """
    return len(bytes(gigabytes << 30))
'''


@pytest.mark.slow
def test_a_tool_that_needs_too_much_memory_fails_its_episode_and_one_that_may_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    call = '<tool_call>{"name": "large", "arguments": {"gigabytes": 5}}</tool_call>'
    for declared in ("", "large.memory_gb = 6\n"):
        (tmp_path / "large.py").write_text(LARGE + declared)
        with pool(tmp_path, "", tools=[f"{tmp_path}/large.py:large"], limit=20) as environments:
            ((reply,),) = play(environments, [{}], call, turns=1)
        if declared:
            assert reply.error == ""
            assert reply.text == f"⚙ large(5) → {5 << 30}"
        else:
            assert reply.error.startswith("step: needs more than 4 GB of memory")
            assert f"(at {tmp_path}/large.py:8); make it need less" in reply.error


WAITING = '''
import asyncio, time
def tool(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "waited"
async def later(seconds: float) -> str:
    """Wait without a thread.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"
'''


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tool", "later"])
def test_tools_wait_side_by_side(tmp_path: Path, name: str) -> None:
    """One after the other, 40 calls of a second would take 40 seconds; each may take 20."""
    (tmp_path / "wait.py").write_text(WAITING)
    call = f'<tool_call>{{"name": "{name}", "arguments": {{"seconds": 1.0}}}}</tool_call>'
    with pool(tmp_path, "", tools=[f"{tmp_path}/wait.py:{name}"], limit=20) as environments:
        found = [reply for (reply,) in play(environments, [{}] * 40, call, turns=1)]
    assert [reply.text for reply in found] == [f"⚙ {name}(1.0) → waited"] * 40
    assert sum(reply.ms for reply in found) >= 40 * 1000


STEP = "  def step(self, answer): return 1"


@pytest.mark.parametrize(
    ("code", "name", "said"),
    [
        ("x = 1", "e.py:X", "environment {f}:X: {p} has no 'X'; it has"),
        ("def (", "e.py:X", "{f}:X cannot be loaded: SyntaxError"),
        ("x = 1\ndef f(:\n  pass", "e.py:X", "(at {p}:2)"),
        ("class X:\n  pass", "e.py:X", "has neither `reset(row, seed)` and `step(answer)` nor"),
        ("import os; os._exit(5)", "e.py:X", "exited with status 5"),
        ("class X:\n  def go(self, x): return 1", "e.py:X", "tool go cannot be described"),
        (f"class X:\n  def reset(self, row): 0\n{STEP}", "e.py:X", "by `reset(row, seed)`"),
        (f"class X:\n{STEP}", "e.py:X", "by `reset(row, seed)`"),
        ("class X:\n  def __init__(self, size): 0", "e.py:X", "is made without arguments"),
    ],
)
def test_what_cannot_be_loaded_is_refused_before_training(
    tmp_path: Path, code: str, name: str, said: str
) -> None:
    (tmp_path / "e.py").write_text(code)
    full = f"{tmp_path}/{name}"
    with pytest.raises(BrokenEnvironmentError) as error, pool(tmp_path, full, limit=20):
        pass
    assert said.format(f=full.removesuffix(":X"), p=f"{tmp_path}/e.py") in str(error.value)


def test_a_stop_is_obeyed_while_environments_begin(tmp_path: Path) -> None:
    asked: list[int] = []
    with client_of((), {"": HOSTILE}, tmp_path, 60, lambda: bool(asked)) as environments:
        asked.append(1)
        job = Episode(environment="", row={"kind": "hangs in reset"}, seed=0, index=0)
        with pytest.raises(StopNow):
            environments.begin([job])
