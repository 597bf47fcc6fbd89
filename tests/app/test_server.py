"""The browser's view: needs the token, loads nothing from other hosts, and is read-only."""

import re
import socket
from pathlib import Path

import pytest

pytest.importorskip("textual_serve", reason="serving is an extra")

from aiohttp import ClientSession, WSServerHandshakeError
from aiohttp.test_utils import TestServer

from grpo_tui.app.server import COOKIE, PortTakenError, Served, command_for, local_host, serve_run
from tests.app.stored import record

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
        for headers in ({"Host": "evil.example:80"}, {"Origin": "http://evil.example"}):
            for path in EVERYWHERE:
                url = found.make_url(f"{path}?token={TOKEN}")
                async with client.get(url, headers=headers) as answer:
                    assert answer.status == 403, (path, headers)
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
            cookie = page.cookies[COOKIE]
            assert cookie["httponly"]
            assert cookie["samesite"] == "Strict"
            assert page.headers["Referrer-Policy"] == "no-referrer"
            text = await page.text()
            assert f"ws://127.0.0.1:{found.port}/ws" in text
        keep = {"Cookie": f"{COOKIE}={TOKEN}"}
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
