"""How a run is started in each place: recorded first, closed if it cannot start."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import CheckpointError, ConfigError
from grpo_engine.run import checkpoint
from grpo_tui import record as recording
from grpo_tui.app.jobs.detach import command
from grpo_tui.app.jobs.headless import run_headless
from grpo_tui.app.jobs.start import Job, new_job, resumed_job, with_pass_rates
from grpo_tui.experiments.errors import RunActiveError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RecordedEvent
from tests.app.stored import record, run_events
from tests.engine.runs import settings
from tests.experiments.made import CONFIG, started
from tests.patience import PATIENCE


def test_each_event_is_recorded_before_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    monkeypatch.setattr("grpo_engine.trainer.run", lambda *_, **__: iter([started()]))
    monkeypatch.setattr(Job, "record", lambda _, event: happened.append(f"record {event.step}"))
    job = Job(config=RunConfig(), folder=tmp_path, resume=False)
    job.train(lambda event: happened.append(f"show {event.step}"))
    assert happened == ["record 0", "show 0"]


def test_a_run_has_the_name_of_its_settings(tmp_path: Path) -> None:
    job = new_job(RunConfig(name="calm-otter"), store=tmp_path / "s.db")
    job.close()
    with StoreReader(tmp_path / "s.db") as reader:
        assert reader.resolve("calm-otter").name == job.name == "calm-otter"


def test_a_checkpoint_is_never_ahead_of_the_store(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    save, write, seen = checkpoint.save, RunWriter.write, list[tuple[int, int]]()

    def slow(self: RunWriter, items: Sequence[RecordedEvent], limit: float) -> None:
        time.sleep(0.05)
        write(self, items, limit)

    def noted(folder: Path, step: int, **options: Any) -> checkpoint.Checkpoint:
        with StoreReader(path) as reader:
            seen.append((step, reader.resolve("@last").step))
        return save(folder, step, **options)

    monkeypatch.setattr(RunWriter, "write", slow)
    monkeypatch.setattr(checkpoint, "save", noted)
    job = new_job(settings(world, steps=3, checkpoint={"every": 1}), store=path)
    job.train(lambda _: None)
    job.close()
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_an_engine_that_raises_ends_the_run_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise CheckpointError("step-9 is damaged")

    monkeypatch.setattr("grpo_engine.trainer.run", broken)
    seen: list[ev.Event] = []
    Job(config=RunConfig(), folder=tmp_path, resume=False).train(seen.append)
    wanted = ev.RunFailed(
        step=0, error="CheckpointError", message="step-9 is damaged", traceback=""
    )
    assert seen == [wanted]


def test_a_resumed_run_keeps_its_settings_and_what_is_muted(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    alert = ev.AlertRaised(step=2, rule="kl_high", severity="warning", explanation="e", remedy="r")
    events = (event for event in run_events(steps=2) if not isinstance(event, ev.RunFinished))
    key = record(path, chain(events, [alert]), name="calm-otter", seed=7)
    store = ExperimentStore(path)
    store.mute(key, "kl_high", True)
    store.close()
    job = resumed_job("calm-otter", store=path)
    assert (job.name, job.config.seed, job.resume) == ("calm-otter", 7, True)
    job.close()
    with StoreReader(path) as reader:
        assert reader.muted_alerts(key) == {"kl_high"}


def test_a_complete_run_continues_only_for_more_steps(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    key = record(path, run_events(steps=2), name="calm-otter")
    with pytest.raises(CheckpointError, match=r"calm-otter --steps N` continues it"):
        resumed_job("calm-otter", store=path)
    job = resumed_job("calm-otter", store=path, steps=30)
    job.close()
    assert job.config.steps == 30
    with StoreReader(path) as reader:
        (run,) = reader.runs("cfg.steps=30", columns=["=steps"])
        assert (run.key, run.total_steps, run.columns["steps"]) == (key, 30, 30)
        assert reader.run(key).config["steps"] == 30
    with pytest.raises(ConfigError, match="steps"):
        resumed_job("calm-otter", store=path, steps=0)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_run_without_a_checkpoint_says_how_many_steps_are_redone(
    steps: int, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    events = [event for event in run_events(steps=2) if not isinstance(event, ev.RunFinished)]
    key = record(path, (event for event in events if event.step <= steps), name="calm-otter")
    resumed_job("calm-otter", store=path).close()
    with StoreReader(path) as reader:
        notes = [
            fact.event
            for fact in events_after(reader, key)
            if isinstance(fact.event, ev.NoteWritten)
        ]
    assert [note.severity for note in notes] == ["warning"] * bool(steps)
    assert all(f"redoes {steps} steps" in note.text for note in notes)


def test_the_closing_table_of_an_extended_run_begins_before_the_run(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.db"
    config = settings(world, steps=2, evaluation={"before_and_after": True, "greedy": False})
    assert run_headless(lambda: new_job(config, store=path)) == 0
    first = capsys.readouterr().out
    assert run_headless(lambda: resumed_job("@last", store=path, steps=3)) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert re.findall(r"\w+ \(step \d\)", head) == ["before (step 0)", "after (step 3)"]
    assert "before (step 0)" in first


def test_a_run_that_still_trains_is_not_resumed(tmp_path: Path) -> None:
    handle = start_run(tmp_path / "s.db", CONFIG, name="busy-otter")
    handle.put(started())
    assert handle.flush(PATIENCE)
    with pytest.raises(RunActiveError, match="grpo-tui stop busy-otter"):
        resumed_job("busy-otter", store=handle.path)
    handle.close()


def test_processes_of_runs_find_no_modules_in_the_working_folder() -> None:
    assert command("train")[1:] == ["-P", "-m", "grpo_tui", "train"]


def test_too_few_open_files_are_named_with_the_remedy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom grpo_tui.app.jobs.start import Job\n"
        "from grpo_engine.config.settings import RunConfig\n"
        "job = Job(config=RunConfig(), folder=Path(sys.argv[1]), resume=False)\n"
        "job.train(lambda event: print(event.message, repr(event.traceback)))"
    )
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64 && exec "$0" -P -c "$1" "$2"', sys.executable, code, tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout and "Traceback" not in done.stderr:
        pytest.skip("this user may raise the limit again")
    assert "and 64 are allowed" in done.stdout, done.stderr
    assert done.stdout.endswith("(`ulimit -n 4096`) ''\n")


def test_pass_rates_of_another_trainers_run_are_of_the_answers_that_it_has(
    world: Path, tmp_path: Path
) -> None:
    store = tmp_path / "s.db"
    with recording.run("theirs", store=store) as run:  # without settings of a task or a rollout
        answers = [recording.rollout(text, rewards={"accuracy": text == "4"}) for text in "4567"]
        run.step(1, [recording.group("2 + 2 =", answers, key="a problem")])
    config = with_pass_rates(settings(world, task={"pass_rates": "theirs"}), store)
    content = json.loads(Path(config.task.pass_rates).read_text())
    assert content == {"answers": 4, "pass_rates": {"a problem": 0.25}}


def test_pass_rates_of_a_stored_run_choose_the_problems_of_another(
    world: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"

    def trained(**task: Any) -> tuple[Job, dict[str, float]]:
        """The right answers' share of each problem's newest group."""
        job = new_job(settings(world, task=task), store=path)
        rates: dict[str, float] = {}

        def see(event: ev.Event) -> None:
            assert not isinstance(event, ev.RunFailed), event
            if isinstance(event, ev.GroupScored) and event.group.origin == "train":
                right = [one.rewards[1].value == 1 for one in event.group.rollouts]
                rates[event.group.example_key] = sum(right) / len(right)

        job.train(see)
        job.close()
        return job, rates

    _, rates = trained()
    assert len(rates) == 8
    limit = sorted(rates.values())[4] - 0.01
    second, others = trained(pass_rates="@last", pass_rate_range={"lowest": limit})
    file = Path(second.config.task.pass_rates)
    assert json.loads(file.read_text()) == {"answers": 4, "pass_rates": rates}
    assert {key for key in others if key in rates} == {k for k, r in rates.items() if r >= limit}
    with pytest.raises(ConfigError, match=r"task.pass_rates 'nowhere' is neither a file nor a run"):
        new_job(settings(world, task={"pass_rates": "nowhere"}), store=path)
