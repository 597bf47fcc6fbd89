"""The command line: fast help, lazily loaded verbs, correct exit codes."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_engine.errors import ConfigError, EngineError
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.main import main
from grpo_tui.app.cli.startup import require_terminal
from grpo_tui.app.cli.verb_table import VERBS

HEAVY = ("mlx", "mlx_lm", "textual", "sqlmodel", "sqlalchemy", "pydantic", "numpy", "rich.console")


class RunNotFoundError(EngineError, LookupError):
    """An example of a named error derived from LookupError."""


def cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grpo_tui", *args], capture_output=True, text=True, check=False
    )


def test_help_loads_nothing_heavy_and_lists_every_verb() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "grpo_tui", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert [name for name in HEAVY if name in loaded] == []
    assert len(loaded) < 200  # about half of them are the interpreter's own
    assert [verb.name for verb in VERBS if f"\n  {verb.name} " not in done.stdout] == []


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_verb_loads_and_answers_help(verb: object, capsys: pytest.CaptureFixture[str]) -> None:
    name = getattr(verb, "name", "")
    assert main([name, "--help"]) == exit_codes.OK
    assert f"Usage: grpo-tui {name}" in capsys.readouterr().out


def test_an_unknown_verb_is_a_usage_error_on_stderr() -> None:
    done = cli("dcotor")
    assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
    assert "No such command 'dcotor'" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("the model is gone"), exit_codes.FAILED),
        (ConfigError("group_size must be >= 2, got 1"), exit_codes.USAGE),
        (RunNotFoundError("no run is called x"), exit_codes.NOT_FOUND),
        (KeyboardInterrupt(), exit_codes.INTERRUPTED),
    ],
)
def test_an_error_has_the_exit_code_of_the_stdlib_type_it_refines(
    error: BaseException, code: int
) -> None:
    assert exit_codes.exit_code(error) == code


def failing_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Install a verb `doctor` whose function has the given body."""
    file = tmp_path / "failing_verb.py"
    file.write_text(f"from grpo_engine.errors import ConfigError\ndef doctor():\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("failing_verb", None)
    verb = next(v for v in VERBS if v.name == "doctor")._replace(target="failing_verb:doctor")
    monkeypatch.setattr("grpo_tui.app.cli.main.VERBS", (verb,))


def test_our_errors_become_one_line_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_verb(tmp_path, monkeypatch, "raise ConfigError('steps must be\\n>= 1, got 0')")
    assert main(["doctor"]) == exit_codes.USAGE
    assert capsys.readouterr().err == "grpo-tui: steps must be >= 1, got 0\n"


def test_a_bug_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_verb(tmp_path, monkeypatch, "{}['missing']")
    with pytest.raises(KeyError):
        main(["doctor"])


def test_a_verb_is_not_imported_before_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_verb(tmp_path, monkeypatch, "pass")
    assert main(["--help"]) == exit_codes.OK
    assert "failing_verb" not in sys.modules
    assert main(["doctor"]) == exit_codes.OK
    assert "failing_verb" in sys.modules


def test_the_store_named_before_the_verb_is_the_store_of_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_TUI_DB", "")
    failing_verb(tmp_path, monkeypatch, "import os; print(os.environ['GRPO_TUI_DB'])")
    assert main(["--db", str(tmp_path / "a.db"), "doctor"]) == exit_codes.OK
    assert capsys.readouterr().out == f"{tmp_path / 'a.db'}\n"


def test_the_workbench_without_a_terminal_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main([]) == exit_codes.USAGE
    assert "needs a terminal" in capsys.readouterr().err


def test_textual_serve_draws_the_workbench_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")
    require_terminal()


@pytest.mark.parametrize("verb", ["train", "resume", "sweep", "eval"])
def test_a_verb_that_needs_mlx_names_the_missing_extra_before_anything_else(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("grpo_engine.platform.device.backends", dict)
    monkeypatch.setattr("grpo_engine.platform.device.library", lambda: None)
    monkeypatch.setattr("grpo_engine.platform.device.nvidia_driver", lambda: None)
    assert main([verb, *(() if verb == "train" else ("x",))]) == exit_codes.FAILED
    assert "pip install 'grpo-tui[cpu]'" in capsys.readouterr().err
    assert main([verb, "--help"]) == exit_codes.OK


@pytest.mark.slow
def test_the_help_of_no_verb_loads_the_database_or_mlx() -> None:
    program = (
        "import sys; from importlib import import_module; "
        "from grpo_tui.app.cli.verb_table import VERBS; "
        "[import_module(verb.target.partition(':')[0]) for verb in VERBS]; "
        "sys.exit(repr({'sqlmodel', 'sqlalchemy', 'mlx.core'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stderr.strip() == "set()"
