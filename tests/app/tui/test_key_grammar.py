"""One key has one meaning on every screen; what has no key is in the palette."""

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import pytest
from textual.binding import Binding

from grpo_tui.app import tui
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.key_actions import bindings_of_classes, key_actions
from grpo_tui.app.tui.keys import is_bound
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.widgets.panel import Line, Panel
from tests.app.tui.screens.test_watch import SHORT, settle, workbench
from tests.app.walk import walk

# The keys that do not the same on every screen, with the words that begin what they may do.
SEVERAL = {
    "enter": ("open", "edit", "explain", "choose", "start", "close"),
    "escape": ("back", "cancel", "close", "stop", "leave"),
    "q": ("back", "cancel", "close"),
    "space": ("mark", "switch"),
    "exclamation_mark": ("messages", "close"),
    "question_mark": ("explain", "close"),
    "f1": ("explain", "close"),
    "left_square_bracket": ("previous page", "previous variant", "same prompt"),
    "right_square_bracket": ("page", "variant", "same prompt"),
    "m": ("metrics", "columns", "heat"),
    "t": ("kind", "scope"),
    "d": ("compare", "diff"),
    "minus": ("less", "slower"),
    "equals_sign": ("more", "faster"),
    "x": ("remove", "mute", "leave"),
    "r": ("resume", "run"),
    "w": ("checkpoint", "save"),
    "Q": ("queue", "close"),
}


def bound() -> Iterator[tuple[str, str, Binding]]:
    """Each class of the app with each of its keys."""
    for name, bindings in bindings_of_classes().items():
        for binding in bindings:
            for key in binding.key.split(","):
                if is_bound(key):
                    yield name, key, binding


def test_a_key_means_the_same_on_every_screen() -> None:
    meanings = defaultdict[str, set[str]](set)
    for name, key, binding in bound():
        if key not in SEVERAL:
            meanings[key].add(binding.description.split()[0])
        else:
            assert binding.description.startswith(SEVERAL[key]), (name, key, binding.description)
    assert {key: words for key, words in meanings.items() if len(words) > 1} == {}


def test_ids_of_earlier_keymaps_lead_to_bindings() -> None:
    ids = {binding.id for bindings in bindings_of_classes().values() for binding in bindings}
    earlier = tomllib.loads(files(tui).joinpath("earlier_keys.toml").read_text(encoding="utf-8"))
    assert set(earlier.values()) <= ids
    assert not set(earlier) & ids - set(earlier.values())


class Lines(Panel):
    """A panel with a cursor and one action that has no key."""

    navigable = True
    BINDINGS: ClassVar = [
        Binding(
            "unbound+lines.log",
            "log",
            "log axis",
            show=False,
            id="lines.log",
            tooltip="Logarithmic axis",
        )
    ]

    def paint(self, width: int, height: int) -> list[Line]:
        return [[("line"[:width], "")]] * height

    def action_log(self) -> None:
        """What the palette offers."""


class Two(WorkbenchScreen):
    """Two panels."""

    mode = "two"

    def body(self):  # type: ignore[no-untyped-def]
        yield Lines("first", id="first")
        yield Lines("second", id="second")

    def on_mount(self) -> None:
        super().on_mount()
        self.moves: list[tuple[str | None, int, int]] = []

    def on_panel_moved(self, event: Panel.Moved) -> None:
        self.moves.append((event.panel.id, event.rows, event.columns))


async def test_arrows_act_in_the_panel_that_has_the_focus(tmp_path: Path) -> None:
    async with walk(Workbench(tmp_path / "none.db")) as on:
        screen = Two()
        await on.app.push_screen(screen)
        screen.query_one("#second").focus()
        await on.press("down", "h", "end")
        screen.query_one("#first").focus()
        await on.press("k")
        assert screen.moves == [
            ("second", 1, 0),
            ("second", 0, -1),
            ("second", 1_000_000, 0),
            ("first", -1, 0),
        ]


async def test_page_keys_move_by_what_is_visible(tmp_path: Path) -> None:
    async with walk(Workbench(tmp_path / "none.db"), (120, 20)) as on:
        screen = Two()
        await on.app.push_screen(screen)
        panel = screen.query_one("#first", Lines)
        panel.focus()
        await on.pilot.pause()
        await on.press("pagedown", "pageup")
        by = panel.inner.height - 1
        assert 1 < by < 10
        assert screen.moves == [("first", by, 0), ("first", -by, 0)]


@pytest.mark.parametrize("key", ["f9", None])
async def test_an_action_without_a_key_is_in_the_palette_and_takes_one_from_the_keymap(
    tmp_path: Path, key: str | None
) -> None:
    app = Workbench(tmp_path / "none.db")
    if key:
        app.preferences.remember(keymap={"lines.log": key})
    async with app.run_test(size=(120, 40)) as pilot:
        screen = Two()
        await app.push_screen(screen)
        screen.query_one("#first").focus()
        await pilot.pause()
        actions = {item.name: item for item in key_actions(screen)}
        assert actions["log axis"].keys == (key or "")


async def test_a_keymap_of_an_earlier_version_still_moves_its_keys(tmp_path: Path) -> None:
    app = workbench(SHORT.events(), tmp_path)
    app.preferences.remember(keymap={"runs.down": "ctrl+d"})
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app)
        screen = Two()
        await app.push_screen(screen)
        screen.query_one("#first").focus()
        await pilot.press("ctrl+d")
        await pilot.pause()
        assert screen.moves == [("first", 1, 0)]
