"""Format results as a table for people and as JSON for the next run."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.floor import Floor
from benchmarks.work import Work

COLUMNS = ("rollout", "logprobs", "update")
Steps = Mapping[str, Sequence[dict[str, Any]]]


def typical(steps: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the median of a value over steps; None if the tool does not report it."""
    values = [step[name] for step in steps if step.get(name) is not None]
    return median(values) if values else None


def of_work(work: Work, measured: Steps, floor: Floor | None) -> str:
    """Format one kind of work as Markdown: medians, the spread of the step, the ratio to ours."""
    lines = [
        f"\n### ({work.name}) {work.what}\n",
        "| tool | s/step | spread | rollout | log-probs | update | ms/token | tokens/s "
        "| peak GB | times ours |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ours = typical(measured.get("grpo-tui", []), "seconds")
    for name, steps in measured.items():
        lines.append(_line(name, steps, ours))
    if floor is not None and ours is not None:
        lines.append(
            f"| floor of the products | {floor.seconds:.1f} | | {floor.rollout:.1f} "
            f"| {floor.logprobs:.1f} | {floor.update:.1f} | | | | {floor.seconds / ours:.2f} |"
        )
        lines.append(
            f"\nReading the weights alone would take {floor.bandwidth:.1f} s of the rollout."
        )
    return "\n".join(lines)


def _line(name: str, steps: Sequence[dict[str, Any]], ours: float | None) -> str:
    seconds = [step["seconds"] for step in steps]
    middle, sampled = median(seconds), typical(steps, "sampled")
    if steps[0].get("at_least"):
        ratio = f"> {middle / ours:.0f}" if ours else ""
        return f"| {name} | > {middle:.0f} | | | | | | | | {ratio} |"
    parts = [typical(steps, column) for column in COLUMNS]
    shown = ["" if part is None else f"{part:.1f}" for part in parts]
    memory = max(step["memory"] for step in steps)
    ratio = f"{middle / ours:.2f}" if ours else ""
    rate = sampled / middle if sampled else 0.0
    return (
        f"| {name} | {middle:.1f} | {min(seconds):.1f}-{max(seconds):.1f} | {' | '.join(shown)} "
        f"| {1e3 / rate if rate else 0:.1f} | {rate:.0f} | {memory:.2f} | {ratio} |"
    )


def add(out: Path, work: Work, measured: Steps, floor: Floor | None) -> None:
    """Add the results of one kind of work to a JSON file, keeping the others."""
    results = json.loads(out.read_text()) if out.is_file() else {}
    results["machine"] = f"{platform.system()} {platform.machine()}"
    results.setdefault("work", {})[work.name] = {
        "what": work.what,
        "steps": {name: list(steps) for name, steps in measured.items()},
        "floor": None if floor is None else asdict(floor),
    }
    out.write_text(json.dumps(results, indent=1) + "\n")
