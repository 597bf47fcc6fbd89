"""The workbench in a browser: textual-serve on the loopback interface, only with its token."""

import os
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from aiohttp import web
from textual_serve.server import Server

from grpo_tui.app import exit_codes
from grpo_tui.app.jobs.detach import command
from grpo_tui.experiments.db.paths import store_path
from grpo_tui.experiments.processes import environment
from grpo_tui.experiments.reader import StoreReader

COOKIE, PARAMETER = "grpo_tui_token", "token"
HERE = ("127.0.0.1", "localhost", "[::1]")
TUNNEL = "From another machine: ssh -L {port}:127.0.0.1:{port} HOST, then open the same address."

# textual-serve's page loads a font from a third party
FOREIGN = re.compile(r'<link\s[^>]*href="https?://(?!127\.|localhost)[^>]*>')
POLICY = "default-src 'self' 'unsafe-inline' data:; connect-src 'self' ws://{host}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PortTakenError(OSError):
    """The port is not free."""


def local_host(host: str) -> bool:
    """Return whether a Host header names this machine; otherwise DNS rebinding could reach it."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name in HERE


def guard(token: str) -> Any:
    """Return middleware that requires the token for page, static files and websocket."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not local_host(request.host):
            raise web.HTTPForbidden(text="This address is not served here.")
        origin = request.headers.get("Origin", "")
        if origin and origin.partition("://")[2] != request.host:
            raise web.HTTPForbidden(text="Other sites may not read this page.")
        given = request.query.get(PARAMETER) or request.cookies.get(COOKIE) or ""
        if not secrets.compare_digest(given.encode(), token.encode()):
            raise web.HTTPUnauthorized(text="The address must contain the printed token.")
        response = await handler(request)
        if not response.prepared:
            response.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
            response.headers["Referrer-Policy"] = "no-referrer"
            response.headers["X-Frame-Options"] = "DENY"
            response.headers["Content-Security-Policy"] = POLICY.format(host=request.host)
        return response

    return check


class Served(Server):
    """textual-serve behind the token check, with addresses as the browser wrote them."""

    def __init__(self, command: str, port: int, token: str) -> None:
        super().__init__(command, host="127.0.0.1", port=port, title="grpo-tui")
        self.token = token

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(guard(self.token))
        return app

    async def handle_index(self, request: web.Request) -> Any:
        """Serve the page, with resources only from the requested host (a tunnel's, perhaps)."""
        self.public_url = f"http://{request.host}"
        answer: Any = await super().handle_index(request)
        answer.text = FOREIGN.sub("", answer.text)
        return answer

    async def on_startup(self, _app: web.Application) -> None:
        sys.stderr.write(f"{self.address}\n{TUNNEL.format(port=self.port)}\n"
                         "Read-only; Ctrl-C ends it.\n")  # fmt: skip

    @property
    def address(self) -> str:
        """The address with its token."""
        return f"http://127.0.0.1:{self.port}/?{PARAMETER}={self.token}"


def command_for(ref: str, store: Path) -> str:
    """Return the command that each browser window runs."""
    return shlex.join(command("watch", ref, "--read-only", "--db", str(store)))


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server binds
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTakenError(
                f"port {port} on 127.0.0.1 cannot be used ({error.strerror}), perhaps another user "
                "serves there; choose another --port"
            ) from error


def serve_run(run: str, db: Path | None, port: int) -> int:
    """Serve until Ctrl-C."""
    store = store_path(db).resolve()
    with closing(StoreReader(store)) as reader:
        found = reader.resolve(run)
    _require_free(port)
    os.environ.update(environment())  # textual-serve passes it to each window's process
    Served(command_for(found.uid, store), port, secrets.token_urlsafe(24)).serve()
    return exit_codes.OK
