"""Requests to a run take effect at the next token or micro-batch."""

from pathlib import Path
from typing import Any

import pytest

from grpo_engine import trainer
from grpo_engine.control import Control, Verb
from grpo_engine.events import CheckpointSaved, Event, RunFinished, RunPaused, RunStarted
from grpo_engine.rollouts import decode
from grpo_engine.run import local
from tests.engine.runs import events_of, settings
from tests.engine.training.test_resume import facts


class Asker:
    """Make a request during a piece of work, and count the pieces that start after it."""

    def __init__(self, verb: Verb) -> None:
        self.control = Control()
        self.events: list[Event] = []
        self.after = 0
        self._verb, self._at = verb, 3  # tokens, or micro-batches, into the second step

    def spy(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        """Wrap a function to observe each piece of work in the second step."""
        real = getattr(owner, name)

        def seen(*arguments: Any) -> Any:
            if not self.settled and self.events[-1].step == 2:
                self._at -= 1
                if self._at == 0:
                    self.control.ask(self._verb)
                elif self._at < 0:
                    self.after += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, seen)

    @property
    def settled(self) -> bool:
        """Whether the run has carried out the request."""
        return any(self.answers(event) for event in self.events)

    def answers(self, event: Event) -> bool:
        """Whether the event responds to the request."""
        return isinstance(event, RunPaused | RunFinished | CheckpointSaved)

    def run(self, world: Path, folder: Path) -> None:
        """Train to the end, continuing after a pause."""
        config = settings(
            world,
            steps=2,
            optimizer={"micro_rows": 2},
            algorithm={"passes": 2},
            checkpoint={"every": 0},
            evaluation={"pinned": 0},
        )
        for event in trainer.run(config, self.control, folder=folder):
            self.events.append(event)
            if isinstance(event, RunPaused):
                self.control.ask("continue")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pause", "stop_now", "checkpoint"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(decode._Decoding, "advance"), (local, "gradient")],
    ids=["token", "gradient"],
)
def test_no_token_or_gradient_is_computed_after_the_one_in_hand(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, verb: Verb
) -> None:
    asker = Asker(verb)
    asker.spy(monkeypatch, owner, name)
    asker.run(world, tmp_path)
    assert asker.settled
    assert asker.after == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "tuning"), [("RolloutsAdvanced", "lora"), ("PassFinished", "full")]
)
def test_a_checkpoint_from_within_a_step_goes_on_as_the_unbroken_run(
    world: Path, tmp_path: Path, moment: str, tuning: str
) -> None:
    changes: dict[str, Any] = {
        "steps": 3,
        "model": {"tuning": tuning},
        "checkpoint": {"every": 0},
        "algorithm": {"passes": 2},
        "optimizer": {"learning_rate": 1e-3, "micro_rows": 4},
    }
    config = settings(world, **changes)
    unbroken = events_of(config, tmp_path / "whole")
    control, saved = Control(), []
    events = trainer.run(config, control, folder=tmp_path / "cut")
    for event in events:
        if type(event).__name__ == moment and event.step == 2:
            control.ask("checkpoint")
        if isinstance(event, CheckpointSaved):
            saved.append(event.step)
            break
    events.close()  # type: ignore[attr-defined]
    # with full tuning there is no memory for a second copy of the weights from before the update
    late = (moment, tuning) == ("PassFinished", "full")
    assert saved == [2 if late else 1]
    resumed = events_of(config, tmp_path / "cut", resume=True)
    assert isinstance(resumed[0], RunStarted)
    assert resumed[0].step == saved[0]
    assert facts(resumed, saved[0]) == facts(unbroken, saved[0])
