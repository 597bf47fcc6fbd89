"""Lists with a line for each value, and completion."""

from pathlib import Path

import pytest
from textual.widgets import OptionList

from grpo_engine.config.recipes import RECIPES
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.screens.new_run.completion import completions
from grpo_tui.app.tui.screens.new_run.render import meaning_of
from grpo_tui.app.tui.screens.new_run.screen import FormPanel
from grpo_tui.app.tui.screens.new_run.state import INFO, choices_of, preset_view
from tests.app import frames
from tests.app.compared import workbench
from tests.app.new_run_kit import go_to, opened, write
from tests.app.walk import walk


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_value_of_every_list_has_a_line_of_its_own(name: str) -> None:
    fields = preset_view("starter").form.fields
    for path, field in fields.items():
        texts = [text for text in choices_of(field) if path in INFO and path != "algorithm.recipe"]
        lines = [meaning_of(path, text, RECIPES[name]) for text in texts]
        assert all(line and "{" not in line for line in lines), (path, lines)
        own = [line for text, line in zip(texts, lines, strict=True) if text]
        assert len(set(own)) == len(own), (path, own)


def test_paths_functions_and_names_are_completed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("", encoding="utf-8")
    (tmp_path / "problems.jsonl").write_text("{}", encoding="utf-8")
    (tmp_path / "models").mkdir()
    (tmp_path / ".hidden").mkdir()
    at = f"{tmp_path}/"
    assert completions("task.name", at) == (f"{at}mine.py", f"{at}models/", f"{at}problems.jsonl")
    assert completions("model.path", f"{at}m") == (f"{at}models/",)
    assert completions("model.path", "sta") == ("starter", "starter-guess")
    assert completions("model.path", f"{at}none/") == ()
    assert completions("model.path", "\0") == ()
    assert completions("record.trackers", "wandb,tr") == ("wandb,trackio",)
    assert completions("rewards.functions", f"numeric_answer,{at}mi") == (
        f"numeric_answer,{at}mine.py",
    )


async def test_a_path_is_offered_while_typing_and_taken_with_an_arrow(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("", encoding="utf-8")
    async with walk(workbench(store), (200, 60)) as on:
        screen = await opened(on)
        await go_to(on, screen, "rewards.functions")
        await on.press("enter")
        await write(on, "./mi")
        await on.pilot.pause()
        assert "./mine.py" in on.text
        await on.press("right")
        assert screen.query_one(FormPanel).input.value == "./mine.py"


async def test_a_list_is_filtered_by_typing_and_esc_ends_the_filter_first(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await go_to(on, screen, "algorithm.recipe")
        await on.press("enter", *"critic")
        options = on.screen.query_one(OptionList)
        await on.until(lambda: options.option_count == 1 and "ppo" in on.text)
        frames.check(on.app)
        await on.press(*"zz")
        await on.until(lambda: "nothing matches" in on.text)
        await on.press("enter", "escape")
        await on.until(lambda: options.option_count == len(RECIPES))
        picker = on.screen
        assert isinstance(picker, Picker)
        assert picker.item is not None
        assert picker.item.value == "grpo"
        await on.press(*"dr-", "down", "up", "enter")
        await on.until(lambda: on.screen is screen)
        assert screen.view.form.fields["algorithm.recipe"].text == "dr-grpo"
        await on.press("enter", "escape")
        assert on.screen is screen


async def test_a_function_takes_the_place_of_a_choice(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def ranks(rewards_PG): ...")
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await go_to(on, screen, "algorithm.signal")
        await on.press("enter")
        await on.until(lambda: isinstance(on.screen, Picker))
        frames.check(on.app)
        await on.press("end", "enter")
        await on.until(lambda: screen.view.editing)
        await write(on, f"{file}:ranks")
        await on.press("enter")
        assert screen.view.form.fields["algorithm.signal"].text == f"{file}:ranks"
        assert not screen.view.form.errors
        frames.check(on.app)
