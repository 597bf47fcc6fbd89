"""An update is two acts: it is measured, which changes nothing, and then it may be applied."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_engine.events import Event, PassFinished
from grpo_engine.run.local import LocalBackend
from grpo_engine.training import update
from tests.engine.runs import events_of, of, settings


def state_of(backend: LocalBackend) -> dict[str, bytes]:
    """The bytes of weights and optimiser."""
    mx.eval(backend.snapshot().tensors)
    return {
        f"{file}/{name}": np.array(array.astype(mx.float32)).tobytes()
        for file, arrays in backend.snapshot().tensors.items()
        for name, array in arrays.items()
    }


def test_a_measurement_changes_nothing_and_a_stopped_one_is_not_applied(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, changed, applied = [0], [], [0]
    measure, apply = update.measure, LocalBackend.apply

    def counted_measure(run: Any, *arguments: Any) -> Generator[Event, None, Any]:
        before = state_of(run.backend)
        result = yield from measure(run, *arguments)
        measured[0] += 1
        changed.append(state_of(run.backend) != before)
        return result

    def counted_apply(self: LocalBackend, *arguments: Any) -> Generator[Event, None, Any]:
        applied[0] += 1
        return (yield from apply(self, *arguments))

    monkeypatch.setattr(update, "measure", counted_measure)
    monkeypatch.setattr(LocalBackend, "apply", counted_apply)
    # the second pass of each step is further than this from the first, so it stops there
    chosen = {"recipe": "grpo", "passes": 3, "stop": "kl", "options": {"stop_kl": 1e-9}}
    finished = of(PassFinished, events_of(settings(world, algorithm=chosen), tmp_path))
    stopped = [event for event in finished if event.stop_reason]
    assert stopped
    assert (measured[0], applied[0]) == (len(finished), len(finished) - len(stopped))
    assert not any(changed)
