"""What a run from Python reads of its own record."""

from pathlib import Path

import pytest

from grpo_engine.config.parse import build
from grpo_engine.control import Control
from grpo_tui.experiments.record.from_python import PythonStore
from tests.experiments.made import group, started, step_events


@pytest.mark.parametrize(("tokens", "ids"), [("all", (1, 2, 3)), ("none", ())])
def test_rollouts_of_a_recorded_run_have_their_ids_if_tokens_are_recorded(
    tmp_path: Path, tokens: str, ids: tuple[int, ...]
) -> None:
    config = build({"record": {"tokens": tokens}})
    record = PythonStore(tmp_path / "s.db").begin(config, Control(), ())
    for event in (started(), *step_events(1), *step_events(2)):
        record.put(event)
    groups = record.rollouts(2)
    record.close()
    assert [len(item.rollouts) for item in groups] == [2, 2]
    assert {rollout.ids for item in groups for rollout in item.rollouts} == {ids}
    if ids:
        assert {item.prompt_ids for item in groups} == {group().prompt_ids}
        rollout = groups[0].rollouts[0]
        assert (rollout.ends, rollout.sampler_logprobs) == ((1, 2, 3), (-0.5, -1.0, -2.0))


def test_a_run_gives_its_settings_to_another_one(tmp_path: Path) -> None:
    store = PythonStore(tmp_path / "s.db")
    store.begin(build({"name": "base", "steps": 9}), Control(), ()).close()
    assert store.settings("base")["steps"] == 9
    assert store.settings("@last") == store.settings("base")
