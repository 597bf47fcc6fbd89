"""MCP servers as tools: what they may list and answer, and what their misdeeds cost."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.environments import client, tool_servers
from grpo_engine.environments.adapters import UnusableError
from grpo_engine.environments.tool_servers import ToolServer, address_of
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.rollouts.dialogue import EnvironmentReply
from grpo_engine.sandbox.report import ProcessLostError
from tests.engine.environments.pools import client_of
from tests.patience import until

pytest.importorskip("mcp")
HERE = Path(__file__).parent
CITIES = HERE / "city_server.py"


def hostile(folder: Path, word: str = "") -> str:
    """The setting of the hostile server, with a path that no other test has."""
    script = folder / "hostile_server.py"
    script.write_text((HERE / "hostile_server.py").read_text())
    return f"mcp: {sys.executable} -I {script} {word}".strip()


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def processes(folder: Path) -> bytes:
    """What a test's servers and their children still are."""
    command = ["pgrep", "-f", f"{folder}/hostile_server|sleep 4321|yes hostile"]
    return subprocess.run(command, capture_output=True, check=False).stdout


@asynccontextmanager
async def connected(name: str, folder: Path) -> AsyncIterator[ToolServer]:
    """A server in this process."""
    server = ToolServer(name, folder, ())
    try:
        yield server
    finally:
        if server._holding is not None:
            server._drop()
            with suppress(asyncio.CancelledError):
                await server._holding


LISTS = {
    "many tools": "lists more than 256 tools",
    "endless pages": "lists more than 256 tools",
    "no tools": "lists no tools",
    "a long name": "of 10000 characters; a name is at most 128 letters",
    "an odd name": "has a tool 't\\x1b[31m\\u202e' of 7 characters",
    "a huge schema": "its tool act by an unusable schema: it has 1000159 characters, of 50000",
    "a pattern that is none": "unusable schema: '(' is not a 'regex'",
    "a wrong schema": "failed (ValidationError: 2 validation errors for ListToolsResult",
    "no object": "failed (ValidationError: 1 validation error for ListToolsResult",
    "the same tool twice": "lists two tools called act",
    "dies at its start": "ended: ModuleNotFoundError: No module named 'moon'; correct the server",
}


@pytest.mark.parametrize("word", LISTS)
async def test_a_server_whose_tools_no_model_can_use_is_refused_with_the_reason(
    tmp_path: Path, word: str
) -> None:
    async with connected(hostile(tmp_path, word), tmp_path) as server:
        with pytest.raises(BrokenEnvironmentError) as refused:
            await server.tools()
    assert LISTS[word] in str(refused.value)
    assert str(refused.value).endswith("correct the server, or take it out of task.tools")


async def test_a_schema_may_refer_to_itself(tmp_path: Path) -> None:
    async with connected(hostile(tmp_path, "a recursive schema"), tmp_path) as server:
        (tool,) = await server.tools()
    assert tool.schema["function"] == {
        "name": "act",
        "description": "Do it.",
        "parameters": {"type": "object", "properties": {"x": {"$ref": "#"}}},
    }


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mcp+http://example.org/mcp", "can be read and changed on its way; give an https address"),
        ("mcp+https://user:key@example.org/mcp", "is no address of a server, which is host, port"),
        ("mcp+https://example.org/mcp?key=x", "is no address"),
        ("mcp+ftp://example.org", "is no address"),
        ("mcp+https://example.org/mcp key-in-plain", "a key is never written there"),
        ("mcp+https://example.org/mcp A_KEY user:key", "a key is never written there"),
        ("mcp+http://127.0.0.1.example.org", "can be read and changed"),
    ],
)
def test_an_address_is_https_or_of_this_machine_and_has_no_key(name: str, problem: str) -> None:
    with pytest.raises(BrokenEnvironmentError) as refused:
        address_of(name)
    assert problem in str(refused.value)
    assert "key-in-plain" not in str(refused.value)


def test_a_key_is_that_of_a_variable_which_has_to_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "mcp+https://example.org/mcp A_KEY"
    assert address_of(name) == ("https://example.org/mcp", "A_KEY")
    monkeypatch.delenv("A_KEY", raising=False)
    with pytest.raises(BrokenEnvironmentError, match=r"A_KEY is not set .* sandbox\.environment"):
        ToolServer(name, tmp_path, ())


async def test_a_key_is_sent_as_a_bearer_s_and_cut_out_of_what_the_server_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "a-secret")
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        heads.append(head)
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        request = json.loads(await reader.readexactly(length) or b"{}")
        error = {"code": -32001, "message": "no a-secret"}
        body = json.dumps({"jsonrpc": "2.0", "id": request.get("id", 0), "error": error}).encode()
        fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"HTTP/1.1 200 OK\r\n{fields}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        for variable, sent in (" A_KEY", True), ("", False):
            heads.clear()
            async with connected(f"mcp+http://127.0.0.1:{port}/mcp{variable}", tmp_path) as server:
                with pytest.raises(BrokenEnvironmentError) as refused:
                    await asyncio.wait_for(server.tools(), 20)
            assert (b"authorization: bearer a-secret" in heads[0]) is sent
            assert ("no [key]" in str(refused.value)) is sent


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:80"])
def test_plain_http_reaches_this_machine(host: str) -> None:
    assert address_of(f"mcp+http://{host}/mcp") == (f"http://{host}/mcp", "")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("no-such-program --x", "there is no program 'no-such-program'; write `mcp: python my_"),
        ("", "it has no command"),
        ("python 'my server.py", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused(
    tmp_path: Path, command: str, problem: str
) -> None:
    with pytest.raises(BrokenEnvironmentError) as refused:
        ToolServer(f"mcp: {command}", tmp_path, ())
    assert problem in str(refused.value)


def test_the_extra_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(BrokenEnvironmentError) as refused:
        ToolServer("mcp: python x.py", tmp_path, ())
    assert f"needs the package mcp for {sys.executable} (" in str(refused.value)
    assert str(refused.value).endswith("`pip install 'grpo-tui[mcp]'`")


def test_the_sdk_is_imported_for_servers_alone() -> None:
    code = (
        "import sys, grpo_engine.environments.service; "
        "print(sorted({'mcp', 'mcp_types', 'jsonschema'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("an error", "not today"),
        ("asks the client", "3 refused"),
        ("a wrong result", "1 validation error for CallToolResult"),
    ],
)
async def test_a_call_that_fails_has_the_reason_and_the_next_one_its_result(
    tmp_path: Path, kind: str, result: str
) -> None:
    async with connected(hostile(tmp_path), tmp_path) as server:
        (act,) = await server.tools()
        with pytest.raises(Exception, match=result) as failed:
            await act(kind=kind)
        # A wrong result is no error that a model could learn from.
        assert isinstance(failed.value, UnusableError) == (kind == "a wrong result")
        assert await act(kind="well") == "well!"


async def test_what_cannot_be_sent_is_an_error_of_the_call(tmp_path: Path) -> None:
    async with connected(hostile(tmp_path), tmp_path) as server:
        (act,) = await server.tools()
        with pytest.raises(ValueError, match="surrogates not allowed"):
            await act(kind="\ud800")
        assert await act(kind="well") == "well!"


async def test_a_server_that_ended_between_two_calls_is_started_again(tmp_path: Path) -> None:
    async with connected(hostile(tmp_path), tmp_path) as server:
        (act,) = await server.tools()
        assert await act(kind="dies later") == "farewell"
        async with asyncio.timeout(20):
            while not server._errors.has_ended:
                await asyncio.sleep(0.01)
        assert await act(kind="well") == "well!"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dies", "hostile_server.py ended: ValueError: out of luck"),
        ("changes its tools", "hostile_server.py has changed its tool act during the run"),
    ],
)
async def test_a_server_that_ends_or_changes_costs_its_process(
    tmp_path: Path, kind: str, reason: str
) -> None:
    async with connected(hostile(tmp_path), tmp_path) as server:
        (act,) = await server.tools()
        if kind.startswith("changes"):
            assert await act(kind=kind) == "changed"
        with pytest.raises(ProcessLostError) as lost:
            await act(kind=kind)
    assert str(lost.value).endswith(reason)


def test_a_result_is_text_and_what_is_none_is_named() -> None:
    import mcp_types

    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    image = {"type": "image", "data": "aa==", "mimeType": "image/png"}
    parts = [{"type": "text", "text": "a"}, image, link]
    result = mcp_types.CallToolResult.model_validate({"content": parts})
    assert tool_servers.text_of(result) == "a\n[image]\n[file:///a]"
    result = mcp_types.CallToolResult(content=[], structured_content={"b": [1]})
    assert tool_servers.text_of(result) == '{"b": [1]}'


# What a dialogue has in the end in which the server does this: an error, or a result.
LATE = "step: took longer than 3 s; make it faster, or raise rewards.time_limit"
DEEDS: Mapping[str, tuple[str, str]] = {
    "hangs": (LATE, ""),
    "dies": ("hostile_server.py ended: ValueError: out of luck", ""),
    "dies later": ("", "farewell"),
    "floods stdout": (LATE, ""),
    "a huge result": ("step: its reply has 10000", ""),
    "no JSON-RPC": (LATE, ""),
    "unknown ids": (LATE, ""),
    "a wrong result": ("failed (ValidationError: 1 validation error for CallToolResult", ""),
    "changes its tools": ("", "changed"),
    "control characters": ("", "\x1b[2J\u202e\0 gone <|im_end|>"),
    "asks the client": ("", "{'error': '3 refused'}"),
    "writes errors without end": ("", "noise"),
    "leaves a child": ("", "left"),
    "an error": ("", "{'error': 'not today'}"),
}


@pytest.mark.slow
def test_each_misdeed_costs_its_dialogue_at_most_and_nothing_is_left(tmp_path: Path) -> None:
    kinds = [word for kind in DEEDS for word in (kind, f"after {kind}")]
    replies: dict[int, EnvironmentReply] = {}
    with client_of([hostile(tmp_path)], {"": ""}, tmp_path, 3.0) as environments:
        environments.begin(
            [client.Episode(environment="", row={}, seed=3, index=i) for i in range(len(kinds))]
        )
        for index, kind in enumerate(kinds):
            environments.submit(index, call("act", kind=kind))
        while len(replies) < len(kinds):
            replies |= environments.replies(0.1)
    # The first call after a server has changed its tools, or has ended without a word, may be the
    # one that finds out; the server is started again.
    finders = [
        i
        for i, reply in replies.items()
        if "has changed its tool act" in reply.error or reply.error.endswith("_server.py ended")
    ]
    assert len(finders) <= 2
    assert not {kinds[i] for i in finders} & {"changes its tools", "dies later"}
    for index, kind in enumerate(kinds):
        if index in finders:
            continue
        error, result = DEEDS.get(kind, ("", f"{kind}!"))
        reply = replies[index]
        assert error in reply.error, kind
        assert bool(reply.error) == bool(error), (kind, reply)
        assert [one.result for one in reply.calls] == [result] * (not error), kind
    until(lambda: not processes(tmp_path))


@pytest.mark.slow
def test_a_server_that_hangs_at_its_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "START_SERVERS_S", 12.0)
    name = hostile(tmp_path, "hangs at its start")
    with (
        pytest.raises(BrokenEnvironmentError, match="did not list its tools in time; start it by"),
        client_of([name], {"": ""}, tmp_path, 1.0),
    ):
        pass
    until(lambda: not processes(tmp_path))


@pytest.mark.slow
def test_two_tools_of_one_name_are_refused_with_both(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        'def act(kind: str) -> str:\n    """Act.\n\n    Args:\n        kind: How.\n    """\n\n\n'
        "class Mine:\n    def act(self):\n        '''Act.'''\n"
    )
    server, mine = hostile(tmp_path), f"{tmp_path}/mine.py:act"
    for tools, environment in (([server, mine], ""), ([server], f"{tmp_path}/mine.py:Mine")):
        with (
            pytest.raises(BrokenEnvironmentError) as refused,
            client_of(tools, {"": environment}, tmp_path, 1.0),
        ):
            pass
        other = environment or mine
        assert f"the tool act is both of {server} and of {other}, and a call" in str(refused.value)


@pytest.mark.slow
def test_what_a_server_was_asked_is_not_asked_again_in_a_new_process(tmp_path: Path) -> None:
    """The first dialogue has had two answers when the second ends the server."""
    counted = (
        (HERE / "hostile_server.py")
        .read_text()
        .replace(
            "    global changed\n", "    global changed\n    open(LOG, 'a').write(f'{kind}\\n')\n"
        )
    )
    script, log = tmp_path / "hostile_server.py", tmp_path / "log"
    script.write_text(counted.replace("changed = False", f"changed, LOG = False, {str(log)!r}"))
    with client_of([f"mcp: python {script}"], {"": ""}, tmp_path, 10.0) as environments:
        # The third is in the process of the first.
        episodes = [
            client.Episode(environment="", row={}, seed=3, index=index) for index in range(3)
        ]
        environments.begin(episodes)
        for index, kind in ((0, "one"), (0, "two"), (2, "dies"), (0, "three")):
            environments.submit(index, call("act", kind=kind))
            (found,) = until(lambda: environments.replies(0.1))
            assert bool(found[1].error) == (kind == "dies")
        assert episodes[0].process > 1
    assert log.read_text().split() == ["one", "two", "dies", "three"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@asynccontextmanager
async def served(port: int) -> AsyncIterator[None]:
    """The server of cities over HTTP, ready for requests."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(CITIES), str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(60):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield
    finally:
        server.kill()
        await server.wait()


@pytest.mark.slow
async def test_a_server_elsewhere_that_was_away_costs_one_call(tmp_path: Path) -> None:
    port = free_port()
    async with connected(f"mcp+http://127.0.0.1:{port}/mcp", tmp_path) as server:
        async with served(port):
            tools = {tool.name: tool for tool in await server.tools()}
            assert await tools["add"](first=2, second=3) == "5"
        with pytest.raises(UnusableError, match=f"^mcp.http://127.0.0.1:{port}/mcp "):
            await tools["population"](city="Oslo")
        async with served(port):
            assert await tools["population"](city="Oslo") == "717710"
    with pytest.raises(BrokenEnvironmentError, match="ConnectError"):
        await ToolServer(f"mcp+http://127.0.0.1:{port}/mcp", tmp_path, ()).tools()


async def test_dialogues_of_one_process_share_a_server(tmp_path: Path) -> None:
    async with connected(hostile(tmp_path), tmp_path) as server:
        (act,) = await server.tools()
        results = await asyncio.gather(*(act(kind=f"{n}") for n in range(50)))
        assert results == [f"{n}!" for n in range(50)]
        assert len(processes(tmp_path).split()) == 1
