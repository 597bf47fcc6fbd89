"""Own data on New run: its columns, the options of a task, errors, and the prompts that result."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build, write_yaml
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_tui.app.trial.client import TrialProcess
from grpo_tui.app.trial.service import Trials
from grpo_tui.app.tui.screens.new_run.columns import (
    detail_lines,
    turned,
    uses_of,
)
from grpo_tui.app.tui.screens.new_run.render import (
    form_blocks,
)
from grpo_tui.app.tui.screens.new_run.screen import NewRunScreen
from grpo_tui.app.tui.screens.new_run.state import NewRunView, choices_of, preset_view
from grpo_tui.app.tui.widgets.panel import cells, plain_text
from tests.app import frames
from tests.app.compared import workbench
from tests.app.new_run_kit import EXAMPLES, opened, write
from tests.app.script import HOSTILE
from tests.app.walk import walk

DATA = {"Frage": ["3 + 4?", "1 + 1?"], "Lösung": ["7", "2"], "Quelle": ["me", "you"]}
OFFERS = {
    "options": {"level": ["1", "How hard.", False], "chat": ["", "Through the template.", True]},
    "columns": DATA,
}


def typed(view: NewRunView, path: str, text: str) -> NewRunView:
    return view.with_form(view.form.type(path, text))


def own() -> NewRunView:
    return typed(preset_view("starter"), "task.name", "rows.csv").with_offers(OFFERS)


# -- columns -------------------------------------------------------------------------------------


def test_a_use_is_of_one_column_and_what_others_have_is_passed_over() -> None:
    uses = turned({}, "Frage", 1)
    assert uses == {"prompt": "Frage"}
    uses = turned(uses, "Lösung", 1)
    assert uses == {"prompt": "Frage", "answer": "Lösung"}
    assert turned(uses, "Quelle", 1) == {**uses, "completion": "Quelle"}
    assert turned(uses, "Frage", -1) == {"answer": "Lösung"}
    assert turned({"prompt": "Frage"}, "Frage", 1) == {"answer": "Frage"}


def test_usual_and_likely_names_are_in_use_at_first() -> None:
    assert uses_of({}, ["prompt", "answer", "x"]) == {"prompt": "prompt", "answer": "answer"}
    assert uses_of({}, ["Question", "Target"]) == {"prompt": "Question", "answer": "Target"}
    assert uses_of({"prompt": "Frage"}, list(DATA)) == {"prompt": "Frage"}
    assert uses_of({}, list(DATA)) == {}


def test_a_column_is_shown_in_full_and_hostile_cells_are_harmless() -> None:
    text = plain_text(detail_lines(DATA, {}, "Frage", 80))
    assert "No column is used as the prompt yet" in text
    text = plain_text(detail_lines(DATA, {"prompt": "Frage"}, "Frage", 80))
    assert all(word in text for word in ("Text or chat messages.", "row 2", "1 + 1?"))
    hostile = {name: list(HOSTILE) for name in HOSTILE}
    for width in (40, 120):
        lines = detail_lines(hostile, {}, HOSTILE[0], width)
        assert all(cells(line) <= width for line in lines)
        assert all(char.isprintable() for char in plain_text(lines).replace("\n", ""))


# -- entries of mappings -------------------------------------------------------------------------


def test_an_entry_of_a_mapping_is_a_line_that_changes_the_mapping() -> None:
    view = typed(own(), "task.columns.prompt", "Frage")
    view = typed(view, "task.columns.answer", "Lösung")
    assert view.form.fields["task.columns"].text == "{prompt: Frage, answer: Lösung}"
    config = view.form.build()
    assert config.task.columns == {"prompt": "Frage", "answer": "Lösung"}
    assert build(parse_yaml(write_yaml(config))).task == config.task
    form = view.form.reset("task.columns.answer")
    assert form.build().task.columns == {"prompt": "Frage"}
    assert form.reset("task.columns.prompt").changed == ("task.name",)
    form = form.type("optimizer.options.beta1", "0.").type("optimizer.options.beta2", "2")
    assert "beta2 must be a number" in form.errors["optimizer.options"]
    assert form.fields["optimizer.options.beta2"].text == "2"


def test_the_options_of_a_task_are_lines_of_their_own_until_another_task_is_named() -> None:
    view = own().searched("how hard")
    assert [row.path for row in view.rows] == ["task.options.level"]
    view = typed(view, "task.options.level", "[a, 2]")
    assert view.form.build().task.options == {"level": ["a", 2]}
    assert view.form.reset("task.options.level").build().task.options == {}
    chat = view.form.fields["task.options.chat"]
    assert choices_of(chat) == ("", "true", "false")
    assert view.form.type(chat.path, "true").build().task.options["chat"] is True
    other = typed(view, "task.name", "countdown")
    assert "task.options.level" not in other.form.fields
    assert not other.columns
    after = replace(view, cursor="task.options.level", search=None)  # as after a search
    assert after.row is not None
    assert after.row.path == "task.options"


# -- errors, and small screens -------------------------------------------------------------------


def test_an_error_is_wrapped_and_not_cut_below_its_setting_whatever_the_width() -> None:
    error = "name 'lvl' is not defined (at /home/me/a/long/path/to/task.py:4: return lvl) " * 3
    for view in (own(), own().searched("")):
        view = replace(view, ready={"problems": [("task.columns", error)]})
        for width in (56, 78, 117):
            text = plain_text([line for block in form_blocks(view, width) for line in block])
            assert "".join(error.split()) in "".join(text.split())


# -- by keys -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_a_file_with_odd_columns_is_mapped_and_its_prompts_are_one_key_away(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    file = tmp_path / "odd.csv"
    file.write_text("Frage,Lösung\n3 + 4?,7\n1 + 1?,2\n", encoding="utf-8")

    async def request(_: object, method: str, config: Any, **__: Any) -> Mapping[str, Any]:
        if method == "offers" and config.task.name == str(file):
            return Trials().offers(config.model_dump(mode="json"))
        return EXAMPLES if method == "examples" else {}

    monkeypatch.setattr(TrialProcess, "request", request)
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.05)
    async with walk(workbench(store), size) as on:
        screen = await opened(on)
        await on.press("down", "down", "enter")
        await write(on, str(file))
        await on.press("enter")
        await on.until(lambda: bool(screen.view.columns))
        await on.press("down", "enter")
        assert all(text in on.text for text in ("used as", "Frage", "3 + 4?", "1 + 1?"))
        frames.check(on.app)
        await on.press("right", "down", "right", "enter")
        assert screen.view.config.task.columns == {"prompt": "Frage", "answer": "Lösung"}
        await on.press("enter", "escape")
        assert screen.view.config.task.columns == {"prompt": "Frage", "answer": "Lösung"}
        await on.until(lambda: not screen.view.activity)
        await on.press("n")
        assert "1 + 2 = ?" in on.text
