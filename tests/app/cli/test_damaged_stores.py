"""Every verb on stores that were edited by hand: what cannot be read is shown, and named."""

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app import exit_codes
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.export.rows import WHAT
from tests.app.calls import Cli, caller
from tests.experiments.damage import DAMAGED, EDITED, damage, edited
from tests.experiments.made import alerted, config, evaluated, record_run

MARKS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
READING = [
    ("runs", "--all"),
    ("runs", "--all", "--json", "--columns", "=algorithm.beta, best reward, note, created"),
    ("runs", "show", "{run}"),
    ("runs", "show", "{run}", "--json"),
    ("report", "{run}"),
    ("rollouts", "{run}"),
    ("rollouts", "{run}", "--search", "yes"),
    ("compare", "{run}", "{base}"),
    ("compare", "{run}", "{base}", "--json"),
    ("plot", "{run}"),
    ("logs", "{run}"),
    ("config", "diff", "{run}", "{base}"),
    *(("export", "{run}", "--what", what, "--format", "jsonl") for what in WHAT),
]
LOST = ("UPDATE attempt SET ended_at = NULL, cause = '', pid = 999999, pid_start = 'x'",)
WRITING = [
    ("runs", "tag", "{run}", "--add", "odd"),
    ("stop", "{run}"),
    ("runs", "delete", "{run}", "--yes", "--force"),
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A store of two runs, and their ids."""
    path = tmp_path_factory.mktemp("stored") / "s.db"
    said = (
        evaluated(3),
        ev.NoteWritten(step=1, text="noted", severity="warning"),
        alerted(1),
    )
    base = record_run(path, name="base", last=said)
    run = record_run(path, name="other", tree=config(seed=1), last=said)
    return path, {"base": base, "run": run}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return caller(monkeypatch, capfdbinary)


def call(cli: Cli, path: Path, ids: dict[str, str], words: tuple[str, ...]) -> tuple[str, str]:
    """Call a verb, which must end in words and steer no terminal."""
    done = cli(*(word.format(**ids) for word in words), "--db", str(path))
    printed = done.out + done.err
    bad = {c for c in printed if c in MARKS or unicodedata.category(c) == "Cc"} - {"\n", "\r"}
    assert not bad, words
    assert done.code in (exit_codes.OK, exit_codes.USAGE, exit_codes.NOT_FOUND) or words[0] in (
        "config",
        "compare",
    ), done
    assert printed
    return done.out, done.err


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if number else name
        for number, name in enumerate(EDITED)
    ],
)
def test_a_store_edited_by_hand_ends_no_verb(
    stored: tuple[Path, dict[str, str]], tmp_path: Path, cli: Cli, name: str
) -> None:
    path, ids = stored
    copy = edited(path, tmp_path, *EDITED[name])
    for words in (*READING, *WRITING):
        call(cli, copy, ids, words)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if number else name
        for number, name in enumerate(DAMAGED)
    ],
)
def test_what_cannot_be_read_is_shown_with_the_rest_and_its_run_is_named(
    stored: tuple[Path, dict[str, str]], tmp_path: Path, cli: Cli, name: str
) -> None:
    path, ids = stored
    copy, column = edited(path, tmp_path, damage(name)), DAMAGED[name][0]
    warnings = set()
    for words in (*READING, *WRITING):
        out, err = call(cli, copy, ids, words)
        if words[0] in ("runs", "report") and words in READING:
            assert ids["run"] in out
        warnings |= {line for line in err.splitlines() if "is damaged" in line}
    assert any(f"run {ids['run']}" in line and f"{column} is " in line for line in warnings)


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "--all"),
        ("runs", "--all", "--json"),
        ("export", "{run}", "--what", "metrics"),
        ("export", "{run}", "--what", "metrics", "--format", "jsonl"),
    ],
)
def test_a_number_that_is_none_is_shown_as_it_is_stored(
    stored: tuple[Path, dict[str, str]], tmp_path: Path, cli: Cli, words: tuple[str, ...]
) -> None:
    path, ids = stored
    copy = edited(
        path,
        tmp_path,
        "UPDATE run SET step = 'some'",
        "UPDATE step SET tokens = 'few', elapsed = 'long'",
    )
    out, err = call(cli, copy, ids, words)
    assert "is damaged" in err
    expected = ("some",) if words[0] == "runs" else ("few", "long")
    assert all(text in out for text in expected), out


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, device, Path.mkdir])
def test_a_log_that_is_no_file_is_not_read(
    stored: tuple[Path, dict[str, str]], tmp_path: Path, cli: Cli, make: Callable[[Path], None]
) -> None:
    path, ids = stored
    copy = edited(path, tmp_path, "UPDATE run SET status = 'running'", *LOST)
    for name in ("log.txt", "faults.txt", "running.txt"):
        file = run_folder(copy, ids["run"]) / name
        file.unlink(missing_ok=True)
        make(file)
    for words in (("logs", "{run}"), ("logs", "{run}", "--follow"), ("runs", "show", "{run}")):
        done = cli(*(word.format(**ids) for word in words), "--db", str(copy))
        assert done.code in (exit_codes.OK, exit_codes.USAGE), done
        assert done.out + done.err
