"""New run by keys alone: choose, change, see errors, try, save, launch."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from grpo_engine.config.parse import read_yaml
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.picker import Picker
from grpo_tui.app.tui.screens.new_run.render import PAGE
from grpo_tui.app.tui.screens.new_run.screen import FormPagePanel, NewRunScreen
from grpo_tui.app.tui.screens.new_run.state import COLUMNS, MAIN
from grpo_tui.experiments.db.tables import QUEUE_ITEM
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.compared import workbench
from tests.app.new_run_kit import EXAMPLES, go_to, opened, turn_to, write
from tests.app.walk import walk
from tests.engine.runs import write_world
from tests.patience import PATIENCE


@pytest.mark.slow
async def test_by_keys_alone_from_the_preset_to_a_run_with_another_beta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_world(tmp_path))  # use short names: the dialog wraps long ones
    async with walk(Workbench(tmp_path / "grpo.db")) as on:
        await on.press("2")
        screen = on.screen
        await on.press("enter", "enter")
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
            await go_to(on, screen, path)
            await on.press("enter")
            await write(on, text)
            await on.press("enter")
        assert set(screen.view.form.changed) == set(changes)
        assert "… checking" in on.text
        monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.05)
        screen.try_settings()
        await on.until(lambda: "✓ ready" in on.text)
        await on.press("L")
        await on.until(lambda: "2 steps of 2 × 4" in on.text)
        await on.press("enter")  # the first answer: here
        await on.until(lambda: on.app.live is not None)
        await on.until(lambda: not on.app.bridge.running and on.app.live is None)
        await on.until(lambda: "complete after 2 steps" in on.text)
    assert on.app.bridge.wait(PATIENCE)
    with StoreReader(tmp_path / "grpo.db") as reader:
        (run,) = reader.runs()
        assert run.status == "completed"
        assert run.name == "starter"
        assert reader.run(run.key).settings["algorithm.beta"] == 0.1


async def test_all_settings_are_listed_by_section_and_the_cursor_stays_in_view(
    store: Path,
) -> None:
    async with walk(workbench(store), (80, 24)) as on:
        screen = await opened(on)
        main = [path for path in MAIN if path != COLUMNS]  # arithmetic is no file
        assert [row.path for row in screen.view.rows] == main
        await on.press("slash", "enter")
        assert len(screen.view.rows) == len(screen.view.form.fields)
        assert {row.section for row in screen.view.rows} > {"run", "model", "task", "rewards"}
        for _ in range(3):
            await on.press("pagedown")
            assert screen.view.row.path.rpartition(".")[2] in on.text
            frames.check(on.app)
        await on.press("end")
        assert screen.view.rows[-1].path.rpartition(".")[2] in on.text
        await on.press("escape")
        assert [row.path for row in screen.view.rows] == main
        await on.press("slash", *"beta", "enter")
        assert len(screen.view.rows) < len(MAIN)
        await on.press("escape")
        assert [row.path for row in screen.view.rows] == main


@pytest.mark.slow
async def test_what_is_wrong_is_said_while_typing_and_nothing_is_launched(store: Path) -> None:
    async with walk(workbench(store), notifications=True) as on:
        screen = await opened(on)
        await go_to(on, screen, "rollout.temperature")
        await on.press("enter")
        await write(on, "-1")
        text = on.text
        assert "✗ must be a number > 0 and ≤ 10, such as 1; got -1" in text
        assert "1 to fix" in text
        frames.check(on.app)
        # the other launch key works inside the field as well, and is refused
        await on.press("f5")
        await on.until(
            lambda: "to fix first" in on.text,
        )
        assert on.screen is screen
        assert screen.view.cursor == "rollout.temperature"
        await on.press("backspace")
        assert not screen.view.errors
        await on.press("L")
        assert on.screen is not screen


@pytest.mark.slow
async def test_a_recipe_that_the_settings_exclude_is_refused_in_its_rules_words(
    store: Path,
) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        screen.change(screen.view.form.type("algorithm.passes", "3"))
        screen.view = replace(screen.view, cursor="algorithm.recipe")
        await on.press("enter")
        assert isinstance(on.screen, Picker)
        await on.press("home")
        text = on.text
        assert "REINFORCE" in text
        assert "ratio=none is right for fresh samples only" in text
        assert re.search(r"signal +\w+ .*\n.*ratio +none", text, re.DOTALL)
        frames.check(on.app)
        await on.press("enter")
        assert list(screen.view.errors) == ["algorithm.recipe"]
        await on.press("u", "ctrl+z")
        assert not screen.view.form.changed


@pytest.mark.slow
async def test_clone_from_runs_shows_exactly_the_setting_that_differs(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await on.until(lambda: "calm-otter" in on.text)
        await on.press("c")
        await on.until(lambda: "cloned run" in on.text)
        screen = on.screen
        assert not screen.view.form.changed
        await go_to(on, screen, "algorithm.beta")
        await on.press("enter")
        await write(on, "0.2")
        await on.press("enter")
        assert screen.view.form.changed == ("algorithm.beta",)
        assert [row.path for row in screen.view.rows if row.changed] == ["algorithm.beta"]
        text = on.text
        assert "1 changed" in text
        assert "← 0.04" in text
        frames.check(on.app)
        await on.press("L")
        assert "Differs from run calm-otter: algorithm.beta." in on.text
        await on.press("escape", "backspace")
        assert not screen.view.form.changed


@pytest.mark.slow
async def test_the_settings_are_saved_as_yaml_and_an_old_file_is_not_lost(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with walk(workbench(store)) as on:
        await opened(on)
        await on.press("w", "enter")
        assert read_yaml(tmp_path / "starter.yaml")["algorithm"]["passes"] == 2
        (tmp_path / "mine.yaml").write_text("old")
        await on.press("w")
        await write(on, "mine.yaml")
        await on.press("enter")
        await on.until(lambda: "exists already" in on.told)
        assert (tmp_path / "mine.yaml").read_text() == "old"


@pytest.mark.slow
async def test_a_run_can_be_queued_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "grpo.db"
    async with walk(workbench(path), notifications=True) as on:
        await opened(on)
        await on.press("L", "q")
        await on.until(lambda: "waits in the queue" in on.text)
    with StoreReader(path) as reader:
        (item,) = reader.queue()
        assert item.name == "starter"
        assert reader.value(select(QUEUE_ITEM.c.config))["algorithm"]["passes"] == 2


@pytest.mark.slow
async def test_while_a_run_goes_on_here_only_the_queue_and_detached_are_offered(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with walk(workbench(store)) as on:
        await opened(on)
        monkeypatch.setattr(type(on.app.bridge), "running", True)
        on.app.bridge.name = "busy-bee"
        await on.press("L")
        text = on.text
        assert "busy-bee trains in this process" in text
        assert "trains in this process; Watch opens" not in text
        assert "into the queue" in text
        assert "in parallel with busy-bee" in text
        frames.check(on.app)
        monkeypatch.undo()


@pytest.mark.slow
async def test_a_page_is_copied_as_text_and_of_the_prompts_the_chosen_one(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        (example,) = EXAMPLES["examples"]
        other = {**example, "text": "say\n\x1b[31mred"}
        screen.view = replace(screen.view, examples={**EXAMPLES, "examples": [example, other]})
        panel = screen.query_one(FormPagePanel)
        assert panel.copy_text().splitlines()[0].startswith("answers")
        await turn_to(on, screen, "prompts")
        assert panel.copy_text() == "1 + 2 = ?"
        await on.press("n")
        assert panel.copy_text().startswith("say\n")
        assert "\x1b" not in panel.copy_text()
        await on.press("p", "p")
        assert screen.view.example == 1
        for page in PAGE:
            await turn_to(on, screen, page)
            assert panel.copy_text()
