"""The workbench in a browser: textual-serve on the loopback interface, only with its token."""

import asyncio
import json
import logging
import os
import re
import secrets
import shlex
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from aiohttp.abc import AbstractAccessLogger
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager
from textual_serve.server import Server

from grpo_tui.app import exit_codes
from grpo_tui.app.jobs.detach import command
from grpo_tui.app.text.safe_text import safe
from grpo_tui.experiments.db.paths import store_path
from grpo_tui.experiments.processes import environment

PARAMETER = "token"
HERE = ("127.0.0.1", "localhost", "[::1]")
TUNNEL = "From another machine: ssh -L {port}:127.0.0.1:{port} HOST, then open the same address."
POLICY = "default-src 'self' 'unsafe-inline' data:; connect-src 'self' ws://{host}"

DRIVER = f"{__package__}.tui.textual_private.served_driver:ServedDriver"
MOST_WINDOWS = 8  # of 80 MB each
FULL = f"{MOST_WINDOWS} windows are open, and no more are served: close one, then reload this page."
COLUMNS, ROWS = (80, 20, 640), (24, 5, 240)  # if nothing is asked for, at least, at most
MESSAGE_BYTES = 1 << 20
PATIENCE_S = 5.0  # for a window to end by itself
STUCK_S = 30.0  # until a window must have read its input
LOG_LENGTH = 200

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger("grpo-tui")


class PortTakenError(OSError):
    """The port is not free."""


def split_host(host: str) -> tuple[str, str]:
    """Split a Host header into name and port."""
    name, _, port = host.rpartition(":")
    return (name, port) if port.isdigit() else (host, "80")


def local_host(host: str) -> bool:
    """Return whether a Host header names this machine; otherwise DNS rebinding could reach it."""
    return split_host(host)[0] in HERE


def cookie_name(host: str) -> str:
    """Return the name of the token's cookie: browsers keep one for all ports of a machine."""
    return f"grpo_tui_token_{split_host(host)[1]}"


def guard(token: str) -> Any:
    """Return middleware that requires the token for page, static files and websocket."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not local_host(request.host):
            raise web.HTTPForbidden(text="This address is not served here.")
        if request.headers.get("Origin") not in (None, f"{request.scheme}://{request.host}"):
            raise web.HTTPForbidden(text="Other sites may not read this page.")
        cookie = cookie_name(request.host)
        sent = request.query.get(PARAMETER) or request.cookies.get(cookie) or ""
        if not secrets.compare_digest(sent.encode(errors="replace"), token.encode()):
            raise web.HTTPUnauthorized(text="The address must contain the printed token.")
        response = await handler(request)
        if not response.prepared:
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
            response.headers["Referrer-Policy"] = "no-referrer"
            response.headers["X-Frame-Options"] = "DENY"
            response.headers["Content-Security-Policy"] = POLICY.format(host=request.host)
        return response

    return check


def clamped(value: object, limits: tuple[int, int, int]) -> int:
    """Return a number of columns or rows that a window can have, whatever was asked for."""
    usual, least, most = limits
    if isinstance(value, int | float | str):
        with suppress(ValueError, OverflowError):
            return max(least, min(most, int(value)))
    return usual


class Window(AppService):
    """The process behind a browser's window, which ends with its socket."""

    def __init__(
        self, command: str, page: web.WebSocketResponse, downloads: DownloadManager
    ) -> None:
        super().__init__(
            command, write_bytes=page.send_bytes, write_str=page.send_str, close=self.close_page,
            download_manager=downloads,
        )  # fmt: skip
        self._page = page

    async def close_page(self) -> None:
        """Close the browser's socket."""
        await self._page.close()

    async def start(self, width: object, height: object) -> None:
        await super().start(clamped(width, COLUMNS), clamped(height, ROWS))

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        return super()._build_environment(width, height) | {"TEXTUAL_DRIVER": DRIVER}

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            *shlex.split(self.command), stdin=PIPE, stdout=PIPE, stderr=PIPE,
            env=self._build_environment(width, height), start_new_session=True,
        )  # fmt: skip
        self._stdin = self._process.stdin
        return self._process

    async def set_terminal_size(self, width: object, height: object) -> None:
        await super().set_terminal_size(clamped(width, COLUMNS), clamped(height, ROWS))

    async def obey(self, message: str) -> object:
        """Pass a message of the browser on; return the reply, None without one."""
        try:
            kind, *rest = json.loads(message)
        except (ValueError, TypeError, RecursionError):
            return None
        match kind, rest:
            case "stdin", [str(text)]:
                await self.send_bytes(text.encode("utf-8", "replace"))
            case "resize", [dict(size)]:
                await self.set_terminal_size(size.get("width"), size.get("height"))
            case "ping", [data]:
                return ["pong", data]
            case "blur", _:
                await self.blur()
            case "focus", _:
                await self.focus()
        return None

    async def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._task is not None:  # it reads what the process writes
            self._task.cancel()
            await self._task
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.send_meta({"type": "quit"})
                await process.communicate()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Served(Server):
    """textual-serve behind the token check, with addresses as the browser wrote them."""

    def __init__(self, command: str, port: int, token: str) -> None:
        super().__init__(command, host="127.0.0.1", port=port, title="grpo-tui")
        self.token = token
        self.windows: set[Window] = set()

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(guard(self.token))
        return app

    async def handle_index(self, request: web.Request) -> Any:
        """Serve the page, with resources only from the requested host (a tunnel's, perhaps)."""
        self._require_room()
        self.public_url = f"http://{request.host}"
        response: Any = await super().handle_index(request)
        # textual-serve's page loads a font from a third party
        foreign = rf'<link\s[^>]*href="https?://(?!{re.escape(request.host)}/)[^>]*>'
        response.text = re.sub(foreign, "", response.text)
        return response

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run a window for as long as its socket is open."""
        self._require_room()
        page = web.WebSocketResponse(heartbeat=15, max_msg_size=MESSAGE_BYTES)
        window = Window(self.command, page, self.download_manager)
        self.windows.add(window)
        try:
            await page.prepare(request)
            await window.start(request.query.get("width"), request.query.get("height"))
            async for message in page:
                if message.type == WSMsgType.TEXT:
                    async with asyncio.timeout(STUCK_S):
                        if reply := await window.obey(message.data):
                            await page.send_json(reply)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            await window.stop()
            self.windows.remove(window)
            await window.close_page()
        return page

    def _require_room(self) -> None:
        if len(self.windows) >= MOST_WINDOWS:
            raise web.HTTPServiceUnavailable(text=FULL)

    async def on_startup(self, _app: web.Application) -> None:
        sys.stderr.write(f"{self.address}\n{TUNNEL.format(port=self.port)}\n"
                         "Read-only; Ctrl-C ends it.\n")  # fmt: skip

    async def on_shutdown(self, _app: web.Application) -> None:
        """End all windows at once; their sockets would be waited for."""
        await asyncio.gather(*(window.stop() for window in self.windows))
        await asyncio.gather(*(window.close_page() for window in self.windows))

    def serve(self, debug: bool = False) -> None:
        """Serve until SIGINT or SIGTERM."""
        handler = logging.StreamHandler()
        handler.setFormatter(OneLine())
        logging.basicConfig(level="DEBUG" if debug else "INFO", handlers=[handler])
        web.run_app(
            self._make_app(), host=self.host, port=self.port, print=None, access_log=log,
            access_log_class=RequestLog,
        )  # fmt: skip

    @property
    def address(self) -> str:
        """The address with its token."""
        return f"http://127.0.0.1:{self.port}/?{PARAMETER}={self.token}"


class RequestLog(AbstractAccessLogger):
    """One line for a request, without the query, which holds the token."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:  # noqa: ARG002
        if request.method == "UNKNOWN":  # aiohttp's word where the request could not be read
            return  # its own line has the reason
        self.logger.info("%s %s %d", request.method, request.rel_url.raw_path, response.status)


class OneLine(logging.Formatter):
    """Formats a record as one harmless line; an exception as its type, not as its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.getMessage()}{f': {type(error).__name__}' if error else ''}"
        return safe(text)[:LOG_LENGTH]


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
    from grpo_tui.experiments.reader import StoreReader

    store = store_path(db).resolve()
    with closing(StoreReader(store)) as reader:
        uid = reader.resolve(run).uid
    _require_free(port)
    os.environ.update(environment())  # textual-serve passes it to each window's process
    Served(command_for(uid, store), port, secrets.token_urlsafe(24)).serve()
    return exit_codes.OK
