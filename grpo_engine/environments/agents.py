"""Programs as environments: `agent: <command>` asks an endpoint for answers, and ends.

A program is started for each rollout. Its requests are the dialogue: one whose messages follow the
answer before them continues the context, any other begins a new one.
"""

import asyncio
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_engine.environments.adapters import UnusableError, number
from grpo_engine.environments.endpoint import (
    Answer,
    Endpoint,
    RefusedError,
    Request,
    answer_of,
    plain_message,
)
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.sandbox.process import ending

PREFIX = "agent:"
WAITING = 16  # requests of a program that may wait
TAIL = 4096  # bytes of what a program writes as its last
MAX_SCORE = 100_000  # bytes of the file with its reward
LOOPBACK = "127.0.0.1,localhost"
OVER = "the rollout has ended: it has had all its turns or tokens"


def search_path() -> str:
    """Where programs are searched: first beside the Python that runs this."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def command_of(name: str) -> list[str]:
    """The command of an `agent:`, whose program must be there."""
    command = shlex.split(name.removeprefix(PREFIX))
    if not command or shutil.which(command[0], path=search_path()) is None:
        missing = f"there is no program {command[0]!r}" if command else "it has no command"
        raise BrokenEnvironmentError(f"{name}: {missing}; write `agent: python my_agent.py`")
    return command


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request, and the answer that will come."""

    request: Request
    answer: asyncio.Future[Answer]


class Player(ABC):
    """What asks for the answers of one rollout, its requests, and how it ended."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._name = endpoint, secrets.token_hex(8)
        self._requests: asyncio.Queue[_Waiting | None] = asyncio.Queue()  # None: it has ended
        self._current: _Waiting | None = None
        self._messages: list[dict[str, Any]] = []  # with the last answer
        self._tools: list[Any] = []
        self._answers, self._is_over = 0, False
        self._watching: asyncio.Task[None] | None = None

    @abstractmethod
    async def _start(
        self, row: Mapping[str, Any], seeds: tuple[int, int], url: str, key: str
    ) -> Coroutine[Any, Any, Any]:
        """Start it with the group's seed and its number; return what lasts until its end."""

    @abstractmethod
    def _ended(self) -> dict[str, Any]:
        """Its end as a reply, with its reward."""

    async def begin(self, row: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:
        """Start it; return its first request."""
        key = secrets.token_hex(16)
        url = await self._endpoint.add(self._name, key, self._ask)
        playing = await self._start(row, (seed, index), url, key)
        self._watching = asyncio.create_task(self._watch(playing))
        reply = await self._next()
        if reply["done"]:
            raise UnusableError("it ended before it asked for an answer")
        return reply

    async def answered(self, text: str, **usage: Any) -> dict[str, Any]:
        """Answer its request; return its next one, or its end."""
        waiting = self._current
        assert waiting is not None
        self._answers += 1
        answer = answer_of(waiting.request, text, self._answers, **usage)
        self._messages.append(plain_message(answer.message))
        waiting.answer.set_result(answer)
        return await self._next()

    async def finish(self) -> dict[str, Any]:
        """Refuse what it asks until it ends."""
        self._is_over, waiting = True, self._current
        while waiting is not None:
            waiting.answer.set_exception(RefusedError(400, OVER))
            waiting = await self._requests.get()
        return self._ended()

    def end(self) -> None:
        """End it, and serve it no more."""
        self._endpoint.remove(self._name)
        if self._watching is not None:
            self._watching.cancel()

    async def _next(self) -> dict[str, Any]:
        """Its next request as a reply, or its end."""
        self._current = await self._requests.get()
        if self._current is None:
            return self._ended()
        request, known = self._current.request, len(self._messages)
        added = request.messages[known:]
        follows = (
            known and added and request.tools == self._tools
            and all(message["role"] in ("user", "tool") for message in added)
            and all(map(_are_same, request.messages, self._messages))
        )  # fmt: skip
        self._messages, self._tools = list(request.messages), request.tools
        return {
            "messages": added if follows else request.messages, "done": False,
            "restarts": not follows, "tools": request.tools,
            "limits": {"tokens": request.max_tokens, "stop": request.stop},
        }  # fmt: skip

    async def _ask(self, request: Request) -> Answer:
        if self._is_over:
            raise RefusedError(400, OVER)
        if self._requests.qsize() >= WAITING:
            raise RefusedError(429, f"{WAITING} requests of this rollout wait for their answers")
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._requests.put_nowait(waiting)
        return await waiting.answer

    async def _watch(self, playing: Coroutine[Any, Any, Any]) -> None:
        await playing
        self._requests.put_nowait(None)


class Program(Player):
    """A process, which is ended with all that it started in its session."""

    def __init__(self, endpoint: Endpoint, folder: Path, command: Sequence[str]) -> None:
        super().__init__(endpoint)
        self._command, self._score, self._tail = command, folder / self._name, b""
        self._process: asyncio.subprocess.Process | None = None

    async def _start(
        self, row: Mapping[str, Any], seeds: tuple[int, int], url: str, key: str
    ) -> Coroutine[Any, Any, Any]:
        seed, index = map(str, seeds)
        environment = {
            **os.environ, "PATH": search_path(), "NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK,
            "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "OPENAI_MODEL": self._endpoint.model,
            "GRPO_TUI_SEED": seed, "GRPO_TUI_INDEX": index, "GRPO_TUI_REWARD": str(self._score),
        }  # fmt: skip
        self._score.write_text(json.dumps(row))
        output, written = os.pipe()
        with self._score.open("rb") as stdin:
            self._score.unlink()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=stdin, stderr=written, env=environment,
                    start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(written)
        asyncio.get_running_loop().add_reader(output, self._drain, output)
        return self._process.wait()

    def end(self) -> None:
        super().end()
        with suppress(ProcessLookupError, PermissionError):
            if self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _drain(self, output: int) -> None:
        """Keep the end of what it writes about errors."""
        data = os.read(output, 1 << 16)
        self._tail = (self._tail + data)[-TAIL:]
        if not data:
            asyncio.get_running_loop().remove_reader(output)
            os.close(output)
            os.write(2, self._tail)  # to the log

    def _ended(self) -> dict[str, Any]:
        """With the file that it wrote, and how it exited."""
        assert self._process is not None
        status = self._process.returncode
        assert status is not None
        info: dict[str, Any] = {}
        if self._score.exists():
            text = self._score.read_bytes()[:MAX_SCORE].decode(errors="replace")
            try:
                score = json.loads(text)
            except ValueError:
                raise UnusableError(
                    f"its reward is {text[:60]!r}, not a number or an object"
                ) from None
            info = score if isinstance(score, dict) else {"reward": score}
        reward = number(info.pop("reward", None), "its reward")
        if reward is None and (status not in (0, 1) or not self._answers):
            *_, last = [b"", *filter(None, map(bytes.strip, self._tail.splitlines()))]
            text = f"the program {ending(status)}: {last.decode(errors='replace')}"
            raise UnusableError(text.removesuffix(": "))
        return {"messages": [], "done": True, "reward": reward, "info": info, "status": status}


def _are_same(message: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether two messages are the same to a model; programs may strip an answer."""
    return all(
        message[name].strip() == known[name].strip() if name == "content"
        else message.get(name) == known.get(name)
        for name in ("role", "content", "tool_calls")
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class AgentEpisodes:
    """Episodes of one rollout after the other, each with a player of its own."""

    name: str
    new: Callable[[], Player]
    by_status: bool  # whether exit status 0 and 1 are rewards where a program writes none
    player: Player | None = None

    async def reset(self, row: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:
        """Start a player; its first request is the prompt."""
        self.end()
        self.player = self.new()
        reply = await self._during(self.player.begin(row, seed, index))
        return {"text": "", **reply}

    async def step(self, answer: str, **usage: Any) -> dict[str, Any]:
        """Answer the player; return what it asks next, or how it ended."""
        assert self.player is not None
        return self._scored(await self._during(self.player.answered(answer, **usage)))

    async def finish(self) -> dict[str, Any]:
        """Let a player that has not ended do so; return its reward."""
        if self.player is None:
            return {}
        reply = self._scored(await self._during(self.player.finish()))
        return {"reward": reply["reward"], "state": reply["info"]}

    async def drop(self) -> dict[str, Any]:
        """End the player of a rollout that failed."""
        self.end()
        return {}

    async def _during(self, playing: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """What the player does; it is ended once it is over, fails or takes too long."""
        done = True
        try:
            reply = await playing
            done = reply["done"]
        finally:
            if done:
                self.end()
        return reply

    def _scored(self, reply: dict[str, Any]) -> dict[str, Any]:
        """A reply with the reward that a program's exit status is."""
        status = reply.pop("status", None)
        if self.by_status and status is not None and reply["reward"] is None:
            reply["reward"] = float(status == 0)
        return reply

    def end(self) -> None:
        """End what is left of the last episode."""
        if self.player is not None:
            player, self.player = self.player, None
            player.end()
