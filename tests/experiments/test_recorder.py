"""Record first, show second: transactions, facts, attempts, status, the board, requests."""

import math
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.connection import begin
from grpo_tui.experiments.db.texts import iso
from grpo_tui.experiments.errors import StoreUnusableError
from grpo_tui.experiments.post_mortem import post_mortem
from grpo_tui.experiments.read.status import derive
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.live import Exchange
from grpo_tui.experiments.record.recorder import resume_run, start_run
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RecordedEvent
from tests.experiments.made import (
    CONFIG,
    NAN,
    alerted,
    config,
    ended,
    finished,
    group,
    metrics_at,
    numbers,
    put_all,
    record_run,
    recorded,
    sql,
    started,
    step_events,
)
from tests.patience import PATIENCE, until


def test_a_fact_is_delivered_only_after_its_commit(path: Path) -> None:
    handle = start_run(path, CONFIG)
    facts = handle.facts
    put_all(handle, started(), *step_events(1))
    reader = StoreReader(path)
    while not ((fact := facts.get(timeout=PATIENCE)) and isinstance(fact[1], ev.StepFinished)):
        assert fact is not None
    assert metrics_at(reader, handle.key, 1)["reward"] == 0.1
    reader.close()
    handle.close()


def test_a_short_step_is_one_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.experiments.record.recorder.POLL_S", PATIENCE)
    handle = start_run(path, CONFIG)
    handle.put(started())
    assert handle.flush(PATIENCE)
    written: list[int] = []
    write = handle.writer.write

    def counted(items: Sequence[RecordedEvent], limit: float) -> None:
        written.append(len(items))
        write(items, limit)

    monkeypatch.setattr(handle.writer, "write", counted)
    put_all(handle, *step_events(1, groups=5))
    assert handle.flush(PATIENCE)
    assert written == [len([*step_events(1, groups=5)])]
    handle.close()


def test_progress_goes_to_the_board_and_not_into_the_record(path: Path) -> None:
    handle = recorded(path, ev.PhaseStarted(step=1, phase="generate", total=2))
    assert handle.board.view.phase == "generate"
    with StoreReader(path) as reader:
        assert events_after(reader, handle.key) == ()


def test_summaries_hold_extremes_with_their_steps_and_count_what_is_not_finite(
    path: Path,
) -> None:
    handle = recorded(path, *map(finished, (1, 2, 3, 4), (0.5, 0.9, NAN, 0.2)))
    with StoreReader(path) as reader:
        line = reader.run(handle.key).summary.metrics["reward"]
        series = reader.metric_series(handle.key, "reward")
    assert (line.first, line.last, line.best, line.best_step) == (0.5, 0.2, 0.9, 2)
    assert (line.min, line.min_step, line.nonfinite) == (0.2, 4, 1)
    assert line.mean == pytest.approx((0.5 + 0.9 + 0.2) / 3)
    assert repr(series.values) == "(0.5, 0.9, nan, 0.2)"


def test_resuming_hides_what_came_after_the_checkpoint_under_the_old_attempt(
    path: Path,
) -> None:
    handle = start_run(path, CONFIG)
    put_all(handle, started(), *step_events(1), *step_events(2), *step_events(3))
    handle.close("killed")
    again = resume_run(path, handle.id, from_step=1)
    put_all(again, started(step=1), finished(2, reward=0.05), ended(2))
    again.close()
    with StoreReader(path) as reader:
        run = handle.key
        assert reader.metric_series(run, "reward").values == (0.1, 0.05)
        assert reader.group_steps(run) == (1,)
        steps = [(view.step, view.attempt) for view in reader.steps(run)]
        assert steps == [(1, 1), (2, 2)]
        line = reader.run(run).summary.metrics["reward"]
        assert (line.max, line.max_step) == (0.1, 1)
        assert [view.until_step for view in reader.attempts(run)] == [1, None]
        assert reader.run(run).summary.step == 2
    assert sql(path, "SELECT attempt, step FROM step WHERE hidden = 1") == [(1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("setting", "kept"),
    [("all", [9, 10]), ("every", [10]), ("pinned", []), ("none", []), ("nothing", [])],
)
def test_the_size_setting_decides_whose_tokens_and_texts_are_kept(
    path: Path, setting: str, kept: list[int]
) -> None:
    events = (
        event
        for step in (9, 10)
        for event in (ev.GroupScored(step=step, group=group()), numbers(step=step), finished(step))
    )
    run = recorded(path, *events, tree=config(record={"tokens": setting})).key
    with StoreReader(path) as reader:
        assert [view.step for view in reader.groups(run) if view.has_tokens] == kept
        view = reader.groups(run, step=10)[0]
        assert (reader.tokens(run, view.key) is not None) == (10 in kept)
        assert view.rollouts[0].clip_fraction == 0.25
        assert {bool(rollout.text) for rollout in view.rollouts} == {setting != "nothing"}


def test_token_numbers_that_come_after_an_interruption_complete_their_group(
    path: Path,
) -> None:
    scored = ev.GroupScored(step=1, group=group())
    pause = (ev.RunPaused(step=1), ev.RunResumed(step=1))
    run = recorded(path, scored, *pause, numbers(), finished(1)).key
    with StoreReader(path) as reader:
        view = reader.groups(run, step=1)[0]
        tokens = reader.tokens(run, view.key)
    assert tokens is not None
    assert tokens.rows[0].after == (-0.25, -0.5, -2.0)
    assert view.rollouts[1].kl == 0.125


def test_an_alert_is_one_line_that_counts_and_stays_muted(path: Path) -> None:
    handle = start_run(path, CONFIG)
    for step in (3, 4, 5):
        handle.put(alerted(step, rule="kl"))
        assert handle.flush(PATIENCE)
        if step == 3:
            handle.store.mute(handle.key, "kl")
    handle.close()
    with StoreReader(path) as reader:
        (alert,) = reader.alerts(handle.key)
    assert (alert.rule, alert.first_step, alert.last_step, alert.count) == ("kl", 3, 5, 3)
    assert alert.muted


def test_a_run_whose_first_attempt_never_began_can_be_resumed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(ExperimentStore, "start_attempt", None)
        with pytest.raises(TypeError):
            start_run(path, CONFIG, name="early")
    with StoreReader(path) as reader:
        run = reader.resumable("early").summary
        assert run.status == "lost"
        assert post_mortem(reader, run.key).cause == "no process ever started it"
        handle = resume_run(path, "early", from_step=0)
        assert reader.resolve("early").status == "running"
        put_all(handle, started(), *step_events(1), ended(1))
        assert handle.close()
        assert reader.resolve("early").status == "completed"


# -- status --------------------------------------------------------------------------------------


NOW = 1_700_000_000.0


def signs(**changes: object) -> SimpleNamespace:
    import os

    from grpo_tui.experiments.db.machine import boot_id, host_name, process_start

    now = iso(NOW)
    fields: dict[str, object] = {
        "host": host_name(),
        "boot": boot_id(),
        "pid": os.getpid(),
        "pid_start": process_start(os.getpid()),
        "heartbeat": now,
        "progress_at": now,
        "ended_at": None,
        "status": "running",
        "step": 1,
        "elapsed": 1.0,
    }
    return SimpleNamespace(**{**fields, **changes})


def test_status_never_lies() -> None:
    long_ago = iso(NOW - 3600)
    assert derive(signs(), NOW)[0] == "running"
    assert derive(signs(progress_at=long_ago), NOW) == ("stalled", long_ago)
    assert derive(signs(progress_at=long_ago, elapsed=1000.0), NOW)[0] == "running"
    assert derive(signs(progress_at=long_ago, status="paused"), NOW)[0] == "paused"
    assert derive(signs(pid_start="another"), NOW)[0] == "lost"
    assert derive(signs(boot="before"), NOW)[0] == "lost"
    assert derive(signs(host="elsewhere"), NOW)[0] == "running"
    assert derive(signs(host="elsewhere", heartbeat=long_ago), NOW) == ("unknown", long_ago)


def test_the_heartbeat_goes_on_while_nothing_is_put(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.experiments.record.live.PERIOD_S", 0.05)
    handle = start_run(path, CONFIG)
    with StoreReader(path) as reader:
        first = reader.attempts(handle.key)[0]
        until(lambda: reader.attempts(handle.key)[0].heartbeat > first.heartbeat)
        second = reader.attempts(handle.key)[0]
        until(lambda: reader.attempts(handle.key)[0].heartbeat > second.heartbeat)
        assert reader.attempts(handle.key)[0].progress_at == second.progress_at
    handle.close()


# -- viewers and requests ------------------------------------------------------------------------


def test_the_board_is_written_only_while_someone_looks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[Exchange] = []
    poll = Exchange.poll

    def noted(exchange: Exchange) -> None:
        poll(exchange)
        polls.append(exchange)

    monkeypatch.setattr(Exchange, "poll", noted)
    handle = start_run(path, CONFIG)
    handle.put(ev.PhaseStarted(step=1, phase="generate", total=2))
    before = len(polls)
    until(lambda: len(polls) > before + 1)
    with StoreReader(path) as reader:
        assert reader.board(handle.key) is None
        handle.store.renew_lease(handle.key, PATIENCE)
        until(lambda: reader.board(handle.key) is not None)
        assert reader.board(handle.key) == handle.board.view
    handle.close()


def test_a_poll_reads_requests_only_after_another_connection_wrote(path: Path) -> None:
    handle = start_run(path, CONFIG)
    assert handle.close()  # its thread polls no more
    control, writer = Control(), RunWriter(handle.store, handle.store.run_row(handle.key))
    exchange = Exchange(writer, Board(), control)
    exchange.poll()
    statements: list[str] = []
    writer.connection.set_trace_callback(statements.append)
    exchange.poll()
    assert statements == ["PRAGMA data_version"]
    handle.store.request(handle.key, "pause")
    exchange.poll()
    assert control.paused
    writer.close()


def test_requests_reach_the_control_and_say_that_they_are_taken(path: Path) -> None:
    control = Control()
    handle = start_run(path, CONFIG, control=control)
    with StoreReader(path) as reader:
        request = handle.store.request(handle.key, "pause")
        assert reader.control(request).state in ("asked", "taken")
        until(lambda: control.paused)
        until(lambda: reader.control(request).state == "taken")
        handle.store.request(handle.key, "pin", argument="example \x00")
        until(lambda: control.pop_pins() == ["example \x00"])
    handle.close()


def test_an_old_stop_does_not_end_a_resumed_run(path: Path) -> None:
    handle = start_run(path, CONFIG)
    put_all(handle, finished(1))
    handle.close("killed")
    request = handle.store.request(handle.key, "stop_now")
    control = Control()
    again = resume_run(path, handle.key, from_step=1, control=control)
    with StoreReader(path) as reader:
        until(lambda: reader.control(request).state == "expired")
    assert not control.stop_now
    again.close()


def test_a_request_that_is_open_when_the_attempt_ends_expires(path: Path) -> None:
    store = ExperimentStore(path)
    run = store.create_run(CONFIG).id
    attempt = store.start_attempt(run, 0)
    request = store.request(run, "pause")
    store.end_attempt(run, attempt, "killed")
    with StoreReader(path) as reader:
        assert reader.control(request).state == "expired"


def test_a_request_that_nobody_takes_says_no_answer(tmp_path: Path) -> None:
    record_run(tmp_path / "s.db")
    store = ExperimentStore(tmp_path / "s.db")
    with StoreReader(tmp_path / "s.db") as reader:
        request = store.request(reader.resolve("@last").key, "pause")
        sql(tmp_path / "s.db", f"UPDATE control SET asked_at = '{iso(time.time() - 6)}'")
        view = reader.control(request)
    store.close()
    assert view.state == "no answer"
    assert "grpo-tui runs" in view.message


def test_a_store_that_cannot_be_opened_refuses_the_run(tmp_path: Path) -> None:
    (tmp_path / "no.db").write_text("this is not a database, but a text of some length\n" * 50)
    with pytest.raises(StoreUnusableError, match="file is not a database; choose another --db"):
        start_run(tmp_path / "no.db", CONFIG)
    sql(tmp_path / "other.db", "CREATE TABLE theirs (a)")
    with pytest.raises(StoreUnusableError, match="another program"):
        start_run(tmp_path / "other.db", CONFIG)


def test_rows_made_ready_before_another_recorder_wrote_get_ids_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    first, second = (start_run(path, CONFIG, name=name) for name in ("first", "second"))
    put_all(first, started(), *step_events(1))
    assert first.flush(PATIENCE)
    between = [*step_events(1)]

    def late(conn: sqlite3.Connection, limit: float) -> None:
        events, between[:] = list(between), []
        put_all(second, *events)
        assert not events or second.flush(PATIENCE)
        begin(conn, limit)

    monkeypatch.setattr("grpo_tui.experiments.record.store_file.begin", late)
    put_all(first, *step_events(2))
    assert first.close()
    assert second.close()
    with StoreReader(path) as reader:
        for name, steps in (("first", (1, 2)), ("second", (1,))):
            run = reader.resolve(name).key
            for step in steps:
                views = reader.groups(run, step=step)
                assert [[item.text for item in view.rollouts] for view in views] == [
                    ["yes", "no"],
                    ["yes", "no"],
                ]


def test_a_step_without_a_time_of_training_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    recorder = start_run(path, CONFIG)
    put_all(
        recorder,
        started(),
        ev.StepFinished(step=1, metrics={}, tokens=0, elapsed=2.5),
        ev.StepFinished(step=2, metrics={}, tokens=0, elapsed=math.nan),
    )
    assert recorder.close()
    with StoreReader(path) as reader:
        run = reader.resolve("@last")
    assert (run.step, run.elapsed) == (2, 2.5)
