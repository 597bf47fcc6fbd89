"""A newcomer's path by keys alone in a real terminal; the screen agrees with the store.

The path is tested twice: with a tiny model in place of the starter, and with the starter itself, by
`make run` in a clean clone with nothing set up.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RunSummary
from tests.e2e.terminal import ROOT, Terminal
from tests.engine.runs import settings

T = TypeVar("T")
RIGHT, DOWN, ENTER = "\x1b[C", "\x1b[B", "\r"

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="a pty is needed"),
    pytest.mark.timeout(1500),
]

# `python -m grpo_tui` with other settings under the name `starter`.
TINY = """
import json, sys
from dataclasses import replace
import grpo_engine.presets as presets

tree, real = json.loads(sys.argv.pop(1)), presets.preset
presets.preset = lambda name: (
    replace(real(name), text=json.dumps(tree)) if name == "starter" else real(name)
)
from grpo_tui.app.entry import main
sys.exit(main())
"""


MAKE_RUN = """
import os
del os.environ["PYTHONPATH"]
os.execvp("make", ["make", "run"])
"""


@dataclass
class Visit:
    """A newcomer at the terminal, and the store for checking."""

    terminal: Terminal
    store: Path
    folder: Path

    def read(self, question: Callable[[StoreReader], T]) -> T:
        """Query the store."""
        with StoreReader(self.store) as reader:
            return question(reader)

    def run(self, ref: str = "starter") -> RunSummary:
        """A run as stored."""
        return self.read(lambda reader: reader.resolve(ref))

    def until(self, holds: Callable[[], bool] | str, seconds: float = 300.0) -> None:
        """Wait until `holds()` is true for the screen."""
        self.terminal.until(holds, seconds)

    def press(self, *keys: str) -> None:
        """Type, and wait for the screen's response."""
        for key in keys:
            self.terminal.press(key)
            self.rest(0.15)

    def rest(self, seconds: float) -> None:
        """Read output for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.terminal.read(0.05)

    def found(self, pattern: str) -> None:
        """Wait for a pattern on the screen."""
        self.until(lambda: re.search(pattern, self.terminal.text()) is not None)


def tiny_starter(world: Path) -> RunConfig:
    return settings(
        world,
        name="starter",
        steps=400,
        algorithm={"passes": 2, "beta": 0.04},
        model={"path": str(world / "model"), "lora_rank": 4, "dtype": "float32"},
    )


@pytest.fixture
def visit(
    request: pytest.FixtureRequest, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Visit]:
    store = tmp_path / "grpo.db"
    monkeypatch.setenv("GRPO_TUI_DB", str(store))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "clone"
    if request.param == "tiny":
        folder.mkdir()
        tree = tiny_starter(world).model_dump(mode="json")
        command = ["-P", "-c", TINY, json.dumps(tree)]
    else:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        command = ["-c", MAKE_RUN]
    with Terminal(command, 140, 45, folder=folder) as terminal:
        yield Visit(terminal, store, folder)


BOTH = pytest.mark.parametrize(
    "visit",
    [pytest.param("tiny", marks=pytest.mark.slow), pytest.param("starter", marks=pytest.mark.soak)],
    indirect=True,
)


@pytest.mark.slow
@BOTH
def test_a_newcomer_finds_the_way_by_keys_alone(visit: Visit) -> None:
    start_the_starter(visit)
    see_rollouts_arrive(visit)
    pause_and_go_on(visit)
    open_rollouts(visit)
    clone_with_another_beta(visit)
    compare_both(visit)
    leave(visit)


def start_the_starter(visit: Visit) -> None:
    """Press ⏎ on the hint card of the empty store; the run opens."""
    visit.until("two-minute starter run", 900)  # `make run` has to set up everything
    visit.press(ENTER)
    visit.found(r"step +[1-9]\d*/")


def see_rollouts_arrive(visit: Visit) -> None:
    """Answers arrive; the reward rises from the first steps to the later ones."""
    visit.until("answers to prompt 1")
    visit.until(lambda: rise(visit) > 0)


def rewards(visit: Visit) -> tuple[float, ...]:
    return visit.read(lambda reader: reader.metric_series(visit.run().key, "reward").values)


def rise(visit: Visit) -> float:
    """The summed reward of the last three steps minus that of the first three; -1 before step 8."""
    try:
        values = rewards(visit)
    except Exception:  # the store does not exist before the first step
        return -1.0
    return sum(values[-3:]) - sum(values[:3]) if len(values) >= 8 else -1.0


def pause_and_go_on(visit: Visit) -> None:
    """`.` pauses within a token or a micro-batch; the run stands still."""
    visit.press(".")
    visit.until("paused")
    visit.until(lambda: visit.run().status == "paused")
    step = visit.run().step
    visit.rest(0.5)
    assert visit.run().step == step
    visit.press(".")
    visit.until(lambda: visit.run().step > step)


def open_rollouts(visit: Visit) -> None:
    """`4` opens the answers by token."""
    visit.press("4")
    visit.until("token 1 of")


def stop(visit: Visit, ref: str) -> None:
    """Stop the run on screen at once."""
    visit.press("3", "S")
    visit.until("stop the run")
    visit.press("x")
    visit.until(lambda: visit.run(ref).status in ("stopped", "aborted"))


def clone_with_another_beta(visit: Visit) -> None:
    """`c` opens the form with the run's settings; find one, change it, and launch."""
    stop(visit, "starter")
    first = visit.run().id
    visit.press("1")
    visit.until("held-out")
    visit.press("c")
    visit.until("▌2 New▐")
    visit.until("cloned run")
    visit.press("/", *"algorithm.beta", ENTER, ENTER, "\x05", "\x15", *"0.1", ENTER, "L")
    visit.until("in this process")
    visit.press("h")
    visit.until("▌3 Watch▐")
    visit.until(lambda: visit.run("@last").id != first and visit.run("@last").step >= 3)
    settings = visit.read(lambda reader: reader.run(reader.resolve("@last").key).settings)
    assert settings["algorithm.beta"] == 0.1
    stop(visit, "@last")


def compare_both(visit: Visit) -> None:
    """Mark both runs and press `d`; the setting that differs is shown with both values."""
    visit.press("1")
    visit.until("2 runs")
    visit.press("\x1b[H", " ", DOWN, " ", "d")
    visit.until("▌5 Compare▐")
    visit.found(r"algorithm\.beta")
    visit.found(r"0?\.1\b")


def leave(visit: Visit) -> None:
    """Return to Runs, quit."""
    visit.press("1")
    visit.until("held-out")
    visit.press("q")
    visit.until("Leave the workbench?")
    visit.press("y")
    assert visit.terminal.ended() == 0
