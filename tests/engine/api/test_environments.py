"""Environments and tools as Python objects: in the pool or in this process, and given again."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grpo_engine as grpo
from grpo_engine import events as ev
from grpo_engine.api.run import Run
from grpo_engine.config.parse import merge
from grpo_engine.environments.client import EnvironmentClient, Episode
from grpo_engine.errors import BrokenEnvironmentError, EngineError
from grpo_engine.sandbox import client as client_module
from tests.engine.environments.pools import client_of
from tests.engine.environments.test_runs import facts
from tests.engine.runs import of, settings, write_world
from tests.engine.tiny import write_model
from tests.patience import until

STOPS = ["a", "e", "i", "o", "u", " ", "1", "2", "3"]
TURNS = """
import random
import grpo_engine as grpo

class Turns:
    def reset(self, row, seed, index):
        self.random = random.Random(seed * 100 + index)
        self.said = 0
    def step(self, answer):
        self.said += 1
        if self.said == 2 and self.random.random() < 0.2:
            raise ValueError("the board broke")
        text = "again " * self.random.randint(1, 3)
        return grpo.Reply([{"role": "user", "content": text}], done=self.said > 2, reward=0.5)
"""


def made_here() -> Any:
    """The same class, which no other process can import."""
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec(TURNS, space)
    return space["Turns"]


Turns = made_here()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    (folder / "turns_7.py").write_text(TURNS)
    return folder


def keywords(world: Path, environment: Any, **changes: Any) -> dict[str, Any]:
    base = settings(world, rollout={"stop": STOPS, "max_new_tokens": 30}, task={"max_turns": 4})
    tree = merge(base.model_dump(mode="json", exclude_unset=True), changes)
    return {**tree, "environment": environment, "record": False}


def events_of(world: Path, environment: Any, **changes: Any) -> list[ev.Event]:
    return list(grpo.iterate(**keywords(world, environment, **changes)))


def until_calls_end() -> None:
    """Wait for the threads that make the calls, since closing does not: a call may hang."""
    until(lambda: not any(one.name == "EnvironmentService" for one in threading.enumerate()))


def without_places(events: list[ev.Event]) -> str:
    """What happened, without the file that an error names."""
    return re.sub(r" \(at [^)]*\)", "", repr(facts(events)))


@pytest.mark.slow
def test_a_class_of_this_process_an_instance_and_one_of_a_module_train_alike(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(world))
    from_module = events_of(world, __import__("turns_7").Turns)
    assert isinstance(from_module[0], ev.RunStarted)
    assert from_module[0].config["task"]["environment"] == f"{world.resolve()}/turns_7.py:Turns"
    here = events_of(world, Turns)
    assert isinstance(here[0], ev.RunStarted)
    assert here[0].config["task"]["environment"] == "python:Turns"
    copied = events_of(world, Turns())
    assert isinstance(here[-1], ev.RunFinished)
    steps = of(ev.StepFinished, here)
    assert max(event.metrics["turns/max"] for event in steps) == 3
    assert max(event.metrics["environment/errors"] for event in steps) > 0
    assert without_places(here) == without_places(copied) == without_places(from_module)
    notes = [event.text for event in of(ev.NoteWritten, here)]
    assert any(text.startswith("environment Turns runs in this Python process") for text in notes)
    until_calls_end()


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit_with_its_environment_given_again(
    world: Path, tmp_path: Path
) -> None:
    whole = events_of(world, Turns)
    run = grpo.iterate(folder=tmp_path, **keywords(world, Turns))
    seen: list[ev.Event] = []
    for event in run:
        seen.append(event)
        if isinstance(event, ev.StepFinished) and event.step == 2:
            run.stop()
    with pytest.raises(EngineError, match=r"grpo_engine\.resume\(run, environment=…\)"):
        grpo.resume(tmp_path, progress=False)
    again = grpo.resume(tmp_path, environment=Turns, callbacks=[seen.append], progress=False)
    assert again.status == "completed"
    assert facts(seen) == facts(whole)


@pytest.mark.slow
def test_a_tool_of_this_process_is_called_with_what_the_model_wrote(
    world: Path, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", max_position_embeddings=4096)
    called: list[int] = []

    def double(number: int) -> int:
        """Double a number.

        Args:
            number: What to double.
        """
        called.append(number)
        return 2 * number

    run: Run = grpo.train(
        progress=False,
        tools=[double],
        **keywords(
            world,
            None,
            steps=1,
            model={"path": str(model)},
            task={
                "system_prompt": "Double it.",  # makes the prompts chats, which have prefills
                "prefill": '<tool_call>{"name": "double", "arguments": {"number": 21}}</tool_call>',
            },
            rewards={"functions": ["format_all"]},
        ),
    )
    texts = [one.text for group in run.rollouts() for one in group.rollouts]
    assert set(called) == {21}
    assert any("⚙ double(21) → 42" in text for text in texts)
    assert run.metrics["tools/call_frequency"][1] > 0


def play(pool: EnvironmentClient, *places: str) -> list[str]:
    """Begin an episode in each of these environments, with one answer; the replies' texts."""
    pool.begin(
        [Episode(environment=name, row={"environment": name}, seed=1, index=0) for name in places]
    )
    for place in range(len(places)):
        pool.submit(place, "an answer")
    found: dict[int, str] = {}
    while len(found) < len(places):
        found |= {place: reply.error or reply.text for place, reply in pool.replies(0.1)}
    return [found[place] for place in range(len(places))]


def echo(before: str) -> Callable[[], Any]:
    class Echo:
        def reset(self, row: Any, seed: int) -> None: ...
        def step(self, answer: str) -> grpo.Reply:
            return grpo.Reply([{"role": "user", "content": before + answer}])

    return Echo


def test_one_here_means_all_here_and_names_are_found_as_ever(tmp_path: Path) -> None:
    (tmp_path / "turns.py").write_text(TURNS)
    specs = {"a": "python:Echo", "b": f"{tmp_path}/turns.py:Turns"}
    with client_of((), specs, tmp_path, 5, objects={"python:Echo": echo("> ")}) as pool:
        first, second = play(pool, "a", "b")
    assert first == "> an answer"
    assert second.startswith("again")
    assert not list(tmp_path.glob("*.log"))  # no process was started
    with (
        pytest.raises(BrokenEnvironmentError, match="environment 'Echo' is a Python object"),
        client_of((), specs, tmp_path, 20),
    ):
        pass


def test_a_call_has_no_limit_here_and_is_not_heard_after_its_step_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "SLACK", 0.0)
    gate = threading.Event()

    class Waits:
        def reset(self, row: Any, seed: int) -> None: ...
        def step(self, answer: str) -> grpo.Reply:  # noqa: ARG002
            gate.wait(30)
            return grpo.Reply(done=True)

    with client_of((), {"": "x"}, tmp_path, 0.01, objects={"x": Waits}) as pool:
        pool.begin([Episode(environment="", row={}, seed=1, index=0)])
        pool.submit(0, "")
        time.sleep(0.1)  # ten times what the setting allows
        assert pool.replies(0) == []
        pool.begin([Episode(environment="", row={}, seed=1, index=0)])
        gate.set()
        time.sleep(0.1)
        assert pool.replies(0) == []
        pool.submit(0, "")
        while not (found := pool.replies(0.1)):
            pass
        assert [(place, reply.done, reply.error) for place, reply in found] == [(0, True, "")]
        gate.clear()
        pool.submit(0, "")
    # files that get the descriptors of the closed pipe hear nothing either
    files = [(tmp_path / f"file {n}").open("wb", buffering=0) for n in range(4)]
    gate.set()
    until_calls_end()
    for file in files:
        file.close()
        assert Path(file.name).read_bytes() == b""
