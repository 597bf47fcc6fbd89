"""Whole runs beside a server that fails or lies after the first step, and their resumption.

The server tells how often an adapter was updated, and with how many gradients.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker")

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.events import CheckpointSaved, Event, RunFailed, RunFinished, StepFinished
from grpo_engine.remote import calls, transport
from grpo_engine.run import checkpoint
from grpo_engine.trainer import run
from tests.engine.remote.fake_server import MODEL, FakeServer, serving
from tests.engine.runs import objects_of, of, settings
from tests.engine.tiny import END, VOCABULARY

Plan = Callable[[FakeServer], None]
THREE = [(1, 1), (2, 1), (3, 1)]  # updates of three steps, of one gradient each


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(transport, "LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(calls, "PAUSES_S", (0.05,) * 3)
    with serving() as server:
        server.tokens = [65, 66, END]
        yield server


def remote_settings(world: Path, fake: FakeServer) -> RunConfig:
    """Three steps of one update each, whose gradient is not 0 though all answers are equal."""
    return settings(
        world,
        steps=3,
        algorithm={"recipe": "reinforce"},
        optimizer={"micro_rows": 0},
        evaluation={"problems": 2, "pinned": 0, "every": 0},
        checkpoint={"every": 1},
        remote={"url": fake.url, "model": MODEL},
    )


def events_with(
    config: RunConfig, folder: Path, fake: FakeServer, plan: Plan | None = None
) -> list[Event]:
    """A run whose server changes after the checkpoint of step 1; without a plan it is resumed."""
    events = []
    control, objects = Control(), objects_of(config)
    for event in run(config, control, folder=folder, resume=plan is None, objects=objects):
        events.append(event)
        if plan is not None and isinstance(event, CheckpointSaved) and event.step == 1:
            assert fake.updates[-1:] == THREE[:1]
            fake.gradients, fake.updates = [], []  # what follows is counted
            plan(fake)
    return events


def lies(**planned: Any) -> Plan:
    return lambda fake: vars(fake).update(planned)


def fails(path: str, *faults: Any) -> Plan:
    def plan(fake: FakeServer) -> None:
        fake.faults[path] = list(faults)

    return plan


@dataclass(frozen=True)
class Fault:
    plan: Plan
    sentence: str
    gradients: int = 0  # of step 2, that the server has computed when the run ends
    updates: int = 0


GONE = "Model model_2 not loaded (likely stale request)"
ENDS = {
    "NaN in samples": Fault(
        lies(lies={"asample": [-1.0, math.nan, -1.0]}), "log-probability nan of token 2 of 3"
    ),
    "samples above 0": Fault(
        lies(lies={"asample": [-1.0, 0.5, -1.0]}), "a log-probability of 0.5; none is above 0"
    ),
    "half of a sample's numbers": Fault(
        lies(lies={"asample": [-1.0]}), "1 log-probabilities for 3 tokens"
    ),
    "ids beyond the vocabulary": Fault(
        lies(tokens=[65, VOCABULARY, END]), f"token {VOCABULARY}, which is not in the vocabulary"
    ),
    "a million tokens": Fault(lies(tokens=[65] * 1_000_000), "1,000,000 tokens where at most 12"),
    "an answer without an end": Fault(lies(tokens=[65, 66]), "without an end token"),
    "NaN in scores": Fault(
        lies(lies={"forward": [math.nan] * 40}), "log-probabilities for|log-probability nan"
    ),
    "NaN with a gradient": Fault(
        lies(lies={"forward_backward": [math.nan] * 40}),
        "log-probabilities for|log-probability nan",
        gradients=1,
    ),
    "half of a gradient's numbers": Fault(
        lies(lies={"forward_backward": [-1.0]}), "1 log-probabilities for", gradients=1
    ),
    # JSON knows no NaN, so the SDK cannot read this answer.
    "NaN as the norm": Fault(lies(norm=math.nan), "update of step 2", gradients=1, updates=1),
    "a gradient is refused": Fault(fails("forward_backward", 0, 400), "update of step 2"),
    "a step is refused": Fault(fails("optim_step", 400), "update of step 2", gradients=1),
    "a gradient's result is lost": Fault(
        lies(refusals={"forward_backward": "internal error"}), "update of step 2", gradients=1
    ),
    "a step's result is lost": Fault(
        lies(refusals={"optim_step": "internal error"}),
        "update of step 2",
        gradients=1,
        updates=1,
    ),
    "the session is forgotten": Fault(lies(refusals={"asample": GONE}), "has forgotten"),
    "no key any more": Fault(fails("forward_backward", 401), "is the key .* right"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_a_lie_ends_the_run_and_a_resume_makes_every_update_once(
    world: Path, tmp_path: Path, fake: FakeServer, name: str
) -> None:
    fault, config = ENDS[name], remote_settings(world, fake)
    events = events_with(config, tmp_path, fake, fault.plan)
    end = events[-1]
    assert isinstance(end, RunFailed)
    assert_matches(fault.sentence, end.message)
    assert checkpoint.steps(tmp_path) == [1]  # nothing of the broken step was saved
    assert len(fake.gradients) == fault.gradients
    assert fake.updates == THREE[1 : 1 + fault.updates]

    healthy = FakeServer(fake.url)
    for field in ("lies", "refusals", "faults", "norm"):
        setattr(fake, field, getattr(healthy, field))
    fake.tokens = [65, 66, END]
    again = events_with(config, tmp_path, fake)
    assert isinstance(again[-1], RunFinished), again[-1]
    (loaded,) = fake.loaded
    assert loaded == checkpoint_path(events)
    # The adapter of the resumed run was updated for the second and the third step, each once.
    assert fake.updates[-2:] == THREE[1:]
    assert [event.step for event in of(StepFinished, again)] == [2, 3]


def checkpoint_path(events: list[Event]) -> str:
    """The path on the server of the state that was saved with step 1, the first one."""
    assert [event.step for event in of(CheckpointSaved, events)] == [1]
    return "tinker://model_2/weights/step-000001-1-1"


def assert_matches(sentence: str, message: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        raise ValueError(message)
