"""New run by keys alone: choose, change, see errors, try, save, launch."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from grpo_engine.config.parse import read_yaml
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.screens.new_run.render import PAGE
from grpo_tui.app.tui.screens.new_run.screen import FormPagePanel, NewRunScreen
from grpo_tui.app.tui.screens.new_run.state import MAIN
from grpo_tui.experiments.db.tables import QUEUE_ITEM
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.compared import workbench
from tests.app.frames import LOOKS
from tests.app.new_run_kit import EXAMPLES, go_to, opened, turn_to, write
from tests.app.rest import until
from tests.engine.runs import write_world
from tests.patience import PATIENCE


@pytest.mark.parametrize(("size", "theme"), LOOKS)
async def test_frames_are_whole_at_every_size_and_theme_on_every_page(
    size: tuple[int, int], theme: str, store: Path
) -> None:
    app = workbench(store, theme)
    async with app.run_test(size=size) as pilot:
        screen = await opened(app, pilot)
        frames.check(app)
        assert "model.path" in frames.text(app)
        screen.view = replace(screen.view, examples=EXAMPLES)
        for page in PAGE:
            await turn_to(pilot, screen, page)
            frames.check(app)
            assert screen.query_one("#page").has_focus
        await pilot.press("escape")
        assert screen.query_one("#settings").has_focus
        for key in ("enter", "L"):
            await pilot.press(key)
            await pilot.pause()
            frames.check(app)
            await pilot.press("escape")


@pytest.mark.slow
async def test_by_keys_alone_from_the_preset_to_a_run_with_another_beta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_world(tmp_path))  # use short names: the dialog wraps long ones
    app = Workbench(tmp_path / "grpo.db")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        screen = app.screen
        assert isinstance(screen, NewRunScreen)
        await pilot.press("enter", "enter")
        changes = {
            "model.path": "./model",
            "task.name": "./problems.jsonl",
            "algorithm.beta": "0.1",
            "rollout.prompts": "2",
            "rollout.group_size": "4",
            "steps": "2",
            "rollout.max_new_tokens": "8",
            "task.held_out_size": "6",
            "evaluation.problems": "2",
        }
        for path, text in changes.items():
            await go_to(pilot, screen, path)
            await pilot.press("enter")
            await write(pilot, text)
            await pilot.press("enter")
        assert set(screen.view.form.changed) == set(changes)
        assert "… checking" in frames.text(app)
        monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.05)
        screen.try_settings()
        await until(app, lambda: "✓ ready" in frames.text(app))
        await pilot.press("L")
        await until(app, lambda: "2 steps of 2 × 4" in frames.text(app))
        await pilot.press("enter")  # the first answer: here
        await until(app, lambda: app.live is not None)
        await until(app, lambda: not app.bridge.running and app.live is None)
        await until(app, lambda: "complete after 2 steps" in frames.text(app))
    assert app.bridge.wait(PATIENCE)
    with closing(StoreReader(tmp_path / "grpo.db")) as reader:
        (run,) = reader.runs()
        assert run.status == "completed"
        assert run.name == "starter"
        assert reader.run(run.key).settings["algorithm.beta"] == 0.1


async def test_all_settings_are_listed_by_section_and_the_cursor_stays_in_view(
    store: Path,
) -> None:
    app = workbench(store)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        assert [row.path for row in screen.view.rows] == list(MAIN)
        await pilot.press("slash", "enter")
        assert len(screen.view.rows) == len(screen.view.form.fields)
        assert {row.section for row in screen.view.rows} > {"run", "model", "task", "rewards"}
        for _ in range(3):
            await pilot.press("pagedown")
            await pilot.pause()
            assert screen.view.row is not None
            assert screen.view.row.path.rpartition(".")[2] in frames.text(app)
            frames.check(app)
        await pilot.press("end")
        await pilot.pause()
        assert screen.view.rows[-1].path.rpartition(".")[2] in frames.text(app)
        await pilot.press("escape")
        assert [row.path for row in screen.view.rows] == list(MAIN)
        await pilot.press("slash", *"beta", "enter")
        assert len(screen.view.rows) < len(MAIN)
        await pilot.press("escape")
        await pilot.pause()
        assert [row.path for row in screen.view.rows] == list(MAIN)


async def test_what_is_wrong_is_said_while_typing_and_nothing_is_launched(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        screen = await opened(app, pilot)
        await go_to(pilot, screen, "rollout.temperature")
        await pilot.press("enter")
        await write(pilot, "-1")
        text = frames.text(app)
        assert "✗ must be a number > 0 and ≤ 10, such as 1; got -1" in text
        assert "1 to fix" in text
        frames.check(app)
        # the other launch key works inside the field as well, and is refused
        await pilot.press("f5")
        await until(
            app,
            lambda: "to fix first" in frames.text(app),
        )
        assert app.screen is screen
        assert screen.view.cursor == "rollout.temperature"
        await pilot.press("backspace")
        assert not screen.view.errors
        await pilot.press("L")
        assert app.screen is not screen


async def test_a_recipe_that_the_settings_exclude_is_refused_in_its_rules_words(
    store: Path,
) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        screen.change(screen.view.form.type("algorithm.passes", "3"))
        screen.view = replace(screen.view, cursor="algorithm.recipe")
        await pilot.press("enter")
        assert isinstance(app.screen, Picker)
        await pilot.press("home")
        await pilot.pause()
        text = frames.text(app)
        assert "REINFORCE" in text
        assert "ratio=none is right for fresh samples only" in text
        assert re.search(r"signal +\w+ .*\n.*ratio +none", text, re.DOTALL)
        frames.check(app)
        await pilot.press("enter")
        await pilot.pause()
        assert list(screen.view.errors) == ["algorithm.recipe"]
        await pilot.press("u", "ctrl+z")
        assert not screen.view.form.changed


async def test_clone_from_runs_shows_exactly_the_setting_that_differs(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: "calm-otter" in frames.text(app))
        await pilot.press("c")
        await until(app, lambda: "cloned run" in frames.text(app))
        screen = app.screen
        assert isinstance(screen, NewRunScreen)
        assert not screen.view.form.changed
        await go_to(pilot, screen, "algorithm.beta")
        await pilot.press("enter")
        await write(pilot, "0.2")
        await pilot.press("enter")
        await pilot.pause()
        assert screen.view.form.changed == ("algorithm.beta",)
        assert [row.path for row in screen.view.rows if row.changed] == ["algorithm.beta"]
        text = frames.text(app)
        assert "1 changed" in text
        assert "← 0.04" in text
        frames.check(app)
        await pilot.press("L")
        assert "Differs from calm-otter: algorithm.beta." in frames.text(app)
        await pilot.press("escape", "backspace")
        assert not screen.view.form.changed


async def test_the_settings_are_saved_as_yaml_and_an_old_file_is_not_lost(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        await pilot.press("w", "enter")
        await pilot.pause()
        assert read_yaml(tmp_path / "starter.yaml")["algorithm"]["passes"] == 2
        (tmp_path / "mine.yaml").write_text("old")
        await pilot.press("w")
        await write(pilot, "mine.yaml")
        await pilot.press("enter")
        await until(app, lambda: "exists already" in app.notices[-1].text)
        assert (tmp_path / "mine.yaml").read_text() == "old"


@pytest.mark.slow
async def test_a_run_can_be_queued_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "grpo.db"
    app = workbench(path)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await opened(app, pilot)
        await pilot.press("L", "q")
        await until(app, lambda: "waits in the queue" in frames.text(app))
    with closing(StoreReader(path)) as reader:
        (item,) = reader.queue()
        assert item.name == "starter"
        assert reader.value(select(QUEUE_ITEM.c.config))["algorithm"]["passes"] == 2


async def test_while_a_run_goes_on_here_only_the_queue_and_detached_are_offered(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        monkeypatch.setattr(type(app.bridge), "running", True)
        app.bridge.name = "busy-bee"
        await pilot.press("L")
        text = frames.text(app)
        assert "busy-bee trains in this process" in text
        assert "trains in this process; Watch opens" not in text
        assert "into the queue" in text
        assert "in parallel with busy-bee" in text
        frames.check(app)
        monkeypatch.undo()


async def test_a_page_is_copied_as_text_and_of_the_prompts_the_chosen_one(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        (example,) = EXAMPLES["examples"]
        other = {**example, "text": "say\n\x1b[31mred"}
        screen.view = replace(screen.view, examples={**EXAMPLES, "examples": [example, other]})
        panel = screen.query_one(FormPagePanel)
        assert panel.copy_text().splitlines()[0].startswith("answers")
        await turn_to(pilot, screen, "prompts")
        assert panel.copy_text() == "1 + 2 = ?"
        await pilot.press("n")
        assert panel.copy_text().startswith("say\n")
        assert "\x1b" not in panel.copy_text()
        await pilot.press("p", "p")
        assert screen.view.example == 1
        for page in PAGE:
            await turn_to(pilot, screen, page)
            assert panel.copy_text()
