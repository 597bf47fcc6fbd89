"""The commands on the store: output, exit status, and errors for unknown names."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.app import exit_codes
from grpo_tui.app.feed.outcomes import outcomes
from grpo_tui.app.tui.screens.runs.render import fitting, run_line
from grpo_tui.app.tui.screens.runs.state import RunsView
from grpo_tui.app.tui.widgets.panel import plain_text
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore
from tests.app.calls import Cli
from tests.experiments.made import config, evaluated, finished, put_all, record_run, started
from tests.patience import PATIENCE

COMPARE = ("compare", "plain-otter", "=evil")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A store with two finished runs that differ in beta and seed; the second one is better."""
    path = tmp_path_factory.mktemp("recorded") / "s.db"
    one = record_run(path, name="plain-otter", last=(evaluated(3, (1, 0)),))
    other = config(seed=1, algorithm={"recipe": "grpo", "beta": 0.1})
    two = record_run(path, name="=evil", tree=other, steps=4, last=(evaluated(4, (1, 1)),))
    return path, one, two


@pytest.fixture
def two(store: Path, recorded: tuple[Path, str, str]) -> tuple[str, str]:
    """The two runs, in a copy of the store for one test."""
    shutil.copytree(recorded[0].parent, store.parent, dirs_exist_ok=True)
    return recorded[1:]


def test_runs_lists_filters_sorts_and_adds_columns(cli: Cli, two: tuple[str, str]) -> None:
    assert [row["name"] for row in cli("runs", "--json").data] == ["=evil", "plain-otter"]
    exported = ("export", two[1], "--what", "runs")
    assert [row["name"] for row in cli(*exported).rows] == ["'=evil"]
    assert [row["name"] for row in cli(*exported, "--raw").rows] == ["=evil"]
    found = cli(
        "runs", "--filter", "reward>0.35", "--columns", "=algorithm.beta as b, last kl", "--json"
    ).data
    assert [(row["name"], row["b"], row["last kl"]) for row in found] == [("=evil", 0.1, 0.04)]
    ordered = cli("runs", "--sort", "best reward", "--json", "--limit", "1").data
    assert [row["id"] for row in ordered] == [two[0]]
    head, first, second = cli("runs").out.splitlines()
    titles = "id name status health held-out steps age recipe KL task model best reward"
    assert " ".join(head.split()) == titles
    age = second[head.index("steps") + 5 : head.index("age") + 3].strip()
    assert " ".join(second.replace(age, "1s").split()) == (
        f"{two[0]} plain-otter completed unjudged 50% 3/10 1s grpo .03 arithmetic starter .3 @3"
    )
    assert first.split()[:3] == [two[1], "=evil", "completed"]


@pytest.mark.usefixtures("two")
def test_runs_draws_a_column_as_the_screen_does_and_leaves_empty_ones_out(
    cli: Cli, store: Path
) -> None:
    head, *lines = cli("runs", "--columns", "last kl, last grad_norm as norm").out.splitlines()
    with StoreReader(store) as reader:
        runs = reader.runs(sort="-created", columns=["last kl"])
        view = RunsView(runs=runs, columns=("last kl",), outcomes=outcomes(reader, runs))
    columns = [column for column in fitting(120, view) if column.title != "age"]
    for run, line in zip(runs, lines, strict=True):
        drawn = plain_text([run_line(run, columns, view)]).split()
        assert {*line.split()} >= {word for word in drawn if not set(word) & set("✓━╸─")}
    assert head.split()[-3:] == ["last", "kl", "norm"]
    assert "curve" not in head
    assert "tags" not in head


def test_an_empty_store_is_no_error_to_list(cli: Cli) -> None:
    done = cli("runs", "--json")
    assert (done.code, done.data) == (exit_codes.OK, [])
    assert "the first run will create it" in done.err


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("runs", "show", "plain-oter"), 3, "did you mean plain-otter?"),
        (("runs", "show", "@first"), 3, "did you mean @last?"),
        (("runs", "--filter", "status:complete"), 2, "did you mean completed"),
        (("runs", "--filter", "(" * 20_000), 2, "20000 of them brackets"),
        (("runs", "--filter", "!" * 51 + "a"), 2, "51 of them brackets"),
        (("runs", "--filter", "a | " * 300 + "a"), 2, "has 601 parts"),
        (("runs", "--limit", "9" * 23), 2, f"{'9' * 23} is too large"),
        (("runs", "--filter", "cfg.algorithm.betta>0"), 2, "did you mean algorithm.beta"),
        (("runs", "--sort", "rewrd"), 2, "did you mean reward"),
        (("runs", "--columns", "last nope"), 2, "there is no field, setting or metric 'nope'"),
        (("compare", "plain-otter"), 2, "two different runs"),
        ((*COMPARE, "--at", "epoch"), 2, "choose from step, tokens, wall"),
        ((*COMPARE, "--metric", "rewad"), 2, "'rewad' here; did you mean reward"),
        ((*COMPARE, "--at", "tokens=-5"), 2, "'-5' is not a number from 0 on"),
        ((*COMPARE, "--reach", "2"), 2, "nothing can reach '2'"),
        ((*COMPARE, "--reach", "eval/accuracy=-1"), 2, "nothing can reach 'eval/accuracy=-1'"),
        ((*COMPARE, "--reach", "rewad=2"), 2, "'rewad' here; did you mean reward"),
        (("rollouts", "plain-otter", "--step", "9"), 3, "its last step is 3"),
        (("rollouts", "plain-otter", "--group", "9"), 3, "at step 3; it has 0 to 1 there"),
        (("export", "plain-otter", "--what", "metric"), 2, "is not one of 'runs', 'metrics'"),
        (("export", "plain-otter", "--out", "x.xlsx"), 2, "use --format"),
        (("export", "plain-otter", "--format", "tensorboard"), 2, "writes a folder"),
        (("stop", "plain-otter"), 2, "is already completed"),
        (("runs", "rename", "plain-otter", "=evil"), 2, "is already called"),
        (("runs", "tag", "plain-otter"), 2, "give --add TAG or --remove TAG"),
        (("runs", "delete", "plain-otter", "--yes"), 2, "is not archived"),
        (("runs", "import", "nowhere.db"), 2, "there is no file"),
        (("logs", "nobody"), 3, "no run is called 'nobody'"),
        (("plot", "nobody"), 3, "no run is called 'nobody'"),
        (("plot", "plain-otter", "--metric", "rewad"), 2, "did you mean reward"),
        (("report", "nobody"), 3, "no run is called 'nobody'"),
    ],
)
def test_a_wrong_word_gets_the_nearest_right_one_and_its_exit_status(
    cli: Cli, two: tuple[str, str], args: tuple[str, ...], code: int, words: str
) -> None:
    assert two
    done = cli(*args)
    assert (done.code, done.out) == (code, "")
    assert words in " ".join(done.err.split())


def test_show_names_the_settings_that_are_not_the_defaults(cli: Cli, two: tuple[str, str]) -> None:
    assert two
    text = cli("runs", "show", "=evil").out
    assert ["algorithm.beta", "0.1"] in [line.split() for line in text.splitlines()]
    assert "record.tokens" not in text
    assert "record.tokens" in cli("runs", "show", "=evil", "--all").out


def test_compare_shows_exactly_what_differs_with_equal_numbers_in_csv_and_json(
    cli: Cli, two: tuple[str, str]
) -> None:
    data = cli("compare", *two, "--json").data
    assert data["settings"] == {
        "algorithm.beta": {two[0]: 0.04, two[1]: 0.1},
        "seed": {two[0]: 0, two[1]: 1},
    }
    rows = cli("export", *two, "--what", "runs").rows
    assert [row["name"] for row in rows] == ["plain-otter", "'=evil"]
    for row in rows:
        for key, item in data["metrics"].items():
            for name, value in item["runs"][row["id"]].items():
                if value is not None and name in ("best", "best_step", "last", "last_step"):
                    assert float(row[f"{name} {key}"]) == value
    page = cli("compare", *two, "--baseline", two[0], "--at", "tokens")
    assert " +0.1" in page.out
    assert "`at` is 300 tokens" in page.err
    # the second run was first evaluated at 400 tokens: the last evaluations of both count
    assert "paired permutation test" in page.out


def test_compare_shows_a_setting_that_is_not_set_as_the_screen_does(cli: Cli, store: Path) -> None:
    for adapter in (None, "weights"):
        model = {"path": "starter", "adapter": adapter}
        record_run(store, name=f"with-{adapter}", tree=config(model=model))
    page = cli("compare", "with-None", "with-weights").out
    assert ["model.adapter", "–", "weights"] in [line.split() for line in page.splitlines()]


def test_of_a_run_without_steps_it_is_said_that_it_recorded_none(cli: Cli, store: Path) -> None:
    record_run(store, name="clo", steps=0)
    done = cli("plot", "clo")
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    assert "no step was finished" in done.err


def test_runs_of_other_tasks_are_told_apart_by_their_tasks(cli: Cli, store: Path) -> None:
    for task in ("arithmetic", "guess"):
        record_run(
            store,
            name=task,
            tree=config(task={"name": task}),
            fingerprint=f"{task}-data",
            last=(evaluated(3),),
        )
    page = cli("compare", "arithmetic", "guess")
    first = page.out.splitlines()[0]
    assert "data sets differ (arithmetic, guess)" in first
    assert "evaluation.every" not in first
    assert page.err == ""


def test_rollouts_are_listed_and_searched(cli: Cli, two: tuple[str, str]) -> None:
    assert two
    rows = cli("rollouts", "plain-otter", "--sort", "reward", "--json").data
    assert [(row["step"], row["completion"]) for row in rows] == [
        (3, "yes"),
        (3, "yes"),
        (3, "no"),
        (3, "no"),
    ]
    found = cli("rollouts", "plain-otter", "--search", "1 + 1 =", "--limit", "3", "--json").data
    assert len(found) == 3
    narrowed = cli(
        "rollouts",
        "plain-otter",
        "--search",
        "yes",
        "--step",
        "1",
        "--group",
        "0",
        "--limit",
        "1",
        "--json",
    ).data
    assert [(row["step"], row["group"], row["completion"]) for row in narrowed] == [(1, 0, "yes")]
    parts = cli("rollouts", "plain-otter", "--search", "ye", "--limit", "3")
    assert [line.split("  ")[-1] for line in parts.out.splitlines()[1:]] == ["yes"] * 3
    assert "the first 3; --limit 0 gives all" in parts.err
    every = cli("rollouts", "plain-otter", "--search", "ye", "--limit", "6")
    assert len(every.out.splitlines()) == 7
    assert "the first" not in every.err
    listed = cli("rollouts", "plain-otter", "--limit", "1").out.splitlines()[1]
    assert listed.split("  ")[-2:] == ["1 + 1 = ?", "yes"]
    done = cli("rollouts", "plain-otter", "--search", "x = -5", "--json")
    assert (done.code, done.data) == (exit_codes.OK, [])
    assert "no rollouts with 'x = -5'" in done.err


def test_verbs_of_runs_change_what_they_say(cli: Cli, two: tuple[str, str]) -> None:
    assert cli("runs", "rename", two[0], "better name").code == exit_codes.OK
    assert cli("runs", "tag", "better name", "@last", "--add", "good").code == exit_codes.OK
    assert cli("runs", "tag", "@last", "--remove", "good").code == exit_codes.OK
    assert cli("runs", "note", two[0], "so = so").code == exit_codes.OK
    (row,) = cli("runs", "--filter", "tag:good note:so", "--json").data
    assert (row["name"], row["tags"], row["note"]) == ("better name", ["good"], "so = so")
    assert cli("runs", "archive", two[0]).code == exit_codes.OK
    assert [row["id"] for row in cli("runs", "--json").data] == [two[1]]
    assert len(cli("runs", "--all", "--json").data) == 2
    assert cli("runs", "delete", two[0], "--yes").code == exit_codes.OK
    assert len(cli("runs", "--all", "--json").data) == 1
    assert cli("runs", "show", two[0]).code == exit_codes.NOT_FOUND


def test_the_next_command_that_writes_removes_runs_that_were_deleted_before_a_crash(
    cli: Cli, two: tuple[str, str], store: Path
) -> None:
    with ExperimentStore(store) as opened:
        opened.delete([opened.key_of(two[0])])
    assert [row["id"] for row in cli("runs", "--all", "--json").data] == [two[1]]
    assert run_folder(store, two[0]).exists()
    assert "removed deleted runs: 1" in cli("runs", "note", two[1], "text").err
    assert not run_folder(store, two[0]).exists()


def test_runs_of_another_store_are_imported(cli: Cli, two: tuple[str, str], tmp_path: Path) -> None:
    assert two
    record_run(tmp_path / "other.db", name="theirs")
    done = cli("runs", "import", str(tmp_path / "other.db"), "--json")
    assert [item["name"] for item in done.data] == ["theirs"]
    assert cli("runs", "import", str(tmp_path / "other.db"), "--json").data == []


@pytest.fixture
def trained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the queue are recorded without training."""

    def train(queue: RunQueue, item: Any) -> tuple[str, str]:
        run = record_run(queue.store.path, name=item.name, tree=dict(item.config))
        queue.attach(item.id, queue.store.key_of(run))
        return "done", ""

    monkeypatch.setattr("grpo_tui.app.jobs.queue_worker.run_item", train)


@pytest.mark.usefixtures("trained_at_once")
def test_the_queue_reports_what_it_trained_and_nothing_before(cli: Cli, store: Path) -> None:
    for names in (["early"], ["one", "two"], []):
        with ExperimentStore(store) as opened:
            for name in names:
                RunQueue(opened).add(config(name=name))
        done = cli("sweep", "--queue", "--json")
        assert done.code == exit_codes.OK
        assert [(row["name"], row["state"], row["step"]) for row in done.data["items"]] == [
            (name, "done", 3) for name in names
        ]
    assert "nothing is queued" in cli("sweep", "--queue").err


@pytest.mark.usefixtures("trained_at_once")
def test_the_same_settings_under_another_name_are_told_to_be_the_first_sweep(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.trial.ready.require_apart", lambda _configs, **_: ())
    grid = ("sweep", "--steps", "1", "--set", "algorithm.beta=0,0.04", "--json")
    assert cli(*grid, "--name", "first").data["sweep"] == "first"
    again = cli(*grid, "--name", "second")
    assert again.data["sweep"] == "first"
    assert "of sweep first" in again.err
    with StoreReader(store) as reader:
        assert {run.sweep for run in reader.runs()} == {"first"}


@pytest.fixture
def live(store: Path) -> Iterator[tuple[str, Control]]:
    """A run that is active in this process."""
    control = Control()
    handle = start_run(store, config(), name="at-work", control=control)
    handle.put(started())
    handle.put(finished(1))
    assert handle.flush(PATIENCE)
    yield handle.id, control
    handle.close()


def test_requests_are_taken_by_the_run_and_their_fate_is_told(
    cli: Cli, live: tuple[str, Control]
) -> None:
    run, control = live
    paused = cli("pause", run, "--json")
    assert (paused.code, paused.data["state"]) == (exit_codes.OK, "taken")
    assert control.paused
    assert cli("continue", run).code == exit_codes.OK
    assert not control.paused
    stopped = cli("stop", run)
    assert (stopped.code, stopped.out) == (exit_codes.OK, "")
    assert "at-work: " in stopped.err
    assert control.stop_after_step


def test_a_request_that_changes_nothing_says_so(cli: Cli, store: Path) -> None:
    with closing(start_run(store, config(), name="at-work")) as handle:
        put_all(handle, started(), ev.RunPaused(step=1))
        assert handle.flush(PATIENCE)
        done = cli("pause", "at-work")
        assert (done.code, done.err) == (exit_codes.USAGE, "grpo-tui: at-work is already paused\n")
        assert "it was not paused" not in cli("continue", "at-work").err
        handle.put(ev.RunResumed(step=1))
        assert handle.flush(PATIENCE)
        assert "it was not paused" in cli("continue", "at-work").err


def test_logs_are_followed_until_the_run_ends(
    cli: Cli, live: tuple[str, Control], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.parent / "runs" / live[0] / "log.txt"
    # é has two bytes, which come apart
    writes = [b"begun caf\xc3", b"\xa9 and done\n\x1b[2Jno line end"]

    def grow(_seconds: float) -> None:
        with log.open("ab") as out:
            out.write(writes.pop(0))
        if not writes:
            with closing(sqlite3.connect(store)) as conn, conn:
                conn.execute("UPDATE run SET status = 'completed'")

    monkeypatch.setattr("grpo_tui.app.cli.verbs.logs.time", SimpleNamespace(sleep=grow))
    log.write_text("first\nsecond\n", encoding="utf-8")
    done = cli("logs", live[0], "--lines", "1", "--follow")
    assert done.out.splitlines() == ["second", "begun café and done", "␛[2Jno line end"]


def test_the_log_of_a_run_that_is_not_stored_is_printed_and_followed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "none.db"))
    monkeypatch.setattr("grpo_tui.app.cli.verbs.logs.time", SimpleNamespace(sleep=interrupt))
    (tmp_path / "log.txt").write_text("first\nsecond\n", encoding="utf-8")
    assert cli("logs", f"{tmp_path}/").out == "first\nsecond\n"
    done = cli("logs", f"{tmp_path}/", "--lines", "1", "--follow")
    assert (done.code, done.out) == (exit_codes.INTERRUPTED, "second\n")
