"""Runs in the formats of other trainers, and what the store has of an import."""

import json
from collections.abc import Iterator
from pathlib import Path

from grpo_engine import events as ev
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.values import RunDetail

HERE = Path(__file__).parent


def verl_step(folder: Path, step: int, texts: str = "abcd", cut: int = 0) -> Path:
    """A step of verl with two prompts, and an answer for each letter; `cut` takes bytes away."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(
            {
                "input": f"prompt {index * 2 // len(texts)}",
                "output": f"{text} of step {step}",
                "gts": "a",
                "score": float(text == "a"),
                "step": step,
            }
        )
        for index, text in enumerate(texts)
    ]
    path = folder / f"{step}.jsonl"
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(data[: len(data) - cut])
    return path


def events(store: Path, run: str = "@last") -> list[ev.Event]:
    with StoreReader(store) as reader:
        key = reader.resolve(run).key
        return [item.event for item in events_after(reader, key, limit=10_000)]


def groups(store: Path, run: str = "@last") -> Iterator[tuple[int, ev.Group]]:
    return ((e.step, e.group) for e in events(store, run) if isinstance(e, ev.GroupScored))


def texts(store: Path, run: str = "@last") -> list[str]:
    """Every answer, in order."""
    return [answer.text for _, group in groups(store, run) for answer in group.rollouts]


def detail(store: Path, run: str = "@last") -> RunDetail:
    with StoreReader(store) as reader:
        return reader.run(reader.resolve(run).key)


def names(store: Path) -> list[str]:
    with StoreReader(store) as reader:
        return [run.name for run in reader.runs(archived=True, sort="created")]
