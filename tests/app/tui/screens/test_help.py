"""Help: what has the focus, the way to everything else, and selectable, readable text."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.help.screen import HelpScreen
from grpo_tui.app.tui.dialogs.help.topics import alert_part
from grpo_tui.app.tui.screens.watch.panels import Curves
from grpo_tui.experiments.values import AlertView
from tests.app.script import Script
from tests.app.stored import record, run_events
from tests.app.stored import workbench as stored
from tests.app.tui.screens.test_watch import workbench
from tests.app.walk import Walk, walk

SHORT = Script(steps=3, total_steps=9)


async def helped(on: Walk) -> None:
    """Help over Watch."""
    await on.see("reward")
    await on.press("question_mark")
    await on.until(lambda: isinstance(on.screen, HelpScreen))


@pytest.mark.parametrize(
    ("rule", "value", "limit", "written"),
    [("no_signal", 0.725, 0.5, "72%, limit 50%"), ("kl_above_limit", 0.42, 0.1, ".42, limit .1")],
)
def test_an_alert_has_the_numbers_of_the_charts(
    rule: str, value: float, limit: float, written: str
) -> None:
    once = AlertView(
        step=9,
        first_step=9,
        count=1,
        rule=rule,
        severity="warning",
        explanation="",
        remedy="",
        value=value,
        limit=limit,
    )
    rows = dict(alert_part(rule, Snapshot(alerts=(once,))).paragraphs)
    assert (rows["value"], rows["raised"]) == (written, "at step 9")
    often = replace(once, first_step=4, count=3)
    rows = dict(alert_part(rule, Snapshot(alerts=(often,))).paragraphs)
    assert rows["raised"] == "3 times, first at step 4, last at step 9"


@pytest.mark.slow
async def test_slash_on_the_help_finds_help_on_anything(tmp_path: Path) -> None:
    async with walk(workbench(SHORT.events(), tmp_path)) as on:
        await helped(on)
        await on.press("slash", *"nothing_learned")
        await on.see("alert nothing_learned")
        await on.press("enter")
        await on.see("alert: nothing learned", "not raised in this run")


@pytest.mark.slow
async def test_a_panel_asks_for_help_on_what_it_shows_unless_a_question_is_open(
    tmp_path: Path,
) -> None:
    async with walk(workbench(SHORT.events(), tmp_path)) as on:
        await on.see("reward")
        curves = on.screen.query_one(Curves)
        await on.press("ctrl+c")
        assert on.screen.is_modal
        asking = on.screen
        curves.post_message(curves.Opened())  # it arrives late
        await on.pilot.pause()
        assert on.screen is asking
        await on.press("n")
        curves.focus()
        await on.press("enter")
        await on.until(lambda: isinstance(on.screen, HelpScreen))
        await on.see("help", "reward")


@pytest.mark.slow
async def test_help_at_an_earlier_step_has_the_value_of_that_step(tmp_path: Path) -> None:
    record(tmp_path / "runs.db", run_events(steps=5), name="otter")
    async with walk(stored(tmp_path / "runs.db")) as on:
        await on.see("reward")
        await on.press("less_than_sign", "less_than_sign")
        await on.see("esc returns to the latest step")
        step = on.screen.view.past.step
        on.screen.query_one(Curves).focus()
        await on.press("question_mark")
        await on.see(f"at step {step}")
        assert step < 5
        assert "at step 5" not in on.text.partition("health of")[0]


async def test_the_queue_and_its_keys_are_explained(tmp_path: Path) -> None:
    async with walk(Workbench(tmp_path / "none.db")) as on:
        await on.press("Q", "question_mark")
        await on.see("Runs that wait", "Remove a waiting run from the queue")
        await on.press("escape")
        await on.see("─ queue ─")
