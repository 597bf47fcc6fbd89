"""Nothing that a stranger's run names is loaded, started or sent before a yes to a list of it."""

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import grpo_engine as grpo
from grpo_engine import consent, names
from grpo_engine import events as ev
from grpo_engine.consent import UntrustedError
from grpo_tui.app.chat.client import pair_of
from grpo_tui.app.cli.verb_table import VERBS
from grpo_tui.app.inspector.stored import load_group, load_step, with_functions
from grpo_tui.app.jobs.start import resumed_job, with_teacher
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.trust import TrustDialog
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.new_run.screen import NewRunScreen
from grpo_tui.app.tui.screens.new_run.state import clone_view
from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from grpo_tui.app.tui.screens.runs.screen import RunsScreen
from grpo_tui.experiments.importing import import_store
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.app.calls import Cli, caller
from tests.app.rest import until
from tests.app.stored import record, run_events
from tests.app.strangers_runs import (
    NAMED,
    Planted,
    plant,
    write_theirs,
)

# every verb that takes a run: those that load what it names, and those that look
LOADS = {
    "resume": ("resume", "theirs"),
    "eval": ("eval", "theirs"),
    "chat": ("chat", "theirs", "hello"),
    "models": ("models", "export", "theirs"),
    "train": ("train", "--from", "theirs"),
    "sweep": ("sweep", "--queue"),
}
LOOKS = {
    "runs": ("runs", "show", "theirs"),
    "report": ("report", "theirs"),
    "compare": ("compare", "theirs", "theirs"),
    "export": ("export", "theirs", "--what", "runs", "--out", "-"),
    "rollouts": ("rollouts", "theirs"),
    "plot": ("plot", "theirs"),
    "logs": ("logs", "theirs"),
    "audit": ("audit", "theirs"),
}
# these need a terminal, only send a request, or take no run
OTHERS = {
    "watch",
    "replay",
    "pause",
    "continue",
    "stop",
    "wait",
    "doctor",
    "plan",
    "probe",
    "config",
    "presets",
    "recipes",
    "tasks",
    "rewards",
    "tour",
    "demo",
    "explain",
}


@pytest.fixture(autouse=True)
def _nothing_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(consent, "_digests", set())
    monkeypatch.setattr(consent, "_accepting", False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all that strangers' runs name, where modules are found."""
    write_theirs(tmp_path / "theirs", tmp_path / "mark")
    monkeypatch.syspath_prepend(str(tmp_path / "theirs"))
    names.installed.cache_clear()
    yield tmp_path / "theirs"
    names.installed.cache_clear()
    sys.modules.pop("evil_module", None)


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow) if number % 3 else name
        for number, name in enumerate(NAMED)
    ]
)
def planted(
    request: pytest.FixtureRequest,
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Planted:
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "store/s.db"))
    return plant(request.param, here, tmp_path / "store/s.db")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return caller(monkeypatch, capfdbinary)


def test_each_verb_is_known_to_load_or_to_look() -> None:
    assert {verb.name for verb in VERBS} == LOADS.keys() | LOOKS.keys() | OTHERS


def test_every_verb_that_loads_refuses_and_says_what_it_would_load(
    planted: Planted, cli: Cli
) -> None:
    for verb, words in LOADS.items():
        done = cli(*words)
        assert done.code == (1 if verb == "sweep" else 2), (verb, done)
        text = " ".join((done.out if verb == "sweep" else done.err).split())
        assert planted.says in text, verb
        assert "--trust" in text
    assert not planted.mark.exists()


@pytest.mark.parametrize("planted", ["task", "choice", "judge"], indirect=True)
def test_looking_never_asks(planted: Planted, cli: Cli) -> None:
    for words in LOOKS.values():
        assert "--trust" not in cli(*words).err
    assert not planted.mark.exists()


def test_python_the_form_and_the_chat_refuse_it(planted: Planted) -> None:
    with StoreReader(planted.store) as reader:
        run = reader.resolve("theirs")
        calls: list[Callable[[], Any]] = [
            lambda: grpo.resume("theirs", record=planted.store, progress=False),
            lambda: grpo.evaluate("theirs", record=planted.store),
            lambda: grpo.evaluate(reader.run(run.key).folder, record=False),
            lambda: grpo.resume(reader.run(run.key).folder, record=False, progress=False),
            lambda: clone_view(reader, "theirs"),
            lambda: pair_of(reader, "theirs", None),
            lambda: resumed_job("theirs", planted.store),
            lambda: resumed_job(reader.run(run.key).folder, planted.store),
            lambda: with_teacher(
                grpo.RunConfig(teacher={"path": "theirs"}),
                planted.store,
            ),
        ]
        for call in calls:
            with pytest.raises(UntrustedError) as caught:
                call()
            assert planted.says in str(caught.value)
    assert not planted.mark.exists()


def imported(tmp_path: Path, here: Path, name: str = "task") -> Path:
    """A store of this user into which a stranger's was imported."""
    theirs = plant(name, here, tmp_path / "theirs.db").store
    store = tmp_path / "mine/s.db"
    with ExperimentStore(store) as opened:
        assert import_store(opened, theirs)
    return store


@pytest.mark.parametrize("origin", ["here", "import of {}/theirs.db"])
def test_an_import_says_where_it_is_from_and_no_origin_is_believed(
    tmp_path: Path, here: Path, origin: str
) -> None:
    is_here = origin == "here"
    store = plant("task", here, tmp_path / "s.db").store if is_here else imported(tmp_path, here)
    with StoreReader(store) as reader:
        assert reader.run(reader.resolve("theirs").key).origin == origin.format(tmp_path)
        with pytest.raises(UntrustedError):
            clone_view(reader, "theirs")


@pytest.mark.slow
def test_with_trust_a_verb_goes_on_and_the_next_one_need_not_ask(
    here: Path,
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = plant("judge", here, tmp_path / "s.db")
    monkeypatch.setenv("GRPO_TUI_DB", str(planted.store))
    monkeypatch.setenv("SECRET_KEY", "x")
    done = cli("chat", "theirs", "--trust", "hello")  # the checkpoint has no weights
    assert "did not begin here" not in done.err
    consent._digests.clear()
    monkeypatch.setattr(consent, "_accepting", False)
    with StoreReader(planted.store) as reader:
        assert pair_of(reader, "theirs", None).step == 2


async def opened(app: Workbench, pilot: Any, key: str) -> TrustDialog:
    """The question after a key on the stranger's run."""
    await until(app, lambda: isinstance(app.screen, RunsScreen) and app.screen.view.selected)
    await pilot.press(key)
    await until(app, lambda: isinstance(app.screen, TrustDialog))
    assert isinstance(app.screen, TrustDialog)
    return app.screen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["task", "reward", "choice", "agent", "package's reward"])
async def test_c_asks_and_after_a_no_nothing_was_loaded_or_changed(
    name: str,
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.0)
    app = Workbench(imported(tmp_path, here, name), preferences=Preferences())
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(app, pilot, "c")
        says = plant(name, here, tmp_path / "again/s.db").says
        assert says.split(" ")[-1] in " ".join(dialog._question.split())
        await pilot.press("n")
        await until(app, lambda: isinstance(app.screen, RunsScreen))
        await pilot.press("2")
        await until(app, lambda: isinstance(app.screen, NewRunScreen))
        assert isinstance(app.screen, NewRunScreen)
        assert app.screen.view.form.origin.kind == "preset"
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
async def test_after_a_yes_the_form_opens_tries_the_settings_and_asks_no_more(
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NewRunScreen, "REHEARSE_S", 0.0)
    app = Workbench(imported(tmp_path, here), preferences=Preferences())
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot, "c")
        assert not (tmp_path / "mark").exists()
        await pilot.press("y")
        await until(app, lambda: isinstance(app.screen, NewRunScreen))
        screen = app.screen
        assert isinstance(screen, NewRunScreen)
        await until(app, lambda: screen.view.form.origin.kind == "clone")
        await until(app, lambda: (tmp_path / "mark").exists())
        await pilot.press("escape")
        await until(app, lambda: isinstance(app.screen, RunsScreen))
        await pilot.press("c")
        await until(app, lambda: isinstance(app.screen, NewRunScreen))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["r", "A"])
async def test_resume_and_chat_ask_on_the_screen(key: str, here: Path, tmp_path: Path) -> None:
    planted = plant("task", here, tmp_path / "s.db")
    app = Workbench(planted.store, preferences=Preferences())
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(app, pilot, key)
        assert planted.says in " ".join(dialog._question.split())
        await pilot.press("escape")
        await until(app, lambda: isinstance(app.screen, RunsScreen))
        assert not app.bridge.running
    assert not planted.mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("resume", "theirs"), ("resume", "theirs", "--detach"), ("sweep", "--queue")]
)
def test_the_program_and_what_it_starts_refuse(
    words: tuple[str, ...], here: Path, tmp_path: Path
) -> None:
    planted = plant("task options", here, tmp_path / "s.db")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "grpo_tui", "--db", planted.store, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(consent.__file__).parents[1],
    )
    assert done.returncode == (1 if words[0] == "sweep" else 2), done
    assert "--trust" in done.stdout + done.stderr
    assert not planted.mark.exists()
    if words[0] == "sweep":
        with StoreReader(planted.store) as reader:
            (item,) = reader.queue(ended=9)
            assert (item.state, "--trust" in item.note) == ("failed", True)


def with_own_choice(here: Path, store: Path) -> StoreReader:
    """A stranger's recorded run whose trust is a function of a file."""
    file = here / "evil.py"
    source = {
        "name": f"{file}:f",
        "file": str(file),
        "line": 6,
        "parameters": {"ratio_BT": True},
        "code": "",
        "text": "",
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    first, *others = run_events(steps=2)
    loaded = ev.FunctionsLoaded(step=0, sources={"trust": source})
    algorithm = {"recipe": "dr-grpo", "trust": f"{file}:f"}
    record(store, iter([first, loaded, *others]), name="theirs", algorithm=algorithm)
    return StoreReader(store)


def test_rollouts_show_a_strangers_run_without_its_functions_and_the_lab_asks(
    here: Path, tmp_path: Path
) -> None:
    with closing(with_own_choice(here, tmp_path / "s.db")) as reader:
        step = load_step(reader, reader.resolve("theirs").key, None)
        detail = load_group(reader, step, step.groups[0])
        assert "own functions are not evaluated" in detail.missing
        with pytest.raises(UntrustedError, match=f"import {here}/evil.py:f"):
            with_functions(reader, step)
        assert not (tmp_path / "mark").exists()
        consent.question_of_functions(reader.functions(step.run.key)).allow()
        load_group(reader, with_functions(reader, step), step.groups[0])
        assert (tmp_path / "mark").exists()


@pytest.mark.slow
async def test_v_asks_and_after_a_no_the_lab_stays_closed(here: Path, tmp_path: Path) -> None:
    with_own_choice(here, tmp_path / "s.db").close()
    app = Workbench(tmp_path / "s.db", preferences=Preferences())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: isinstance(app.screen, RunsScreen) and app.screen.view.selected)
        await pilot.press("4")
        await until(app, lambda: isinstance(app.screen, RolloutsScreen) and app.screen.view.loaded)
        await pilot.press("v")
        await until(app, lambda: isinstance(app.screen, TrustDialog))
        await pilot.press("n")
        await until(app, lambda: isinstance(app.screen, RolloutsScreen))
    assert not (tmp_path / "mark").exists()
