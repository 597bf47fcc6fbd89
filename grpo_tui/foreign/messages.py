"""Chat messages as other trainers write them: a prompt, and an answer of one or more turns."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from grpo_engine.events import Span
from grpo_tui import record
from grpo_tui.foreign.files import parsed

Message = Mapping[str, Any]


def split(messages: Sequence[Message]) -> tuple[record.Prompt, Sequence[Message]]:
    """The prompt, which is all before the model's first message, and the answer."""
    before = [*takewhile(lambda message: message.get("role") != "assistant", messages)]
    return prompt_of(before), messages[len(before) :]


def prompt_of(messages: Sequence[Message]) -> record.Prompt:
    """Messages as a prompt; the user's message alone is a text."""
    if [message.get("role") for message in messages] == ["user"]:
        return text_of(messages[0])
    return [{"role": str(item.get("role", "")), "content": text_of(item)} for item in messages]


def answer_of(messages: Sequence[Message]) -> tuple[str, tuple[Span, ...]]:
    """The text of an answer, and its turns and replies if there is more than one message."""
    texts = [text_of(message) for message in messages]
    if len(messages) < 2:
        return "".join(texts), ()
    parts = []
    for message, text in zip(messages, texts, strict=True):
        by_model = message.get("role") == "assistant"
        name = "" if by_model else str(message.get("name") or message.get("role") or "")
        parts.append((by_model, 0, len(text), name))  # its tokens are not known
    return "".join(texts), tuple(record.spans_of(parts))


def text_of(message: Message) -> str:
    """A message as the model reads or writes it: thinking, content, calls of tools."""
    thinking = message.get("reasoning_content")
    text = f"<think>{thinking}</think>" if isinstance(thinking, str) and thinking else ""
    text += _content(message.get("content"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        call = _parsed(call)  # verifiers had it as a text up to 0.1
        function = call.get("function", call) if isinstance(call, Mapping) else call
        if isinstance(function, Mapping) and "name" in function:
            arguments = _parsed(function.get("arguments", {}))
            function = {"name": function["name"], "arguments": arguments}
        called = json.dumps(function, ensure_ascii=False)
        text += f"{chr(10) * bool(text)}<tool_call>\n{called}\n</tool_call>"
    return text


def _parsed(value: Any) -> Any:
    """What a text of JSON says; anything else as it is."""
    if isinstance(value, str):
        with suppress(ValueError):
            return parsed(value.encode("utf-8", "surrogatepass"))
    return value


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
