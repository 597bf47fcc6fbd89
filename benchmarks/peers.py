"""This project beside TRL and mlx-lm-lora: the same steps, in turn, on one machine.

    python -m benchmarks.peers [--work a --work "a'"] [--rounds 3] [--all-weights] [--out FILE]

Makes an environment per peer, fetches SmolLM2-135M, keeps one process per tool, and alternates
their steps (A B C A B C), so that a slow minute of the machine affects all of them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import environments, table
from benchmarks.floor import Floor, floor_of, rates_of
from benchmarks.work import WORKS, Work
from tests.smollm2 import model_folder

HERE = Path(__file__).parent
MICRO_ROWS = 8  # answers per backward pass, for every tool that can set it
OURS, GRAPH, TRL = "grpo-tui", "grpo-tui without kernels", "TRL"
MLX_LM_LORA, SHIPPED = "mlx-lm-lora", "mlx-lm-lora as shipped"
TOOLS = (OURS, GRAPH, TRL, MLX_LM_LORA, SHIPPED)


@dataclass
class Tool:
    """A process that makes one step on request."""

    name: str
    process: "subprocess.Popen[str]"
    steps: list[dict[str, Any]] = field(default_factory=list)
    log: Path = Path(os.devnull)

    def read(self) -> dict[str, Any]:
        """Return the next line of JSON; other output is in its log."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}; see {self.log}")
        results: dict[str, Any] = json.loads(line)
        return results

    def step(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        """Close its input, which ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def able(name: str, work: Work, *, all_weights: bool) -> bool:
    """Whether a tool takes turns in this work: mlx-lm-lora makes one pass, with LoRA."""
    return name in (OURS, GRAPH, TRL) or (
        name == MLX_LM_LORA and work.passes == 1 and not all_weights
    )


def start(
    name: str, model: Path, work: Work, threads: int, folder: Path, *, all_weights: bool = False
) -> Tool:
    """Start a tool and wait until it has loaded."""
    count = str(threads)
    env = {**os.environ, "BENCH_THREADS": count, "BENCH_FOLDER": str(folder / "out")}
    env |= {"OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count, "PYTHONUNBUFFERED": "1"}
    if name in (OURS, GRAPH):
        changes = [f"optimizer.micro_rows={MICRO_ROWS}"]
        changes += ['model.compute="graph"'] * (name == GRAPH)
        changes += ['model.tuning="full"'] * all_weights
        command = [sys.executable, "-m", "benchmarks.ours", str(model), work.name, *changes]
    else:
        script = "peer_trl.py" if name == TRL else "peer_mlx_lm_lora.py"
        python = environments.python_of("trl" if name == TRL else "mlx-lm-lora", folder)
        command = [str(python), str(HERE / script), str(model), work.name]
        command += ["all-weights"] * all_weights
        if name == MLX_LM_LORA:
            env |= {"BENCH_BLAS": "same", "PYTHONPATH": str(HERE.parent)}
    log = folder / f"{name.replace(' ', '-')}.log"
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
        env=env,
        cwd=HERE.parent,
    )
    tool = Tool(name, process, log=log)
    tool.read()
    return tool


def compare(
    names: Sequence[str],
    model: Path,
    work: Work,
    rounds: int,
    threads: int,
    folder: Path,
    *,
    all_weights: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Run `rounds` steps of every tool in turn, after one discarded step each."""
    tools = [start(name, model, work, threads, folder, all_weights=all_weights) for name in names]
    try:
        for turn in range(rounds + 1):
            for tool in tools:
                results = tool.step()
                report(
                    f"  {work.name} {'warm-up' if turn == 0 else turn} {tool.name}: "
                    f"{results['seconds']:.1f} s, {results['sampled']} tokens"
                )
                if turn:
                    tool.steps.append(results)
    finally:
        for tool in tools:
            tool.end()
    return {tool.name: tool.steps for tool in tools}


def as_shipped(model: Path, threads: int, folder: Path, limit: float) -> dict[str, Any]:
    """Time a step of mlx-lm-lora on the BLAS of MLX's wheel; it may exceed the time limit."""
    tool = start(SHIPPED, model, WORKS["a"], threads, folder)
    begun = time.monotonic()
    assert tool.process.stdin is not None
    tool.process.stdin.write("go\n")
    tool.process.stdin.flush()
    while time.monotonic() - begun < limit:
        if tool.process.poll() is not None:
            break
        ready = select_line(tool, min(5.0, limit))
        if ready:
            results = tool.read()
            tool.end()
            return results
    tool.process.kill()
    return {"seconds": limit, "at_least": True}


def select_line(tool: Tool, seconds: float) -> bool:
    """Return whether a line is waiting."""
    import select

    assert tool.process.stdout is not None
    return bool(select.select([tool.process.stdout], [], [], seconds)[0])


def floor_for(work: Work, steps: Sequence[dict[str, Any]], model: Path, threads: int) -> Floor:
    """Return the floor of the median step, from freshly measured products."""
    env = {**os.environ, "BENCH_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.floor", str(model)]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, env=env, cwd=HERE.parent
    )
    rates = rates_of(printed.stdout)
    middle = sorted(steps, key=lambda step: step["seconds"])[len(steps) // 2]
    return floor_of(rates, middle["prompts"], middle["lengths"], passes=work.passes, looks=1)


def report(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", action="append", choices=list(WORKS), help="default: all")
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="default: all")
    parser.add_argument("--all-weights", action="store_true", help="full tuning, without LoRA")
    parser.add_argument("--rounds", type=int, default=3, help="measured steps of each tool")
    parser.add_argument("--threads", type=int, default=environments.cores())
    parser.add_argument("--folder", type=Path, default=environments.FOLDER)
    parser.add_argument("--model", type=Path, help="a model folder, in place of SmolLM2-135M")
    parser.add_argument("--patience", type=float, default=900, help="s, for the slow BLAS")
    parser.add_argument("--out", type=Path, help="JSON file that the results are added to")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = options.tool or list(TOOLS)
    model = options.model or model_folder()
    for work in (WORKS[name] for name in options.work or WORKS):
        shown = replace(work, name=work.name + ", all weights" * options.all_weights)
        report(f"({shown.name}) {work.what}")
        results = compare(
            [name for name in names if able(name, work, all_weights=options.all_weights)],
            model,
            work,
            options.rounds,
            options.threads,
            options.folder,
            all_weights=options.all_weights,
        )
        floor = None
        if OURS in results and not options.all_weights:
            floor = floor_for(work, results[OURS], model, options.threads)
        if work.name == "a" and SHIPPED in names and not options.all_weights:
            results[SHIPPED] = [
                as_shipped(model, options.threads, options.folder, options.patience)
            ]
        print(table.of_work(shown, results, floor), flush=True)
        if options.out:
            table.add(options.out, shown, results, floor)


if __name__ == "__main__":
    main()
