"""Runs that trackio's own code writes, as the trainers call it: a fixture, in SQL.

    python -m venv ENV && ENV/bin/pip install trackio==0.43.0
    ENV/bin/python -m tests.tools.trackio_runs tests/foreign/trackio.sql

`trl` is logged as by transformers' callback and TRL's asynchronous GRPO (TRL f2cd57710), `verl` as
by verl's tracker of validation answers (verl 1dda039b9); `loop` is neither.
"""

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.mkdtemp())
os.environ["TRACKIO_DIR"] = str(FOLDER)

import trackio  # noqa: E402 - reads its folder when it is imported

PROJECT = "sums"


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def scored(messages: list[dict[str, Any]], group: int, version: int, **metrics: Any) -> Any:
    """An answer as TRL's `log_rollout_traces` gives it."""
    counts = {"model_version": version, "prompt_tokens": 9, "completion_tokens": 4}
    return trackio.Trace(messages=messages, metadata={**metrics, "group_id": group, **counts})


def trl() -> None:
    """Two steps: two groups of two in the first, a tool in the second, and numbers that are NaN."""
    trackio.init(project=PROJECT, name="trl", resume="allow", auto_log_cpu=False)
    config = {
        "learning_rate": 1e-6,
        "num_generations": 2,
        "beta": 0.0,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "seed": 7,
        "_name_or_path": "org/model",
    }
    trackio.config.update(config, allow_val_change=True)
    system, nan = message("system", "Answer with a number."), float("nan")
    sums = [
        scored(
            [system, message("user", f"{left} + 2 = ?"), message("assistant", text)],
            group=left,
            version=0,
            reward=reward,
            reward_std=0.5 if left == 2 else 0.0,
            **{"rewards/right": right, "rewards/short": 0.5},
            advantage=advantage,
        )
        for left, text, reward, right, advantage in (
            (2, "4", 1.5, 1.0, 0.75),
            (2, "5", 0.5, 0.0, -0.75),
            (3, "5", 1.5, 1.0, 0.0),
            (3, "five", 1.5, 1.0, 0.0),
        )
    ]
    trackio.log({"rollouts": sums}, step=1)
    trackio.log({"train/loss": 0.25, "train/reward": 1.25, "train/kl": nan, "train/global_step": 1})
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 5, "b": 2}}}
    tool = [
        message("user", "5 + 2 = ?"),
        message("assistant", "", tool_calls=[call]),
        message("tool", "7", name="add"),
        message("assistant", "It is 7."),
    ]
    used = scored(tool, 4, 1, reward=1.0, reward_std=0.0, advantage=0.0, **{"rewards/right": nan})
    trackio.log({"rollouts": [used]}, step=2)
    trackio.log({"train/loss": 0.125, "train/global_step": 2})
    trackio.log({"eval/reward": 1.0, "train/global_step": 2})
    trackio.finish()


def verl() -> None:
    trackio.init(
        project=PROJECT,
        name="verl",
        config={"actor_rollout_ref": {"model": {"path": "org/model"}}},
        auto_log_cpu=False,
    )
    answers = [
        trackio.Trace(
            messages=[message("user", "1 + 1 = ?"), message("assistant", text)],
            metadata={"source": "validation_generations", "sample_index": index, "score": score},
        )
        for index, (text, score) in enumerate([("2", 1.0), ("3", 0.0)])
    ]
    trackio.log({"val/generations": answers}, step=10)
    call = trackio.Trace(messages=[message("system", "verl rollout trace operation: run")])
    trackio.log({"rollout_trace/run": call}, step=10)
    trackio.log({"critic/score/mean": 0.5, "actor/kl_loss": 0.01}, step=10)
    trackio.finish()


def loop() -> None:
    """A loop of one's own, whose steps trackio counts from 0, with a view and more in metadata."""
    trackio.init(project=PROJECT, name="loop", auto_log_cpu=False)
    for loss in (0.5, 0.25):
        parts = [{"type": "text", "text": "1 + 2 = "}, {"type": "image_url"}]
        chat = [message("user", parts), message("assistant", "3", reasoning_content="easy")]
        metadata = {"reward": loss, "target": 3, "finish": "length", "session": "a"}
        trackio.log({"loss": loss, "chat": trackio.Trace(messages=chat, metadata=metadata)})
    trackio.finish()


def dumped(path: Path) -> str:
    with closing(sqlite3.connect(path)) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        lines = [*conn.iterdump(), f"PRAGMA user_version = {version};"]
    head = f"-- made by tests/tools/trackio_runs.py with trackio {trackio.__version__}"
    return "\n".join([head, *lines, ""])


if __name__ == "__main__":
    trl()
    verl()
    loop()
    Path(sys.argv[1]).write_text(dumped(FOLDER / f"{PROJECT}.db"), encoding="utf-8")
