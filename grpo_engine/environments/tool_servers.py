"""MCP servers as tools: `mcp: <command>` and `mcp+https://… [VARIABLE]`, by the official SDK.

A process of environments starts each server once, for all its dialogues. If a server that runs
here ends in a call, or a call is late, its process is ended with it, and the sandbox finds the call
at fault. A server elsewhere is connected again before the next call.
"""

import asyncio
import json
import logging
import os
import re
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grpo_engine.environments.adapters import ServerTool, UnusableError
from grpo_engine.environments.programs import ErrorOutput, command_of, variables_of
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.rewards.rubric import ADDRESS
from grpo_engine.sandbox.report import ProcessLostError

COMMAND, REMOTE = "mcp:", "mcp+"  # prefixes of a command and of an address
HERE = ("localhost", "127.0.0.1", "::1")  # hosts that plain http reaches
MAX_TOOLS = 256  # of a server
MAX_SCHEMA = 50_000  # characters of a tool's description as JSON
OF_HTTP = (-32000, -32600, -32603, -32700)  # codes by which the SDK reports statuses and closures
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


def is_server(name: str) -> bool:
    """Whether an entry of `task.tools` is a server's."""
    return name.startswith((COMMAND, REMOTE))


def address_of(name: str) -> tuple[str, str]:
    """The address of a server elsewhere, and the name of the variable with its key, if any.

    Plain http is only of this machine.
    """
    url, _, variable = name.removeprefix(REMOTE).partition(" ")
    if variable and not VARIABLE.fullmatch(variable):  # it may be the key, so it is not quoted
        raise BrokenEnvironmentError(
            f"after {REMOTE}{url} stands no name of a variable in capitals, such as MY_SERVER_KEY; "
            "a key is never written there"
        )
    if not ADDRESS.fullmatch(url):
        raise BrokenEnvironmentError(
            f"{name} is no address of a server, which is host, port and path without keys, as in "
            "mcp+https://example.org/mcp"
        )
    if url.startswith("http:") and urlsplit(url).hostname not in HERE:
        raise BrokenEnvironmentError(
            f"{name}: what is sent over plain http can be read and changed on its way; give an "
            "https address, or one of this machine"
        )
    return url, variable


def key_of(name: str, variable: str) -> str:
    """The key of a server, which this process has in its environment."""
    if variable and not os.environ.get(variable):
        raise BrokenEnvironmentError(
            f"{name}: {variable} is not set for environments; export it before the start, and name "
            "it in sandbox.environment if the run has a task.interpreter or began elsewhere"
        )
    return os.environ.get(variable, "")


class ToolServer:
    """One server, connected when its tools are listed, and again after its connection is lost."""

    def __init__(self, name: str, home: Path, named: Sequence[str]) -> None:
        """A server that is started here has `home` and the `named` variables."""
        try:
            import mcp
        except ImportError as error:
            raise BrokenEnvironmentError(
                f"{name} needs the package mcp for {sys.executable} ({error}); "
                "`pip install 'grpo-tui[mcp]'`"
            ) from error
        if not hasattr(mcp, "Client"):
            raise BrokenEnvironmentError(
                f"{name} needs mcp 2.3 or newer for {sys.executable}; "
                "`pip install -U 'grpo-tui[mcp]'`"
            )
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # a log of each line that is no message
        self.name, self._home, self._named = name, home, named
        self._is_remote = name.startswith(REMOTE)
        self._url, self._key, self._command = "", "", list[str]()
        if self._is_remote:
            self._url, variable = address_of(name)
            self._key = key_of(name, variable)
        else:
            self._command = command_of(name, COMMAND, f"{COMMAND} python my_server.py")
        self._errors, self._connecting = ErrorOutput(), asyncio.Lock()
        self._schemas: dict[str, dict[str, Any]] = {}  # by tool, as the model was told
        self._client: Any = None
        self._holding: asyncio.Task[None] | None = None

    async def tools(self) -> list[ServerTool]:
        """Its tools, which have to be fit for a model."""
        try:
            listed = await self._listed(await self._connected())
        except Exception as error:
            raise self._broken(await self._problem(error)) from error
        if not listed:
            raise self._broken("lists no tools")
        for tool in listed:
            schema = self._schema(tool)
            if tool.name in self._schemas:
                raise self._broken(f"lists two tools called {tool.name}")
            self._schemas[tool.name] = schema
        return [
            ServerTool(name=name, schema=schema, call=partial(self.call, name))
            for name, schema in self._schemas.items()
        ]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The text of a tool's result; raises the tool's error, or one of the server's."""
        from mcp import MCPError
        from pydantic_core import to_json

        to_json(arguments)  # What cannot be sent is an error of the call.
        try:
            client = await self._connected()
            text, has_failed = await self._result(client, tool, arguments)
            if has_failed:
                await self._check_changes(client, tool)
        except asyncio.CancelledError:
            if self._is_remote:
                raise
            raise ProcessLostError from None
        except MCPError as error:
            raise await self._lost(error) from error
        except (ValueError, RuntimeError) as error:  # of the SDK, about the form of a result
            raise UnusableError(f"{self.name} {await self._problem(error)}") from error
        if has_failed:
            raise RuntimeError(text)
        return text

    async def _result(
        self, client: Any, tool: str, arguments: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """The text of a tool's result or error, and whether it is an error."""
        from mcp import MCPError

        try:
            result = await client.call_tool(tool, arguments)
        except MCPError as error:
            if _is_closed(error) or (self._is_remote and error.code in OF_HTTP):
                raise
            return self._without_key(str(error)), True
        return self._without_key(text_of(result)), result.is_error

    async def _check_changes(self, client: Any, tool: str) -> None:
        """After a failed call, refuse a server whose tool is no longer what the model was told."""
        listed = {item.name: item.input_schema for item in await self._listed(client)}
        if listed.get(tool) != self._schemas[tool]["function"]["parameters"]:
            problem = f"{self.name} has changed its tool {tool} during the run"
            raise UnusableError(problem) if self._is_remote else ProcessLostError(problem)

    async def _lost(self, error: Exception) -> Exception:
        """The error of a call in which the connection was lost."""
        problem = f"{self.name} {await self._problem(error)}"
        if not self._is_remote:
            return ProcessLostError(problem)
        self._drop()
        return UnusableError(problem)

    async def _listed(self, client: Any) -> list[Any]:
        page = await client.list_tools(cache_mode="bypass")
        listed = list(page.tools)
        while page.next_cursor and len(listed) <= MAX_TOOLS:
            page = await client.list_tools(cursor=page.next_cursor)
            listed += page.tools
        if len(listed) > MAX_TOOLS:
            raise UnusableError(f"lists more than {MAX_TOOLS} tools")
        return listed

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._errors.has_ended and self._client is not None:
                await self._drop_if_dead()
            if self._client is None:
                connected = asyncio.get_running_loop().create_future()
                self._holding = asyncio.create_task(self._hold(connected))
                try:
                    self._client = await connected
                except asyncio.CancelledError:
                    self._drop()
                    raise
            return self._client

    async def _hold(self, connected: asyncio.Future[Any]) -> None:
        """Connect and stay connected; the SDK enters and leaves a connection in one task."""
        client = None
        try:
            async with AsyncExitStack() as stack:
                client = await self._open(stack)
                connected.set_result(client)
                await asyncio.Event().wait()
        except Exception as error:  # The SDK raises groups of any kind, also while it closes.
            if not connected.done():
                connected.set_exception(UnusableError(await self._problem(error)))
        finally:
            if self._client is client:
                self._client = None

    async def _open(self, stack: AsyncExitStack) -> Any:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        if self._is_remote:
            transport = await _over_http(self._url, self._key, stack)
            return await stack.enter_async_context(Client(transport))
        program, *arguments = self._command
        parameters = StdioServerParameters(
            command=program,
            args=arguments,
            env=variables_of(self._named, self._home),
            encoding_error_handler="replace",
        )
        with self._errors.opened() as errors:
            return await stack.enter_async_context(Client(stdio_client(parameters, errors)))

    async def _drop_if_dead(self) -> None:
        """Drop the connection to a server that ended between two calls."""
        from mcp import MCPError

        try:
            await self._client.list_tools(cache_mode="bypass")
        except MCPError:
            self._drop()

    def _drop(self) -> None:
        self._client = None
        if self._holding is not None:
            self._holding.cancel()

    async def _problem(self, error: BaseException) -> str:
        """What went wrong, with the last line of what a server wrote here about errors."""
        if isinstance(error, UnusableError):
            return str(error)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = self._without_key(" ".join(str(error).split()))
        text = f"failed ({type(error).__name__}: {text})"[:500]
        if self._command and _is_closed(error):
            last = (await self._errors.end()).decode(errors="replace").strip()
            text = f"ended: {last.rpartition(chr(10))[2]}".removesuffix(": ")
        return text

    def _without_key(self, text: str) -> str:
        """What a server wrote, which may quote the key: models and stores get it."""
        return text.replace(self._key, "[key]") if self._key else text

    def _schema(self, tool: Any) -> dict[str, Any]:
        """The description of a tool in the form of chat templates."""
        if not NAME.fullmatch(tool.name):
            raise self._broken(
                f"has a tool {tool.name[:60]!r} of {len(tool.name)} characters; a name is at most "
                "128 letters, digits, _, -, . and /"
            )
        from jsonschema import Draft202012Validator, SchemaError

        description = cleandoc(tool.description or tool.title or "")
        function = {"name": tool.name, "description": description, "parameters": tool.input_schema}
        problem = ""
        try:
            if (length := len(json.dumps(function))) > MAX_SCHEMA:
                problem = f"it has {length} characters, of {MAX_SCHEMA}"
            elif tool.input_schema.get("type") != "object":
                problem = "its type is not object"
            else:
                Draft202012Validator.check_schema(tool.input_schema)
        except (RecursionError, SchemaError) as error:
            problem = getattr(error, "message", "it is nested too deeply")[:300]
        if problem:
            raise self._broken(f"describes its tool {tool.name} by an unusable schema: {problem}")
        return {"type": "function", "function": function}

    def _broken(self, problem: str) -> BrokenEnvironmentError:
        return BrokenEnvironmentError(
            f"{self.name} {problem}; correct the server, or take it out of task.tools"
        )


def _is_closed(error: BaseException) -> bool:
    """Whether the SDK says that the connection is closed; servers may use the same code."""
    code, message = getattr(error, "code", 0), getattr(error, "message", "")
    return code == OF_HTTP[0] and message == "Connection closed"


async def _over_http(url: str, key: str, stack: AsyncExitStack) -> Any:
    """The transport of an address: without proxies, and limited in time by who calls.

    Redirects are not followed, so that the key goes nowhere else.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        trust_env=False,
        timeout=None,
        verify=ssl.create_default_context(),
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )
    return streamable_http_client(url, http_client=await stack.enter_async_context(client))


def text_of(result: Any) -> str:
    """The text of a result; what else it has is named, for the model reads text."""
    parts = []
    for block in result.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            parts.append(block.resource.text)
        elif block.type == "resource_link":
            parts.append(f"[{block.uri}]")
        else:
            parts.append(f"[{block.type}]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content))
    return "\n".join(parts)
