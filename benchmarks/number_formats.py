"""The starter in float32, bfloat16 and float16: is it sampled as it is trained, and does it learn?

    python -m benchmarks.number_formats [--part run] [--tuning full] [--dtype bfloat16] [--seed 0]
    python -m benchmarks.number_formats --part table

Results are added to a JSON file case by case, and cases already in it are skipped, so that the
script can be interrupted and restarted. `--part table` makes the tables from the file.
"""

import argparse
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx.core as mx

from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.cpu import blas
from grpo_engine.events import EvaluationFinished, Event, RunFailed, StepFinished
from grpo_engine.presets import preset
from grpo_engine.run.local import LocalBackend
from grpo_engine.run.session import EngineRun
from grpo_engine.run.user_objects import NO_OBJECTS
from grpo_engine.setup.opening import RunContext, load_run
from grpo_engine.setup.parts import load_tasks
from grpo_engine.trainer import run
from grpo_engine.training.advantages import rows_to_train, step_advantages
from grpo_engine.training.samples import Experience, OldScores, gather
from grpo_engine.training.sampling import SampledGroups, sample_step
from grpo_engine.training.update import update

TUNINGS = ("lora", "full")
DTYPES = ("float32", "bfloat16", "float16")
SEEDS = (0, 1, 2)
RATES = {"lora": 7e-4, "full": 1e-4}
SMALL = (1e-6, 1e-5)  # 16-bit weights alone would lose updates this small
STEPS, PROMPTS, PROBLEMS = 60, 8, 1000
GAP = "sampling/sampling_logp_difference"
Measured = dict[str, Any]


def settings(tuning: str, dtype: str, seed: int, **changes: Any) -> RunConfig:
    """Use the starter's preset on half its prompts, with an evaluation only after the last step."""
    base = {
        "seed": seed,
        "steps": STEPS,
        "model": {"tuning": tuning, "dtype": dtype},
        "rollout": {"prompts": PROMPTS},
        "optimizer": {"learning_rate": RATES[tuning]},
        "evaluation": {
            "before_and_after": False,
            "every": STEPS,
            "problems": PROBLEMS,
            "greedy": False,
            "pinned": 0,
        },
        "checkpoint": {"every": 0},
        "record": {"tokens": "none"},
    }
    return build(merge(merge(preset("starter").tree, base), changes))


def train(config: RunConfig, folder: Path) -> Measured:
    """Return the gap at every step, and 1 or 0 for each held-out problem after the last."""
    measured: Measured = {"gap_mean": [], "gap_max": [], "grad_norm": [], "seconds": []}
    for event in run(config, Control(), folder=folder):
        if isinstance(event, RunFailed):
            raise SystemExit(f"{event.error}: {event.message}\n{event.traceback}")
        if isinstance(event, StepFinished):
            metrics = event.metrics
            measured["gap_mean"].append(metrics[f"{GAP}/mean"])
            measured["gap_max"].append(metrics[f"{GAP}/max"])
            measured["grad_norm"].append(metrics.get("grad_norm", 0.0))
            measured["seconds"].append(round(metrics["step_time"], 2))
        if isinstance(event, EvaluationFinished):
            measured["right"] = "".join(str(row.correct) for row in event.rows)
    return measured


def drain(events: Generator[Event, None, Any]) -> Any:
    """Return a generator's return value."""
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


def first_update(
    config: RunConfig, folder: Path, sampled: SampledGroups | None
) -> tuple[SampledGroups, dict[str, mx.array], float]:
    """Apply one update to these answers, or to new ones; return the answers and weight changes.

    The last value is the share of weights that changed as the forward pass reads them.
    """
    with ExitStack() as stack:
        context = RunContext(config=config, control=Control(), folder=folder, stack=stack)
        current: EngineRun = drain(load_run(context, load_tasks(config, NO_OBJECTS)))
        sampled = sampled or drain(sample_step(current, 1))
        samples = gather(sampled.groups, current.recipe)
        advantages = step_advantages(samples, OldScores(), current.recipe, 1)
        experience = Experience(
            samples=samples,
            old=OldScores(),
            advantages=advantages,
            trained_rows=rows_to_train(samples, advantages, current.recipe, 0.0),
        )
        before, read = copied(current), current.policy.snapshot()
        drain(update(current, 1, experience))
        moved = {name: value - before[name] for name, value in copied(current).items()}
        as_read = {name: mx.sum(v != read[name]) for name, v in current.policy.snapshot().items()}
        mx.eval(moved, as_read)
        total = sum(int(value.size) for value in moved.values())
        return sampled, moved, sum(map(float, as_read.values())) / total


def copied(current: EngineRun) -> dict[str, mx.array]:
    """Return the weights that the optimiser updates."""
    assert isinstance(current.backend, LocalBackend)
    return current.policy.snapshot() | current.backend.optimizer.masters


def compare_updates(tuning: str, dtype: str, seed: int, folder: Path) -> Measured:
    """Compare the weight change of one update with float32's, on float32's answers."""
    measured: Measured = {}
    once = {"algorithm": {"passes": 1, "beta": 0.0}}  # the reference equals the policy here
    sampled: SampledGroups | None = None
    for rate in (*SMALL, RATES[tuning]):
        moved = []
        for position, format in enumerate(("float32", dtype)):
            config = settings(tuning, format, seed, **once, optimizer={"learning_rate": rate})
            sampled, change, as_read = first_update(config, folder / f"{rate}-{position}", sampled)
            moved.append(change)
        exact, half = moved
        measured[f"{rate:g}"] = {
            "size": sum_of(half, abs) / sum_of(exact, abs),
            "cosine": cosine(exact, half),
            "moved": 1 - sum_of(half, lambda v: v == 0) / sum(v.size for v in half.values()),
            "moved_as_read": as_read,
        }
    return measured


def sum_of(arrays: Mapping[str, mx.array], of: Any) -> float:
    """Sum a function over all entries."""
    return math.fsum(float(mx.sum(of(value))) for value in arrays.values())


def cosine(first: Mapping[str, mx.array], second: Mapping[str, mx.array]) -> float:
    """Return the cosine between two changes."""
    dot_product = math.fsum(float(mx.sum(first[name] * second[name])) for name in first)
    return dot_product / math.sqrt(sum_of(first, mx.square) * sum_of(second, mx.square))


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, str, int]]:
    """Return the cases seed by seed, so that a partial run already gives a comparison."""
    for seed, part, dtype, tuning in itertools.product(
        options.seed or SEEDS,
        options.part or ("update", "run"),
        options.dtype or DTYPES,
        options.tuning or TUNINGS,
    ):
        if not (part == "update" and dtype == "float32"):
            yield part, tuning, dtype, seed


def main() -> None:
    """Measure what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", action="append", choices=("update", "run", "table"))
    parser.add_argument("--tuning", action="append", choices=TUNINGS, help="default: both")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: all")
    parser.add_argument("--seed", action="append", type=int, help="default: 0, 1, 2")
    parser.add_argument("--out", type=Path, default=Path("number-formats.json"))
    options = parser.parse_args()
    blas.ensure()
    results: Measured = json.loads(options.out.read_text()) if options.out.is_file() else {}
    for part, tuning, dtype, seed in cases(options):
        name = f"{part} {tuning} {dtype} {seed}"
        if part == "table" or name in results:
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as workdir:
            if part == "run":
                measured = train(settings(tuning, dtype, seed), Path(workdir) / "run")
            else:
                measured = compare_updates(tuning, dtype, seed, Path(workdir))
        results[name] = measured
        options.out.write_text(json.dumps(results) + "\n")
    print(tables(results))


def tables(results: Measured) -> str:
    """Format both tables as Markdown."""
    return "\n".join([*run_table(results), "", *update_table(results)])


def run_table(results: Measured) -> Iterator[str]:
    """Tabulate gap and accuracy after the last step, and the paired difference from float32."""
    yield (
        "| weights | format | seeds | gap, mean of steps (nats) | gap, largest (nats) "
        "| right after the last step | difference to float32, points (95 %) |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for tuning, dtype in itertools.product(TUNINGS, DTYPES):
        runs = {s: results[n] for s in SEEDS if (n := f"run {tuning} {dtype} {s}") in results}
        if not runs:
            continue
        mean = statistics.fmean(gap for measured in runs.values() for gap in measured["gap_mean"])
        largest = max(gap for measured in runs.values() for gap in measured["gap_max"])
        right = [
            measured["right"].count("1") / len(measured["right"]) for measured in runs.values()
        ]
        exact = {s: results[n] for s in runs if (n := f"run {tuning} float32 {s}") in results}
        yield (
            f"| {tuning} | {dtype} | {len(runs)} | {mean:.1e} | {largest:.1e} "
            f"| {', '.join(f'{100 * share:.1f} %' for share in right)} "
            f"| {'' if dtype == 'float32' else difference(runs, exact)} |"
        )


def difference(runs: Mapping[int, Measured], exact: Mapping[int, Measured]) -> str:
    """Return the mean accuracy difference from float32, paired by problem and seed, +- interval."""
    pairs = [
        int(right) - int(reference)
        for seed, measured in runs.items()
        if seed in exact
        for right, reference in zip(measured["right"], exact[seed]["right"], strict=True)
    ]
    if not pairs:
        return ""
    error = 1.96 * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return f"{100 * statistics.fmean(pairs):+.1f} ± {100 * error:.1f}"


def update_table(results: Measured) -> Iterator[str]:
    """Tabulate one update on the same answers, relative to float32's."""
    yield (
        "| weights | format | learning rate | size of the change / float32's | cosine "
        "| weights moved | moved in the 16-bit copy |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for tuning, dtype in itertools.product(TUNINGS, DTYPES[1:]):
        measured = [results[n] for s in SEEDS if (n := f"update {tuning} {dtype} {s}") in results]
        for rate in measured[0] if measured else ():
            parts = [item[rate] for item in measured]
            yield (
                f"| {tuning} | {dtype} | {rate} | {spread([p['size'] for p in parts])} "
                f"| {spread([p['cosine'] for p in parts])} "
                f"| {100 * statistics.fmean(p['moved'] for p in parts):.1f} % "
                f"| {100 * statistics.fmean(p['moved_as_read'] for p in parts):.1f} % |"
            )


def spread(values: Sequence[float]) -> str:
    """Return the smallest and largest of some numbers."""
    low, high = f"{min(values):.4f}", f"{max(values):.4f}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
