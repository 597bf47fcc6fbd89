"""Keys: one action each per screen, all explained; letters typed in a field trigger nothing."""

from collections import Counter
from pathlib import Path

import pytest
from textual.widget import Widget
from textual.widgets import Input

from grpo_tui.app.tui.app import SCREENS, Workbench
from grpo_tui.app.tui.key_actions import bindings_of_classes, described_keys
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.panel import Panel
from tests.app.tui.screens.test_watch import SHORT, settle, workbench


def test_every_binding_has_an_id_a_description_and_a_tooltip() -> None:
    for name, bindings in bindings_of_classes().items():
        for binding in bindings:
            assert binding.id, (name, binding)
            assert binding.description, (name, binding)
            assert binding.tooltip, (name, binding)


def test_ids_are_not_used_twice() -> None:
    bindings = [binding for group in bindings_of_classes().values() for binding in group]
    counts = Counter({(binding.id, binding.action) for binding in bindings})
    ids = Counter(key for key, _ in counts)
    assert [key for key, count in ids.items() if count > 1] == []


def test_every_binding_is_listed_once_with_its_name() -> None:
    listed = [text for _, rows in described_keys() for _, text in rows]
    declared = [b for bindings in bindings_of_classes().values() for b in bindings]
    assert Counter(listed) == Counter(f"{b.tooltip} ({b.id})" for b in declared)


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
                own = {
                    key
                    for key, b in widget._bindings
                    if b.id
                    and not (
                        b.action.startswith("move(")
                        and isinstance(widget, Panel)
                        and not widget.navigable
                    )
                }
                assert not own & shared - {"enter", "escape"}, (widget, own & shared)


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


async def test_a_user_keymap_moves_a_key(tmp_path: Path) -> None:
    app_ = workbench(SHORT.events(), tmp_path)
    app_.preferences.remember(keymap={"watch.next": "F"})
    async with app_.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app_)
        await pilot.press("n")
        assert app_.screen.view.prompt == 0  # type: ignore[attr-defined]
        await pilot.press("F")
        assert app_.screen.view.prompt == 1  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_ctrl_c_copies_a_selection_and_else_says_what_it_does(tmp_path: Path) -> None:
    app = workbench(SHORT.events(), tmp_path)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot, app)
        for key in ("question_mark", "ctrl+p"):  # a page, and a dialog with a field
            await pilot.press(key, "ctrl+c")
            await pilot.pause()
            assert app.notices[-1].text.startswith("Nothing is selected to copy.")
            assert app.screen.is_modal
            await pilot.press(*["escape"] * 2)
        await pilot.press("ctrl+p", *"kl", "shift+home", "ctrl+c")
        await pilot.pause()
        assert "2 characters" in app.notices[-1].text
        assert app.clipboard == "kl"
