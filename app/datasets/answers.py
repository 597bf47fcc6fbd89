"""The chat messages of a stored answer: the model's turns, and the replies to them by role."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from grpo_engine.environments.calls import CALL, ParsedCall, find_calls
from grpo_engine.events import CUT, Span
from grpo_engine.rollouts.dialogue import ToolCall
from grpo_engine.rollouts.prompts import without_tools
from grpo_engine.tasks.base import Message
from grpo_tui.app.datasets.prompts import ChatPrompt, LeftOutError
from grpo_tui.app.inspector.dialogue import CALL as CALL_MARK
from grpo_tui.app.text.prompt_text import MARK
from grpo_tui.experiments.export.rows import turns_of
from grpo_tui.experiments.values import RolloutView

Turn = tuple[Span, str]


def answer_messages(
    rollout: RolloutView, prompt: ChatPrompt, *, recorded: bool
) -> tuple[Message, ...]:
    """The messages after a prompt; LeftOutError if they are none that a trainer could learn.

    Calls and replies of tools have the form of a template that lists tools, if the prompt does;
    else that which the model read. Another trainer's run was only `recorded` here: its replies
    have no lines for people.
    """
    if rollout.finish in CUT:
        raise LeftOutError("cut by a limit")
    if rollout.finish == "environment_error":
        raise LeftOutError("whose environment failed")
    turns = list(turns_of(rollout))
    if any(span.name.endswith(", new context") for span, _ in turns):
        raise LeftOutError("whose dialogue began anew")
    _refuse_unusable(rollout.text)
    messages = list[Message]()
    calls: list[ParsedCall] = []
    for turn, following in pairwise([*turns, None]):
        span, text = turn  # type: ignore[misc]  # only the last item is None
        if span.kind == "environment":
            messages += _recorded(span, text) if recorded else _replies(text, calls)
            continue
        text = text if messages else prompt.prefill + text
        calls = find_calls(text) if prompt.tools or _has_calls(following, recorded) else []
        messages.append(_called(text, calls if prompt.tools or recorded else ()))
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()  # nothing after it is learned
    if not any(m["role"] == "assistant" and (m["content"] or "tool_calls" in m) for m in messages):
        raise LeftOutError("empty")
    return tuple(messages if prompt.tools or recorded else without_tools(messages))


def _refuse_unusable(text: str) -> None:
    """Refuse a text that imitates a chat template, or that no file can hold."""
    if MARK.search(text):
        raise LeftOutError("with a mark of a chat template")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LeftOutError("with half of a character") from None


def _has_calls(turn: Turn | None, recorded: bool) -> bool:
    """Whether what follows the model's turn are replies of tools."""
    if turn is None or turn[0].kind != "environment":
        return False
    return turn[0].name != "user" if recorded else turn[1].lstrip("\n").startswith(CALL_MARK)


def _called(text: str, calls: Sequence[ParsedCall]) -> Message:
    """A turn of the model, with its calls as fields."""
    if not calls:
        return {"role": "assistant", "content": text}
    if any(call.error for call in calls):
        raise LeftOutError("with a call of a tool that cannot be read")
    functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
    return {
        "role": "assistant",
        "content": CALL.sub("", text).strip(),
        "tool_calls": [{"type": "function", "function": function} for function in functions],
    }


def _replies(text: str, calls: Sequence[ParsedCall]) -> list[Message]:
    """An environment's message, or the results in the lines that people read of its tools."""
    text = text.removeprefix("\n").removesuffix("\n")
    if not text:  # no turn followed
        return []
    if not calls:
        if text.startswith(CALL_MARK):
            raise LeftOutError("with a call of a tool that cannot be read")
        return [{"role": "user", "content": text}]
    messages = list[Message]()
    heads = [str(ToolCall(name=call.name, arguments=call.arguments, result="")) for call in calls]
    for call, head, following in zip(calls, heads, [*heads[1:], None], strict=True):
        end = len(text) if following is None else text.find(f"\n{following}", len(head))
        if not text.startswith(head) or end < 0:
            raise LeftOutError("with a call of a tool that cannot be read")
        messages.append({"role": "tool", "name": call.name, "content": text[len(head) : end]})
        text = text[end + 1 :]
    return messages


def _recorded(span: Span, text: str) -> list[Message]:
    """A message that another trainer wrote."""
    if span.name in ("user", "system"):
        return [{"role": span.name, "content": text}]
    named: Mapping[str, Any] = {} if span.name in ("", "tool") else {"name": span.name}
    return [{"role": "tool", **named, "content": text}]
