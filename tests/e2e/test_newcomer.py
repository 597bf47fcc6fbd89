"""A newcomer's path by keys alone in a real terminal; the screen agrees with the store.

The path is tested twice: with a tiny model in place of the starter, and with the starter itself, by
`make run` in a clean clone with nothing set up.
"""

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_tui.app.text.numbers import short
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
        with closing(StoreReader(self.store)) as reader:
            return question(reader)

    def run(self, ref: str = "starter") -> RunSummary:
        """A run as stored."""
        return self.read(lambda reader: reader.resolve(ref))

    def until(self, holds: Callable[[], bool] | str, seconds: float = 300.0) -> None:
        """Wait until `holds()` is true for the screen."""
        self.terminal.until(holds, seconds)

    def lacks(self, pattern: str) -> bool:
        """Whether the pattern is not on the screen."""
        return re.search(pattern, self.terminal.text()) is None

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

    def found(self, pattern: str) -> re.Match[str]:
        """Wait for a pattern on the screen and return its match."""
        self.until(lambda: not self.lacks(pattern))
        match = re.search(pattern, self.terminal.text())
        assert match is not None
        return match


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
    look_into_a_token(visit)
    follow_a_prompt(visit)
    clone_with_another_beta(visit)
    compare_both(visit)
    leave(visit)


def start_the_starter(visit: Visit) -> None:
    """Press ⏎ on the hint card of the empty store; the run opens."""
    visit.until("two-minute starter run", 900)  # `make run` has to set up everything
    visit.press(ENTER)
    visit.until(lambda: re.search(r"step +[1-9]\d*/", visit.terminal.text()) is not None)


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
    """`.` pauses within a token or a micro-batch; the numbers stop changing and are correct."""
    visit.press(".")
    visit.until("paused")
    visit.until(lambda: visit.run().status == "paused")
    step, values = visit.run().step, rewards(visit)
    legend = r"(?:◂ moved it most +)?"
    visit.found(rf"reward +{legend}{re.escape(short(smoothed(values)))}(?![\d.])")
    visit.rest(0.5)
    assert visit.run().step == step
    visit.press(".")
    visit.until(lambda: visit.run().step > step)


def smoothed(values: tuple[float, ...], weight: float = 0.9) -> float:
    """The debiased moving average of all values, as drawn by the curve."""
    total = norm = 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
    return total / norm


def look_into_a_token(visit: Visit) -> None:
    """The first step's third token: the stored probability against the model's own."""
    visit.press("4")
    visit.until("token 1 of")
    while int(visit.found(r"step (\d+)  prompt").group(1)) > 1:
        visit.press("<")  # again, in case the answers had not arrived before
    visit.until("step 1  prompt 1")
    visit.press(RIGHT, RIGHT)
    visit.until("token 3 of")
    letter = visit.found(r"answer ([a-p]) by token").group(1)
    old, new = visit.found(r"old (\S+) +new (\S+)").groups()
    group = visit.read(lambda reader: reader.groups(visit.run().key, step=1, origin="train")[0])
    tokens = visit.read(lambda reader: reader.tokens(visit.run().key, group.key))
    assert tokens is not None
    row = tokens.rows["abcdefghijklmnop".index(letter)]
    assert float(old) == pytest.approx(math.exp(row.old[2]), abs=6e-4)
    assert float(new) == pytest.approx(math.exp(row.passes[-1][2]), abs=6e-4)
    said = independent(visit.run().model, tokens.prompt_ids, row.ids, 2)
    assert float(old) == pytest.approx(said, abs=1e-3)


def independent(
    model_name: str, prompt: tuple[int, ...], answer: tuple[int, ...], place: int
) -> float:
    """The probability of a token by mlx-lm alone: in step 1 the policy is the model itself."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    starter = ROOT / "grpo_engine/models/starter/model"
    model, _ = load_model(starter if model_name == "starter" else Path(model_name))
    model.set_dtype(mx.float32)
    logits = model(mx.array([[*prompt, *answer[:place]]]))[0, -1]
    return float(mx.softmax(logits)[answer[place]])


def pinned_steps(visit: Visit) -> Sequence[int]:
    return visit.read(lambda reader: reader.group_steps(visit.run().key, "pinned"))


def follow_a_prompt(visit: Visit) -> None:
    """Visit a pinned prompt at three steps by `]`."""
    visit.until(lambda: len(pinned_steps(visit)) >= 3)
    visit.press("t")
    visit.until("pinned")
    steps, prompts = [], set()
    for _ in range(3):
        found = visit.found(r"step (\d+)  pinned  prompt \d+ “(.*?)”")
        steps.append(int(found.group(1)))
        prompts.add(found.group(2))
        if len(steps) < 3:
            visit.press("[" if steps[0] else "]")
            visit.until(partial(visit.lacks, rf"step {steps[-1]}  pinned"))
    assert len(set(steps)) == 3, steps
    assert len(prompts) == 1


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
