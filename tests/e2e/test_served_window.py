"""`grpo-tui serve` as seen by a browser: a read-only window on an active run."""

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyte
import pytest

pytest.importorskip("textual_serve", reason="serving is an extra")

from aiohttp import ClientSession, ClientWebSocketResponse, WSServerHandshakeError

from grpo_engine.config.parse import build
from grpo_tui.app.server import DRIVER, cookie_name
from grpo_tui.experiments.processes import environment
from grpo_tui.experiments.record.recorder import Recorder
from grpo_tui.experiments.record.run_recorder import RunRecorder
from tests.app.script import CONFIG, Script
from tests.app.test_server import free_port
from tests.patience import PATIENCE, until

COLUMNS, ROWS = 120, 40
ESCAPE = "\x1b[27u"  # the key by its number: a bare \x1b counts only if nothing follows soon
SCRIPT = Script(steps=3, total_steps=500, prompts=4, group=4)
# keys that would control, start, change, delete, mute, write a file or start a program
DENIED = (
    "3", ".", "w", "S", "\r", ESCAPE, "\t\t\t", "x", "e", ESCAPE, "2", "4", "*", "o", "e", ESCAPE,
    "1", "x", "d", "u", "c", "1", "r", "P", "i", "zz\r", ESCAPE, "b", "Q", ESCAPE, "e", ESCAPE,
    "5", "e", ESCAPE, "3", ".",
)  # fmt: skip


@dataclass
class Page:
    """A served page, with the process behind it."""

    address: str
    store: Path
    run: RunRecorder
    process: psutil.Process
    log: Path

    @property
    def root(self) -> str:
        return self.address.partition("?")[0]

    @property
    def host(self) -> str:
        return self.root.split("/")[2]

    @property
    def token(self) -> str:
        return self.address.partition("?token=")[2]

    def windows(self) -> list[psutil.Process]:
        """The processes of open windows."""
        return self.process.children(recursive=True)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A run that is active in this process, and the program that serves it."""
    store = tmp_path / "grpo.db"
    recorder = Recorder(store)
    run = recorder.start_run(build(CONFIG), name="calm-otter")
    for event in SCRIPT.events():
        run.put(event)
    command = [sys.executable, "-P", "-m", "grpo_tui", "serve", "calm-otter"]
    log = tmp_path / "log.txt"
    with log.open("wb") as output:
        serving = subprocess.Popen(
            [*command, "--port", str(free_port()), "--db", str(store)], env=environment(),
            cwd=tmp_path, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        address = until(lambda: log.read_text().partition("\n")[0], log.read_text)
        yield Page(address, store, run, psutil.Process(serving.pid), log)
    finally:
        serving.terminate()
        serving.wait(timeout=PATIENCE)
        run.close()
        recorder.close()
    assert serving.returncode in (0, -signal.SIGKILL)


class Window:
    """The screen of a browser's terminal."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self.output = b""
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)

    async def read(self) -> None:
        """Read output until the window closes."""
        async for message in self.socket:
            if isinstance(message.data, bytes):
                self.output += message.data
                self._stream.feed(message.data)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    async def type(self, keys: str) -> None:
        await self.socket.send_str(json.dumps(["stdin", keys]))

    async def see(self, *words: str) -> None:
        end = time.monotonic() + PATIENCE
        while not all(word in self.text() for word in words):
            assert time.monotonic() < end, f"{words} did not show:\n{self.text()}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def window(page: Page, *, columns: int = COLUMNS, rows: int = ROWS) -> AsyncIterator[Window]:
    """Open the page as a browser does: first its address, then the socket that it names."""
    async with ClientSession(
        headers={"Cookie": f"{cookie_name(page.host)}={page.token}"}
    ) as client:
        socket = await client.ws_connect(
            f"{page.root}ws?width={columns}&height={rows}", origin=page.root.rstrip("/")
        )
        opened = Window(socket)
        reading = asyncio.ensure_future(opened.read())
        try:
            yield opened
        finally:
            await socket.close()
            await reading


async def listening(page: Page) -> None:
    """Wait until the address responds."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            async with ClientSession() as client, client.get(page.root):
                return
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError(f"{page.root} does not answer")


async def nobody_left(page: Page) -> None:
    """Wait until no window's process remains."""
    end = time.monotonic() + PATIENCE
    while page.windows():
        assert time.monotonic() < end, f"left: {page.windows()}"
        await asyncio.sleep(0.05)


def contents(store: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every table that a person could change from the workbench."""
    with closing(sqlite3.connect(store)) as connection:
        return {
            name: connection.execute(f"SELECT * FROM {name}").fetchall()
            for name in ("run", "run_tag", "alert", "control", "queue_item", "sweep")
        }


async def demands_its_token(page: Page) -> None:
    """Page, static files and socket reject requests without the token."""
    async with ClientSession() as client:
        for path in ("", "static/js/textual.js", "static/css/xterm.css", "ws", "download/1"):
            for query in ("", "?token=guess"):
                async with client.get(page.root + path + query) as answer:
                    assert answer.status == 401, path
                    assert page.token not in await answer.text()
        with pytest.raises(WSServerHandshakeError, match="401"):
            await client.ws_connect(f"{page.root}ws")
        async with client.get(page.address) as answer:
            text = await answer.text()
            assert answer.status == 200
            assert page.token not in text
            assert f"{page.root.replace('http', 'ws')}ws" in text
    assert page.windows() == []


@pytest.mark.slow
async def test_a_browser_sees_the_run_go_on_and_steers_nothing(page: Page) -> None:
    await listening(page)
    await demands_its_token(page)
    async with window(page) as seen:
        await seen.see("calm-otter", "step 3/500", "alerts · log")
        before = contents(page.store)
        files = sorted(page.store.parent.rglob("*.svg")) + sorted(page.store.parent.rglob("*.csv"))
        for keys in DENIED:
            await seen.type(keys)
        await seen.see("read-only")
        await seen.type("1")
        await seen.see("▌1 Runs▐")  # the last key
        assert contents(page.store) == before
        assert sorted(page.store.parent.rglob("*.svg")) == files == []
        # the run continues, and so does the window
        for event in Script(steps=5, total_steps=500, prompts=4, group=4).events():
            if event.step > 3:
                page.run.put(event)
        await seen.type("3")
        await seen.see("step 5/500")
        assert "paused" not in seen.text()
    await nobody_left(page)


MALFORMED = (
    b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
    b"\x1b]52;c;aGk=\x07 / HTTP/1.1\r\n\r\n",
    b"GET /?token=%ff%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /\x1b[31m HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: \xff=\xff; a\r\n b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
    b"GET http://[::1/ HTTP/1.1\r\n\r\n", b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
)  # fmt: skip


@pytest.mark.slow
async def test_the_log_has_a_line_for_a_request_and_never_the_token(page: Page) -> None:
    await listening(page)
    async with ClientSession() as client, client.get(page.address) as answer:
        assert answer.status == 200
    before = page.log.read_text().count("\n")
    for request in MALFORMED:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(page.host.split(":")[1]))
        writer.write(request)
        writer.write_eof()
        await reader.read()
        writer.close()
    log = page.log.read_text()
    assert page.process.is_running()
    assert log.count("\n") - before <= len(MALFORMED)
    assert "Traceback" not in log
    assert "\x1b" not in log
    assert log.count(page.token) == 1  # in the address
    assert "GET / 200" in log


@pytest.mark.slow
async def test_a_window_of_a_million_columns_is_an_ordinary_one(page: Page) -> None:
    await listening(page)
    async with window(page, columns=100_000, rows=100_000) as seen:
        await seen.socket.send_json(["resize", {"width": 1_000_000, "height": 1_000_000}])
        async with asyncio.timeout(PATIENCE):
            while b"calm-otter" not in seen.output:
                await asyncio.sleep(0.05)
        (process,) = page.windows()
        columns = [int(number) for number in re.findall(rb"\x1b\[\d+;(\d+)H", seen.output)]
        assert 200 < max(columns) <= 640
        assert process.memory_info().rss < 1e9
    await nobody_left(page)


@pytest.mark.slow
async def test_windows_end_with_a_server_that_is_killed(page: Page) -> None:
    await listening(page)
    async with window(page) as seen:
        await seen.see("calm-otter")
        processes = page.windows()
        assert processes
        page.process.kill()
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]


@pytest.mark.slow
def test_a_window_ends_with_its_input_even_if_it_has_nothing_to_draw(page: Page) -> None:
    command = [sys.executable, "-P", "-m", "grpo_tui", "watch", "calm-otter", "--read-only"]
    with subprocess.Popen(
        [*command, "--db", str(page.store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**environment(), "TEXTUAL_DRIVER": DRIVER},
    ) as watching:  # fmt: skip
        assert watching.stdout is not None
        assert watching.stdout.readline() == b"__GANGLION__\n"
        watching.communicate(timeout=PATIENCE)  # reads what it draws, and closes its input


@pytest.mark.soak
@pytest.mark.timeout(1500)
async def test_windows_come_and_go_and_leave_nothing_behind(page: Page) -> None:
    await listening(page)
    memory = 0
    for round_ in range(15):
        async with window(page) as one, window(page) as other:
            await one.see("calm-otter", "step 3/500")
            if round_ % 3 == 0:
                await one.socket.close()  # as when a laptop is closed
            await other.see("calm-otter", "step 3/500")
        await nobody_left(page)
        memory = memory or page.process.memory_info().rss
    assert page.process.memory_info().rss - memory < 20e6
    assert page.process.num_fds() < 40
