"""The user's own settings file may hold anything: the workbench opens, and names what is wrong."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.looks.colours import DARK
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.runs.screen import RunsScreen
from tests.app.rest import until
from tests.app.stored import record, run_events

COPY = "\x1b]52;c;eA==\x07"


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


UNUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nested JSON": (text("[" * 100_000), "nested too deep"),
    "a name twice": (text('{"theme": "light", "theme": "dark"}'), "'theme' is given twice"),
    "a list": (text("[1, 2]"), "cannot convert"),
    "no UTF-8": (lambda path: path.write_bytes(b'{"a": "\xff"}'), "is not UTF-8"),
    "a pipe": (os.mkfifo, "is not a file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is not a file"),
    "a folder": (Path.mkdir, "is not a file"),
    "2 MB": (text('{"theme": "' + "x" * 2_000_000 + '"}'), "is larger than 1 MB"),
}
LEFT_OUT: dict[str, list[object]] = {
    "theme": [[], {}, "\ud800", 7],
    "keymap": [[], {"find": COPY}, {"find": "\ud800"}, {"find": ["a"]}, {COPY: "a"}],
    "runs.columns": [{}, "note", [COPY], ["\ud800"], [["note"]], ["x" * 5_000]],
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", UNUSED)
def test_a_file_that_is_none_is_not_used_and_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "settings.json"
    make, problem = UNUSED[name]
    make(path)
    preferences = Preferences(path)
    assert problem in preferences.problem
    assert preferences.problem.startswith(f"{path} is not used: ")
    assert (preferences.theme, preferences.keymap) == (DARK, {})


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in LEFT_OUT.items() for value in values]
)
def test_a_value_that_is_none_is_left_out(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({name: value}))
    preferences = Preferences(path)
    assert (preferences.theme, preferences.keymap) == (DARK, {})
    assert not preferences.texts("runs.columns")


async def test_the_workbench_opens_with_thousands_of_columns(tmp_path: Path) -> None:
    record(tmp_path / "s.db", run_events(steps=1), name="one")
    path = tmp_path / "settings.json"
    path.write_text(
        json.dumps({"runs.columns": ["note", "=seed", "best reward", "last kl"] * 1_000})
    )
    app = Workbench(tmp_path / "s.db", preferences=Preferences(path))
    async with app.run_test(size=(120, 40)):
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await until(app, lambda: screen.view.loaded)
        assert [run.name for run in screen.view.runs] == ["one"]
