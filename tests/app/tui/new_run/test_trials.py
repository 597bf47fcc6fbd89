"""New run without MLX and with trials: prompts, memory, rewards, and texts of task files."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_tui.app.trial.client import TrialProcess
from grpo_tui.app.tui.messages import LaunchRequested
from grpo_tui.app.tui.screens.new_run.screen import NewRunScreen
from tests.app import frames
from tests.app.compared import workbench
from tests.app.new_run_kit import opened, turn_to, write
from tests.app.rest import until
from tests.app.script import HOSTILE
from tests.app.walk import walk
from tests.engine.runs import write_world
from tests.patience import PATIENCE


@pytest.mark.slow
async def test_without_mlx_the_extra_is_named_and_editing_and_queueing_go_on(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.05)
    now = "Install the extra 'cpu': pip install 'grpo-tui[cpu]'."

    async def request(_: object, method: str, *__: object, **___: object) -> Mapping[str, Any]:
        return {"problems": [], "now": now, "fetches": []} if method == "ready" else {}

    monkeypatch.setattr(TrialProcess, "request", request)
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await on.until(lambda: "▲ Install the extra 'cpu'" in on.text)
        assert "cannot start now" in on.text
        await on.press("L")
        text = on.text
        assert "into the queue" in text
        assert "detached" not in text
        await on.press("escape")
        screen.view = replace(screen.view, cursor="seed")
        await on.press("enter")
        await write(on, "7")
        assert screen.view.form.changed == ("seed",)


@pytest.mark.slow
async def test_another_preset_can_be_taken_back(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        screen.view = replace(screen.view, cursor="steps")
        await on.press("enter")
        await write(on, "9")
        await on.press("enter", "home", "enter", "down", "down", "enter")
        assert screen.view.form.origin.name == "smollm2-gsm"
        assert not screen.view.form.changed
        await on.press("u")
        assert screen.view.form.origin.name == "starter"
        assert screen.view.form.changed == ("steps",)


@pytest.mark.slow
async def test_what_is_typed_is_kept_and_the_mouse_edits(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        await on.press("down", "enter")
        await write(on, "here")
        await on.press("escape")
        assert screen.query_one("#settings").has_focus
        assert screen.view.form.fields["model.path"].text == "here"
        await on.pilot.click("#settings", offset=(10, 10))
        assert screen.view.cursor == "steps"
        await on.pilot.double_click("#settings", offset=(10, 10))
        await on.pilot.pause()
        assert screen.view.editing


@pytest.mark.slow
async def test_hostile_texts_of_task_files_are_shown_harmlessly(store: Path) -> None:
    examples = [
        {
            "key": text[:300],
            "where": text[:300],
            "text": text[:20_000],
            "tokens": 3,
            "folded": True,
            "target": text[:300],
            "columns": text[:300],
        }
        for text in HOSTILE
    ]
    row = {"name": HOSTILE[0], "weight": 1.0, "value": 0.5, "reason": HOSTILE[2], "failed": False}
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        for place in range(0, len(HOSTILE), 3):
            screen.view = replace(
                screen.view,
                examples={
                    "about": HOSTILE[1],
                    "train": 1,
                    "held_out": 1,
                    "notes": [HOSTILE[3]],
                    "examples": examples[place : place + 3],
                },
                scores={"rows": [row], "total": 0.5, "problems": [HOSTILE[3]]},
                memory={"problem": HOSTILE[0]},
            )
            for page in ("prompts", "try", "cost"):
                await turn_to(on, screen, page)
                frames.check(on.app)


@pytest.mark.slow
async def test_example_prompts_memory_and_rewards_show_what_the_trial_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.05)
    world = write_world(tmp_path)
    async with walk(workbench(tmp_path / "grpo.db"), (200, 60)) as on:
        screen = await opened(on)
        form = screen.view.form.type("model.path", f"{world}/model")
        form = form.type("task.name", f"{world}/problems.jsonl")
        form = form.type("rewards.functions", f"{world}/rewards.py:letters")
        screen.change(form.type("rewards.weights", "1"))
        await on.until(lambda: "peak" in screen.view.memory and not screen.view.activity)
        assert "weights" in on.text
        await turn_to(on, screen, "prompts")
        text = on.text
        assert "20 problems to train on, 20 held out" in text
        assert "1 of 3" in text
        await turn_to(on, screen, "try")
        await on.press("enter", "a", "b", "c")
        await on.until(lambda: bool(screen.view.scores))
        assert "letters" in on.text
        # three letters of twelve
        assert screen.view.scores["total"] == 0.25
        frames.check(on.app)
        screen.change(form.type("rewards.functions", "no/such.py:letters"))
        await on.until(lambda: "problem" in screen.view.scores)
        screen.change(form)
        await on.until(lambda: screen.view.scores.get("total") == 0.25)


@pytest.mark.slow
async def test_a_mended_file_is_tried_again_by_itself_and_by_the_launch(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.01)
    file = tmp_path / "mine.py"
    file.write_text("broken")

    async def request(_: object, method: str, *__: object, **___: object) -> Mapping[str, Any]:
        broken = [("rewards.functions", "mine.py: broken")] * (file.read_text() == "broken")
        return {"problems": broken, "now": "", "fetches": []} if method == "ready" else {}

    monkeypatch.setattr(TrialProcess, "request", request)
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        screen.change(screen.view.form.type("rewards.functions", f"{file}:brevity"))
        await on.until(lambda: "1 to fix" in on.text)
        await on.until(lambda: file in screen._written)
        file.write_text("mended")
        await on.until(lambda: "✓ ready" in on.text)
        file.write_text("broken")
        await on.until(lambda: "1 to fix" in on.text)
        for timer in [timer for timer in screen._timers if timer.name == "files"]:
            timer.stop()  # from here on only the launch looks
        file.write_text("mended")
        await on.press("L")
        await on.until(lambda: "into the queue" in on.text)


@pytest.mark.slow
async def test_a_result_of_other_settings_says_nothing_about_those_of_now(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.01)
    begun, release = asyncio.Event(), asyncio.Event()

    async def request(_: object, method: str, *__: object, **___: object) -> Mapping[str, Any]:
        if method == "ready":
            begun.set()
            await release.wait()
        return {"problems": [], "now": "", "fetches": []} if method == "ready" else {}

    monkeypatch.setattr(TrialProcess, "request", request)
    async with walk(workbench(store)) as on:
        screen = await opened(on)
        screen.try_settings()
        await begun.wait()
        screen.change(screen.view.form.type("seed", "7"))
        assert screen.view.ready == {}
        release.set()
        await on.until(lambda: "✓ ready" in on.text)
        await on.press("end", "enter", "escape", "u")  # nothing is typed
        await on.pilot.pause()
        assert "✓ ready" in on.text


@pytest.mark.slow
async def test_a_run_that_would_fail_is_not_queued_and_not_started_here(tmp_path: Path) -> None:
    app = workbench(tmp_path / "grpo.db")
    tree = {"rewards": {"functions": ["abc"]}, "steps": 1}

    def refusals() -> list[str]:
        return [said.text for said in app.notices if said.text.startswith("not started")]

    async with app.run_test(size=(120, 40)):
        for place in ("queue", "here"):
            app.notices.clear()
            app.post_message(LaunchRequested(build(tree), place))
            await until(app, lambda: bool(refusals()) and not app.bridge.running)
            assert "rewards.functions: reward abc: 'abc' is no name" in refusals()[0]
        assert not app.store.exists()


@pytest.mark.slow
def test_the_form_and_its_trials_load_no_mlx_in_the_workbench() -> None:
    code = """
import asyncio, sys
from pathlib import Path
from grpo_tui.app.tui.app import Workbench
from tests.app.rest import until

async def main():
    app = Workbench(Path("nowhere.db"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await until(app, lambda: app.screen.view.memory)
        await pilot.press("right_square_bracket", "right_square_bracket", "escape", "L", "escape")
    print([m for m in ("mlx.core", "mlx_lm", "transformers", "datasets") if m in sys.modules])

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert done.stdout.strip() == "[]", done.stderr
