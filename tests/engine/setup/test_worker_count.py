"""How many local workers a run gets."""

from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import pytest

from grpo_engine.config.settings import RunConfig
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.distributed.workers import Workers
from grpo_engine.policy.source import find_folder, stored_parameters
from grpo_engine.setup import preflight
from grpo_engine.setup.preflight import Processes, Work, worker_count
from tests.engine.runs import settings, write_world

pytestmark = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="workers are for the CPU")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


def starter(**changes: Any) -> RunConfig:
    """The starter's model with 60 steps of 16 x 8 answers: some 80 s of work."""
    tree: dict[str, Any] = {
        "steps": 60, "rollout": {"prompts": 16, "group_size": 8, "max_new_tokens": 48}, **changes
    }  # fmt: skip
    return RunConfig.model_validate(tree)


def count_of(config: RunConfig, cores: int = 2, before: int | None = None) -> int:
    return worker_count(config, cores, Ranks(), before)[0]


def test_a_run_that_repays_their_start_gets_a_worker_for_each_core() -> None:
    assert count_of(starter()) == 2
    assert count_of(starter(), cores=4) == 4
    assert count_of(starter(), cores=1) == 1


def test_a_short_run_is_computed_by_the_engine_itself(world: Path) -> None:
    assert count_of(settings(world)) == 1
    assert count_of(starter(steps=10)) == 1


def test_a_worker_has_four_answers_to_score_and_eight_to_sample() -> None:
    for workers in (1, 2, 3):
        rollout = {"prompts": 1, "group_size": workers * 4}
        assert count_of(starter(steps=99_000, rollout=rollout), cores=4) == workers
    two = mock.Mock(count=2)
    used = [Workers.used_to_sample(two, rows) for rows in (1, 8, 15, 16, 64)]
    assert used == [1, 1, 1, 2, 2]


def test_workers_that_do_not_fit_in_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # each worker holds the float32 weights twice, as loaded and folded, in half of the memory
    each = 2 * 4 * stored_parameters(find_folder("starter"))
    monkeypatch.setattr(preflight, "memory_limit", lambda *_: 2 * (2 * each))
    assert count_of(starter(), cores=8) == 2


def test_an_evaluation_is_counted_by_its_own_answers() -> None:
    def count_for(together: int, answers: int) -> int:
        work = Work(together=together, answers=answers, trained=False)
        return worker_count(starter(steps=1), 2, Ranks(), None, work=work)[0]

    # a third of a step's work: 64 answers take a second, 9,000 repay the start of two
    assert count_for(64, 64) == 1
    assert count_for(64, 64_000) == 2
    assert count_for(3, 64_000) == 1


def test_planned_processes_share_the_weights_of_large_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Processes.planned(starter(), 2) == Processes(count=2)
    monkeypatch.setattr(preflight, "LEAST_SHARED", 1)
    shared = Processes(count=2, shares_weights=True)
    assert Processes.planned(starter(), 2) == shared


def test_a_resumed_run_keeps_its_number_unless_the_settings_name_one() -> None:
    assert count_of(starter(), before=3) == 3
    assert count_of(starter(), before=1) == 1
    assert count_of(starter(run={"workers": 2}), before=3) == 2
    assert starter(run={"workers": "auto"}).run.workers == 0
