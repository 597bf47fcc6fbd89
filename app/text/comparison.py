"""A comparison of runs as JSON and as rows, for the command line and the screen."""

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.compare.values import Comparison


def comparison_json(result: "Comparison", all_settings: bool = False) -> dict[str, Any]:
    """Return the comparison as JSON, keyed by run id."""
    ids = [run.id for run in result.runs]
    return {
        "runs": [{"id": run.id, "name": run.name, "status": run.status, "seed": run.seed,
                  "step": run.step, "tokens": run.tokens, "elapsed": run.elapsed}
                 for run in result.runs],
        "baseline": result.baseline,
        "at": result.at or None,
        "settings": {item.path: dict(zip(ids, item.values, strict=True))
                     for item in result.differing},
        "same": dict(result.same) if all_settings else None,
        "metrics": {
            item.key: {
                "direction": item.direction,
                "runs": {run: dataclasses.asdict(cell)
                         for run, cell in zip(ids, item.cells, strict=True)},
            }
            for item in result.metrics
        },
        "seeds": [dataclasses.asdict(group) for group in result.seeds],
        "tests": [dataclasses.asdict(test) for test in result.tests],
        "notes": list(result.notes),
    }  # fmt: skip


def flat_rows(result: "Comparison", all_settings: bool = False) -> list[dict[str, Any]]:
    """Return the comparison as rows: kind, key, field, and a column per run."""
    ids = [run.id for run in result.runs]
    rows: list[dict[str, Any]] = [
        {"kind": "run", "key": "name", "of": "", **{run.id: run.name for run in result.runs}}
    ]
    rows += [
        {"kind": "setting", "key": item.path, "of": "", **dict(zip(ids, item.values, strict=True))}
        for item in result.differing
    ]
    if all_settings:
        rows += [
            {"kind": "same", "key": path, "of": "", **dict.fromkeys(ids, value)}
            for path, value in result.same.items()
        ]
    for item in result.metrics:
        for name in ("best", "best_step", "last", "last_step", "at", "at_step", "delta_best",
                     "delta_last", "delta_at"):  # fmt: skip
            values = [getattr(cell, name) for cell in item.cells]
            if any(value is not None for value in values):
                cells = dict(zip(ids, values, strict=True))
                rows.append({"kind": "metric", "key": item.key, "of": name, **cells})
    return rows
