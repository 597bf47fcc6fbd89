"""Finds the tool calls in a completion: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

This is the form of Qwen and Hermes, and of the explanation given to models without one. A call
that cannot be read is answered with an error, so that the model can learn from it.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any

from grpo_engine.frozen import frozen

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@frozen
class ParsedCall:
    """One call as the model wrote it; `error` says why it cannot be made."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


def find_calls(completion: str) -> list[ParsedCall]:
    return [_read(text.strip()) for text in CALL.findall(completion)]


def _read(text: str) -> ParsedCall:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ParsedCall(error=f"the call is not JSON: {error}")
    match data:
        case {"name": str(name)}:
            arguments = data.get("arguments", {})
        case _:
            return ParsedCall(error='a call is an object with "name" and "arguments"')
    if isinstance(arguments, str):  # Some models quote them.
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        return ParsedCall(name=name, error="the arguments are not an object")
    return ParsedCall(name=name, arguments=arguments)
