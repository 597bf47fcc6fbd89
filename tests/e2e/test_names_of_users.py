"""Users' own `app`, `experiments` and `tests` are found by all that is started beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.training import ROOT

MODULES = {
    "files": ("app.py", "experiments.py", "tests/mine.py"),
    "folders": ("app/mine.py", "experiments/mine.py", "tests/mine.py"),
}
REWARD = """
{imports}

def score(completions, **_):
    return [float(len(text)) for text in completions]
"""
SCRIPT = """
{imports}
import grpo_engine as grpo
run = grpo.train(
    preset="starter", steps=1, rewards=["rewards.py:score"], progress=False,
    evaluation={{"before_and_after": False}}, rollout={{"prompts": 2, "group_size": 4}},
)
print(run.status)
"""
TEST = """
{imports}
import grpo_engine.names

def test_the_store_is_found():
    grpo_engine.names.installed("recorders")["store"].load()
"""
NOTEBOOK = """
import nbformat, sys
from nbclient import NotebookClient

book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.stdin.read())])
NotebookClient(book, timeout=600).execute()
print("".join(out.get("text", "") for out in book.cells[0].outputs))
"""
TRAIN = (
    "train",
    "--preset",
    "starter",
    "--steps",
    "1",
    "--set",
    "rewards.functions=rewards.py:score",
    "--set",
    "evaluation.before_and_after=no",
    "--set",
    "rollout.prompts=2",
    "--set",
    "rollout.group_size=4",
)


def imports(form: str) -> str:
    """Code that imports the user's modules and checks that they are the user's."""
    names = [file.removesuffix(".py").replace("/", ".") for file in MODULES[form]]
    return f"import {', '.join(names)}\nassert {{{', '.join(f'{n}.MINE' for n in names)}}} == {{7}}"


pytestmark = pytest.mark.slow  # each starts a program with the starter


@pytest.fixture(params=[("files", ""), ("files", "."), ("folders", ".")], ids=":".join)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, as the working folder; some users have it on the path as well."""
    form, path = request.param
    folder = tmp_path / "work"
    for file in MODULES[form]:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("MINE = 7\n")
    (folder / "rewards.py").write_text(REWARD.format(imports=imports(form)))
    (folder / "script.py").write_text(SCRIPT.format(imports=imports(form)))
    (folder / "tests" / "test_mine.py").write_text(TEST.format(imports=imports(form)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "store.db"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    return folder


def run(*words: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        input=stdin,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def statuses() -> list[str]:
    return [run["status"] for run in json.loads(run("-P", "-m", "grpo_tui", "runs", "--json"))]


@pytest.mark.parametrize("start", ["grpo-tui", "python -m grpo_tui"])
@pytest.mark.usefixtures("folder")
def test_the_command_trains_with_them(start: str) -> None:
    script = Path(sys.executable).with_name("grpo-tui")
    run(*([str(script)] if start == "grpo-tui" else ["-m", "grpo_tui"]), *TRAIN)
    assert statuses() == ["completed"]


def test_a_script_trains_with_them(folder: Path) -> None:
    assert run(str(folder / "script.py")).splitlines()[-1] == "completed"
    assert statuses() == ["completed"]


def test_a_notebook_trains_with_them(folder: Path) -> None:
    code = (folder / "script.py").read_text()
    output = run("-P", "-W", "ignore", "-c", NOTEBOOK, stdin=code)
    assert output.split()[-1] == "completed"
    assert statuses() == ["completed"]


@pytest.mark.usefixtures("folder")
def test_pytest_finds_them() -> None:
    way = () if os.environ["PYTHONPATH"] else ("--import-mode=importlib",)
    assert "1 passed" in run("-m", "pytest", "-p", "no:cacheprovider", *way, "tests")


@pytest.mark.parametrize("package", ["app", "experiments"])
@pytest.mark.parametrize("inside", ["", ".errors"])
def test_the_same_file_is_never_imported_under_two_names(package: str, inside: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {package}{inside}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: there is no module '{package}'; "
        f"the package of grpo-tui is grpo_tui.{package}"
    )


def test_nothing_called_app_or_experiments_is_installed(tmp_path: Path) -> None:
    code = (
        "from importlib.util import find_spec; "
        "print([bool(find_spec(name)) for name in ('app', 'experiments', 'grpo_tui.app')])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[False, False, True]\n"
