"""Calls are found in answers, and the examples of the page and of the program play as they say."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.environments.adapters import ToolEpisodes
from grpo_engine.environments.calculator import calculator
from grpo_engine.environments.client import EnvironmentClient, Episode
from grpo_engine.environments.countdown_turns import CountdownTurns
from grpo_engine.environments.guess import Guess
from grpo_engine.rollouts.dialogue import EnvironmentReply
from grpo_engine.tasks.base import load_task
from tests.engine.environments.pools import client_of, play

QUOTED = '{"expression": "1"}'
PAGE = Path(__file__).parents[3] / "docs" / "environments.md"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("answer", "made", "error"),
    [
        ("no call", 0, ""),
        (call("calculator", expression="1+2"), 1, ""),
        (
            f"first {call('calculator', expression='1')} then {call('calculator', expression='2')}",
            2,
            "",
        ),
        (f"<tool_call>{json.dumps({'name': 'calculator', 'arguments': QUOTED})}", 1, ""),
        ("<tool_call>calculator(1)</tool_call>", 1, "the call is not JSON"),
        ('<tool_call>["calculator"]</tool_call>', 1, 'a call is an object with "name"'),
        ('<tool_call>{"name": "calculator", "arguments": 3}</tool_call>', 1, "not an object"),
        (call("add", a=1), 1, "there is no tool 'add'; there is calculator"),
        (call("calculator", number=1), 1, "got an unexpected keyword argument 'number'"),
        ("<tool_call>" + "[" * 100_000, 1, "the call is not JSON"),
    ],
)
def test_a_call_is_made_or_says_why_it_cannot_be(answer: str, made: int, error: str) -> None:
    episode = ToolEpisodes(lambda tool, **values: tool(**values), {"calculator": calculator})
    calls = episode.step(answer)["calls"]
    assert len(calls) == made
    assert all(error in call["result"] for call in calls)
    assert all(call["failed"] == bool(error) for call in calls)


def test_guesses_are_compared_and_cost_a_tenth_each() -> None:
    """The third guess is right: 1 - .1 * 2 = .8."""
    game = Guess()
    game.reset({"low": 5, "high": 9}, 3)
    number = game.number
    assert 5 <= number <= 9
    told = [game.step(text).messages[0]["content"] for text in ("is it 1?", "100")]
    assert told == ["higher", "lower"]
    last = game.step(f"<answer>{number}</answer>")
    assert (last.done, last.reward, last.info) == (True, 0.8, {"guesses": 3, "found": 1})
    assert game.step("hm").messages[0]["content"] == "Guess one number."


def test_the_same_seed_thinks_of_the_same_number() -> None:
    games = [Guess(), Guess(), Guess()]
    for game, seed in zip(games, (7, 7, 8), strict=True):
        game.reset({"low": 1, "high": 10_000}, seed)
    assert games[0].number == games[1].number != games[2].number


def test_a_wrong_expression_is_told_what_it_gives() -> None:
    """3 * 7 + 25 = 46, on the second try: .5 - .1 = .4."""
    game = CountdownTurns()
    game.reset({"numbers": [3, 7, 25], "target": 46}, 0)
    first = game.step("<answer>3 + 7 + 25</answer>")
    assert "gives 35, target 46" in first.messages[0]["content"]
    last = game.step("<answer>3 * 7 + 25</answer>")
    assert last.done
    assert last.reward == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["guess", "calculator", "countdown-turns"])
def test_each_task_with_turns_has_distinct_problems_and_can_begin(
    tmp_path: Path, name: str
) -> None:
    task = load_task(TaskConfig(name=name, held_out_size=20))
    assert len(task.held_out) == 20
    train = {str(task.train[i].prompt) for i in range(50)}
    assert not train & {str(example.prompt) for example in task.held_out}
    with client_of(task.tools, {"": task.environment}, tmp_path, 20) as pool:
        row = dict(task.train[0].columns)
        pool.begin([Episode(environment="", row=row, seed=1, index=0)])
        assert not pool.last(0).error


def blocks() -> dict[str, str]:
    """The files on the page by name."""
    found = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(found)


def replies(pool: EnvironmentClient, row: dict[str, Any], *texts: str) -> list[EnvironmentReply]:
    """The replies to these completions."""
    (found,) = play(pool, [row], *texts, turns=len(texts))
    return found


@pytest.mark.slow
def test_every_example_of_the_page_does_what_the_page_says(tmp_path: Path) -> None:
    files = blocks()
    assert set(files) == {
        "tools.py",
        "counter.py",
        "maze.py",
        "counts.py",
        "distances.py",
    }
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    with client_of([f"{tmp_path}/tools.py:population"], {"": ""}, tmp_path, 20) as pool:
        known, unknown, end = replies(
            pool, {}, call("population", city="Oslo"), call("population", city="Rome"), "717710"
        )
        assert str(known.calls[0]) == "⚙ population(Oslo) → 717710"
        assert unknown.calls[0].failed
        assert end.done
    server = f"mcp: {sys.executable} {tmp_path}/distances.py"
    with client_of([server], {"": ""}, tmp_path, 20) as pool:
        (known, _) = replies(pool, {}, call("distance", start="Oslo", end="Bergen"), "463")
        assert str(known.calls[0]) == "⚙ distance(start=Oslo, end=Bergen) → 463"
    with client_of((), {"": f"{tmp_path}/counter.py:Counter"}, tmp_path, 20) as pool:
        replies(pool, {"answer": "5"}, call("add", step=2), call("add", step=3), "done")
        (outcome,) = pool.finish([False])
        assert (outcome.reward, outcome.state, outcome.calls) == (1.0, {"count": 5}, 2)
    with client_of((), {"": f"{tmp_path}/maze.py:Maze"}, tmp_path, 20) as pool:
        maze = replies(pool, {"size": 2}, "right", "open", "right", "right")
        assert [reply.reward for reply in maze] == [None, None, None, 1.0]
        assert maze[-1].done
    command = {"": f"agent: python {tmp_path}/counts.py"}
    with client_of((), command, tmp_path, 20) as pool:
        *_, last = replies(pool, {}, "7", " 8\n")
        assert (last.error, last.reward, last.done) == ("", 2.0, True)
