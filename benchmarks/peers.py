"""This project beside TRL and mlx-lm-lora: the same steps, in turn, on one machine.

    python -m benchmarks.peers [--work a --work "a'"] [--rounds 3] [--out docs/peers.json]

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environments, table
from benchmarks.floor import Floor, floor_of, rates_of
from benchmarks.work import WORKS, Work
from tests.smollm2 import model_folder

HERE = Path(__file__).parent
MICRO_ROWS = 8  # answers per backward pass, for every tool that can set it
TOOLS = ("grpo-tui", "TRL", "mlx-lm-lora", "mlx-lm-lora as shipped")


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
        found: dict[str, Any] = json.loads(line)
        return found

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


def start(name: str, model: Path, work: Work, threads: int, folder: Path, *changes: str) -> Tool:
    """Start a tool and wait until it has loaded."""
    count = str(threads)
    env = {**os.environ, "BENCH_THREADS": count, "BENCH_FOLDER": str(folder / "out")}
    env |= {"OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count, "PYTHONUNBUFFERED": "1"}
    if name == "grpo-tui":
        rows = f"optimizer.micro_rows={MICRO_ROWS}"
        command = [sys.executable, "-m", "benchmarks.ours", str(model), work.name, rows, *changes]
    else:
        script = "peer_trl.py" if name == "TRL" else "peer_mlx_lm_lora.py"
        python = environments.python_of("trl" if name == "TRL" else "mlx-lm-lora", folder)
        command = [str(python), str(HERE / script), str(model), work.name]
        if name == "mlx-lm-lora":
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
    names: Sequence[str], model: Path, work: Work, rounds: int, threads: int, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Run `rounds` steps of every tool in turn, after one discarded step each."""
    tools = [start(name, model, work, threads, folder) for name in names]
    try:
        for turn in range(rounds + 1):
            for tool in tools:
                found = tool.step()
                say(
                    f"  {work.name} {'warm-up' if turn == 0 else turn} {tool.name}: "
                    f"{found['seconds']:.1f} s, {found['sampled']} tokens"
                )
                if turn:
                    tool.steps.append(found)
    finally:
        for tool in tools:
            tool.end()
    return {tool.name: tool.steps for tool in tools}


def as_shipped(model: Path, threads: int, folder: Path, limit: float) -> dict[str, Any]:
    """Time a step of mlx-lm-lora on the BLAS of MLX's wheel; it may exceed the time limit."""
    tool = start("mlx-lm-lora as shipped", model, WORKS["a"], threads, folder)
    begun = time.monotonic()
    assert tool.process.stdin is not None
    tool.process.stdin.write("go\n")
    tool.process.stdin.flush()
    while time.monotonic() - begun < limit:
        if tool.process.poll() is not None:
            break
        ready = select_line(tool, min(5.0, limit))
        if ready:
            found = tool.read()
            tool.end()
            return found
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


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", action="append", choices=list(WORKS), help="default: all")
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="measured steps of each tool")
    parser.add_argument("--threads", type=int, default=environments.cores())
    parser.add_argument("--folder", type=Path, default=environments.FOLDER)
    parser.add_argument("--model", type=Path, help="a model folder, in place of SmolLM2-135M")
    parser.add_argument("--patience", type=float, default=900, help="s, for the slow BLAS")
    parser.add_argument("--out", type=Path, help="JSON file that the results are added to")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    names = asked.tool or list(TOOLS)
    model = asked.model or model_folder()
    for work in (WORKS[name] for name in asked.work or WORKS):
        say(f"({work.name}) {work.what}")
        able = [n for n in names if n != TOOLS[3] and not (n == TOOLS[2] and work.passes > 1)]
        found = compare(able, model, work, asked.rounds, asked.threads, asked.folder)
        floor = None
        if TOOLS[0] in found:
            floor = floor_for(work, found[TOOLS[0]], model, asked.threads)
        if work.name == "a" and TOOLS[3] in names:
            found[TOOLS[3]] = [as_shipped(model, asked.threads, asked.folder, asked.patience)]
        print(table.of_work(work, found, floor), flush=True)
        if asked.out:
            table.add(asked.out, work, found, floor)


if __name__ == "__main__":
    main()
