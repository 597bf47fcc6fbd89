"""Values that a command refuses in a sentence, instead of taking them in silence."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.main import load
from grpo_tui.app.cli.strict import MAY_BE_EMPTY
from grpo_tui.app.cli.verb_table import VERBS
from tests.app.calls import Cli, caller
from tests.experiments.made import record_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "s.db"
    record_run(path, name="plain-otter")
    return path


@pytest.fixture
def cli(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Cli:
    shutil.copytree(recorded.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "s.db"))
    monkeypatch.chdir(tmp_path)
    return caller(monkeypatch, capfdbinary)


def _commands() -> list[tuple[tuple[str, ...], object]]:
    """Every verb and sub-verb with its words."""
    commands: list[tuple[tuple[str, ...], object]] = []
    for verb in VERBS:
        command = load(verb)
        commands.append(((verb.name,), command))
        commands += [((verb.name, name), sub) for name, sub in _subs(command)]
    return commands


def _subs(command: object) -> list[tuple[str, object]]:
    return list(getattr(command, "commands", {}).items())


def _options() -> list[tuple[str, ...]]:
    """Every option of every command that takes a value, with words that fill its arguments."""
    words = []
    for names, command in _commands():
        params = getattr(command, "params", [])
        needed = ["one" for param in params if param.param_type_name == "argument"]
        for param in params:
            if param.required and param.param_type_name == "option":
                needed += [param.opts[0], "one"]
        for param in params:
            is_value = param.param_type_name == "option" and not getattr(param, "is_flag", False)
            if is_value and param.name not in (*MAY_BE_EMPTY, "help"):
                words.append((*names, *needed, param.opts[0]))
    return words


@pytest.mark.parametrize("words", _options(), ids=" ".join)
def test_an_empty_value_of_an_option_is_refused_by_its_name(cli: Cli, words: list[str]) -> None:
    done = cli(*words, "")
    assert done.code == exit_codes.USAGE
    assert words[-1] in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--db", "", "runs"], "'--db': it is empty"),
        (["runs", "show", ""], "'run': it is empty: give one\n"),
        (["resume", ""], "'run': it is empty: give one, or leave it out\n"),
        (["runs", "--filter", "reward>"], "half a comparison, 'reward>'; write NAME>VALUE"),
        (["runs", "--filter", "status:"], "half a comparison, 'status:'"),
        (["runs", "--filter", "=3"], "half a comparison, '=3'"),
        (["runs", "--filter", "reward>1e400"], "'1e400' is no number"),
        (["demo", "--speed", "nan"], "'--speed': Input should be"),
        (["runs", "--db", ""], "'--db': it is empty"),
        (["runs", "--all", "--db", "other.db", "show", "@last"], "unexpected extra argument"),
        (["export", "@last", "--out", "nope/x.csv"], "/nope/x.csv: make "),
        (["export", "@last", "--format", "tensorboard", "--out", "nope/x"], "there is no folder"),
        (["export", "@last", "--format", "jsonl", "--raw"], "--raw changes CSV"),
        (
            ["export", "@last", "--format", "tensorboard", "--what", "rollouts", "--out", "x"],
            "--what rollouts",
        ),
        (["sweep", "--set", "algorithm.beta=0,,0.1"], "has an empty value"),
        (["sweep", "--set", "algorithm.beta=,1"], "has an empty value"),
        (["config", "init", "nope/x.yaml"], "/nope/x.yaml: make "),
        (["compare", "@last", "@last", "--at", "tokens=nan"], "'nan' is no number"),
        (["compare", "@last", "@last", "--at", "tokens="], "'' is not a number"),
        (["plot", "@last", "--smooth", "nan"], "'--smooth': Input should be"),
        (["demo", "--speed", "1e400"], "--speed"),
        (["logs", "@last", "--json", "--follow"], "leave --follow out"),
        (["sweep", "--queue", "--set", "steps=1"], "--queue runs what is queued"),
        (["train", "--set", "steps=nan", "--steps", "1"], "steps: must be a whole number"),
        (["train", "--no-store", "there", "--tag", "a"], "leave it or --no-store out"),
        (["tasks", "test", "guess", "--row", '{"a": 1, "a": 2}'], "'a' is given twice"),
        (["rewards", "test", "length", "-c", "a", "--option", "x=1e-400"], "too small"),
    ],
)
def test_it_is_refused_with_the_option_and_the_remedy(
    cli: Cli, tmp_path: Path, words: list[str], message: str
) -> None:
    done = cli(*words)
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    assert message in done.err
    assert "Traceback" not in done.err
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"s.db", "runs"}


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (("--preset", "starter", "--set", "evaluation.problems=0"), "the command line: eval"),
        (("--preset", "starter", "--steps", "0"), "the command line: steps: "),
        (("--seed", "-1"), "the command line: seed: "),
        (("good.yaml", "--name", "@x"), "the command line: name: "),
        (("good.yaml", "--set", "steps=-1", "--steps", "2"), "the command line: steps: "),
        (("bad.yaml", "--set", "seed=3"), "bad.yaml: steps: "),
        (("bad.yaml", "--set", "steps=-1"), "the command line: steps: "),
    ],
)
def test_a_refused_value_is_said_of_what_gave_it(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], source: str
) -> None:
    (tmp_path / "good.yaml").write_text("{seed: 2, record: {kl: true}}")
    (tmp_path / "bad.yaml").write_text("{steps: -2, record: {kl: true}}")
    refused = cli("train", *words)
    assert refused.code == exit_codes.USAGE
    assert source in refused.err


def test_a_folder_to_resume_from_is_one_with_a_checkpoint(cli: Cli) -> None:
    done = cli("resume", "./runs")
    assert (done.code, done.out) == (exit_codes.FAILED, "")
    assert "runs holds no checkpoint to resume from" in done.err


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "s.db/below", "."])
def test_a_store_that_is_no_file_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for words in (["runs", "--db", path], ["runs", "tag", "@last", "--add", "a", "--db", path]):
        done = cli(*words)
        assert done.code in (exit_codes.USAGE, exit_codes.FAILED)
        assert path.rpartition("/")[0] in done.err
    monkeypatch.setenv("GRPO_TUI_DB", path)
    assert cli("runs").code == exit_codes.FAILED


def test_what_may_be_empty_stays_empty(cli: Cli) -> None:
    assert cli("runs", "note", "@last", "something").code == exit_codes.OK
    assert cli("runs", "note", "@last", "").code == exit_codes.OK
    assert cli("rewards", "test", "length", "-c", "").code == exit_codes.OK


def test_quotes_make_half_a_comparison_a_word(cli: Cli) -> None:
    assert cli("runs", "note", "@last", "see reward>").code == exit_codes.OK
    assert "plain-otter" in cli("runs", "--filter", '"reward>"').out


@pytest.mark.parametrize("verb", ["watch", "replay", "demo", "tour"])
def test_a_screen_without_a_terminal_is_refused_and_ends(cli: Cli, verb: str) -> None:
    done = cli(verb)
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    assert "the screen needs a terminal; `grpo-tui logs RUN --follow` prints" in done.err


def test_a_home_that_is_no_folder_is_named_and_nothing_is_trained(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    monkeypatch.delenv("GRPO_TUI_DB")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    done = cli("sweep", "--queue")
    assert done.code == exit_codes.FAILED
    assert f"the store's folder {home}" in done.err
    assert "Not a directory; choose another store with --db FILE" in done.err


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG])
def test_a_path_that_the_system_refuses_is_a_sentence(number: int) -> None:
    error = OSError(number, os.strerror(number), "some/path")
    assert exit_codes.is_ours(error)
    assert not exit_codes.is_ours(OSError(number, "no path"))


@pytest.mark.parametrize("name", ["TMPDIR", "TMP"])
@pytest.mark.parametrize("kind", ["missing", "file", "read-only"])
def test_a_temporary_folder_that_cannot_be_used_is_said_before_anything_starts(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    place = tmp_path / "temporary"
    if kind == "file":
        place.write_text("")
    elif kind == "read-only":
        place = Path("/proc/self")
        if not place.is_dir():
            pytest.skip("there is no /proc, which nobody can write to")
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv(name, str(place))
    done = cli("train", "--steps", "1")
    assert (done.code, done.out) == (exit_codes.FAILED, "")
    assert f"{name} '{place}'" in done.err
    assert "set TMPDIR to a folder of your own" in done.err
