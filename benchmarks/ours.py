"""One of this project's training steps per turn: python -m benchmarks.ours MODEL WORK [k=v ...].

It uses the trainer of `grpo-tui train`, without the recorder.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import gate, work
from benchmarks.work import Work
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.cpu import blas
from grpo_engine.events import GroupScored, RunFailed, StepFinished

REWARD = "from benchmarks.work import reward\n\n\ndef letters(completions, **_):\n    return [\n"
REWARD += (
    "        reward(c if isinstance(c, str) else c[0]['content']) for c in completions\n    ]\n"
)


def config_of(chosen: Work, model: str, folder: Path, **changes: Any) -> RunConfig:
    """Return the run's settings; features that only this project has are off."""
    data = folder / "prompts.jsonl"
    lines = [
        {"prompt": [{"role": "user", "content": text}], "answer": ""} for text in chosen.prompts
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    root = str(Path(__file__).parents[1])
    (folder / "letters.py").write_text(f"import sys\n\nsys.path.insert(0, {root!r})\n" + REWARD)
    settings: dict[str, Any] = {
        "steps": 1000,
        "model.path": model,
        "model.lora_rank": work.RANK,
        "model.lora_scale": work.SCALE,
        "task.name": str(data),
        "task.held_out_size": 0,
        "rewards.functions": [f"{folder / 'letters.py'}:letters"],
        "rollout.prompts": len(chosen.prompts),
        "rollout.group_size": work.GROUP,
        "rollout.max_new_tokens": chosen.new_tokens,
        "rollout.options": {"ignore_end": chosen.ignore_end},
        "algorithm.beta": work.BETA,
        "algorithm.passes": chosen.passes,
        "optimizer.learning_rate": work.LEARNING_RATE,
        "evaluation.before_and_after": False,
        "evaluation.pinned": 0,
        "checkpoint.every": 0,
        "record.tokens": "none",
        **changes,
    }
    return RunConfig.model_validate(nested(settings))


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Convert dotted names to a tree."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        section = tree
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return tree


def main(model: str, name: str, *changes: str) -> None:
    """Train one step for every `go`."""
    # Use all the cores that the peers get, whatever other engines of this user are running.
    blas.ensure()
    blas.set_threads(int(os.environ.get("BENCH_THREADS", "2")))
    settings = {name: json.loads(value) for name, value in (item.split("=", 1) for item in changes)}
    from grpo_engine.trainer import run

    with tempfile.TemporaryDirectory() as workdir:
        config = config_of(work.WORKS[name], model, Path(workdir), **settings)
        groups: list[GroupScored] = []
        gate.send(ready=True)
        gate.wait()
        for event in run(config, Control(), folder=Path(workdir) / "run"):
            if isinstance(event, RunFailed):
                raise SystemExit(f"{event.error}: {event.message}\n{event.traceback}")
            if isinstance(event, GroupScored):
                groups.append(event)
            if isinstance(event, StepFinished):
                _report(event.metrics, groups)
                groups = []
                gate.wait()


def _report(metrics: Any, groups: list[GroupScored]) -> None:
    lengths = [len(c.ids) for scored in groups for c in scored.group.rollouts]
    gate.send(
        seconds=metrics["step_time"],
        rollout=metrics["time/generate"],
        logprobs=metrics["time/logprobs"],
        update=metrics["time/update"],
        sampled=sum(lengths),
        prompts=[len(scored.group.prompt_ids) for scored in groups],
        lengths=lengths,
        memory=gate.peak_gigabytes(),
        mlx_memory=metrics["memory/peak_gb"],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
