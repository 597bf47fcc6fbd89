"""Small whole runs for tests: a tiny model, a task of letters, and rewards that vary."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.events import Event, Group, GroupScored, NoteWritten, RunFailed, RunFinished
from grpo_engine.rewards.load import find
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.trainer import run
from tests.engine import letters
from tests.engine.tiny import write_model

Kind = TypeVar("Kind")

REWARDS = Path(letters.__file__).read_text(encoding="utf-8")


def write_world(folder: Path) -> Path:
    """Write the model, the problems and the rewards; return the folder."""
    write_model(folder / "model")
    with (folder / "problems.jsonl").open("w") as file:
        for number in range(40):
            file.write(json.dumps({"prompt": f"say {number}: ", "answer": str(number)}) + "\n")
    (folder / "rewards.py").write_text(REWARDS)
    return folder


def settings(world: Path, **changes: Mapping[str, Any] | Any) -> RunConfig:
    """Settings of a run: four steps, two prompts, four answers each, of up to twelve tokens."""
    base: dict[str, Any] = {
        "steps": 4,
        "seed": 5,
        "model": {"path": str(world / "model"), "lora_rank": 4},
        "task": {"name": str(world / "problems.jsonl"), "held_out_size": 6},
        "rewards": {"functions": [f"{world}/rewards.py:letters", f"{world}/rewards.py:accuracy"]},
        "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 12},
        "optimizer": {"learning_rate": 1e-2, "micro_rows": 4},
        "evaluation": {"problems": 4, "pinned": 1, "pinned_every": 2, "before_and_after": False},
        "checkpoint": {"every": 2},
    }
    return build(merge(base, changes))


def mixture(world: Path) -> dict[str, Any]:
    """Changes for a run of two tasks, with a filter, a curriculum and refills; writes its data."""
    rows = [{"prompt": f"write {n}: ", "answer": str(n)} for n in range(12)]
    (world / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rates = {f"train-{n}": n % 4 / 3 for n in range(20)} | {f"other/train-{n}": 1 for n in range(4)}
    (world / "rates.json").write_text(json.dumps({"answers": 8, "pass_rates": rates}))
    other = {
        "name": f"{world}/other.jsonl",
        "weight": 0.7,
        "held_out_size": 3,
        "rewards": {f"{world}/rewards.py:letters": 0.25},
        "accuracy": "letters >= 0.5",
    }
    return {
        "task": {
            "others": {"other": other},
            "curriculum": "half",
            "pass_rates": f"{world}/rates.json",
            "pass_rate_range": {"highest": 0.9},
        },
        "rewards": {"functions": [f"{world}/rewards.py:accuracy"]},
        "algorithm": {"recipe": "dapo", "refill_rounds": 2},
        # of three answers all are right or all wrong in a third of the groups: refills
        "rollout": {"prompts": 4, "group_size": 3},
        "checkpoint": {"every": 2},
    }


def objects_of(config: RunConfig) -> UserObjects:
    """The rewards of `write_world`, in this process: another takes as long to start as a run."""
    named = [*config.rewards.functions]
    for other in config.task.others.values():
        named += other.rewards
    files = {Path(name.rpartition(":")[0]) for name in named if ".py:" in name}
    rewards = {
        f"{file}:{function.__name__}": function
        for file in files
        if file.is_file() and file.read_text(encoding="utf-8") == REWARDS
        for function in (letters.letters, letters.accuracy, letters.steps)
    }
    measured = {name: find(name)[0] for name in ("contains", "numeric_answer")}
    return UserObjects(rewards=rewards | measured if rewards else {})


def events_of(config: RunConfig, folder: Path, *, resume: bool = False) -> list[Event]:
    """Run to the end and return all events."""
    objects = objects_of(config)
    return list(run(config, Control(), folder=folder, resume=resume, objects=objects))


def completed(config: RunConfig, folder: Path, *, resume: bool = False) -> list[Event]:
    """Run to the end, which is no failure, and return all events."""
    events = events_of(config, folder, resume=resume)
    assert isinstance(events[-1], RunFinished), events[-1]
    return events


def cut_off(config: RunConfig, folder: Path, ends: Callable[[Event], bool]) -> None:
    """Run until an event, as if the process ended there."""
    events = run(config, Control(), folder=folder, objects=objects_of(config))
    next(event for event in events if ends(event))
    events.close()  # type: ignore[attr-defined]


def of(kind: type[Kind], events: Iterable[object]) -> list[Kind]:
    """The events of a kind."""
    return [event for event in events if isinstance(event, kind)]


def groups_of(events: Iterable[Event], origin: str = "train") -> list[Group]:
    """The groups that were scored, of one origin."""
    groups = [event.group for event in of(GroupScored, events)]
    return [group for group in groups if group.origin == origin]


def notes(events: Iterable[Event]) -> list[str]:
    """The texts of all notes."""
    return [event.text for event in of(NoteWritten, events)]


def failure(config: RunConfig, folder: Path, *, resume: bool = False) -> RunFailed:
    """Run to the end, which is a failure."""
    end = events_of(config, folder, resume=resume)[-1]
    assert isinstance(end, RunFailed), end
    return end


def timeless(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics without times and memory, which no two runs share."""
    apart = ("time/", "memory/", "step_time", "tokens_per_second")
    return {name: value for name, value in metrics.items() if not name.startswith(apart)}
