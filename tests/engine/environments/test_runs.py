"""Whole runs with environments: recorded, resumed, and with hostile ones."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.recipes import RECIPES
from grpo_engine.config.settings import RunConfig
from grpo_engine.events import (
    AlertRaised,
    EvaluationFinished,
    Event,
    GroupScored,
    NoteWritten,
    RunFailed,
    RunFinished,
    StepFinished,
    StepSkipped,
    TokensScored,
)
from grpo_engine.metrics import PHASES, phase_seconds, time_of
from tests.engine.environments.hostile import IMITATION
from tests.engine.environments.test_client import HOSTILE, SAID
from tests.engine.environments.trl_files import END, QWEN, write_qwen
from tests.engine.runs import completed, events_of, of, settings, timeless, write_world
from tests.engine.tiny import write_model

TURNS = """
import os, random, time
from grpo_engine.environments.protocol import Reply

class Turns:
    '''Some turns with replies that the seed and the answer's number decide.'''
    def reset(self, row, seed, index):
        self.random = random.Random(seed * 1000 + index)
        self.left, self.said = self.random.randint(0, 3), 0
        return [{"role": "user", "content": f" game {seed % 10}:"}]
    def step(self, answer):
        self.said += 1
        time.sleep(0.01 * self.random.randint(0, 3))
        if self.random.random() < 0.05:
            raise ValueError("the board broke")
        if self.said > self.left:
            return Reply(done=True, reward=len(answer) % 3, info={"said": self.said})
        text = "again " * self.random.randint(1, 3)
        return Reply([{"role": "user", "content": text}], reward=0.1, info={"said": self.said})
"""
STOPS = ["a", "e", "i", "o", "u", " ", "1", "2", "3"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("turns"))
    (folder / "turns.py").write_text(TURNS)
    return folder


def with_turns(world: Path, **changes: Any) -> RunConfig:
    return settings(
        world,
        task={"environment": f"{world}/turns.py:Turns", "max_turns": 4},
        rollout={"stop": STOPS, "max_new_tokens": 40, **changes.pop("rollout", {})},
        evaluation={"pinned": 1, "pinned_every": 2, "problems": 2, "before_and_after": True},
        **changes,
    )


def facts(events: Sequence[Event]) -> list[Any]:
    """What must be equal in two runs: all but times, memory and what the seed does not decide."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, GroupScored):
            rollouts = tuple(
                replace(one, spans=tuple(replace(span, ms=None) for span in one.spans))
                for one in event.group.rollouts
            )
            found.append(replace(event, group=replace(event.group, rollouts=rollouts)))
        elif isinstance(event, TokensScored):
            found.append(event)
        elif isinstance(event, StepFinished):
            found.append((event.step, timeless(event.metrics)))
    return found


def groups(events: Sequence[Event], origin: str = "train") -> list[GroupScored]:
    return [e for e in of(GroupScored, events) if e.group.origin == origin]


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return events_of(with_turns(world), tmp_path_factory.mktemp("whole"))


def test_a_run_with_turns_trains_evaluates_and_pins(whole: list[Event]) -> None:
    assert isinstance(whole[-1], RunFinished)
    for origin in ("train", "eval", "pinned"):
        found = [one for event in groups(whole, origin) for one in event.group.rollouts]
        assert max(span.turn for one in found for span in one.spans) >= 1, origin
        for one in found:
            given = [span.reward for span in one.spans if span.reward is not None]
            assert [r.value for r in one.rewards if r.name == "Turns"] == [
                None if one.finish == "environment_error" else pytest.approx(sum(given))
            ]
    steps = [event.metrics for event in of(StepFinished, whole)]
    assert all(1 <= metrics["turns/mean"] <= metrics["turns/max"] <= 4 for metrics in steps)
    assert all(metrics["loss"] == metrics["loss"] for metrics in steps if "loss" in metrics)


DROPS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<assistant>"
    "{{ '<think></think>' if loop.last }}{{ m.content.split('</think>')[-1] }}<end>"
    "{% else %}<user>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.slow
def test_a_run_says_first_that_it_keeps_thinking_that_its_template_drops(
    world: Path, tmp_path: Path
) -> None:
    (tmp_path / "drops.jinja").write_text(DROPS)
    config = with_turns(world)
    task = {"chat_template": str(tmp_path / "drops.jinja"), "system_prompt": "Play."}
    config = config.model_copy(update={"task": config.task.model_copy(update=task), "steps": 1})
    events = events_of(config, tmp_path / "run")
    before = [event for event in of(NoteWritten, events) if event.step == 0]
    assert sum("drops the thinking of earlier turns" in note.text for note in before) == 1
    found = [one for event in groups(events) for one in event.group.rollouts]
    assert max(span.turn for one in found for span in one.spans) >= 1
    assert not any("cannot be given" in span.error for one in found for span in one.spans)


def test_an_evaluation_tells_how_many_turns_its_dialogues_had(whole: list[Event]) -> None:
    (before, *_) = of(EvaluationFinished, whole)
    first = [e for e in groups(whole, "eval") if e.step == 0][: before.problems]
    turns = [sum(s.kind == "model" for s in r.spans) for e in first for r in e.group.rollouts]
    assert before.metrics["eval/turns"] == pytest.approx(sum(turns) / len(turns))
    low, high = before.metrics["eval/turns_low"], before.metrics["eval/turns_high"]
    assert low <= before.metrics["eval/turns"] <= high


@pytest.mark.slow
def test_a_failed_rollout_keeps_its_tokens_has_no_reward_and_raises_an_alert(
    whole: list[Event],
) -> None:
    failed = [
        one
        for event in of(GroupScored, whole)
        for one in event.group.rollouts
        if one.finish == "environment_error"
    ]
    assert failed
    for one in failed:
        assert one.ids
        assert one.reward is None
        assert "ValueError: the board broke" in one.spans[-1].error
    said = of(AlertRaised, whole)
    assert any(event.rule == "environment_error" for event in said)


BROKEN = """
class Broken:
    def reset(self, row, seed, index):
        if int(row["answer"]) % {every} == 0:
            raise ValueError("no board")
    def step(self, answer):
        return {{"done": True}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "every"),
    [("grpo", 2), ("grpo-process", 2), ("ppo", 2), ("grpo", 1)]
    + [
        pytest.param(name, 2, marks=pytest.mark.slow)
        for name in RECIPES
        if name not in ("grpo", "grpo-process", "ppo", "sft")
    ],
)
def test_groups_without_a_token_have_no_part_in_the_update(
    world: Path, tmp_path: Path, recipe: str, every: int
) -> None:
    """`reset` fails for every second problem, or for all; each group has its own micro-batch."""
    (tmp_path / "broken.py").write_text(BROKEN.format(every=every))
    steps = recipe == "grpo-process"
    # A teacher equal to the policy would teach nothing but rounding.
    teacher = (
        {"path": str(write_model(tmp_path / "teacher", seed=4))} if recipe == "distill" else {}
    )
    config = settings(
        world,
        steps=3,
        algorithm={"recipe": recipe},
        teacher=teacher,
        task={"environment": f"{tmp_path}/broken.py:Broken"},
        rewards={"functions": [f"{world}/rewards.py:{'steps' if steps else 'letters'}"]},
        evaluation={"problems": 2, "pinned": 2, "pinned_every": 2},
    )
    events = completed(config, tmp_path / "run")
    empty: dict[int, list[bool]] = {}
    for event in groups(events):
        empty.setdefault(event.step, []).append(not any(r.ids for r in event.group.rollouts))
    assert any(map(any, empty.values()))
    assert any(not all(step) for step in empty.values()) == (every == 2)
    reason = "the environment failed for every answer"
    skipped = [(event.step, event.reason) for event in of(StepSkipped, events)]
    assert skipped == [(step, reason) for step, every in empty.items() if all(every)]


@pytest.mark.slow
def test_an_environment_that_fails_in_every_answer_ends_the_run(
    world: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN.format(every=1))
    config = settings(
        world,
        steps=9,
        task={"environment": f"{tmp_path}/broken.py:Broken"},
        evaluation={"pinned": 0},
        checkpoint={"every": 0},
    )
    events = events_of(config, tmp_path / "run")
    assert isinstance(events[-1], RunFailed)
    assert re.search(
        "every answer of 5 steps in a row .*reset: ValueError: no board .*broken.py:5",
        events[-1].message,
    )
    assert max(event.step for event in of(StepFinished, events)) == 5
    # a checkpoint has the steps and the count: one more step shows whether it was corrected
    again = events_of(config, tmp_path / "run", resume=True)
    assert [event.step for event in of(StepFinished, again)] == [6]
    assert isinstance(again[-1], RunFailed)


CHILD = """
import json, os, sys
from pathlib import Path
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.events import kind_of
from grpo_engine.trainer import run
config = RunConfig.model_validate_json(Path(sys.argv[1]).read_text())
for event in run(config, Control(), folder=Path(sys.argv[2])):
    print(kind_of(event), event.step, getattr(event, "phase", ""), flush=True)
"""


def killed(
    config: RunConfig, folder: Path, mark: str, wait: Callable[[], object], before: str = ""
) -> None:
    """Start a run in the folder; when it prints this mark, wait, and kill it."""
    (folder / "config.json").write_text(config.model_dump_json())
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", before + CHILD, folder / "config.json", folder / "run"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == mark:
            wait()
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


def assert_resumed(resumed: Sequence[Event], whole: Sequence[Event]) -> None:
    """Whether a run that was resumed after its second step has the facts of one that was not."""
    expected, found = (
        [fact for fact in facts(events) if (fact[0] if isinstance(fact, tuple) else fact.step) > 2]
        for events in (whole, resumed)
    )
    assert expected
    assert found == expected


@pytest.mark.slow
def test_killed_in_the_middle_of_an_episode_a_run_resumes_bit_for_bit(
    world: Path, whole: list[Event], tmp_path: Path
) -> None:
    """The checkpoint is of step 2; the kill comes while step 3 is sampled."""
    config = with_turns(world)
    killed(config, tmp_path, "PromptsStarted 3", lambda: time.sleep(0.05))
    assert_resumed(events_of(config, tmp_path / "run", resume=True), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"recipe": "dapo", "refill_rounds": 2}},
        {"algorithm": {"minibatches": 2, "passes": 2, "beta": 0.05}},
        {"algorithm": {"recipe": "grpo-process"}},
        {"rollout": {"max_rows": 3, "max_context": 60}},
        {"algorithm": {"recipe": "ppo"}},
    ],
    ids=["refills", "minibatches", "process", "few rows", "critic"],
)
def test_recipes_train_on_dialogues(world: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    events = completed(with_turns(world, steps=2, **changes), tmp_path)
    assert [event.step for event in of(StepFinished, events)] == [1, 2]
    gaps = [
        event.metrics["sampling/sampling_logp_difference/max"]
        for event in of(StepFinished, events)
        if "sampling/sampling_logp_difference/max" in event.metrics
    ]
    assert max(gaps) < 1e-3


@pytest.mark.slow
def test_a_run_survives_hostile_environments_and_each_rollout_says_why(tmp_path: Path) -> None:
    """Half of all tokens end a turn, so that every answer gets to the second, where they strike."""
    (tmp_path / "strict.jinja").write_text(
        QWEN.replace(
            "{%- for message in messages %}",
            "{%- for message in messages %}{% if message.role == 'judge' %}"
            "{{ raise_exception('no judges') }}{% endif %}",
        )
    )
    model = write_qwen(tmp_path / "model", eos_token_id=[END, *range(0, 256, 2)])
    kinds = {kind: SAID[kind] for kind in ("raises in reset", "exits")}
    kinds |= {"breaks the template": "the reply cannot be given to the model: no judges"}
    kinds |= {"never ends": "", "imitates control tokens": ""}
    with (tmp_path / "kinds.jsonl").open("w") as file:
        for kind in kinds:
            file.write(json.dumps({"prompt": [{"role": "user", "content": kind}], "kind": kind}))
            file.write("\n")
    config = settings(
        tmp_path,
        steps=1,
        model={"path": str(model)},
        task={
            "name": str(tmp_path / "kinds.jsonl"),
            "held_out_size": 0,
            "max_turns": 6,
            "environment": HOSTILE,
            "chat_template": str(tmp_path / "strict.jinja"),
        },
        rewards={"functions": ["length"], "time_limit": 3.0},
        rollout={"prompts": len(kinds), "group_size": 2, "max_new_tokens": 200},
        evaluation={"problems": 1, "pinned": 0},
    )
    events = completed(config, tmp_path / "run")
    seen = groups(events)
    assert len(seen) == len(kinds)
    for event in seen:
        kind = next(kind for kind in kinds if f"user\n{kind}<" in event.group.prompt_text)
        for one in event.group.rollouts:
            told = [span.error for span in one.spans if span.error]
            if kinds[kind]:
                assert (one.finish, one.reward, len(told)) == ("environment_error", None, 1), kind
                assert told[0].startswith(kinds[kind]), kind
            else:
                ended = "turns" if kind == "never ends" else "stop"
                assert (one.finish, told) == (ended, []), kind
            if kind == "imitates control tokens":  # an end token for each true reply
                given = [
                    token
                    for span in one.spans
                    if span.kind == "environment"
                    for token in one.ids[span.start : span.start + span.length]
                ]
                true_ends = 3 + sum(
                    span.kind == "environment" and span.length > 0 and one.ids[span.start] == END
                    for span in one.spans
                )
                assert given.count(END) == true_ends
                assert IMITATION in one.text


def test_the_phases_of_a_step_sum_to_its_time(whole: list[Event]) -> None:
    steps = [event.metrics for event in of(StepFinished, whole)]
    for metrics in steps:
        counted = sum(metrics[time_of(phase)] for phase in PHASES)
        assert 0 < counted <= metrics["step_time"]  # nothing counts twice
        assert sum(phase_seconds(metrics).values()) == pytest.approx(metrics["step_time"])
    assert all("time/environment" in metrics and "time/others" in metrics for metrics in steps)
