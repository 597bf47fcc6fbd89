"""A chat endpoint on loopback whose replies a test decides, and rubrics for it."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from grpo_engine.config.safe_yaml import dump_yaml

KEY = "sk-5b2f7c61e0d94a8e"
DATA = re.compile(r"<data>(.*?)</data>")


def data_of(request: Any) -> Any:
    """What a judge is to judge."""
    (data,) = DATA.findall(request["messages"][0]["content"])
    return json.loads(data)


def reply(text: Any, **usage: int) -> dict[str, Any]:
    """The body of a reply with this message; anything but a text is written as JSON."""
    content = text if isinstance(text, str) else json.dumps(text)
    return {"choices": [{"message": {"content": content}}], "usage": usage}


def scores(reason: str = "", **values: Any) -> dict[str, Any]:
    return reply({"reason": reason, "scores": values})


class Handler(BaseHTTPRequestHandler):
    """One request; a scripted failure writes to it what it likes."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        self.server.script.requests.append(request)
        self.server.script.headers.append(dict(self.headers))
        answer = self.server.script.answer(request)
        if callable(answer):
            self.close_connection = True
            answer(self)
        else:
            self.send(200, json.dumps(answer))

    def do_GET(self) -> None:
        self.server.script.requests.append("GET")
        self.send(200, json.dumps(scores(good=10)))

    def send(self, status: int, text: str, **headers: str) -> None:
        """A whole reply; `headers` have _ for -."""
        data = text.encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    script: "Script"

    def handle_error(self, *_: Any) -> None:
        """A client that leaves early is what some tests are about."""


@dataclass
class Script:
    """What the server replies by, and what it was sent; `ended` is set at its end."""

    answer: Callable[[Any], Any]
    url: str = ""
    requests: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(answer: Callable[[Any], Any]) -> Iterator[Script]:
    """Serve replies by a function of the request; it may return a function of the `Handler`."""
    server = Server(("127.0.0.1", 0), Handler)
    server.script = Script(answer, f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.script
    finally:
        server.script.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def write_rubric(path: Path, url: str, **entries: Any) -> str:
    """Write a rubric with one criterion, `good` from 0 to 10; return the name of the reward."""
    usual: dict[str, Any] = {"criteria": {"good": "The answer is good."}}
    usual = {} if "ranking" in entries else usual
    path.write_text(dump_yaml({"endpoint": url, "model": "m", **usual, **entries}))
    return f"judge:{path}"


class Failure(NamedTuple):
    """A reply that is no verdict, what its reason says, and whether it is worth another try."""

    name: str
    write: Callable[[Handler], Any]
    reason: str
    may_pass: bool = False
    is_slow: bool = False


def raw(data: bytes) -> Callable[[Handler], Any]:
    """Write bytes in place of a reply, and close."""
    return lambda handler: handler.wfile.write(data)


def whole(value: Any) -> Callable[[Handler], None]:
    return lambda handler: handler.send(200, value if isinstance(value, str) else json.dumps(value))


def hang(handler: Handler) -> None:
    handler.server.script.ended.wait(60)


def drip(handler: Handler) -> None:
    """A byte now and then, each before the socket's own time limit."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.server.script.ended.wait(0.05):
        handler.wfile.write(b"y")


def drip_body(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.server.script.ended.wait(0.05):
        handler.wfile.write(b" ")


def redirect(handler: Handler) -> None:
    """To another host, as its name differs."""
    address = f"http://localhost:{handler.server.server_port}/v1/chat/completions"
    handler.send(307, "", Location=address)


def endless_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(200_000):
        handler.wfile.write(b"X-%d: y\r\n" % number)


def endless_continue(handler: Handler) -> None:
    while not handler.server.script.ended.wait(0.001):
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")


OF_FORM = "has another form"
NO_MESSAGE = "answered without a message"
FAILURES = (
    Failure("hangs", hang, "gave no reply within", True, True),
    Failure("drips its head", drip, "gave no reply within", True, True),
    Failure("drips its body", drip_body, "gave no reply within", True, True),
    Failure("429", lambda h: h.send(429, "slow down"), "answered 429 Too Many Requests", True),
    Failure(
        "429 for an hour",
        lambda h: h.send(429, "slow down", Retry_After="3600"),
        "slow down; no time is left for another try",
    ),
    Failure("500", lambda h: h.send(500, "out of memory"), "answered 500", True),
    Failure("401", lambda h: h.send(401, f"bad key {KEY}"), "bad key [key]"),
    Failure("404", lambda h: h.send(404, ""), "answered 404 Not Found"),
    Failure("key in the status", raw(b"HTTP/1.1 403 " + KEY.encode() + b"\r\n\r\n"), "403 [key]"),
    Failure("redirect", redirect, "redirects are not followed"),
    Failure("headers without an end", endless_headers, "gave no HTTP reply", True),
    Failure("only continues", endless_continue, "gave no reply within", True, True),
    Failure(
        "cut off",
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}"),
        "closed connection without sending complete message body",
        True,
    ),
    Failure(
        "cut off in a chunk",
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\n{"),
        "gave no HTTP reply",
        True,
    ),
    Failure(
        "chunks of nonsense",
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n"),
        "gave no HTTP reply",
        True,
    ),
    Failure("no HTTP", raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "gave no HTTP reply", True),
    Failure("closed at once", lambda _: None, "disconnected without sending", True),
    Failure("huge", whole(" " * ((16 << 20) + 1)), "sent more than 16 MB", True),
    Failure("empty", whole(""), NO_MESSAGE),
    Failure("HTML", whole("<html>Welcome</html>"), f"{NO_MESSAGE}: <html>Welcome</html>"),
    Failure("deep", whole("[" * 100_000), NO_MESSAGE),
    Failure("no choice", whole({"choices": []}), NO_MESSAGE),
    Failure("many choices", whole({"choices": [{"message": {}}] * 100_000}), NO_MESSAGE),
    Failure("no content", whole({"choices": [{"message": {"content": None}}]}), NO_MESSAGE),
    Failure("an error", whole({"error": {"message": "overloaded"}}), "overloaded"),
    Failure("prose", whole(reply("It is rather good.")), f"{OF_FORM}, it is no JSON"),
)
