"""Steps that the starter takes to .8 held-out accuracy: by GRPO, and from a teacher trained by it.

    python -m benchmarks.distillation FOLDER [--steps 60] [--seeds 3]

Every run has the preset `starter`, and ends at .8; those of a teacher change the recipe alone. Two
sampled answers to each of 512 held-out problems are tried after each step. A teacher that is in
the folder is used again.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from grpo_engine.config.parse import build, merge
from grpo_engine.control import Control
from grpo_engine.evaluation.statistics import wilson
from grpo_engine.events import EvaluationFinished, RunFailed
from grpo_engine.presets import preset
from grpo_engine.run import checkpoint
from grpo_engine.trainer import run

GOAL, TEACHER_SEED = 0.8, 9
STUDENT_T = 4.303  # 97.5 % of Student's t with two degrees of freedom
Curve = list[tuple[int, float, int]]  # step, accuracy, answers


def curve_of(folder: Path, seed: int, steps: int, **changes: Any) -> Curve:
    """Train, and return the held-out accuracy by step."""
    evaluation = {"every": 1, "samples": 2, "greedy": False, "pinned": 0}
    tree = {"seed": seed, "steps": steps, "evaluation": evaluation, "record": {"tokens": "nothing"}}
    config = build(merge(merge(preset("starter").tree, tree), changes))
    curve: Curve = []
    for event in run(config, Control(), folder=folder):
        if isinstance(event, RunFailed):
            raise SystemExit(event.message)
        if isinstance(event, EvaluationFinished):
            answers = event.problems * event.samples
            curve.append((event.step, event.metrics["eval/accuracy"], answers))
            print(f"{folder.name} {event.step} {curve[-1][1]:.3f}", flush=True)
    return curve


def row_of(name: str, curves: list[Curve]) -> str:
    """A line of the table: steps to the goal by seed, their mean, and the accuracy there."""
    first = [next((point for point in curve if point[1] >= GOAL), None) for curve in curves]
    reached = [point for point in first if point is not None]
    counts = [str(point[0]) if point else "not" for point in first]
    mean = statistics.fmean(point[0] for point in reached) if reached else float("nan")
    text = f"{mean:.1f}"
    if len(reached) == 3:
        text += f" ± {STUDENT_T * statistics.stdev(p[0] for p in reached) / 3**0.5:.1f}"
    right = round(sum(share * count for _, share, count in reached))
    low, high = wilson(right, sum(count for *_, count in reached))
    return f"| {name} | {', '.join(counts)} | {text} | [{low:.3f}, {high:.3f}] |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    folder, steps = options.folder, options.steps
    if not checkpoint.steps(folder / "teacher"):
        curve_of(folder / "teacher", TEACHER_SEED, steps)
    teacher = str(checkpoint.folder(folder / "teacher", steps))
    taught = {"teacher": {"path": teacher}}
    runs: dict[str, Any] = {
        "distill": {"algorithm": {"recipe": "distill"}, **taught},
        "grpo": {},
        "grpo, teacher_weight=1": {"algorithm": {"teacher_weight": 1.0}, **taught},
    }
    print("| recipe | steps to .8, by seed | mean | accuracy there |")
    print("|---|---|---|---|")
    stop = f"eval/accuracy >= {GOAL}"
    for name, changes in runs.items():
        curves = [
            curve_of(folder / f"{name}-{seed}", seed, steps, stop_when=stop, **changes)
            for seed in range(options.seeds)
        ]
        print(row_of(name, curves), flush=True)


if __name__ == "__main__":
    main()
