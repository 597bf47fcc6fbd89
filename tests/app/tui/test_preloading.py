"""Modules and screens are prepared while no key is pressed, and a key need not wait for them."""

import sys
import threading
from pathlib import Path

import pytest

from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui.app import SCREENS, Workbench
from grpo_tui.app.tui.idle.preloading import MODULES, QUIET_S, Preloading
from grpo_tui.app.tui.screens.compare import CompareScreen
from grpo_tui.app.tui.screens.new_run import NewRunScreen
from tests.app import frames
from tests.app.stored import record, run_events
from tests.patience import until


class Quiet(threading.Event):
    """Notes that a thread is waiting for it."""

    asked = False

    def wait(self, timeout: float | None = None) -> bool:
        self.asked = True
        return super().wait(timeout)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that has not been loaded."""
    (tmp_path / "slow_screen.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_screen", raising=False)
    return "slow_screen"


def test_a_screen_is_built_once_its_module_is_there_and_only_while_it_is_quiet(
    package: str,
) -> None:
    built: list[str] = []
    preloading = Preloading(built.append, {"slow": f"{package}:Slow"}, modules=(package,))
    preloading.poll(QUIET_S)  # before the first frame
    assert not built
    preloading.poll(0.0)
    preloading._quiet = quiet = Quiet()
    preloading.start()
    until(lambda: quiet.asked)
    assert package not in sys.modules  # a key was pressed
    preloading.poll(QUIET_S)
    until(lambda: package in preloading.loaded)
    preloading.poll(0.0)
    assert not built
    preloading.poll(QUIET_S)
    preloading.poll(QUIET_S)
    assert built == ["slow"]
    preloading.stop()


def test_a_module_that_cannot_be_loaded_is_an_error_in_the_next_frame(package: str) -> None:
    preloading = Preloading(lambda _: None, {}, modules=("no_such_module", package))
    preloading.poll(QUIET_S)
    preloading.start()
    until(lambda: not preloading.busy)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        preloading.poll(QUIET_S)
    assert not preloading.loaded


def test_nothing_is_loaded_after_the_end(package: str) -> None:
    preloading = Preloading(lambda _: None, {}, modules=(package,))
    preloading.start()
    preloading.stop()
    until(lambda: not preloading.busy)
    assert package not in sys.modules


@pytest.mark.parametrize("read_only", [False, True])
def test_every_screen_that_can_be_asked_for_is_made_ready(read_only: bool) -> None:
    modes = {mode for mode, _ in Preloading(lambda _: None, SCREENS, read_only=read_only).screens}
    assert modes == set(SCREENS) - {"runs"} - ({"new_run"} if read_only else set())


def test_what_is_made_ready_holds_no_engine() -> None:
    assert not any(name.partition(".")[0] in ("mlx", "mlx_lm") for name in MODULES)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    for seed in range(2):
        record(path, run_events(steps=2, seed=seed), name=f"otter-{seed}", seed=seed)
    return path


async def test_a_screen_asked_for_while_it_is_being_built_gets_its_request(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.build_screen("compare")
        await app.show_comparison(msg.CompareRequested(("otter-0", "otter-1")))
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        assert screen.view.refs == ("otter-0", "otter-1")
        app.build_screen("new_run")
        await app.show_form(msg.NewRunRequested(clone="otter-1"))
        assert isinstance(app.screen, NewRunScreen)
        await pilot.pause()
        frames.check(app)


async def test_a_screen_that_was_built_behind_another_shows_as_one_that_was_not(
    store: Path,
) -> None:
    pictures = []
    for ahead in (False, True):
        app = Workbench(store, clock=lambda: 1000.0)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            if ahead:
                for mode in SCREENS:
                    app.build_screen(mode)
                await pilot.pause()
            seen = []
            for key in "345":
                await pilot.press(key)
                await pilot.pause()
                frames.check(app)
                seen.append(frames.frame(app))
            pictures.append(seen)
    assert pictures[0] == pictures[1]


async def test_a_screen_built_at_another_size_fits_when_it_is_shown(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.pause()
        for mode in SCREENS:
            app.build_screen(mode)
        await pilot.pause()
        await pilot.resize_terminal(80, 24)
        for key in "2345":
            await pilot.press(key)
            await pilot.pause()
            frames.check(app)
