"""Programs as environments: `agent: <command>` sends requests to an endpoint, and ends.

A program is started for each rollout. Its requests are the dialogue: one whose messages follow the
completion before them continues the context, any other begins a new one.
"""

import asyncio
import json
import os
import re
import secrets
import signal
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from grpo_engine.environments.adapters import UnusableError, number
from grpo_engine.environments.endpoint import (
    MODEL,
    Endpoint,
    Request,
    RequestRefusedError,
    plain_message,
    response_of,
)
from grpo_engine.environments.programs import ErrorOutput, variables_of
from grpo_engine.paths import remove
from grpo_engine.sandbox.process import ending

PREFIX = "agent:"
MAX_WAITING = 16  # requests of a program
MAX_SCORE = 100_000  # bytes of the file with a program's reward
# The end of the output of a Python program that an exception ended.
TRACEBACK = re.compile(rb'^  File ".*", line \d+.*\n(?: .*\n)*\S.*\n(?: .*\n)*\Z', re.MULTILINE)
OVER = "the rollout has ended: it has had all its turns or tokens"

Outcome = tuple[float | None, dict[str, Any]]  # reward, further values


class _Waiting(NamedTuple):
    """A request, and the response that will come."""

    request: Request
    response: asyncio.Future[Mapping[str, Any]]


class Player(Endpoint):
    """The program or episode that sends the requests of one rollout."""

    def __init__(self, name: str, sampling: Mapping[str, float]) -> None:
        super().__init__(sampling)
        self.name = name
        self._requests: asyncio.Queue[_Waiting | None] = asyncio.Queue()  # None at the end
        self._current: _Waiting | None = None
        self._messages: list[dict[str, Any]] = []  # up to the last completion
        self._tools: list[Any] = []
        self._steps, self._is_over = 0, False
        self._playing: asyncio.Task[Outcome] | None = None

    @abstractmethod
    async def play(
        self, row: Mapping[str, Any], seeds: tuple[int, int], url: str, key: str
    ) -> Outcome:
        """Run it, with the group's seed and its number, until it ends."""

    async def reset(self, row: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:
        """Start it; its first request is the prompt."""
        self._playing = asyncio.create_task(self.play(row, (seed, index), *await self.open()))
        self._playing.add_done_callback(lambda _: self._requests.put_nowait(None))
        reply = await self._reply()
        if reply["done"]:
            raise UnusableError(f"it ended before it asked for an answer{self.refusal}")
        return reply

    async def step(self, completion: str, **usage: Any) -> dict[str, Any]:
        """Respond to its request; return the next one, or its end."""
        waiting = self._current
        assert waiting is not None
        self._steps += 1
        response = response_of(waiting.request, completion, self._steps, **usage)
        self._messages.append(plain_message(response["choices"][0]["message"]))
        waiting.response.set_result(response)
        return await self._reply()

    async def finish(self) -> dict[str, Any] | None:
        """Refuse its requests until it ends; return its reward."""
        self._is_over, reply = True, None
        while self._current is not None:
            self._current.response.set_exception(RequestRefusedError(OVER))
            reply = await self._reply()
        return reply and {"reward": reply["reward"], "state": reply["info"]}

    async def drop(self) -> None:
        """End it, and serve it no more."""
        self.close()
        if self._playing is not None:
            self._playing.cancel()

    async def _reply(self) -> dict[str, Any]:
        """Its next request as a reply, or its end; without either in time it is ended."""
        self._current = None
        try:
            self._current = await self._requests.get()
        finally:
            if self._current is None:
                await self.drop()
        if self._current is None:
            assert self._playing is not None
            reward, info = self._playing.result()
            return {"messages": [], "done": True, "reward": reward, "info": info}
        request, length = self._current.request, len(self._messages)
        added = request.messages[length:]
        follows = (
            length
            and added
            and request.tools == self._tools
            and all(message["role"] in ("user", "tool") for message in added)
            and _comparable(request.messages[:length]) == _comparable(self._messages)
        )
        self._messages, self._tools = list(request.messages), request.tools
        return {
            "messages": added if follows else request.messages,
            "done": False,
            "restarts": not follows,
            "tools": request.tools,
            "limits": {"tokens": request.max_tokens, "stop": request.stop},
        }

    async def respond(self, request: Request) -> Mapping[str, Any]:
        if self._is_over:
            raise RequestRefusedError(OVER)
        if self._requests.qsize() >= MAX_WAITING:
            raise RequestRefusedError(
                f"{MAX_WAITING} requests of this rollout wait for their answers", 429
            )
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._requests.put_nowait(waiting)
        return await waiting.response


class Program(Player):
    """A process, which is ended with all that it started in its session."""

    def __init__(
        self,
        sampling: Mapping[str, float],
        folder: Path,
        command: Sequence[str],
        *,
        by_status: bool,
        named: Sequence[str] = (),
    ) -> None:
        """With `by_status`, exit status 0 and 1 are rewards where the program writes none.

        `named` variables are added to the short list that it has.
        """
        super().__init__("agent", sampling)
        self._command, self._errors = command, ErrorOutput()
        self._score, self._home = (folder / secrets.token_hex(8) for _ in range(2))
        self._named = named
        self._by_status = by_status
        self._process: asyncio.subprocess.Process | None = None

    async def play(
        self, row: Mapping[str, Any], seeds: tuple[int, int], url: str, key: str
    ) -> Outcome:
        """Run the command in a HOME of its own; its file or its exit status gives the reward."""
        self._home.mkdir()
        try:
            return await self._run(row, seeds, url, key)
        finally:
            folder, name = self._home.parent, self._home.name
            await asyncio.to_thread(remove, folder, name, ignore_errors=True)

    async def _run(
        self, row: Mapping[str, Any], seeds: tuple[int, int], url: str, key: str
    ) -> Outcome:
        seed, index = map(str, seeds)
        environment = {
            **variables_of(self._named, self._home),
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": MODEL,
            "GRPO_TUI_SEED": seed,
            "GRPO_TUI_INDEX": index,
            "GRPO_TUI_REWARD": str(self._score),
        }
        with self._errors.opened() as errors:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(row).encode())
        process.stdin.close()
        status = await process.wait()
        tail = await self._errors.end() if status else self._errors.tail
        score: Any = {}
        with suppress(FileNotFoundError):
            file = os.open(self._score, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
            try:
                score = os.read(file, MAX_SCORE).decode(errors="replace")
            finally:
                os.close(file)
            with suppress(ValueError, RecursionError):
                score = json.loads(score)
        info = score if isinstance(score, dict) else {"reward": score}
        reward = number(info.pop("reward", None))
        # Requests after the last turn are refused, and most programs end by that.
        may_fail = self._is_over or (self._by_status and not TRACEBACK.search(tail))
        accepted = (0, 1) if may_fail else (0,)
        if reward is None and (status not in accepted or not self._steps):
            raise UnusableError(f"the program {ending(status, tail)}{self.refusal}")
        if reward is None and self._by_status:
            reward = float(status == 0)
        return reward, info

    async def drop(self) -> None:
        with suppress(OSError):
            if self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)
        await super().drop()


def _comparable(messages: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Messages as a model sees them; programs may strip spaces."""
    return [(m["role"], m["content"].strip(), m.get("tool_calls")) for m in messages]
