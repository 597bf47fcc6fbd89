"""Chat messages as other trainers write them: a prompt, and an answer of one or more turns."""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from grpo_engine.events import Span
from grpo_tui import record

Message = Mapping[str, Any]


def split(messages: Sequence[Message]) -> tuple[record.Prompt, Sequence[Message]]:
    """The prompt, which is all before the model's first message, and the answer.

    A prompt that is the user's message alone is a text.
    """
    before = [*takewhile(lambda message: message.get("role") != "assistant", messages)]
    prompt: record.Prompt = [
        {"role": str(item.get("role", "")), "content": text_of(item)} for item in before
    ]
    if len(before) == 1 and before[0].get("role") == "user":
        prompt = text_of(before[0])
    return prompt, messages[len(before) :]


def answer_of(messages: Sequence[Message]) -> tuple[str, tuple[Span, ...]]:
    """The text of an answer, and its turns and replies if there is more than one message."""
    texts = [text_of(message) for message in messages]
    if len(messages) < 2:
        return "".join(texts), ()
    spans: list[Span] = []
    turn = -1
    for message, text in zip(messages, texts, strict=True):
        by_model = message.get("role") == "assistant"
        turn += by_model
        name = "" if by_model else str(message.get("name") or message.get("role") or "")
        spans.append(
            Span(
                start=0,  # how many tokens a message has is not known
                length=0,
                kind="model" if by_model else "environment",
                turn=turn,
                chars=len(text),
                name=name,
            )
        )
    return "".join(texts), tuple(spans)


def text_of(message: Message) -> str:
    """A message as the model reads or writes it: thinking, content, calls of tools."""
    thinking = message.get("reasoning_content")
    text = f"<think>{thinking}</think>" if isinstance(thinking, str) and thinking else ""
    text += _content(message.get("content"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, Mapping) else call
        called = json.dumps(function, ensure_ascii=False)
        text += f"{chr(10) * bool(text)}<tool_call>\n{called}\n</tool_call>"
    return text


def _content(content: Any) -> str:
    """A content that is a text, or parts of which some are texts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    parts = [part if isinstance(part, Mapping) else {"text": str(part)} for part in content]
    return "".join(
        str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]" for part in parts
    )
