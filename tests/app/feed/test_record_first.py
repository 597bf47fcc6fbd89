"""Record first, show second: what a viewer sees of an unfinished step."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.stored import LiveFeed
from grpo_tui.experiments.record.recorder import start_run
from tests.experiments.made import CONFIG, group, put_all, started
from tests.patience import PATIENCE, until

SAMPLED = (
    ev.PhaseStarted(step=1, phase="generate", total=2),
    ev.PromptsStarted(
        step=1,
        prompts=(
            ev.PromptStarted(group=0, origin="train", prompt_text="1 + 1 = ?", target="2", rows=2),
        ),
    ),
    ev.RolloutsAdvanced(
        step=1,
        tokens=6,
        finished=2,
        total=2,
        tokens_per_second=9.0,
        rows=(
            ev.RowDelta(group=0, index=0, text="yes", tokens=3, finish="stop"),
            ev.RowDelta(group=0, index=1, text="no", tokens=3, finish="stop"),
        ),
    ),
    ev.PhaseStarted(step=1, phase="score", total=2),
)


def test_scores_show_while_the_step_goes_on_but_not_before_they_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the store stays locked for the whole test
    monkeypatch.setattr("grpo_tui.experiments.record.recorder.LOCK_LIMIT_S", 2 * PATIENCE)
    handle = start_run(tmp_path / "store.db", CONFIG)
    session = Session(LiveFeed(handle, Control()))
    handle.put(started())
    assert handle.flush(PATIENCE)

    with closing(sqlite3.connect(handle.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        put_all(handle, *SAMPLED, ev.GroupScored(step=1, group=group()))
        until(lambda: handle._pending)
        shown = session.pull().groups
        assert shown == handle.board.view.groups
        assert [rollout.text for rollout in shown[0].rollouts] == ["yes", "no"]
        other.execute("ROLLBACK")

    # the step has not ended: the group is recorded because it has waited long enough
    until(lambda: session.pull().groups == (group(),))
    handle.close()
