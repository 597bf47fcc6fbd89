"""The browser's view: needs the token, loads nothing from other hosts, and is read-only."""

import asyncio
import json
import re
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("textual_serve", reason="serving is an extra")

from aiohttp import ClientSession, WSServerHandshakeError
from aiohttp.test_utils import TestServer

from grpo_tui.app import server as served
from grpo_tui.app.server import (
    PortTakenError,
    Served,
    command_for,
    cookie_name,
    local_host,
    serve_run,
)
from tests.app.stored import record
from tests.patience import PATIENCE

TOKEN = "a-secret"
EVERYWHERE = ["/", "/static/js/textual.js", "/static/", "/ws", "/download/1"]


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


async def server(store: Path) -> TestServer:
    served = Served(command_for("@last", store), 0, TOKEN)
    found = TestServer(await served._make_app(), host="127.0.0.1")
    await found.start_server()
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "grpo.db"
    record(path)
    return path


def test_a_port_that_another_user_has_is_named(store: Path) -> None:
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        port = theirs.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} .*choose another --port"):
            serve_run("@last", store, port)


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=a-secre"])
async def test_nothing_is_served_without_the_token(query: str, store: Path) -> None:
    found = await server(store)
    async with ClientSession() as client:
        for path in EVERYWHERE:
            async with client.get(found.make_url(path + query)) as answer:
                assert answer.status == 401, path
                assert TOKEN not in await answer.text()
                assert "Set-Cookie" not in answer.headers
        with pytest.raises(WSServerHandshakeError):
            await client.ws_connect(found.make_url("/ws" + query))
    await found.close()


async def test_other_hosts_and_other_sites_are_refused_even_with_the_token(store: Path) -> None:
    found = await server(store)
    async with ClientSession() as client:
        other_scheme = {"Origin": f"https://127.0.0.1:{found.port}"}
        evil = {"Host": "evil.example:80"}, {"Origin": "http://evil.example"}, {"Origin": "null"}
        for headers in (*evil, other_scheme):
            for path in EVERYWHERE:
                url = found.make_url(f"{path}?token={TOKEN}")
                async with client.get(url, headers=headers) as answer:
                    assert answer.status == 403, (path, headers)
    await found.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
async def test_the_page_keeps_its_own_stylesheet_at_every_address(name: str, store: Path) -> None:
    found = await server(store)
    here = f"{name}:{found.port}"
    async with ClientSession() as client:
        url = found.make_url(f"/?token={TOKEN}")
        async with client.get(url, headers={"Host": here}) as page:
            text = await page.text()
    assert f'<link rel="stylesheet" href="http://{here}/static/css/xterm.css" />' in text
    assert "googleapis" not in text
    await found.close()


async def test_the_page_asks_nobody_else_for_anything(store: Path) -> None:
    found = await server(store)
    here = f"127.0.0.1:{found.port}"
    async with ClientSession() as client, client.get(found.make_url(f"/?token={TOKEN}")) as page:
        named = set(re.findall(r"(?:https?|wss?)://([^/\"'\s]+)", await page.text()))
        assert named - {"www.w3.org"} == {here}  # the SVG namespace, which nothing downloads
        rules = page.headers["Content-Security-Policy"]
        assert rules.startswith("default-src 'self' ")
        assert f"ws://{here}" in rules
    await found.close()


async def test_the_token_opens_the_page_and_its_cookie_the_rest(store: Path) -> None:
    found = await server(store)
    async with ClientSession() as client:
        async with client.get(found.make_url(f"/?token={TOKEN}")) as page:
            assert page.status == 200
            cookie = page.cookies[f"grpo_tui_token_{found.port}"]
            assert cookie["httponly"]
            assert cookie["samesite"] == "Strict"
            assert page.headers["Referrer-Policy"] == "no-referrer"
            text = await page.text()
            assert f"ws://127.0.0.1:{found.port}/ws" in text
        keep = {"Cookie": f"{cookie_name(f'127.0.0.1:{found.port}')}={TOKEN}"}
        async with client.get(found.make_url("/static/js/textual.js"), headers=keep) as script:
            assert script.status == 200
    await found.close()


def test_a_window_runs_the_read_only_view(store: Path) -> None:
    assert "--read-only" in command_for("@last", store).split()


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1:8765", True), ("localhost", True), ("[::1]:80", True), ("evil.example", False),
     ("127.0.0.1.evil.example:80", False), ("", False)],
)  # fmt: skip
def test_only_this_machine_is_here(host: str, here: bool) -> None:
    assert local_host(host) is here


STAND_IN = """
import pathlib, sys
sys.stdout.buffer.write(b"__GANGLION__\\n")
sys.stdout.flush()
while data := sys.stdin.buffer.read(5):
    content = sys.stdin.buffer.read(int.from_bytes(data[1:], "big")).decode()
    with pathlib.Path(sys.argv[1]).open("a") as log:
        print(data[:1].decode(), content, file=log)
    if '"quit"' in content:
        break
"""


@asynccontextmanager
async def stand_in(folder: Path) -> AsyncIterator[tuple[TestServer, Served, Path]]:
    """A server whose windows write what they are told to a file."""
    program, log = folder / "window.py", folder / "log.txt"
    program.write_text(STAND_IN)
    log.touch()
    opened = Served(shlex.join([sys.executable, str(program), str(log)]), 0, TOKEN)
    found = TestServer(await opened._make_app(), host="127.0.0.1")
    await found.start_server()
    try:
        yield found, opened, log
    finally:
        await found.close()


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ({"width": 1_000_000, "height": 1_000_000}, {"width": 640, "height": 240}),
        ({"width": -1, "height": 0}, {"width": 20, "height": 5}),
        ({"width": "9" * 5000, "height": None}, {"width": 80, "height": 24}),
        ({}, {"width": 80, "height": 24}),
    ],
)
async def test_a_window_has_a_size_that_fits_whatever_is_asked_for(
    tmp_path: Path, size: dict[str, object], shown: dict[str, int]
) -> None:
    async with stand_in(tmp_path) as (found, opened, log), ClientSession() as client:
        asked = {name: str(value) for name, value in size.items()}
        url = found.make_url("/ws").with_query(token=TOKEN, **asked)
        page = await client.ws_connect(url)
        await page.send_json(["resize", size])
        await wait_for(lambda: "resize" in log.read_text())
        assert json.loads(log.read_text()[2:]) == {"type": "resize", **shown}
        (window,) = opened.windows
        assert window._process
        values = psutil.Process(window._process.pid).environ()
        assert (values["COLUMNS"], values["ROWS"]) == tuple(map(str, shown.values()))
        await page.close()
        await wait_for(lambda: not opened.windows)


async def test_a_message_that_is_none_changes_nothing(tmp_path: Path) -> None:
    async with stand_in(tmp_path) as (found, _, log), ClientSession() as client:
        page = await client.ws_connect(found.make_url(f"/ws?token={TOKEN}"))
        for message in ("", "[", "7", "null", "[]", "{}", '["resize"]', '["resize", 7]', '["what"]',
                        '["stdin", 7]', "[" * 100_000, '[["stdin"], "x"]'):  # fmt: skip
            await page.send_str(message)
        await page.send_str('["stdin", "a\\ud800"]')
        await page.send_json(["ping", "5"])
        assert await page.receive_json() == ["pong", "5"]
        await wait_for(lambda: log.read_text() != "")
        assert log.read_text() == "D a?\n"
        await page.close()


async def test_beyond_the_limit_page_and_window_say_so_until_one_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "MOST_WINDOWS", 2)
    async with stand_in(tmp_path) as (found, opened, _), ClientSession() as client:
        url = found.make_url(f"/ws?token={TOKEN}")
        pages = [await client.ws_connect(url) for _ in range(2)]
        for path in ("/", "/ws"):
            async with client.get(found.make_url(f"{path}?token={TOKEN}")) as answer:
                assert answer.status == 503
                assert "windows are open" in await answer.text()
                assert "close one" in await answer.text()
        await pages[0].close()
        await wait_for(lambda: len(opened.windows) == 1)
        pages[0] = await client.ws_connect(url)
        assert len(opened.windows) == 2
        for page in pages:
            await page.close()


async def test_a_window_that_does_not_end_when_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "PATIENCE_S", 0.2)
    async with stand_in(tmp_path) as (found, opened, _), ClientSession() as client:
        page = await client.ws_connect(found.make_url(f"/ws?token={TOKEN}"))
        (window,) = opened.windows
        await wait_for(lambda: window._process is not None)
        assert window._process
        process = psutil.Process(window._process.pid)
        process.suspend()
        await page.close()
        await wait_for(lambda: not process.is_running())


async def test_a_server_that_ends_takes_its_windows_along(tmp_path: Path) -> None:
    async with stand_in(tmp_path) as (found, opened, log), ClientSession() as client:
        page = await client.ws_connect(found.make_url(f"/ws?token={TOKEN}"))
        await page.send_json(["blur"])
        await wait_for(lambda: "blur" in log.read_text())
        (window,) = opened.windows
        assert window._process
        process = psutil.Process(window._process.pid)
        async with asyncio.timeout(PATIENCE):
            await found.close()
        assert not process.is_running()
        assert '"quit"' in log.read_text()
