"""Generated the old data: `python -P -m tests.old.make tests/old/vX.Y.Z`; no test runs it.

Data of a released version stays as that version wrote it. Every path in it is relative to its
folder.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.old.tell import (
    EXPECTED,
    FIRST,
    PACKED,
    PLAIN,
    ROOT,
    SECOND,
    SPILL,
    SPILLED,
    STORE,
    told,
    unpack,
)

TINY = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
SETTINGS: dict[str, Any] = {
    "steps": 4,
    "seed": 5,
    "model": {"path": "model", "lora_rank": 2, "dtype": "float32"},
    "task": {"name": "problems.jsonl", "held_out_size": 4},
    "rewards": {"functions": ["contains", "length", "repetition"]},
    "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 8},
    "algorithm": {"recipe": "grpo", "beta": 0.04, "passes": 2, "minibatches": 2},
    "optimizer": {"learning_rate": 1e-2, "micro_rows": 4},
    "evaluation": {"problems": 4, "every": 2, "pinned": 1, "pinned_every": 2},
    "checkpoint": {"every": 2},
}
FULL: dict[str, Any] = {
    "seed": 6,
    "model": {"tuning": "full", "dtype": "bfloat16"},
    "algorithm": {**SETTINGS["algorithm"], "recipe": "grpo-iterative", "ref_refresh_every": 2},
}
COPY = "spilled.db"
CHECKED = 2  # the step of the kept checkpoints


def main(target: Path) -> None:
    """Record two runs in an empty folder, and keep their files."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [sys.executable, "-P", "-m", "tests.old.make"],
            cwd=place,
            check=True,
            env={**os.environ, **PLAIN, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""},
        )
        keep(Path(place), target)
    expect(target)


def record() -> None:
    """Train both runs into a store in this folder, and one into a store that is locked."""
    from grpo_engine.config.parse import build, merge
    from grpo_engine.control import Control
    from grpo_engine.trainer import run
    from grpo_tui.experiments.record.recorder import resume_run, start_run
    from tests.engine.tiny import write_model

    write_model(Path("model"), **TINY)
    problems = [{"prompt": f"say {n}: ", "answer": "aeiou"[n % 5]} for n in range(20)]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    config = build(SETTINGS)
    handle = start_run(Path(STORE), config, name=FIRST, tags=("kept",))
    whole = []
    for event in run(config, Control(), folder=handle.folder):
        handle.put(event)
        whole.append(event)
    assert handle.close()
    handle.store.change(handle.key, note="a note")
    spill(config, whole)

    config = build(merge(SETTINGS, FULL))
    handle = start_run(Path(STORE), config, name=SECOND, parent=handle.id)
    events = run(config, Control(), folder=handle.folder)
    for event in events:
        handle.put(event)
        if event.step > CHECKED and type(event).__name__ == "GroupScored":
            break
    events.close()  # type: ignore[attr-defined]
    handle.close("cut")
    handle = resume_run(Path(STORE), handle.id, from_step=CHECKED)
    for event in run(config, Control(), folder=handle.folder, resume=True):
        handle.put(event)
    assert handle.close()


def spill(config: Any, events: list[Any]) -> None:
    """Record the same events while another connection holds the store."""
    from grpo_tui.experiments.db.paths import spill_file
    from grpo_tui.experiments.record.recorder import start_run

    store = Path("locked", STORE)
    store.parent.mkdir()
    handle = start_run(store, config, name=FIRST)
    handle.put(events[0])
    assert handle.flush(60)
    file = spill_file(store, handle.id)
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for event in events[1:]:
            handle.put(event)
        while not file.exists() or '"RunFinished"' not in file.read_text():
            time.sleep(0.1)
        shutil.copy(file, SPILL)
        with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(COPY)) as copy:
            source.backup(copy)
    handle.close()
    assert not file.exists()


def keep(place: Path, target: Path) -> None:
    """Copy the files that the tests need, without anything that identifies the machine."""
    from tools.make_demo import pack

    target.mkdir(parents=True)
    shutil.copytree(place / "model", target / "model")
    for name in ("problems.jsonl", SPILL):
        shutil.copy(place / name, target)
    pack(place / STORE, target / PACKED)
    pack(place / COPY, target / SPILLED)
    for kept in sorted(place.glob(f"runs/*/checkpoints/step-{CHECKED:06d}")):
        shutil.copytree(kept, target / kept.relative_to(place))


def expect(target: Path) -> None:
    """Write the output of the version that made the data."""
    expected = target / EXPECTED
    expected.mkdir()
    with tempfile.TemporaryDirectory() as place:
        copy = unpack(target, Path(place, "data"))
        said = told(copy, "store")
        for name, text in said["printed"].items():
            (expected / name).write_text(text, encoding="utf-8", newline="")
        _write(expected / "replay.jsonl", said["replayed"])
        for run in sorted(copy.glob("runs/*")):
            _write(expected / f"{run.name}.jsonl", told(copy, "resumed", str(run))["facts"])


def _write(file: Path, rows: list[Any]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    record() if len(sys.argv) == 1 else main(Path(sys.argv[1]))
