"""A run's results as a table: held-out accuracy before and after, with 95% intervals."""

from collections.abc import Sequence

from grpo_engine.events import EvaluationFinished

_ROWS = (
    ("accuracy", "eval/accuracy"),
    ("format", "eval/format"),
    ("accuracy of well-formatted", "eval/accuracy_of_formatted"),
    ("reward", "eval/reward"),
)


def before_and_after(evaluations: Sequence[EvaluationFinished]) -> str:
    """Tabulate the first and the last evaluation of each mode; empty if there are none."""
    lines: list[str] = []
    for mode in ("greedy", "sampled"):
        of_mode = [item for item in evaluations if item.mode == mode]
        if not of_mode:
            continue
        ends = of_mode if len(of_mode) == 1 else [of_mode[0], of_mode[-1]]
        heads = [_head(item, alone=len(ends) == 1) for item in ends]
        if len(ends) == 2:
            heads.append("change")
        rows = [
            [label, *_cells(key, ends)] for label, key in _labelled(ends[-1]) if _cells(key, ends)
        ]
        lines += [*_grid([[_title(ends[-1]), *heads], *rows]), ""]
    return "\n".join(lines).rstrip()


def _head(item: EvaluationFinished, *, alone: bool) -> str:
    """Return a column head: the evaluation's step; a model or adapter without a run has none."""
    if item.moment == "after" and item.step == 0:
        return "as it is" if alone else "after"
    return f"{item.moment} (step {item.step})"


def _title(item: EvaluationFinished) -> str:
    samples = "" if item.samples == 1 else f" x {item.samples} samples"
    return f"{item.mode}, {item.problems} problems{samples}"


def _labelled(item: EvaluationFinished) -> list[tuple[str, str]]:
    values_present = dict(_ROWS).values()
    extra = [
        (key.removeprefix("eval/"), key)
        for key in item.metrics
        if key.startswith(("eval/pass@", "eval/rewards/")) and key not in values_present
    ]
    return [*_ROWS, *extra]


def _cells(key: str, ends: Sequence[EvaluationFinished]) -> list[str]:
    values = [item.metrics.get(key) for item in ends]
    values_present = [value for value in values if value is not None]
    if len(values_present) < len(ends) and key != "eval/accuracy":
        return []
    cells = [_with_interval(item, key) if key in item.metrics else "not measured" for item in ends]
    change = [f"{values_present[1] - values_present[0]:+.3f}" if len(values_present) == 2 else ""]
    return cells if len(ends) == 1 else [*cells, *change]


def _with_interval(item: EvaluationFinished, key: str) -> str:
    low, high = item.metrics.get(f"{key}_low"), item.metrics.get(f"{key}_high")
    value = f"{item.metrics[key]:.3f}"
    return value if low is None or high is None else f"{value} [{low:.3f}, {high:.3f}]"


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
