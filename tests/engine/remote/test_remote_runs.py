"""Runs with weights on a server equal local ones; a server here replays a local run's tokens."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import grpo_engine as grpo
from grpo_engine import consent
from grpo_engine.config.parse import merge
from grpo_engine.config.recipes import RECIPES
from grpo_engine.control import Control, Verb
from grpo_engine.errors import CheckpointError, ConfigError
from grpo_engine.evaluation.target import of_run
from grpo_engine.events import (
    CheckpointSaved,
    Event,
    PassFinished,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunResumed,
    StepFinished,
    TokensScored,
)
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Lengths
from grpo_engine.policy.trees import flatten
from grpo_engine.remote import calls, opening, sampling
from grpo_engine.remote.protocol import (
    Adam,
    Connection,
    Scale,
    Service,
    ServiceOutcomeUnknownError,
    ServiceRefusedError,
    ServiceUnavailableError,
)
from grpo_engine.rollouts.decode import SampleRows
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.run import checkpoint
from grpo_engine.run.backend import StepContext
from grpo_engine.run.local import LocalBackend
from grpo_engine.setup.server_cost import ServerCost
from grpo_engine.trainer import run
from tests.engine.environments.test_runs import STOPS, TURNS
from tests.engine.remote.fake import FakeService, Recorded
from tests.engine.runs import events_of, notes, of, settings
from tests.engine.tiny import write_model

ALLOWED = [name for name in RECIPES if name not in ("ppo", "grpo-iterative", "grpo-sequence")]
REMOTE = {"remote": {"url": "http://localhost:1"}}
# Local scores come from fused kernels with a cache, the server's from logits of whole sequences:
# they differ by about 1e-6 nats, and what is computed of them by less than this.
ROUNDING = 5e-5, 5e-5  # relative, absolute
# Except where a loss multiplies the ratios of a whole answer, or weights tokens by differences of
# tens of nats from a teacher.
ENLARGED = 5e-4, 1e-4
ENLARGING = ("vespo", "distill")
METRICS = (
    "loss",
    "reward",
    "kl",
    "kl_to_old",
    "ratio/mean",
    "clip_ratio/region_mean",
    "grad_norm",
    "learning_rate",
    "teacher/kl",
    "num_tokens",
)


def changed(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "steps": 3,
        # larger rates, or Adam with a smaller epsilon, would enlarge rounding from step to step
        "optimizer": {"micro_rows": 0, "learning_rate": 3e-3, "options": {"epsilon": 1e-3}},
        "evaluation": {"problems": 2, "pinned": 0, "every": 0},
        "checkpoint": {"every": 0},
    }
    return dict(merge(base, changes))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PAUSES_S", (0.05,) * 3)


class Pair:
    """A local run, and a server that replays it."""

    def __init__(self, world: Path, folder: Path, patch: pytest.MonkeyPatch, **changes: Any):
        self.folder, self.patch = folder, patch
        self.local = settings(world, **changed(**changes))
        self.remote = settings(world, **changed(**merge(changes, REMOTE)))
        self.recorded = Recorded()

    def run_local(self) -> list[Event]:
        sample, recorded = LocalBackend.sample, self.recorded

        def recording(
            self: LocalBackend, rows: SampleRows, context: StepContext
        ) -> Generator[Event, None, list[Trajectory]]:
            rollouts = yield from sample(self, rows, context)
            if rows.weights is None and context.step:  # not the self-check
                recorded.rollouts += rollouts
            return rollouts

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalBackend, "sample", recording)
            return events_of(self.local, self.folder / "local")

    def service(self, scale: Scale = "mean per row") -> FakeService:
        model = self.local.model.model_copy(update={"compute": "graph"})
        return FakeService(load_policy(model, seed=self.local.seed), self.recorded, scale)

    def run_remote(self, service: FakeService, *, resume: bool = False) -> list[Event]:
        def connected(_: object) -> Future[Service]:
            future: Future[Service] = Future()
            future.set_result(service)
            return future

        self.patch.setattr(opening, "connect", connected)
        events = []
        for event in run(self.remote, Control(), folder=self.folder / "remote", resume=resume):
            self.recorded.step = event.step
            events.append(event)
        return events


def finished(events: Sequence[Event]) -> None:
    assert isinstance(events[-1], RunFinished), events[-1]


def numbers(events: Sequence[Event]) -> Iterator[tuple[str, float]]:
    """The losses, metrics and token numbers of a run."""
    for event in events:
        if isinstance(event, PassFinished):
            yield f"{event.step} loss of {event.index}.{event.minibatch}", event.loss or 0.0
        if isinstance(event, StepFinished):
            for name in METRICS:
                if name in event.metrics:
                    yield f"{event.step} {name}", event.metrics[name]
        if isinstance(event, TokensScored):
            for row in event.numbers:
                values: list[float] = [*row.old, *row.reference, *row.advantages, *row.after]
                values += [value for one in row.passes for value in one]
                yield f"{event.step} tokens of {event.group}.{row.index}", float(np.sum(values))


def assert_equal(
    local: Sequence[Event], remote: Sequence[Event], tolerance: tuple[float, float] = ROUNDING
) -> None:
    ours, theirs = dict(numbers(local)), dict(numbers(remote))
    assert ours.keys() == theirs.keys()
    relative, absolute = tolerance
    for name, value in ours.items():
        assert theirs[name] == pytest.approx(value, rel=relative, abs=absolute), name


def weights_of(folder: Path) -> dict[str, mx.array]:
    step = checkpoint.steps(folder)[-1]
    file = checkpoint.folder(folder, step) / "adapters.safetensors"
    return dict(mx.load(str(file)))  # type: ignore[arg-type]


def same_weights(pair: Pair) -> None:
    ours, theirs = weights_of(pair.folder / "local"), weights_of(pair.folder / "remote")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert float(mx.abs(value - theirs[name]).max()) < 5e-5, name


def recipe_changes(world: Path, name: str, passes: int) -> dict[str, Any]:
    algorithm: dict[str, Any] = {"recipe": name, "importance_cap": 0.0}
    if name == "sft":
        return {
            "algorithm": {"recipe": name},
            "task": {"columns": {"completion": "answer"}, "options": {"chat": False}},
        }
    if RECIPES[name].ratio != "none":
        algorithm["passes"] = passes
    elif passes > 1:
        pytest.skip("it trains on fresh answers only")
    changes: dict[str, Any] = {"algorithm": algorithm}
    if name == "grpo-process":
        changes["rewards"] = {"functions": [f"{world}/rewards.py:steps"]}
    if name == "distill":
        changes["teacher"] = {"path": str(write_model(world / "teacher", seed=9))}
    return changes


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.slow
def test_three_steps_on_a_server_equal_three_local_ones(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, passes: int
) -> None:
    pair = Pair(world, tmp_path, monkeypatch, **recipe_changes(world, name, passes))
    local = pair.run_local()
    finished(local)
    service = pair.service()
    remote = pair.run_remote(service)
    finished(remote)
    assert_equal(local, remote, ENLARGED if name in ENLARGING else ROUNDING)
    same_weights(pair)
    assert not service.is_open
    steps = of(StepFinished, remote)
    assert not any("entropy" in event.metrics for event in steps)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["mean per row", "sum"])
def test_minibatches_and_groups_without_signal_have_the_local_gradient_at_either_scale(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: Scale
) -> None:
    chosen = {"recipe": "dr-grpo", "passes": 2, "minibatches": 2, "importance_cap": 0.0}
    pair = Pair(
        world,
        tmp_path,
        monkeypatch,
        algorithm=chosen,
        rewards={"functions": [f"{world}/rewards.py:accuracy"]},  # rows of groups differ or not
        rollout={"prompts": 4, "group_size": 2},
    )
    local = pair.run_local()
    assert {event.metrics["groups/skipped"] for event in of(StepFinished, local)} - {0.0}
    service = pair.service(scale)
    remote = pair.run_remote(service)
    finished(remote)
    assert_equal(local, remote)
    same_weights(pair)
    assert service.calls.count("step") == service.calls.count("accumulate")


@pytest.mark.slow
def test_dialogues_on_a_server_equal_local_ones(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world / "turns.py").write_text(TURNS)
    pair = Pair(
        world,
        tmp_path,
        monkeypatch,
        task={"environment": f"{world}/turns.py:Turns", "max_turns": 4},
        rollout={"stop": STOPS, "max_new_tokens": 40},
        algorithm={"recipe": "grpo", "beta": 0.04, "importance_cap": 0.0},
    )
    local = pair.run_local()
    finished(local)
    assert any(event.metrics.get("turns/max", 0) > 1 for event in of(StepFinished, local))
    remote = pair.run_remote(pair.service())
    finished(remote)
    assert_equal(local, remote)
    same_weights(pair)


@pytest.mark.slow
def test_a_run_is_resumed_from_the_state_on_the_server(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(
        world, tmp_path, monkeypatch, algorithm={"importance_cap": 0.0}, checkpoint={"every": 1}
    )
    local = pair.run_local()
    service, control = pair.service(), Control()
    monkeypatch.setattr(opening, "connect", lambda _: done_with(service))
    events = []
    for event in run(pair.remote, control, folder=tmp_path / "remote"):
        pair.recorded.step = event.step
        events.append(event)
        if isinstance(event, CheckpointSaved) and event.step == 2:
            control.ask("stop_after_step")
    stopped = events[-1]
    assert isinstance(stopped, RunFinished)
    assert stopped.reason == "stopped"
    service.policy.load_trainable(service.initial)  # a server that has only its files
    again = pair.run_remote(service, resume=True)
    finished(again)
    assert service.calls.count("begin") == 1
    assert any("may differ" in text for text in notes(again))
    assert_equal([e for e in local if e.step == 3], [e for e in again if e.step == 3])
    same_weights(pair)
    assert len(service.states) == len(checkpoint.steps(tmp_path / "remote"))  # others are deleted


def done_with(service: FakeService) -> Future[Service]:
    future: Future[Service] = Future()
    future.set_result(service)
    return future


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a critic": ({"algorithm": {"recipe": "ppo"}}, "a critic reads hidden states"),
    "an entropy bonus": ({"algorithm": {"entropy_bonus": 0.1}}, "no entropy"),
    "an entropy target": ({"algorithm": {"options": {"entropy_target": 1.0}}}, "no entropy"),
    "the top of entropy": ({"algorithm": {"entropy_top_quantile": 0.2}}, "no entropy"),
    "a new reference": ({"algorithm": {"recipe": "grpo-iterative"}}, "the base model"),
    "a sampler that lags": (
        {"algorithm": {"options": {"sampler_sync_every": 2}}},
        "no older ones are scored",
    ),
    "stop_when": ({"stop_when": "entropy < 1"}, "no entropy"),
    "temperature": ({"rollout": {"temperature": 0.7}}, "at temperature 1"),
    "top_p": ({"rollout": {"top_p": 0.9}}, "whole distribution"),
    "top_k": ({"rollout": {"top_k": 5}}, "whole distribution"),
    "min_p": ({"rollout": {"options": {"min_p": 0.1}}}, "whole distribution"),
    "a penalty": ({"rollout": {"options": {"repetition_penalty": 1.1}}}, "whole distribution"),
    "a think budget": ({"rollout": {"think_budget": 5}}, "whole distribution"),
    "top_p of evaluations": ({"evaluation": {"sampling": {"top_p": 0.9}}}, "whole distribution"),
    "full tuning": ({"model": {"tuning": "full"}}, "trains LoRA"),
    "DoRA": ({"model": {"tuning": "dora"}}, "trains LoRA"),
    "some layers": ({"model": {"lora_layers": 2}}, "which layers get LoRA"),
    "some keys": ({"model": {"lora_keys": ["self_attn.q_proj"]}}, "which layers get LoRA"),
    "a scale of LoRA": ({"model": {"lora_scale": 3.0}}, "how it is scaled"),
    "an adapter": ({"model": {"adapter": "folder"}}, "the weights are on the server"),
    "a format": ({"model": {"dtype": "float16"}}, "the weights are on the server"),
    "another optimiser": ({"optimizer": {"name": "sgd"}}, "Adam"),
    "an optimiser's state": ({"optimizer": {"start": "folder"}}, "the weights are on the server"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_server_cannot_do_is_refused_in_a_sentence(world: Path, case: str) -> None:
    changes, sentence = REFUSED[case]
    settings(world, **changed(**changes))
    with pytest.raises(ConfigError, match=sentence) as raised:
        settings(world, **changed(**merge(changes, REMOTE)))
    assert "cannot be used with remote.url" in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", ["sample", "logprobs", "logprobs of the base", "accumulate", "step", "sync", "save"]
)
def test_a_call_that_the_server_does_not_take_at_first_is_made_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    pair = Pair(world, tmp_path, monkeypatch, algorithm={"importance_cap": 0.0}, steps=2)
    local, service, failures = pair.run_local(), pair.service(), [2]

    def fail(name: str) -> Exception | None:
        if name != call or not failures[0]:
            return None
        failures[0] -= 1
        return ServiceUnavailableError("the server is busy.")

    service.fail = fail
    remote = pair.run_remote(service)
    finished(remote)
    assert_equal(local, remote)
    same_weights(pair)
    assert sum("the server is busy" in text for text in notes(remote)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["accumulate", "step"])
@pytest.mark.parametrize("was_done", [True, False])
def test_an_update_whose_outcome_is_unknown_ends_the_run_and_a_resume_makes_it_once(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, was_done: bool
) -> None:
    pair = Pair(
        world, tmp_path, monkeypatch, algorithm={"importance_cap": 0.0}, checkpoint={"every": 1}
    )
    local, service = pair.run_local(), pair.service()

    def break_off(name: str) -> Exception | None:
        if name == call and service.calls.count(call) == 2:
            return ServiceOutcomeUnknownError("the connection broke off.")
        return None

    setattr(service, "lose" if was_done else "fail", break_off)
    events = pair.run_remote(service)
    end = events[-1]
    assert isinstance(end, RunFailed)
    assert "update of step 2" in end.message
    assert "resume it" in end.message
    assert service.calls.count(call) == 2  # and not a third time
    service.fail = service.lose = lambda _: None
    pair.recorded.used = {  # step 2 is sampled again, as the unbroken run did
        (number, begin) for number, begin in pair.recorded.used if number < 8
    }
    again = pair.run_remote(service, resume=True)
    finished(again)
    assert_equal([e for e in local if e.step > 1], [e for e in again if e.step > 1])
    same_weights(pair)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_after_a_norm_that_is_not_finite_nothing_is_saved(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: float
) -> None:
    pair = Pair(
        world,
        tmp_path,
        monkeypatch,
        evaluation={"before_and_after": False},
        checkpoint={"every": 1},
    )
    service = pair.service()
    step, taken = service.step, iter([0.1, norm])

    def with_norm(adam: Adam) -> Future[float | None]:
        step(adam).result()
        future: Future[float | None] = Future()
        future.set_result(next(taken))
        return future

    monkeypatch.setattr(service, "step", with_norm)
    end = pair.run_remote(service)[-1]
    assert isinstance(end, RunFailed)
    assert f"gives {norm} as the norm of the gradient of step 2" in end.message
    assert checkpoint.steps(tmp_path / "remote") == [1]
    assert len(service.states) == 1


@pytest.mark.slow
def test_a_server_that_stays_away_pauses_the_run_and_stop_is_acknowledged(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, control = Pair(world, tmp_path, monkeypatch), Control()
    service = pair.service()
    service.fail = lambda name: (
        ServiceUnavailableError("the server is away.") if name == "sync" else None
    )
    monkeypatch.setattr(opening, "connect", lambda _: done_with(service))
    events = []
    for event in run(pair.remote, control, folder=tmp_path / "remote"):
        events.append(event)
        if type(event).__name__ == "RunPaused":
            control.ask("stop_now")
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert end.reason == "aborted"
    assert any("The run pauses; `continue` tries again" in text for text in notes(events))
    assert not service.is_open


class Hanging:
    """A call that a server never answers, and what the run waits for from a request on."""

    def __init__(self, service: FakeService, call: str, control: Control) -> None:
        self.call, self.control, self.done = call, control, service._done
        self.future: Future[Any] = Future()
        self.verb: Verb | None = None  # asked as soon as the run waits for the call
        self.seconds: list[float] = []

    def answer(self, name: str, work: Callable[[], Any]) -> Future[Any]:
        return self.future if name == self.call else self.done(name, work)

    def wait(self, futures: Collection[Future[Any]], timeout: float, *how: str) -> Any:
        """Takes no time for the call, so that the sum of its limits is what it may have taken."""
        if self.future not in futures:
            return wait(futures, timeout, *how)
        if self.verb:
            self.control.ask(self.verb)
            self.verb = None
        self.seconds.append(timeout)
        assert len(self.seconds) < 100, "the request is not handled"
        return wait(futures, 0, *how)


HUNG = ["connect", "begin", "sync", "sample", "logprobs", "accumulate", "step", "save", "download"]


@pytest.mark.parametrize("call", HUNG)
@pytest.mark.slow
def test_requests_are_handled_within_100_ms_while_a_server_hangs(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A request comes when a wait begins; what is waited until it is handled is added up."""
    pair, control = Pair(world, tmp_path, monkeypatch, steps=2, checkpoint={"every": 1}), Control()
    hanging = Hanging(service := pair.service(), call, control)
    monkeypatch.setattr(service, "_done", hanging.answer)
    connected = hanging.future if call == "connect" else done_with(service)
    monkeypatch.setattr(opening, "connect", lambda _: connected)
    monkeypatch.setattr(calls, "wait", hanging.wait)
    monkeypatch.setattr(sampling, "wait", hanging.wait)
    hanging.verb = "pause"
    answers: dict[type[Event], Verb | None] = {
        RunPaused: "stop_after_step",
        RunResumed: "stop_now",
        RunFinished: None,
    }
    seen, handled = [], list(answers)
    for event in run(pair.remote, control, folder=tmp_path / "remote"):
        if type(event) in handled:
            seen.append((type(event), sum(hanging.seconds) <= 0.1))
            hanging.seconds.clear()
            if verb := answers[type(event)]:
                control.ask(verb)
    assert seen == [(kind, True) for kind in handled]
    assert hanging.future.cancelled()


def test_the_adapter_of_a_checkpoint_is_one_of_mlx_lm_and_gives_the_servers_numbers(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(world, tmp_path, monkeypatch)
    service = pair.service()
    finished(pair.run_remote(service))
    folder = checkpoint.folder(tmp_path / "remote", 3)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["lora_parameters"]["rank"] == 4
    local = pair.local.model.model_copy(update={"adapter": str(folder), "compute": "graph"})
    loaded = load_policy(local, seed=0)
    ids = mx.array([[1, 2, 3, 4]])
    assert mx.allclose(loaded.model(ids), service.policy.model(ids), atol=1e-4)
    assert flatten(loaded.model.trainable_parameters()).keys() == service.initial.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        {"recipe": "grpo", "beta": 0.04, "passes": 2},
        {"recipe": "dr-grpo", "minibatches": 2},
        {"recipe": "how-much"},
    ],
    ids=lambda algorithm: algorithm["recipe"],
)
def test_a_step_makes_the_calls_that_were_estimated(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: dict[str, Any]
) -> None:
    pair = Pair(
        world,
        tmp_path,
        monkeypatch,
        steps=1,
        algorithm=algorithm,
        evaluation={"before_and_after": False},
    )
    service, begun = pair.service(), 0
    monkeypatch.setattr(opening, "connect", lambda _: done_with(service))
    for event in run(pair.remote, Control(), folder=tmp_path / "remote"):
        if isinstance(event, PhaseStarted) and (event.step, event.phase) == (1, "generate"):
            begun = len(service.calls)
        if isinstance(event, StepFinished):
            break
    cost = ServerCost.of(pair.remote, Lengths(prompt=9, completion=9))
    made = Counter(service.calls[begun:])
    assert made["sample"] == cost.samples
    assert made["logprobs"] + made["logprobs of the base"] == cost.scores
    assert made["accumulate"] == made["step"] == cost.updates


@pytest.mark.slow
def test_the_best_checkpoint_has_its_adapter_though_others_are_newer(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(
        world,
        tmp_path,
        monkeypatch,
        steps=4,
        optimizer={"learning_rate": 0.0},  # the first evaluation stays the best
        evaluation={"every": 1},
        checkpoint={"best_by": "eval/accuracy", "keep": 1, "every": 1},
    )
    service = pair.service()
    events = pair.run_remote(service)
    finished(events)
    best = [event.step for event in of(CheckpointSaved, events) if event.best][-1]
    assert best < 4
    assert checkpoint.steps(tmp_path / "remote") == [best, 4]
    assert len(service.states) == 2
    target = of_run(tmp_path / "remote", {}, None)
    assert (target.step, target.config.remote.url) == (best, "")
    assert target.config.model.adapter == str(checkpoint.folder(tmp_path / "remote", best))
    assert (Path(target.config.model.adapter) / "adapters.safetensors").is_file()


@pytest.mark.slow
def test_a_checkpoint_whose_adapter_could_not_be_downloaded_says_so_when_it_is_used(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(world, tmp_path, monkeypatch, steps=1)
    service = pair.service()
    service.fail = lambda name: ServiceRefusedError("no.") if name == "download" else None
    events = pair.run_remote(service)
    finished(events)
    assert any("has no adapter for use here, since no." in text for text in notes(events))
    with pytest.raises(CheckpointError, match=r"none could be downloaded from http://localhost:1"):
        of_run(tmp_path / "remote", {}, None)


def test_remote_settings_without_a_server_are_refused(world: Path) -> None:
    with pytest.raises(ConfigError, match="no effect without remote"):
        settings(world, remote={"model": "other"})
    with pytest.raises(ConfigError, match="never the key") as raised:
        settings(world, remote={"url": "http://localhost:1", "key_env": "tml-secret"})
    assert "tml-secret" not in str(raised.value)


def test_a_server_is_reached_as_the_settings_say(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = {
        "url": "http://10.0.0.1:8000",
        "model": "Qwen/Qwen3-8B",
        "key_env": "SERVER_KEY",
        "insecure": True,
    }
    config = settings(world, **changed(remote=remote))
    reached: list[Connection] = []

    def refuse(connection: Connection) -> Future[Service]:
        reached.append(connection)
        raise ServiceRefusedError("no.")

    monkeypatch.setattr(opening, "connect", refuse)
    end = events_of(config, tmp_path / "unset")[-1]
    assert isinstance(end, RunFailed)
    assert "SERVER_KEY, which is not set" in end.message
    assert not reached
    monkeypatch.setenv("SERVER_KEY", "tml-secret")
    events = events_of(config, tmp_path / "set")
    assert "tml-secret" not in repr(events)
    assert reached == [
        Connection(
            url="http://10.0.0.1:8000",
            model="Qwen/Qwen3-8B",
            rank=4,
            seed=5,
            key="tml-secret",
            vocab_size=261,
        )
    ]


@pytest.mark.slow
def test_a_run_from_python_trains_on_a_server_and_is_resumed_there(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Pair(world, tmp_path, monkeypatch).service()
    monkeypatch.setattr(opening, "connect", lambda _: done_with(service))
    tree = settings(world, **changed(steps=1)).model_dump(mode="json", exclude_unset=True)
    train = partial(grpo.train, record=False, progress=False, folder=tmp_path / "run")
    ended = train(tree, remote="http://localhost:1")
    assert ended.status == "completed"
    assert service.calls.count("step") == 1
    assert "entropy" not in ended.metrics
    assert grpo.resume(ended, steps=2, progress=False).status == "completed"
    assert service.calls.count("restore") == 1
    assert len(ended.policy.generate("1 + 2 =")) > 0  # the downloaded adapter, here


def test_a_server_that_an_imported_run_names_is_asked_about(world: Path) -> None:
    config = settings(world, **changed(**REMOTE))
    question = consent.question_of(config.model_dump(mode="json"))
    assert [str(item) for item in question.items if item.path == "remote.url"] == [
        "contact the server http://localhost:1, for every prompt and answer (remote.url)"
    ]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://example.org:8000", "remote.insecure"),
        ("ftp://127.0.0.1", "is no address"),
        ("127.0.0.1:8000", "is no address"),
        ("http://127.0.0.1:port", "is no address"),
        ("https://user:tml-secret@example.org", "remote.key_env"),
        ("https://example.org?key=tml-secret", "remote.key_env"),
    ],
)
def test_unsafe_addresses_are_refused_as_settings(world: Path, url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        settings(world, **changed(remote={"url": url}))
    assert "tml-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "remote",
    [
        {"url": "http://example.org:8000", "insecure": True},
        {"url": "https://example.org"},
        {"url": "http://[::1]:8000"},
        {"url": "http://127.0.0.2:8000"},
        {"url": "tinker"},
    ],
)
def test_a_safe_address_or_an_explicit_choice_is_taken(world: Path, remote: dict[str, Any]) -> None:
    assert settings(world, **changed(remote=remote)).remote.url == remote["url"]
