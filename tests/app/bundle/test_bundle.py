"""A bundle has all that is stored of its runs, and nothing of where and by whom they were made."""

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.run import checkpoint
from grpo_engine.setup.code_version import code_version
from grpo_tui.app.bundle.code import plain_name
from grpo_tui.app.bundle.private import Private
from grpo_tui.app.bundle.write import code_of_runs, write_bundle
from grpo_tui.app.cli.main import main
from grpo_tui.experiments.bundles import STORE, import_bundle
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.importing import import_store
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from tests.app.stored import record, run_events

SECRET = "sk-canary-of-the-code"
PRIVATE = ("alice-canary", "canary-mbp", "/home/bob", SECRET)


def with_traces(folder: str) -> Iterator[ev.Event]:
    """A run whose settings, notes, reasons and end name folders, the user, the host and code."""
    for event in run_events(steps=2):
        match event:
            case ev.RunStarted():
                config = {**event.config, "rewards": {"functions": [f"{folder}/rewards.py:f"]}}
                yield replace(event, config=config)
                source = {"name": "f", "file": f"{folder}/loss.py", "code": SECRET, "text": SECRET}
                yield ev.FunctionsLoaded(step=0, sources={"trust": {**source, "sha256": "0"}})
                yield ev.NoteWritten(step=0, text=f"written to {folder}/x on canary-mbp.local")
                yield ev.NoteWritten(step=0, text="read /home/bob/data.jsonl, C:\\Users\\bob\\x")
            case ev.RunFinished():
                failed = ev.RunFailed(step=2, error="E", message=f"{folder}: no", traceback=SECRET)
                yield failed
            case _:
                yield event


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that alice-canary filled on canary-mbp."""
    home = tmp_path / "home" / "alice-canary"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "alice-canary")
    monkeypatch.setattr("grpo_tui.experiments.store.host_name", lambda: "canary-mbp.local/42")
    path = home / "store" / "runs.db"
    path.parent.mkdir()
    monkeypatch.setenv("GRPO_TUI_DB", str(path))
    model = {"path": "starter", "adapter": f"{home}/adapters"}
    record(path, with_traces(str(home)), name="otter", model=model)
    record(path, run_events(steps=2, seed=5), name="other-canary")
    with ExperimentStore(path) as made:
        made.change(1, note=f"see {home}/notes.md")
        made.tag(1, add=["good"])
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def export(*arguments: str) -> int:
    return main(["export", *arguments])


def test_a_bundle_comes_back_whole_on_the_other_side(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle.zip"
    assert export("otter", "--to", str(out)) == 0
    there = tmp_path / "there.db"
    with ExperimentStore(there) as made:
        ((short, name),) = import_bundle(made, out)
        assert import_bundle(made, out) == []
    with StoreReader(there) as reader, StoreReader(store) as other:
        run, original = reader.resolve(short), other.resolve("otter")
        assert (name, run.uid, run.tags) == ("otter", original.uid, ("good",))
        assert run.metrics["reward"] == original.metrics["reward"]
        assert reader.run(run.key).origin == f"import of {out}"
        events, theirs = (
            [item.event for item in events_after(r, key, limit=10_000)]
            for r, key in ((reader, run.key), (other, original.key))
        )
        kept = (ev.GroupScored, ev.TokensScored, ev.StepFinished, ev.EvaluationFinished)
        assert [e for e in events if isinstance(e, kept)] == [
            e for e in theirs if isinstance(e, kept)
        ]
        assert [type(e) for e in events] == [type(e) for e in theirs]


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_nothing_in_a_bundle_says_where_and_by_whom_it_was_made(tmp_path: Path) -> None:
    out = tmp_path / "bundle.zip"
    assert export("otter", "--to", str(out)) == 0
    for name, content in members(out).items():
        for secret in (*PRIVATE, "other-canary", str(tmp_path)):
            assert secret.encode() not in content, (name, secret)
    with zipfile.ZipFile(out) as bundle:
        assert {info.date_time for info in bundle.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(out, unpacked)
    with StoreReader(unpacked / STORE) as reader:
        (attempt,) = reader.attempts(1)
        assert (attempt.host, attempt.pid) == ("", 0)
        detail = reader.run(1)
        assert detail.summary.note == "see ~/notes.md"
        assert detail.settings["model.adapter"] == "~/adapters"
        notes = [
            item.event.text
            for item in events_after(reader, 1)
            if isinstance(item.event, ev.NoteWritten)
        ]
        assert notes[:2] == ["written to ~/x on host", "read ~/data.jsonl, ~\\x"]


@pytest.mark.usefixtures("store")
def test_a_bundle_has_a_page_settings_and_versions(tmp_path: Path) -> None:
    out = tmp_path / "b.zip"
    assert export("otter", "--to", str(out)) == 0
    content = members(out)
    assert {"README.txt", "report.html", "otter/settings.yaml", "otter/versions.json", STORE} < {
        *content
    }
    assert b"Content-Security-Policy" in content["report.html"]
    assert not [name for name in content if "code" in name or "adapter" in name]


def test_prompts_and_answers_stay_as_they_are() -> None:
    private = Private({"canary-mbp"}, with_code=False)
    reward = ev.RewardValue(name="f", value=1.0, weight=1.0, reason="in /home/bob/x")
    span = ev.Span(start=0, length=1, kind="environment", turn=0, error="at /Users/bob/x")
    rollout = ev.Rollout(
        index=0,
        text="/home/bob/x",
        reward=1.0,
        rewards=(reward,),
        spans=(span,),
        ids=(1,),
        sampler_logprobs=(0.0,),
        ends=(11,),
        advantage=None,
        finish="stop",
    )
    group = next(e for e in run_events() if isinstance(e, ev.GroupScored)).group
    event = ev.GroupScored(
        step=1, group=replace(group, prompt_text="/home/bob", rollouts=(rollout,))
    )
    changed = private(event).group
    assert (changed.prompt_text, changed.rollouts[0].text) == ("/home/bob", "/home/bob/x")
    assert changed.rollouts[0].rewards[0].reason == "in ~/x"
    assert changed.rollouts[0].spans[0].error == "at ~/x"


# -- code ---------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder under git, with a change in its reward functions."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "rewards.py").write_text("def f(completions, **_): ...\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], check=True, cwd=folder)
    (folder / "rewards.py").write_text(f"def f(completions, **_): ...\n# {SECRET}\n")
    return folder


def recorded_in(project: Path, path: Path) -> None:
    code = code_version(project, [project / "rewards.py"])
    events: list[ev.Event] = []
    for event in run_events(steps=2):
        if isinstance(event, ev.RunStarted):
            events.append(replace(event, code=code))
        else:
            events.append(event)
    record(path, iter(events), name="of-git", rewards={"functions": ["rewards.py:f"]})


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git"), reason="there is no git")
def test_code_comes_only_when_asked_for_and_as_it_was(
    store: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_in(project, store)
    out = tmp_path / "b.zip"
    assert export("of-git", "--to", str(out)) == 0
    assert not any(SECRET.encode() in content for content in members(out).values())
    assert json.loads(members(out)["of-git/versions.json"])["code"]["."]["dirty"] is True
    out.unlink()
    assert export("of-git", "--to", str(out), "--with-code") == 2
    assert "--yes" in capsys.readouterr().err
    assert not out.exists()
    assert export("of-git", "--to", str(out), "--with-code", "--yes") == 0
    told = capsys.readouterr().err
    assert "of-git: rewards.py, 53 bytes" in told
    assert "of-git: uncommitted.diff" in told
    content = members(out)
    assert content["of-git/code/rewards.py"] == (project / "rewards.py").read_bytes()
    assert f"+# {SECRET}".encode() in content["of-git/code/uncommitted.diff"]
    (project / "rewards.py").write_text("changed = 1\n")
    with StoreReader(store) as reader:
        run = reader.resolve("of-git")
        code = code_of_runs(reader, [run])[run.key]
    assert not code.files
    assert [reason.partition(" ")[0] for reason in code.left_out] == ["rewards.py", "the"]


def test_functions_of_a_recipe_are_those_of_the_record(store: Path) -> None:
    with StoreReader(store) as reader:
        run = reader.resolve("otter")
        code = code_of_runs(reader, [run])[run.key]
    assert code.files == {"algorithm-trust.py": SECRET.encode()}
    assert code.left_out == ("the run did not record the versions of its code",)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("rewards.py", "rewards.py"),
        ("a/b.py", "a/b.py"),
        ("../../x", "x"),
        ("/etc/passwd", "etc/passwd"),
        ("..", "file"),
        ("a\x1b\\b:c", "a--b-c"),
    ],
)
def test_a_name_of_a_record_stays_in_the_bundle(name: str, plain: str) -> None:
    assert plain_name(name) == plain


# -- adapters -----------------------------------------------------------------------------------


def test_an_adapter_is_that_of_the_best_checkpoint(store: Path, tmp_path: Path) -> None:
    with StoreReader(store) as reader:
        run = reader.resolve("otter")
        folder = Path(reader.run(run.key).folder)

        def write(step: int) -> None:
            def files(part: Path) -> None:
                (part / "adapter_config.json").write_text('{"model": "/home/bob/model"}')
                (part / "adapters.safetensors").write_bytes(b"weights of %d" % step)

            state = {"progress": {"best_step": 1}}
            checkpoint.save(folder, step, tensors={}, state=state, write=files)

        with pytest.raises(ExportError, match="no checkpoint"):
            write_bundle(reader, [run], tmp_path / "a.zip", {}, with_adapter=True)
        assert not (tmp_path / "a.zip").exists()
        write(1)
        write(2)
        write_bundle(reader, [run], tmp_path / "a.zip", {}, with_adapter=True)
    content = members(tmp_path / "a.zip")
    assert content["otter/adapter/adapters.safetensors"] == b"weights of 1"
    assert json.loads(content["otter/adapter/adapter_config.json"]) == {"model": "~/model"}


def test_runs_whose_names_are_alike_have_folders_of_their_own(store: Path, tmp_path: Path) -> None:
    names = ["a b", "A-b", "a-b", "README.txt", "report.html/x"]
    for seed, name in enumerate(names):
        record(store, run_events(steps=1, seed=seed), name=name)
    out, there = tmp_path / "bundle.zip", tmp_path / "there.db"
    assert export(*names, "--to", str(out)) == 0
    folders = [name.partition("/")[0] for name in members(out) if name.endswith("settings.yaml")]
    assert folders == ["a-b", "A-b-2", "a-b-3", "README-2.txt", "report.html-x"]
    with ExperimentStore(there) as made:
        assert [name for _, name in import_bundle(made, out)] == names


def test_a_home_that_is_the_root_takes_no_slashes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert Private((), with_code=False).text("https://a.b/ c") == "https://a.b/ c"


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--to", "b.tar"),
        ("--to", "b.zip", "--out", "x.csv"),
        ("--to", "b.zip", "--what", "rollouts"),
        ("--with-code",),
        ("--yes",),
    ],
)
def test_options_that_have_no_effect_are_refused(arguments: tuple[str, ...]) -> None:
    assert export("otter", *arguments) == 2


def test_a_store_that_is_imported_by_its_file_still_is(store: Path, tmp_path: Path) -> None:
    with ExperimentStore(tmp_path / "there.db") as made:
        assert [name for _, name in import_store(made, store)] == ["otter", "other-canary"]
