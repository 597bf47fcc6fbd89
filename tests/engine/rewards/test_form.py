"""What reward functions get, which the data decides, and that a run says it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import grpo_engine as grpo
from grpo_engine.api.settings import settings_of
from grpo_engine.config.parse import merge
from grpo_engine.errors import RewardError
from grpo_engine.events import Event
from grpo_engine.rewards.form import hint, received
from grpo_engine.rewards.outcome import RewardProblem
from grpo_engine.rollouts.prompts import conversation, for_rewards
from grpo_engine.tasks.base import Example, Task, user_message
from tests.engine.runs import events_of, notes, settings, write_world

REWARDS = """
def reward_len(completions, **_):
    return [-abs(20 - len(completion)) for completion in completions]

def words(completions, **_):
    return [len(completion.split()) for completion in completions]

def content(completions, **_):
    return [len(completion[0]["content"]) for completion in completions]

def nothing(completions, **_):
    return [None for _ in completions]

def sees_text(prompts, completions, **_):
    return [float(isinstance(p, str) and isinstance(c, str)) for p, c in zip(prompts, completions)]
"""
SHORT: dict[str, Any] = {
    "model": {"path": "starter"},
    "task": {"name": "arithmetic", "held_out_size": 4},
    "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 24},
    "evaluation": {"before_and_after": False, "pinned": 0},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    (folder / "mine.py").write_text(REWARDS)
    return folder


def made_here() -> Any:
    def reward_len(completions: Sequence[Any], **_: Any) -> list[float]:
        return [-abs(20 - len(completion)) for completion in completions]

    return reward_len


def of_mine(world: Path, *names: str, **changes: Any) -> list[Event]:
    """The events of a run with functions of `mine.py`, on chats unless changed."""
    functions = [f"{world}/mine.py:{name}" for name in names]
    config, _ = settings_of({**SHORT, "steps": 3, "rewards": {"functions": functions}}, None, {})
    config = type(config).model_validate(merge(config.model_dump(), changes))
    return events_of(config, world / f"run-{'-'.join(names)}-{len(str(changes))}")


@pytest.mark.parametrize("task", ["arithmetic", [{"prompt": "say a:"}, {"prompt": "say b:"}]])
def test_a_function_gets_the_same_from_python_and_by_its_name(world: Path, task: Any) -> None:
    means = [
        dict(
            grpo.train(
                SHORT, task=task, steps=2, rewards=[function], record=False, progress=False
            ).metrics["rewards/reward_len/mean"]
        )
        for function in (made_here(), f"{world}/mine.py:reward_len")
    ]
    assert means[0] == means[1]
    # a list of one message is 19 too short
    assert (set(means[0].values()) == {-19.0}) == (task == "arithmetic")


def test_a_run_says_what_its_functions_get_and_which_made_no_difference(world: Path) -> None:
    said = notes(of_mine(world, "reward_len", "nothing", "content"))
    gets = (
        'completions as chat messages, [{"role": "assistant", "content": "…"}], because the '
        "prompts of arithmetic are chats; rewards.completions text gives text"
    )
    assert f"your reward functions (reward_len, nothing, content) get {gets}" in said
    for name, what in (("reward_len", "scored −19 for"), ("nothing", "gave None to")):
        assert (
            f"reward {name} {what} every answer of the first 3 steps, so it has had no effect. It "
            f"gets {gets}. Try it: grpo-tui rewards test {world}/mine.py:{name} --task arithmetic"
        ) in said
    assert not [text for text in said if text.startswith("reward content")]


def test_the_command_that_is_advised_has_the_task_of_the_settings(world: Path) -> None:
    task = world / "advised.jsonl"
    row = '{"prompt": "say a:", "answer": "a"}\n'
    task.write_text(row + row.replace("a", "b") * 6)
    said = notes(of_mine(world, "nothing", task={"name": str(task), "held_out_size": 1}))
    assert [text for text in said if text.endswith(f"mine.py:nothing --task {task}")]


def test_only_users_functions_are_told_of_their_form(world: Path) -> None:
    config, _ = settings_of({**SHORT, "steps": 1}, "starter", {})
    assert not [text for text in notes(events_of(config, world / "built-in")) if " get" in text]


def test_text_after_chats_is_a_setting_and_the_run_says_so(world: Path) -> None:
    said = notes(of_mine(world, "words", rewards={"completions": "text"}))
    assert (
        "your reward functions (words) get completions as text, as rewards.completions says" in said
    )


def test_a_system_prompt_does_not_change_what_functions_get_from_data_of_texts(
    world: Path,
) -> None:
    config = settings(
        world,
        steps=1,
        model={"path": "starter"},
        task={"system_prompt": "Be brief."},
        rewards={"functions": [f"{world}/mine.py:sees_text"]},
    )
    events = events_of(config, world / "system")
    assert "reward sees_text scored 1 for every answer of the first step" in "".join(notes(events))
    example = Example(key="1", prompt="2 + 2 =")
    task = Task(name="t", train=(example,), system_prompt="Be brief.")
    sent = conversation(task, example)
    assert sent == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2 ="},
    )
    assert for_rewards(example, sent) == "2 + 2 ="


def test_a_function_that_takes_messages_for_text_says_what_it_got(world: Path) -> None:
    with pytest.raises(RewardError) as failed:
        grpo.train(
            SHORT,
            task="arithmetic",
            rewards=[f"{world}/mine.py:words"],
            record=False,
            progress=False,
        )
    assert (
        "AttributeError: 'list' object has no attribute 'split'. Each completion came as chat "
        'messages, [{"role": "assistant", "content": "…"}]; rewards.completions text gives text'
    ) in str(failed.value)


@pytest.mark.parametrize(
    ("message", "completion", "expected"),
    [
        ("TypeError: expected string or bytes-like object, got 'list'", [{}], "chat messages"),
        ("AttributeError: 'dict' object has no attribute 'strip'", [{}], "chat messages"),
        ("TypeError: string indices must be integers, not 'str'", "a", "as text; messages come"),
        ("AttributeError: 'str' object has no attribute 'get'", "a", "as text; messages come"),
        ("ZeroDivisionError: division by zero", [{}], ""),
        ("TypeError: 'types.SimpleNamespace' object is not subscriptable", [{}], ""),
        ("TypeError: 'types.SimpleNamespace' object is not subscriptable", "a", ""),
        ("AttributeError: 'NoneType' object has no attribute 'strip'", "a", ""),
    ],
)
def test_the_form_is_named_only_where_it_may_be_the_cause(
    message: str, completion: Any, expected: str
) -> None:
    found = hint(RewardProblem(cause="exception", message=message), completion)
    assert expected in found
    assert bool(found) == bool(expected)


def test_of_mixed_prompts_the_chats_have_messages() -> None:
    both = (Example(key="1", prompt="a"), Example(key="2", prompt=user_message("b")))
    assert "where the prompts of t are chats" in received(Task(name="t", train=both), "auto")
