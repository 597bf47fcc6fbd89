"""An endpoint on this machine in the form of OpenAI's chat completions.

It has an address and a key for each rollout, and serves nobody else: whoever has not shown the key
is read no further than the headers, has little time, and makes room for the next.
"""

import asyncio
import hmac
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from email import message_from_string
from email.message import Message
from http import HTTPStatus
from typing import Any, ClassVar

from grpo_engine.environments.calls import CALL, find_calls
from grpo_engine.errors import quoted
from grpo_engine.frozen import frozen

MODEL = "policy"
MAX_HEAD, MAX_BODY = 16 << 10, 8 << 20  # bytes of a request
HEAD_S, BODY_S = 10.0, 60.0  # seconds
MAX_STRANGERS = 128  # connections of this process without a key
MAX_SERVED = 64  # connections with the key of a rollout
ROLES = ("system", "user", "assistant", "tool")
# Fields that would change the distribution or that sampling cannot fill: their neutral values.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}


class RequestRefusedError(Exception):
    """A request that gets no answer, with the HTTP status that says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)


@frozen
class Request:
    """A program's request for the next completion of a dialogue."""

    messages: list[dict[str, Any]]
    tools: list[Any]
    stop: tuple[str, ...]
    max_tokens: int  # 0 for no limit
    model: str
    streams: bool


def response_of(
    request: Request, text: str, number: int, *, context: int, tokens: int, is_cut: bool
) -> dict[str, Any]:
    """The completion as the rollout's response of this number, without the stop text."""
    text = min((text.partition(stop)[0] for stop in request.stop), key=len, default=text)
    calls = find_calls(text) if request.tools else []
    message: dict[str, Any] = {"role": "assistant", "content": text}
    is_call = calls and not any(call.error for call in calls)
    finish = "length" if is_cut else "tool_calls" if is_call else "stop"
    if is_call:
        message["content"] = CALL.sub("", text).strip() or None
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{n}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for n, call in enumerate(calls)
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": context,
            "completion_tokens": tokens,
            "total_tokens": context + tokens,
        },
    }


def as_events(response: Mapping[str, Any]) -> str:
    """A response as a stream of one event."""
    (choice,) = response["choices"]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
    chunk = {"index": 0, "delta": delta, "finish_reason": choice["finish_reason"]}
    event = json.dumps({**response, "object": "chat.completion.chunk", "choices": [chunk]})
    return f"data: {event}\n\ndata: [DONE]\n\n"


def read_request(data: bytes, sampling: Mapping[str, float]) -> Request:
    """A request; `sampling` are the run's settings, from which a request cannot differ."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestRefusedError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestRefusedError("the body is not an object")
    fixed = {name: (value,) for name, value in sampling.items()}
    for name, values in {**NEUTRAL, **fixed}.items():
        if body.get(name) not in (None, *values):
            raise RequestRefusedError(
                f"{name} is {quoted(body[name])}, but the run samples with {values[0]}, and learns "
                "from what it sampled; leave it out, or change the run's rollout settings"
            )
    messages, stop, tools = (_listed(body.get(name)) for name in ("messages", "stop", "tools"))
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    for is_right, problem in (
        (messages, "messages is not a list with a message"),
        (
            all(isinstance(text, str) and text for text in stop),
            "stop is neither a text nor a list of texts",
        ),
        (
            type(limit) is int and limit >= 0,
            f"max_tokens {quoted(limit)} is not a number of tokens",
        ),
        (all(map(_is_function, tools)), "tools is not a list of functions with names"),
    ):
        if not is_right:
            raise RequestRefusedError(problem)
    read = [plain_message(message) for message in messages]
    if read[-1]["role"] == "assistant":
        raise RequestRefusedError(
            "the last message is the assistant's; an answer follows another's"
        )
    return Request(
        messages=read,
        tools=[] if body.get("tool_choice") == "none" else tools,
        stop=tuple(stop),
        max_tokens=limit,
        model=str(body.get("model")),
        streams=bool(body.get("stream")),
    )


def plain_message(message: Any) -> dict[str, Any]:
    """A message as chat templates take it: its content a text, its calls' arguments an object."""
    role = message.get("role") if isinstance(message, dict) else None
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise RequestRefusedError(
            f"a message has the role {quoted(role)}, not one of {', '.join(ROLES)}"
        )
    parts = _listed(message.get("content"))
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RequestRefusedError(f"a message of the role {role} has a content that is not text")
    result = {"role": role, "content": "".join(texts)}
    names = ("name", "tool_call_id")
    result |= {name: message[name] for name in names if isinstance(message.get(name), str)}
    if calls := message.get("tool_calls"):
        try:
            result["tool_calls"] = [_plain_call(call["function"]) for call in calls]
        except (TypeError, KeyError, ValueError, RecursionError):
            raise RequestRefusedError("tool_calls are not calls with JSON arguments") from None
    return result


def _plain_call(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _listed(value: Any) -> list[Any]:
    """A list, or one with the value unless it is empty."""
    return value if isinstance(value, list) else [value] if value else []


def _is_function(tool: Any) -> bool:
    match tool:
        case {"function": {"name": str()}}:
            return True
    return False


class Endpoint(ABC):
    """The endpoint of one rollout."""

    _strangers: ClassVar[dict[Any, None]] = {}  # tasks of all endpoints, oldest first

    def __init__(self, sampling: Mapping[str, float]) -> None:
        self._sampling, self._key = sampling, secrets.token_hex(16)
        self._connections = set[Any]()  # tasks
        self._server: asyncio.Server | None = None
        self.refusal = ""  # the last one, for errors

    @abstractmethod
    async def respond(self, request: Request) -> Mapping[str, Any]:
        """The response to a request."""

    async def open(self) -> tuple[str, str]:
        """Listen; return the address and its key."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/v1", self._key

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one request; a stranger too many ends the oldest."""
        connection, ends = asyncio.current_task(), (ConnectionError, asyncio.IncompleteReadError)
        self._connections.add(connection)
        self._strangers[connection] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        try:
            with suppress(*ends, asyncio.CancelledError):
                await self._handle(reader, writer)
        finally:
            self._connections.discard(connection)
            self._strangers.pop(connection, None)
            writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, content_type = HTTPStatus.OK, "application/json"
        try:
            method, path, headers = await _read_head(reader)
            self._admit(headers)
            response = await self._route(method, path, await _read_body(reader, headers))
        except RequestRefusedError as refusal:
            error = {"message": str(refusal), "type": "invalid_request_error"}
            self.refusal = f"; the last request that was refused: {refusal}"
            status, response = refusal.status, {"error": {**error, "param": None, "code": None}}
        if isinstance(response, str):
            content_type = "text/event-stream"
        else:
            response = json.dumps(response)
        body = response.encode()
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    def _admit(self, headers: Message) -> None:
        """Refuse a request without the key of the rollout, and too many with it."""
        sent = headers.get("authorization", "")
        if not hmac.compare_digest(sent.encode(), f"Bearer {self._key}".encode()):
            raise RequestRefusedError("the key is not that of this rollout", 401)
        self._strangers.pop(asyncio.current_task(), None)
        if len(self._connections - self._strangers.keys()) > MAX_SERVED:
            raise RequestRefusedError(
                f"{MAX_SERVED} requests of this rollout are being served", 429
            )

    async def _route(self, method: str, path: str, body: bytes) -> Mapping[str, Any] | str:
        """The body of a response: JSON, or the events of a stream."""
        match method, path.partition("?")[0].rstrip("/"):
            case "POST", "/v1/chat/completions":
                request = read_request(body, self._sampling)
                response = await self.respond(request)
                return as_events(response) if request.streams else response
            case "GET", "/v1/models":
                model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "grpo-tui"}
                return {"object": "list", "data": [model]}
        raise RequestRefusedError(
            f"there is no {quoted(f'{method} {path}')}; there is POST chat/completions", 404
        )


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, str, Message]:
    """The method, the path and the headers of a request."""
    try:
        async with asyncio.timeout(HEAD_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, _, lines = head.partition("\r\n")
        method, path, _ = first.split(" ")
    except TimeoutError:
        raise RequestRefusedError(f"the headers did not come within {HEAD_S:g} s", 408) from None
    except (asyncio.LimitOverrunError, ValueError):
        raise RequestRefusedError(
            f"this is no HTTP request with {MAX_HEAD} bytes of headers"
        ) from None
    return method, path, message_from_string(lines)


async def _read_body(reader: asyncio.StreamReader, headers: Message) -> bytes:
    length = headers.get("content-length", "0")
    size = int(length) if length.isdecimal() and len(length) < 10 else MAX_BODY + 1
    if "transfer-encoding" in headers or size > MAX_BODY:
        raise RequestRefusedError(f"a body has a Content-Length, and at most {MAX_BODY} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            return await reader.readexactly(size)
    except TimeoutError:
        raise RequestRefusedError(f"the body did not come within {BODY_S:g} s", 408) from None
