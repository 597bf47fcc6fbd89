"""Keys: one action each per screen, all explained; letters typed in a field trigger nothing."""

import importlib
import inspect
import pkgutil
from collections import Counter
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import Input

from docs import keys_page
from grpo_tui import app
from grpo_tui.app.tui.app import SCREENS, Workbench, load
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.panel import Panel
from tests.app.tui.screens.test_watch import SHORT, settle, workbench


def own_bindings() -> list[tuple[type, Binding]]:
    """Every binding that a class of the app declares, in full."""
    found = []
    for info in pkgutil.walk_packages(app.__path__, "grpo_tui.app."):
        if info.name.startswith("grpo_tui.app.cli.verbs"):
            continue
        module = importlib.import_module(info.name)
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == info.name and "BINDINGS" in vars(cls):
                own = vars(cls)["BINDINGS"]
                found += [(cls, b) for b in own if isinstance(b, Binding)]
                assert all(isinstance(b, Binding) for b in own), cls
    return found


def test_every_binding_has_an_id_a_description_and_a_tooltip() -> None:
    for cls, binding in own_bindings():
        assert binding.id, (cls, binding)
        assert binding.description, (cls, binding)
        assert binding.tooltip, (cls, binding)


def test_ids_are_not_used_twice() -> None:
    counts = Counter((binding.id, binding.action) for _, binding in own_bindings())
    ids = Counter(key for key, _ in counts)
    assert [key for key, count in ids.items() if count > 1] == []


@pytest.mark.parametrize("mode", list(SCREENS))
async def test_no_key_is_bound_twice_on_a_screen(mode: str, tmp_path: Path) -> None:
    workbench_app = Workbench(tmp_path / "none.db", mode=mode)
    async with workbench_app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, workbench_app)
        screen = workbench_app.screen
        shared = {key for key, _ in screen._bindings} | {key for key, _ in workbench_app._bindings}
        counts = Counter(key for key, _ in screen._bindings)
        counts.update(
            key for key, b in workbench_app._bindings if b.id and not key.startswith("ctrl+c")
        )
        assert [key for key, count in counts.items() if count > 1] == []
        for widget in screen.walk_children(Widget):
            if widget.__module__.startswith("grpo_tui.app."):
                own = {key for key, b in widget._bindings
                       if b.id and not (b.action.startswith("move(") and isinstance(widget, Panel)
                                        and not widget.navigable)}  # fmt: skip
                assert not own & shared - {"enter", "escape"}, (widget, own & shared)


def test_every_screen_is_registered_under_its_mode() -> None:
    for mode, target in SCREENS.items():
        assert getattr(load(target), "mode", None) == mode


async def test_letters_do_not_fire_while_a_field_has_the_focus(tmp_path: Path) -> None:
    app_ = workbench(SHORT.events(), tmp_path)
    async with app_.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app_)
        await pilot.press("4", "slash", "f", "n", "1", "q", "s")
        assert app_.screen.query_one(FindBar).query_one(Input).value == "fn1qs"
        assert getattr(app_.screen, "mode", "") == "rollouts"
        await pilot.press("escape")
        assert not app_.screen.query_one(FindBar).display


async def test_escape_goes_out_step_by_step(tmp_path: Path) -> None:
    app_ = workbench(SHORT.events(), tmp_path)
    async with app_.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app_)
        await pilot.press("4", "tab", "z", "slash", "a")
        assert app_.screen.query_one(FindBar).display
        await pilot.press("escape")
        assert not app_.screen.query_one(FindBar).display
        assert app_.screen.maximized is not None
        await pilot.press("escape")
        assert app_.screen.maximized is None
        await pilot.press("escape")
        await pilot.pause()
        assert getattr(app_.screen, "mode", "") == "watch"


async def test_jump_mode_moves_the_focus(tmp_path: Path) -> None:
    app_ = workbench(SHORT.events(), tmp_path)
    async with app_.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app_)
        await pilot.press("ctrl+o")
        await pilot.press("s")
        assert app_.focused is not None
        assert app_.focused.id == "answers"


async def test_a_user_keymap_moves_a_key(tmp_path: Path) -> None:
    app_ = workbench(SHORT.events(), tmp_path)
    app_.preferences.remember(keymap={"watch.freeze": "F"})
    async with app_.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app_)
        await pilot.press("f")
        assert not app_.screen.frozen  # type: ignore[attr-defined]
        await pilot.press("F")
        assert app_.screen.frozen  # type: ignore[attr-defined]


def test_the_page_of_keys_says_what_the_bindings_say() -> None:
    assert keys_page.PAGE.read_text(encoding="utf-8") == keys_page.page(), (
        "run `python docs/keys_page.py`"
    )
    text = keys_page.page()
    for cls, binding in own_bindings():
        assert f"{binding.tooltip} | `{binding.id}` |" in text, (cls, binding)
