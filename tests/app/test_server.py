"""The browser's view: nothing without the token, nothing from elsewhere, and only to look at."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("textual_serve", reason="serving is an extra")

from aiohttp import ClientConnectorError, ClientSession, WSServerHandshakeError
from aiohttp.test_utils import TestServer

from app.detach import environment
from app.server import COOKIE, Served, command_for, local_host
from tests.app.stored import record

TOKEN = "a-secret"
EVERYWHERE = ["/", "/static/js/textual.js", "/static/", "/ws", "/download/1"]


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


async def test_the_token_opens_the_page_and_its_cookie_the_rest(store: Path) -> None:
    found = await server(store)
    async with ClientSession() as client:
        async with client.get(found.make_url(f"/?token={TOKEN}")) as page:
            assert page.status == 200
            cookie = page.cookies[COOKIE]
            assert cookie["httponly"]
            assert cookie["samesite"] == "Strict"
            assert page.headers["Referrer-Policy"] == "no-referrer"
            assert f"ws://127.0.0.1:{found.port}/ws" in await page.text()
        keep = {"Cookie": f"{COOKIE}={TOKEN}"}
        async with client.get(found.make_url("/static/js/textual.js"), headers=keep) as script:
            assert script.status == 200
    await found.close()


@pytest.mark.soak
async def test_the_window_shows_the_run_and_does_not_steer_it(store: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-P", "-m", "app", "serve", "@last", "--port", str(port)]
    serving = subprocess.Popen(
        [*command, "--db", str(store)], env=environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert serving.stderr is not None
        address = serving.stderr.readline().strip()
        assert address.startswith(f"http://127.0.0.1:{port}/?token=")
        seen = await asyncio.wait_for(look_at(address), 150)
        assert "read-only" in seen
    finally:
        serving.terminate()
        serving.communicate(timeout=30)


async def look_at(address: str) -> str:
    """Open a window, ask for a pause and a new run by keys, and give what was drawn."""
    page, _, token = address.partition("?token=")
    seen, asked = "", False
    async with ClientSession(headers={"Cookie": f"{COOKIE}={token}"}) as client:
        while True:
            try:
                window = await client.ws_connect(f"{page}ws?width=120&height=40")
                break
            except ClientConnectorError:
                await asyncio.sleep(0.1)
        async for message in window:
            data = message.data
            seen += data.decode(errors="replace") if isinstance(data, bytes) else str(data)
            if "calm-otter" in seen and not asked:
                asked = True
                await window.send_str(json.dumps(["stdin", "2"]))
            if "read-only" in seen:
                break
        await window.close()
    return seen


def test_a_window_runs_the_read_only_view(store: Path) -> None:
    assert "--read-only" in command_for("@last", store).split()


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1:8765", True), ("localhost", True), ("[::1]:80", True), ("evil.example", False),
     ("127.0.0.1.evil.example:80", False), ("", False)],
)  # fmt: skip
def test_only_this_machine_is_here(host: str, here: bool) -> None:
    assert local_host(host) is here
