"""Reward functions that only this process has run in it; all others in the reward process."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpo_engine.rewards.load import LoadedReward, as_reward
from grpo_engine.rewards.worker.main import Server
from grpo_engine.rewards.worker.process import UserProcess

Functions = Mapping[str, Callable[..., Any]]


class LocalServer(Server):
    """Answers requests in this process, without a time limit except for async functions."""

    passed_on = (KeyboardInterrupt,)

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self._functions = functions
        # a notebook runs an event loop in this thread already
        self._thread = ThreadPoolExecutor(1, "rewards")

    def find(self, name: str, options: Mapping[str, Any]) -> LoadedReward:
        function = self._functions[name]
        code = getattr(inspect.unwrap(function), "__code__", None)
        return as_reward(name, function, code.co_filename if code else "", options)

    def call(self, functions: Sequence[int], limit: float) -> list[Any]:
        return self.scores(functions, limit)

    def run(self, awaitable: Any) -> Any:
        return self._thread.submit(super().run, awaitable).result()

    def close(self) -> None:
        """End the thread of async functions."""
        if self.loop is not None:
            self._thread.submit(self.loop.close).result()
        self._thread.shutdown()


class Mixed:
    """Takes the place of a `UserProcess`, which it starts only if a function needs one."""

    def __init__(self, functions: Functions, start: Callable[[], UserProcess]) -> None:
        self._functions, self._start = functions, start
        self._local = LocalServer(functions)
        self._process: UserProcess | None = None
        self._places: list[tuple[bool, int]] = []  # of each function: is it local, and its index

    @property
    def pid(self) -> int | None:
        """The reward process's id, if there is one."""
        return self._process.pid if self._process else None

    def ask(self, frame: Mapping[str, Any], limit: float) -> Any:
        """Send a request to where its functions are."""
        match frame["do"]:
            case "load":
                return self._load(frame, limit)
            case "batch":
                if self._process is not None:
                    self._process.ask(frame, limit)
                return self._local.answer(frame)
            case "call":
                return self._call(frame, limit)
        local, place = self._places[frame["function"]]
        return self._send(local, {**frame, "function": place}, limit)

    def _load(self, frame: Mapping[str, Any], limit: float) -> Any:
        local = frame["name"] in self._functions
        if not local and self._process is None:
            self._process = self._start()
        found = self._send(local, frame, limit)
        self._places.append((local, sum(one[0] == local for one in self._places)))
        return found

    def _call(self, frame: Mapping[str, Any], limit: float) -> list[Any]:
        """Call functions; those of one side run together, if there are several."""
        found: dict[int, Any] = {}
        for side in (False, True):
            own = [index for index in frame["functions"] if self._places[index][0] == side]
            if own:
                places = [self._places[index][1] for index in own]
                answers = self._send(side, {**frame, "functions": places}, limit)
                found |= dict(zip(own, answers, strict=True))
        return [found[index] for index in frame["functions"]]

    def _send(self, local: bool, frame: Mapping[str, Any], limit: float) -> Any:
        if local:
            return self._local.answer(frame)
        assert self._process is not None
        return self._process.ask(frame, limit)

    def stop(self, grace: float = 1.0) -> None:
        """End the reward process, if there is one."""
        self._local.close()
        if self._process is not None:
            self._process.stop(grace)
