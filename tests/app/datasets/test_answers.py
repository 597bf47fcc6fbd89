"""The messages of stored answers: turns, replies by role, and what is left out with its reason."""

from dataclasses import replace
from typing import Any

import pytest

from grpo_engine.events import Finish, Span
from grpo_tui.app.datasets.answers import answer_messages
from grpo_tui.app.datasets.prompts import ChatPrompt, LeftOutError
from grpo_tui.experiments.values import RolloutView

TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
OTHER = '<tool_call>{"name": "root", "arguments": {"x": 9}}</tool_call>'
ASKED = ChatPrompt(messages=({"role": "user", "content": "?"},))
WITH_TOOLS = replace(ASKED, tools=(TOOL,))


def rollout(*parts: tuple[str, str], finish: Finish = "stop") -> RolloutView:
    """A stored answer of texts, each with the name of who replied; empty for the model."""
    spans = tuple(
        Span(
            start=0,
            length=0,
            kind="environment" if name else "model",
            turn=0,
            chars=len(text),
            name=name,
        )
        for name, text in parts
    )
    return RolloutView(
        index=0,
        text="".join(text for _, text in parts),
        finish=finish,
        reward=1.0,
        advantage=0.0,
        spans=spans if len(parts) > 1 else (),
        key=1,
        group=1,
        tokens=1,
        clip_fraction=None,
        kl=None,
    )


def function(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_one_turn_begins_with_the_prefill_of_its_prompt() -> None:
    prompt = replace(ASKED, prefill="<think>\n")
    assert answer_messages(rollout(("", "2</think>3")), prompt, recorded=False) == (
        {"role": "assistant", "content": "<think>\n2</think>3"},
    )


def test_calls_of_tools_and_their_results_keep_their_roles() -> None:
    """Two calls in a turn; the first result has a line that looks like the beginning of another."""
    results = "\n⚙ add(a=1, b=2) → 3\n⚙ no call\n⚙ root(9) → 3.0\n"
    answer = rollout(("", f"First. {CALL}{OTHER}"), ("add, root", results), ("", "So 3."))
    assert answer_messages(answer, WITH_TOOLS, recorded=False) == (
        {
            "role": "assistant",
            "content": "First.",
            "tool_calls": [function("add", a=1, b=2), function("root", x=9)],
        },
        {"role": "tool", "name": "add", "content": "3\n⚙ no call"},
        {"role": "tool", "name": "root", "content": "3.0"},
        {"role": "assistant", "content": "So 3."},
    )


def test_a_template_that_knows_no_tools_gets_what_the_model_read() -> None:
    answer = rollout(("", CALL), ("add", "\n⚙ add(a=1, b=2) → 3\n"), ("", "So 3."))
    assert answer_messages(answer, ASKED, recorded=False) == (
        {"role": "assistant", "content": CALL},
        {"role": "user", "content": "<tool_response>3</tool_response>"},
        {"role": "assistant", "content": "So 3."},
    )


def test_what_follows_the_last_turn_of_the_model_is_not_learned() -> None:
    answer = rollout(("", "50"), ("Guess", "\nhigher\n"), ("", "75"), ("Guess", "\nlower\n"))
    assert [m["content"] for m in answer_messages(answer, ASKED, recorded=False)] == [
        "50",
        "higher",
        "75",
    ]
    unanswered = rollout(("", CALL), ("add", ""), finish="turns")
    (message,) = answer_messages(unanswered, WITH_TOOLS, recorded=False)
    assert message["tool_calls"] == [function("add", a=1, b=2)]


def test_replies_of_another_trainers_dialogue_have_their_roles() -> None:
    called = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    answer = rollout(("", called), ("add", "1"), ("", "one"), ("user", "sure?"), ("", "yes"))
    assert answer_messages(answer, ASKED, recorded=True) == (
        {"role": "assistant", "content": "", "tool_calls": [function("add", a=1)]},
        {"role": "tool", "name": "add", "content": "1"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes"},
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (rollout(("", "2"), finish="length"), "cut by a limit"),
        (rollout(("", "2"), finish="context"), "cut by a limit"),
        (rollout(("", "2"), finish="environment_error"), "whose environment failed"),
        (rollout(("", "2"), ("Guess, new context", "\n3\n"), ("", "4")), "began anew"),
        (rollout(("", "2<|im_end|>\n<|im_start|>user")), "a mark of a chat template"),
        (rollout(("", "\ud83d")), "half of a character"),
        (rollout(("", "")), "empty"),
        (rollout(("", "<tool_call>{</tool_call>"), ("", "\n⚙ () → no\n")), "cannot be read"),
        (rollout(("", CALL), ("add", "\n⚙ add(a=9, b=2) → 3\n"), ("", "3")), "cannot be read"),
        (rollout(("", "[TOOL] add"), ("add", "\n⚙ add(1) → 3\n"), ("", "3")), "cannot be read"),
    ],
)
def test_what_no_trainer_should_learn_is_left_out_with_the_reason(
    answer: RolloutView, reason: str
) -> None:
    with pytest.raises(LeftOutError, match=reason):
        answer_messages(answer, WITH_TOOLS, recorded=False)
