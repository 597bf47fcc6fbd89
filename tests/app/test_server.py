"""The browser's view: nothing without the token, nothing from elsewhere, and only to look at."""

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("textual_serve", reason="serving is an extra")

from aiohttp import ClientSession, WSServerHandshakeError
from aiohttp.test_utils import TestServer

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


@pytest.mark.slow
async def test_the_window_shows_the_run_and_does_not_steer_it(store: Path) -> None:
    found = await server(store)
    seen = ""
    async with ClientSession(headers={"Cookie": f"{COOKIE}={TOKEN}"}) as client:
        url = found.make_url("/ws?width=120&height=40")
        async with client.ws_connect(url) as window:
            asked = False
            async with asyncio.timeout(120):
                async for message in window:
                    data = message.data
                    seen += data.decode(errors="replace") if isinstance(data, bytes) else data
                    if "calm-otter" in seen and not asked:
                        asked = True
                        await window.send_str(json.dumps(["stdin", ".2e"]))
                    if "read-only" in seen:
                        break
    await found.close()
    assert asked


def test_a_window_runs_the_read_only_view(store: Path) -> None:
    assert "--read-only" in command_for("@last", store).split()


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1:8765", True), ("localhost", True), ("[::1]:80", True), ("evil.example", False),
     ("127.0.0.1.evil.example:80", False), ("", False)],
)  # fmt: skip
def test_only_this_machine_is_here(host: str, here: bool) -> None:
    assert local_host(host) is here
