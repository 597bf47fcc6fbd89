"""Calls of the trial process from the workbench."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import StopNow
from grpo_engine.sandbox.client import Sandbox, ServiceCall
from grpo_tui.experiments.processes import environment

SERVICE = "grpo_tui.app.trial.service:Trials"
MAY_FETCH = "GRPO_TUI_MAY_FETCH"  # set in a trial without network whose run would have it
TIME_LIMIT_S = 120.0
FETCH_LIMIT_S = 3600.0
CANCELLED_S = 3.0  # the time that is left to a call that was cancelled
IDLE_S = 300.0

Reply = dict[str, Any]  # `problem` is why there is nothing else


def offline() -> dict[str, str]:
    """The environment of a process that downloads nothing."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    may_fetch = "" if os.environ.get(names[0]) else "1"
    return {**environment(), **dict.fromkeys(names, "1"), MAY_FETCH: may_fetch}


def trial_process(
    *, online: bool = False, interrupted: Callable[[], bool] = lambda: False
) -> Sandbox:
    """A process that tries settings."""
    env = environment() if online else offline()
    return Sandbox(SERVICE, None, "trial", memory=inf, env=env, interrupted=interrupted)


def call(
    sandbox: Sandbox,
    method: str,
    config: RunConfig,
    *,
    limit: float = TIME_LIMIT_S,
    **arguments: Any,
) -> Reply:
    """What a call returns; why it returned nothing is its `problem`."""
    arguments["config"] = config.model_dump(mode="json")
    result = sandbox.call(ServiceCall(method, arguments, limit))
    if (failure := result.failure) is None:
        return dict(result.value)
    prefix = "" if failure.cause == "exception" else "trying the settings: "
    at = f" (at {failure.line})" if failure.line else ""
    return {"problem": f"{prefix}{failure.message}{at}"}


class TrialProcess:
    """A process, and the thread that calls it; both start with the first request.

    What may use the network is asked of another process.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "trial")
        self._closing, self._cancelled = threading.Event(), threading.Event()
        self._began = 0.0
        self._processes = [
            trial_process(online=online, interrupted=self._interrupted) for online in (False, True)
        ]
        self._idle: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, config: RunConfig, *, online: bool = False, **arguments: Any
    ) -> Reply:
        """What a call returns. Only `online` requests may use the network."""
        cancelled, loop = threading.Event(), asyncio.get_running_loop()
        future = self._thread.submit(self._call, cancelled, method, config, online, arguments)
        try:
            return await asyncio.wrap_future(future)
        finally:
            cancelled.set()
            if self._idle is not None:
                self._idle.cancel()
            if not self._closing.is_set():
                self._idle = loop.call_later(IDLE_S, self._thread.submit, self._stop)

    def close(self) -> None:
        """End the process and the thread without waiting; the interpreter's exit joins them."""
        self._closing.set()
        if self._idle is not None:
            self._idle.cancel()
        self._thread.submit(self._stop)
        self._thread.shutdown(wait=False)

    # -- on the thread ----------------------------------------------------------------------

    def _call(
        self,
        cancelled: threading.Event,
        method: str,
        config: RunConfig,
        online: bool,
        arguments: Mapping[str, Any],
    ) -> Reply:
        self._cancelled, self._began = cancelled, time.monotonic()
        limit = FETCH_LIMIT_S if online else TIME_LIMIT_S
        try:
            return call(self._processes[online], method, config, limit=limit, **arguments)
        except StopNow as error:
            self._stop()
            return {"problem": str(error)}

    def _interrupted(self) -> bool:
        late = time.monotonic() - self._began > CANCELLED_S
        return self._closing.is_set() or (late and self._cancelled.is_set())

    def _stop(self) -> None:
        for process in self._processes:
            process.close()
