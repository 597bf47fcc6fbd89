"""The contents of a store or a checkpoint as comparable text: `python -P -m tests.old.tell --help`.

It runs in a separate process, so that no test setting changes a number.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STORE, EXPECTED = "grpo-tui.db", "expected"
PACKED, SPILLED, SPILL = "store.tar.xz", "spilled.tar.xz", "spill.jsonl"
FIRST, SECOND = "first", "second"  # the names of the stored runs
# MLX's own products with one thread and without compiled kernels: the same on every x86-64
PLAIN = {"GRPO_TUI_BLAS": "none", "MLX_DISABLE_COMPILE": "1", "OMP_NUM_THREADS": "1"}
COMMANDS: dict[str, tuple[str, ...]] = {
    "runs.json": ("runs", "--json"),
    "show.json": ("runs", "show", FIRST, "--json"),
    "resumed.json": ("runs", "show", SECOND, "--json"),
    "compare.json": ("compare", FIRST, SECOND, "--baseline", FIRST, "--json"),
    "rollouts.json": ("rollouts", FIRST, "--json"),
    **{
        f"{what}.csv": ("export", FIRST, SECOND, "--what", what, "--format", "csv")
        for what in ("metrics", "rollouts", "evaluations")
    },
    "tokens.csv": ("export", SECOND, "--what", "tokens", "--format", "csv"),
}
NEWER = {"CheckpointSaved": {"best_by"}}  # fields that the recorded versions did not have
APART = ("time/", "memory/", "step_time", "tokens_per_second", "seconds", "elapsed")


def unpack(version: Path, folder: Path) -> Path:
    """Copy the data of a version into a new folder, with its store laid out as a user's."""
    from grpo_tui.app.feed import demo

    shutil.copytree(version, folder)
    demo.unpack(folder, folder / PACKED)
    return folder


def told(folder: Path, *words: str, python: str = sys.executable) -> dict[str, Any]:
    """The output of this module in a process with the folder as working directory."""
    environment = {**os.environ, **PLAIN, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""}
    done = subprocess.run(
        [python, "-P", "-m", "tests.old.tell", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def printed() -> dict[str, str]:
    """The output of the commands on the store in this folder."""
    from grpo_tui.app.cli.main import main

    found = {}
    for name, words in COMMANDS.items():
        with redirect_stdout(io.StringIO(newline="")) as out:
            assert main(["--db", STORE, *words]) == 0, words
        found[name] = out.getvalue().replace(str(Path.cwd()), "")
    return found


def replayed() -> list[Any]:
    """Each moment of both runs' replays: time, event, its fields, and their values."""
    from grpo_engine import events as ev
    from grpo_tui.app.feed.replay import timed
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.record.writer import PROGRESS
    from grpo_tui.experiments.recorded_events import events_after

    with closing(StoreReader(Path(STORE))) as reader:
        return [
            [
                moment.offset,
                moment.at,
                isinstance(moment.event, PROGRESS),
                *_digest(ev.to_json(moment.event)),
            ]
            for name in (FIRST, SECOND)
            for moment in timed(
                (fact.at or None, fact.event)
                for fact in events_after(reader, reader.resolve(name).key, after=0, limit=10_000)
            )
        ]


def _digest(event: Mapping[str, Any]) -> tuple[str, str, str]:
    newer = NEWER.get(event["event"], set())
    event = {name: value for name, value in event.items() if name not in newer}
    values = hashlib.sha256(json.dumps(event).encode()).hexdigest()
    return event["event"], " ".join(event), values[:16]


def resumed(folder: Path) -> list[Any]:
    """The events after the newest checkpoint of a run, without durations."""
    import mlx.core as mx

    from grpo_engine import trainer
    from grpo_engine.config.parse import build
    from grpo_engine.control import Control
    from grpo_engine.run import checkpoint

    mx.set_default_device(mx.Device(mx.cpu))
    saved, problems = checkpoint.latest(folder)
    assert saved is not None, problems
    config = build(saved.state["config"])
    return facts(trainer.run(config, Control(), folder=folder, resume=True))


def facts(events: Iterable[Any]) -> list[Any]:
    """The events with results, as JSON; a failure ends the program."""
    from grpo_engine import events as ev

    results = (
        ev.GroupScored,
        ev.TokensScored,
        ev.PassFinished,
        ev.StepFinished,
        ev.EvaluationFinished,
    )
    found = []
    for event in events:
        assert not isinstance(event, ev.RunFailed), event
        if isinstance(event, results):
            found.append(_timeless(ev.to_json(event)))
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _timeless(v) for k, v in value.items() if not k.startswith(APART)}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["store"]:
            answer: dict[str, Any] = {"printed": printed(), "replayed": replayed()}
        case ["resumed", folder]:
            answer = {"facts": resumed(Path(folder))}
        case _:
            sys.exit("usage: tell store | tell resumed FOLDER, in a folder of old data")
    print(json.dumps(answer))
