"""When a screen is idle, and how a test waits for what it expects to see.

Textual's pilot measures processor use: a program that uses none for a moment counts as done. On a
busy machine it may only be waiting for the processor. Here a screen is idle once no work is
pending.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from textual._context import active_app
from textual.app import App
from textual.screen import ModalScreen

from grpo_tui.app.tui.store.reader import ReaderThread
from tests.app import frames
from tests.patience import PATIENCE

LOOK = 0.002


class Elsewhere:
    """Counts unanswered requests to other threads: the reader's and the event loop's executor."""

    def __init__(self) -> None:
        self.open = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count every request from here on."""
        read, run = ReaderThread.read, asyncio.BaseEventLoop.run_in_executor

        async def asked(reader: ReaderThread, *words: Any, **more: Any) -> Any:
            self.open += 1
            try:
                return await read(reader, *words, **more)
            finally:
                self.open -= 1

        def ran(loop: asyncio.BaseEventLoop, *words: Any) -> Any:
            future = run(loop, *words)
            self.open += 1
            future.add_done_callback(self._done)
            return future

        monkeypatch.setattr(ReaderThread, "read", asked)
        monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", ran)

    def _done(self, _future: "asyncio.Future[Any]") -> None:
        self.open -= 1


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Textual's pilot wait until idle; a pause waits for workers as well."""
    elsewhere = Elsewhere()
    elsewhere.install(monkeypatch)

    async def after_key(*_times: float) -> None:
        await _rest(active_app.get(), lambda app: elsewhere.open or _early(app))

    async def in_pause(*_times: float) -> None:
        await _rest(active_app.get(), lambda app: elsewhere.open or _early(app) or _workers(app))

    monkeypatch.setattr("textual.app.wait_for_idle", after_key)
    monkeypatch.setattr("textual.pilot.wait_for_idle", in_pause)


def _early(app: App[Any]) -> object:
    """Keys that wait for their screen."""
    return getattr(app, "_early", ())


def _workers(app: App[Any]) -> list[str]:
    """Those that run, but for those that wait for the answer of a dialog or for more typing."""
    waits = {"try", "score"} | ({"dialog"} if isinstance(app.screen, ModalScreen) else set())
    return [
        worker.name or worker.group
        for worker in app.workers
        if not worker.is_finished and worker.group not in waits
    ]


async def _rest(app: App[Any], elsewhere: Callable[[App[Any]], object]) -> None:
    """Return once no callback is ready, no request is open, and every change is drawn."""
    loop: Any = asyncio.get_running_loop()
    end = time.monotonic() + PATIENCE
    await asyncio.sleep(0)
    while not app._exit and app._exception is None:
        asked = elsewhere(app) or _moves(app)
        assert time.monotonic() < end, f"no rest, with {asked or loop._ready}"
        if loop._ready:
            await asyncio.sleep(0)
        elif asked:
            await asyncio.sleep(LOOK)
        elif _undrawn(app):
            app.screen._on_timer_update()
            await asyncio.sleep(0)
        else:
            return


def _moves(app: App[Any]) -> object:
    """A pending resize, or a running animation."""
    return app._resize_timer or not app._animator._complete_event.is_set()


def _undrawn(app: App[Any]) -> bool:
    screen = app.screen
    return bool(
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )


async def until(app: Any, holds: Callable[[], object], draw: Callable[[], object] = bool) -> None:
    """Wait until `holds()` is true on an idle screen; `draw` is called before each check."""
    end = time.monotonic() + PATIENCE
    while True:
        draw()
        await _rest(app, lambda _: False)
        if holds():
            return
        assert time.monotonic() < end, f"waited in vain, on\n{frames.text(app)}"
        await asyncio.sleep(0.01)
