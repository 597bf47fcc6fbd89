"""Muting a kind of alert: shown at once, stored, undone by the same key."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_engine.control import Control
from grpo_tui.app.feed import stored
from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.stored import LiveFeed
from grpo_tui.app.tui.screens.runs.render import preview_lines
from grpo_tui.app.tui.screens.runs.state import load_preview
from grpo_tui.app.tui.screens.watch.panels import AlertsLog
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import resume_run, start_run
from grpo_tui.experiments.store import ExperimentStore
from tests import patience
from tests.app.script import CONFIG, Script
from tests.app.stored import record, workbench
from tests.app.walk import Walk, walk
from tests.experiments.made import alerted

HACKED = alerted(
    4,
    rule="format_hacking",
    explanation="Reward rose while accuracy fell.",
    remedy="Weigh accuracy more.",
)
CUT = alerted(
    4,
    rule="most_truncated",
    explanation="61 % of the answers were cut.",
    remedy="Allow more tokens.",
)
RULES = ("format_hacking", "most_truncated")


def run() -> Iterator[ev.Event]:
    """A run with two alerts at its last step."""
    for event in Script(steps=4, total_steps=4, finished=True, progress=False).events():
        if not isinstance(event, ev.AlertRaised):
            yield event
        if isinstance(event, ev.StepFinished) and event.step == 4:
            yield from (HACKED, CUT)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "grpo.db"
    record(path, run())
    return path


def muted(store: Path) -> frozenset[str]:
    with StoreReader(store) as reader:
        return reader.muted_alerts(1)


async def on_alerts(walk: Walk, words: str) -> AlertsLog:
    """The focused list of alerts, once it contains the words."""
    await walk.see(words)
    log = walk.app.screen.query_one(AlertsLog)
    log.focus()
    await walk.pilot.pause()
    return log


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_muted_alert_no_longer_counts_and_the_same_key_takes_it_back(
    size: tuple[int, int], store: Path
) -> None:
    async with walk(workbench(store, "dark"), size) as on:
        await on_alerts(on, "2 open")
        await on.press("x")
        await on.see("1 open · 1 muted")
        await on.until(lambda: len(muted(store)) == 1)
        await on.press("x")
        await on.see("no alerts · 2 muted", "muted –")
        await on.until(lambda: muted(store) == frozenset(RULES))
        await on.press("x")
        await on.see("1 open · 1 muted")
        await on.until(lambda: len(muted(store)) == 1)


async def test_a_mute_shows_before_the_store_has_it_and_is_not_taken_back_meanwhile(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[frozenset[str]] = []

    def read(reader: StoreReader, run: int) -> frozenset[str]:
        reads.append(muted_alerts(reader, run))
        return reads[-1]

    muted_alerts = StoreReader.muted_alerts
    monkeypatch.setattr(StoreReader, "muted_alerts", read)
    monkeypatch.setattr(stored, "QUIET_S", 0.02)
    async with walk(workbench(store, "dark")) as on:
        await on_alerts(on, "2 open")
        release, write = asyncio.Event(), on.app.write

        async def later(call: Callable[[ExperimentStore], Any]) -> Any:
            await release.wait()
            return await write(call)

        monkeypatch.setattr(on.app, "write", later)
        await on.pilot.press("x")
        await on.until(lambda: "1 open · 1 muted" in on.text)
        before = len(reads)
        await on.until(lambda: len(reads) > before + 2)
        assert "1 open · 1 muted" in on.text
        assert muted(store) == frozenset()
        release.set()
        await on.until(lambda: len(muted(store)) == 1)


async def test_what_was_muted_is_muted_in_the_next_window_and_left_out_of_the_preview(
    store: Path,
) -> None:
    with ExperimentStore(store) as writing:
        writing.mute(1, "most_truncated")
    async with walk(workbench(store, "light"), notifications=True) as on:
        log = await on_alerts(on, "1 open · 1 muted")
        await on.press("down", "enter")
        await on.see("61 % of the answers", "in this run; x in the list unmutes it")
        await on.press("escape")
        log.action_move(1, 0)
        await on.press("x")
        await on.see("Alerts can be muted, lines of the log cannot.")
        assert muted(store) == {"most_truncated"}
    with StoreReader(store) as reader:
        shown = load_preview(reader, reader.resolve("@last"))
        assert shown.alert is not None
        assert shown.alert.rule == "format_hacking"
        whole = (
            "Reward rose by 0.295 over the last 20 steps while numeric_answer did not: the "
            "model earns by form and not by being right."
        )
        shown = replace(shown, alert=replace(shown.alert, explanation=whole))
        lines = preview_lines(shown, shown.detail.summary, 42, 40)
        assert whole in " ".join(text for line in lines for text, _ in line)


async def test_a_window_sees_what_another_one_mutes(store: Path) -> None:
    async with walk(workbench(store, "dark"), notifications=True) as on:
        await on.see("2 open")
        with ExperimentStore(store) as writing:
            writing.mute(1, "format_hacking")
        await on.see("1 open · 1 muted")


async def test_a_store_that_does_not_take_it_has_it_speak_again(store: Path) -> None:
    with sqlite3.connect(store) as connection:
        connection.execute("DELETE FROM alert")
    async with walk(workbench(store, "dark"), notifications=True) as on:
        await on_alerts(on, "2 open")
        await on.press("x")
        await on.see("the run has no alert", "2 open")


def test_a_muted_rule_stays_muted_when_it_holds_again_and_after_a_resume(tmp_path: Path) -> None:
    handle = start_run(tmp_path / "grpo.db", build(CONFIG), name="calm-otter")
    handle.put(HACKED)
    handle.close()
    handle.store.mute(handle.key, "format_hacking")
    again = resume_run(tmp_path / "grpo.db", "calm-otter", from_step=0)
    session = Session(LiveFeed(again, Control()))
    again.put(HACKED)
    again.put(CUT)
    again.close()
    patience.until(lambda: session.pull().open_alerts, session.pull)
    snapshot = session.pull()
    assert [alert.rule for alert in snapshot.open_alerts] == ["most_truncated"]
    assert [alert.rule for alert in snapshot.muted_alerts] == ["format_hacking"]
    assert muted(handle.path) == {"format_hacking"}
