"""Runs from Python that are recorded: seen, resumed and watched by other processes."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.terminal import Terminal
from tests.e2e.training import ROOT, environment, grpo_tui
from tests.patience import until

START = """
import sys, time
from pathlib import Path
import grpo_engine as grpo

world, gate = Path(sys.argv[1]), Path(sys.argv[1]) / "closed"

def letters(completions, trainer_state, **_):
    while trainer_state.global_step >= 2 and gate.exists():
        time.sleep(0.01)
    return [float(len(set(text))) for text in completions]

SETTINGS = {
    "steps": 4, "seed": 5, "name": "calm-otter",
    "model": {"path": str(world / "model"), "lora_rank": 4},
    "task": [{"prompt": f"say {n}: "} for n in range(30)],
    "rewards": [letters, "format_all"],
    "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 12},
    "evaluation": {"problems": 4, "pinned": 0, "before_and_after": False},
    "task.held_out_size": 4,
}
"""
TELL = """
import json
print(json.dumps({
    "id": run.record.id, "status": run.status, "reward": run.metrics["reward"],
    "groups": [len(run.rollouts(step=step)) for step in run.metrics["reward"]],
    "texts": [row["completion"] for row in run.rollouts(step=1).rows()],
}))
"""


def script(home: Path, world: Path, code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-c", START + code, str(world)],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: "subprocess.Popen[str]") -> Any:
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def runs(home: Path) -> Any:
    done = grpo_tui(home, "runs", "--json")
    return json.loads(done.stdout) if done.returncode == 0 else []


@pytest.mark.slow
def test_a_run_is_recorded_stopped_and_resumed_only_with_its_functions(
    world: Path, tmp_path: Path
) -> None:
    (world / "closed").touch()
    process = script(tmp_path, world, "run = grpo.train(**SETTINGS)" + TELL)
    until(lambda: any(run["step"] == 2 for run in runs(tmp_path)))
    process.send_signal(signal.SIGINT)  # as the stop button of a notebook does
    (world / "closed").unlink()
    first = told(process)
    assert (first["status"], list(first["reward"])) == ("stopped", ["1", "2", "3"])

    done = grpo_tui(tmp_path, "resume", "calm-otter")
    assert done.returncode == 1
    # the task's rows are as foreign to another process as the function
    assert "grpo_engine.resume(run, task=…)" in done.stderr
    (run,) = runs(tmp_path)
    assert (run["status"], run["attempts"]) == ("stopped", 1)  # refused before it was touched

    again = "run = grpo.resume('@last', rewards=[letters], task=SETTINGS['task'])"
    second = told(script(tmp_path, world, again + TELL))
    assert (second["status"], second["id"]) == ("completed", first["id"])
    assert second["groups"] == [2, 2, 2, 2]
    assert {step: second["reward"][step] for step in first["reward"]} == first["reward"]
    assert second["texts"] == first["texts"]
    whole = told(script(tmp_path, world, "run = grpo.train(**SETTINGS)" + TELL))
    assert whole["reward"] == second["reward"]


@pytest.mark.slow
def test_a_run_in_a_store_of_its_own_is_resumed_there(world: Path, tmp_path: Path) -> None:
    code = """
run = grpo.iterate(record=sys.argv[1] + "/own.db", **{**SETTINGS, "rewards": ["format_all"]})
for event in run:
    if isinstance(event, grpo.events.StepFinished) and event.step == 2:
        run.stop()
run = grpo.resume(run, progress=False)
"""
    found = told(script(tmp_path, world, code + TELL))
    assert (found["status"], found["groups"]) == ("completed", [2, 2, 2, 2])
    assert runs(tmp_path) == []


@pytest.mark.slow
def test_a_loop_that_ends_with_its_process_leaves_a_run_that_is_not_active(
    world: Path, tmp_path: Path
) -> None:
    process = script(tmp_path, world, "run = grpo.iterate(**SETTINGS)\nnext(run)\nprint('{}')")
    told(process)
    (run,) = runs(tmp_path)
    assert run["status"] == "aborted"


@pytest.mark.slow
def test_without_a_recorder_a_run_says_what_is_missing(world: Path, tmp_path: Path) -> None:
    hidden = "from grpo_engine import names\nnames.installed = lambda kind: {}\n"
    process = script(tmp_path, world, hidden + "grpo.train(**SETTINGS)")
    _, errors = process.communicate(timeout=240)
    assert "install grpo-tui again, or give record=False" in errors


# -- notebooks --------------------------------------------------------------------------------

EXECUTE = """
import json, sys
import nbformat
from nbclient import NotebookClient

book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=900, resources={"metadata": {"path": sys.argv[2]}}).execute()
print(json.dumps([
    "".join(str(out.get("text", "")) + str(out.get("data", {}).get("text/plain", ""))
            for out in cell.outputs)
    for cell in book.cells if cell.cell_type == "code"
]))
"""


def execute(book: Path, home: Path, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", EXECUTE, str(book), str(folder)],
        env=environment(home) | {"JUPYTER_PLATFORM_DIRS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def notebook(folder: Path, *cells: str) -> Path:
    code: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "id": f"cell-{place}",
            "source": cell,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for place, cell in enumerate(cells)
    ]
    file = folder / "book.ipynb"
    file.write_text(json.dumps({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return file


@pytest.mark.slow
def test_the_notebook_of_the_docs_runs_and_is_stored_without_outputs(tmp_path: Path) -> None:
    file = ROOT / "docs" / "python.ipynb"
    book = json.loads(file.read_text())
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
    said = told(execute(file, tmp_path, tmp_path))
    assert len(said) == len(code)
    assert [run["status"] for run in runs(tmp_path)] == ["completed"] * len(runs(tmp_path)) != []


WITH_AN_ENVIRONMENT = (
    """
import grpo_engine as grpo

class Longer:
    def reset(self, row, seed):
        self.turns, self.longest = 0, 0

    def step(self, answer):
        self.turns += 1
        grown = len(answer) > self.longest
        self.longest = max(self.longest, len(answer))
        if self.turns == 3:
            return grpo.Reply(done=True, reward=float(grown))
        hint = [{"role": "user", "content": "Longer."}]
        return grpo.Reply(hint, reward=float(grown), info={"length": len(answer)})

rows = [{"prompt": [{"role": "user", "content": f"Say {n}."}]} for n in range(60)]
""",
    """
run = grpo.train(
    preset="starter", name="longer", steps=30, task=rows, environment=Longer, rewards=[],
    rollout={"prompts": 4, "group_size": 4, "max_new_tokens": 48},
    evaluation={"problems": 8, "before_and_after": False},
)
""",
    'sorted(name for name in run.metrics if name.startswith(("env/", "turns/")))',
    "run.metrics.to_pandas()",
    "run.rollouts(step=30)",
    "run.evaluate()",
    'run.policy.generate("12 + 30 =")',
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_notebooks_own_environment_is_watched_from_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "store.db"))
    process = execute(notebook(tmp_path, *WITH_AN_ENVIRONMENT), tmp_path, tmp_path)
    until(lambda: any(run["step"] >= 1 for run in runs(tmp_path)))
    with Terminal(["-P", "-m", "grpo_tui", "watch", "longer"]) as terminal:
        terminal.until_step(1)
        (seen,) = runs(tmp_path)
        terminal.until_step(seen["step"] + 2)  # it follows the run
        terminal.until("Longer")
        said = told(process)
        terminal.until("completed")
    assert "environment Longer runs in this Python process" in "".join(said)
    names, table, rollouts, evaluation, completion = said[2:]
    assert "turns/max" in names
    assert "env/length" in names
    assert "rewards/Longer/mean" in table
    assert "rollouts of step 30" in rollouts
    assert "greedy" in evaluation
    assert completion.strip()
    done = grpo_tui(tmp_path, "resume", "longer", "--steps", "31")
    assert done.returncode == 1
    assert "grpo_engine.resume(run, task=…)" in done.stderr
