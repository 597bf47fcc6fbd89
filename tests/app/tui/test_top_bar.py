"""The line at the top of every screen: the shown run, its health, and what else is training."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.run_health import Health
from grpo_tui.app.feed.snapshot import Head, Snapshot
from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import RunOpened
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.widgets.panel import plain_text
from grpo_tui.app.tui.widgets.top_bar import run_line
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import Recorder, start_run
from grpo_tui.experiments.values import AlertView, RunSummary
from tests.app.script import started
from tests.app.stored import record, run_events
from tests.app.walk import Walk, walk
from tests.experiments.made import CONFIG
from tests.patience import PATIENCE

ALERT = AlertView(
    step=60, rule="no_signal", severity="warning", explanation="", remedy="", first_step=60, count=1
)
SHOWN = Snapshot(
    head=Head(id="a", name="calm-otter", model="starter", recipe="grpo", total_steps=60),
    status="running",
    step=60,
    current_step=60,
    alerts=(ALERT,),
    health=Health(label="hacked?", reason="Reward rose and accuracy fell."),
)


def training(path: Path, name: str) -> Recorder:
    """A run of another process, as far as a store can tell."""
    recorder = start_run(path, CONFIG, name=name)
    recorder.put(started())
    assert recorder.flush(PATIENCE)
    return recorder


@pytest.fixture
def live(tmp_path: Path) -> RunSummary:
    recorder = training(tmp_path / "runs.db", "live-heron")
    with StoreReader(tmp_path / "runs.db") as reader:
        (run,) = reader.active()
    recorder.close()
    return run


def test_what_a_narrow_terminal_leaves_out_comes_from_a_list(live: RunSummary) -> None:
    """At 80 columns the tabs leave 36."""

    def line(width: int, mark: str = "", *elsewhere: RunSummary, key: str = "") -> str:
        text = plain_text([run_line(SHOWN, mark, elsewhere, width, key)])
        assert cell_len(text) <= width
        return " ".join(text.split())

    assert line(80) == "● calm-otter starter · grpo ▲1 hacked? step 60/60"
    assert line(36) == "● calm-otter ▲1 hacked? 60/60"
    assert line(13) == "● calm-ott…"  # at 60 columns
    assert line(36, "recorded speed") == "● calm-otter ▲1 hacked? 60/60"
    assert line(76, "", live) == "● calm-otter starter · grpo ▲1 hacked? step 60/60 ● live-heron"
    assert line(47, "", live) == "● calm-otter ▲1 hacked? 60/60 ● live-heron"
    assert line(46, "", live) == line(36, "", live) == "● calm-otter ▲1 hacked? 60/60 ●"
    assert line(80, "", live, replace(live, id="b")).endswith("● live-heron +1")
    assert line(49, "", live, key="3") == "● calm-otter ▲1 hacked? 60/60 3 ● live-heron"
    assert line(36, "", live, key="3") == "● calm-otter hacked? 60/60 3 ●"
    assert plain_text([run_line(Snapshot(), "", [live], 36)]).strip() == "● live-heron"


@pytest.mark.slow
async def test_the_end_of_a_run_elsewhere_is_reported_and_stays_in_the_messages(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1), name="calm-otter")
    ends: dict[str, ev.Event] = {
        "live-heron": ev.RunFinished(step=4, reason="completed", summary={}),
        "new-hare": ev.RunFailed(step=2, error="MemoryError", message="no room"),
    }
    async with walk(Workbench(path, preferences=Preferences())) as on:
        recorders = [training(path, name) for name in ends]
        on.app._read_active()
        await on.until(lambda: len(on.app.active) == 2)
        lost = replace(on.app.active[0], status="lost", name="old-owl", step=7)
        for recorder, end in zip(recorders, ends.values(), strict=True):
            recorder.put(end)
            recorder.close()
        on.app._read_active()
        await on.until(lambda: not on.app.active)
        on.app.note_active((), (lost,))
        await on.press("exclamation_mark")
        await on.see("live-heron completed at step", "new-hare failed at step", "no room")
        assert "The process of old-owl is gone at step 7; r on Runs resumes it." in on.text


async def test_a_run_that_is_read_has_its_name_and_is_not_another_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    recorder = training(path, "live-heron")
    async with walk(Workbench(path, preferences=Preferences())) as on:
        on.app._read_active()
        await on.until(lambda: "● live-heron" in on.lines[0])
        (run,) = on.app.active
        on.app._open(run.id)
        assert on.app.session is not None
        head = on.app.session.feed.head
        assert (head.id, head.name) == (run.id, "live-heron")
        assert on.app.elsewhere(head.id) == ()
    recorder.close()


def is_shown(on: Walk, name: str) -> bool:
    return f"● {name}" in on.lines[0].split("3 ●")[0]


@pytest.mark.slow
async def test_a_run_that_trains_elsewhere_is_at_the_top_and_3_goes_to_what_the_queue_began(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1), name="calm-otter")
    async with walk(Workbench(path, preferences=Preferences())) as on:
        await on.press("enter")
        await on.until(lambda: "run completed" in on.text)
        recorder = training(path, "live-heron")
        on.app._read_active()
        await on.until(lambda: "● live-heron" in on.lines[0])
        assert " 3 ● live-heron" in on.lines[0]
        await on.press("1")
        assert on.lines[0].endswith("  ● live-heron")  # 3 goes to the open run first
        await on.press("3")
        assert "✓ calm-otter" in on.lines[0]  # it was not started from here
        other = training(path, "other-hare")
        on.app._read_active()
        await on.until(lambda: " 3 ● other-hare +1" in on.lines[0])
        for name in ("other-hare", "live-heron", "other-hare"):  # in turn
            await on.press("3")
            await on.until(partial(is_shown, on, name))
        await on.press("1")
        on.app.post_message(RunOpened("calm-otter"))
        await on.until(lambda: "✓ calm-otter" in on.lines[0])
        recorder.close()
        other.close()
        on.app.follows_queue = True
        recorder = training(path, "new-hare")
        on.app._read_active()
        await on.until(lambda: "● new-hare" in on.lines[0])
        await on.press("3")
        await on.until(lambda: "● new-hare" in on.lines[0] and "calm-otter" not in on.lines[0])
        recorder.close()
