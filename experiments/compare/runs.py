"""Compare runs: settings, metrics at equal work, statistics over seeds, tests per problem."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.compare import statistics
from experiments.compare.values import (  # fmt: skip
    Comparison,
    Evaluated,
    GridView,
    MetricCell,
    MetricComparison,
    PairedTest,
    SeedGroup,
    SeedStatistics,
    SettingDifference,
    SideBySide,
)
from experiments.errors import CompareError
from experiments.reader import StoreReader
from experiments.values import EvaluationView, GroupView, RunSummary
from grpo_engine.metrics import METRICS, spec

AXES = ("step", "tokens", "wall")
_SEEDLESS = ("seed", "name")


def compare(
    reader: StoreReader, runs: Sequence[RunSummary], *, baseline: RunSummary | None = None,
    keys: Sequence[str] = (), axis: str = "", at: float | None = None,
) -> Comparison:  # fmt: skip
    """Compare runs by the settings in force: a setting left to the recipe has the recipe's value.

    With `axis` step, tokens or wall, also compare each metric at the same step, tokens or seconds:
    at `at`, or by default where the shortest run ends. Deltas are relative to `baseline`.
    """
    if len({run.key for run in runs}) < 2:
        raise CompareError("a comparison needs two different runs")
    if axis not in ("", *AXES):
        raise CompareError(f"runs cannot be compared at equal {axis!r}; choose step, tokens, wall")
    settings = [reader.settings(run.key, in_force=True) for run in runs]
    stored = [reader.settings(run.key) for run in runs]
    differ = {path for path in {p for values in settings for p in values}
              if path != "name" and _is_different(settings, path)}  # fmt: skip
    differing, by_recipe = (
        tuple(
            SettingDifference(path=path, values=tuple(values.get(path) for values in settings))
            for path in sorted(differ)
            if _is_different(stored, path) == given
        )
        for given in (True, False)
    )
    full = reader.runs(
        archived=True, keys=[run.key for run in runs], metrics=keys or _all_keys(reader, runs)
    )
    by_key = {run.key: run for run in full}
    runs = [by_key[run.key] for run in runs]
    steps, words = _equal_steps(reader, runs, axis, at)
    alike = _alike(runs, settings)
    tests, notes = _tests(reader, alike, baseline or runs[0], _limits(runs, steps, axis), words)
    return Comparison(
        runs=tuple(runs),
        baseline=baseline.id if baseline else None,
        at=words,
        differing=differing,
        by_recipe=by_recipe,
        same={path: value for path, value in settings[0].items() if path not in {*differ, "name"}},
        metrics=_metrics(reader, runs, baseline, keys or _all_keys(reader, runs), steps),
        seeds=_seed_groups(alike, keys or _all_keys(reader, runs)),
        tests=tests,
        notes=notes,
    )


def _is_different(settings: Sequence[Mapping[str, Any]], path: str) -> bool:
    texts = {json.dumps(own[path], sort_keys=True) if path in own else "" for own in settings}
    return len(texts) > 1


def _all_keys(reader: StoreReader, runs: Sequence[RunSummary]) -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in reader.metric_keys(run.key))
    order = {name: place for place, name in enumerate(METRICS)}
    return sorted(keys, key=lambda key: (order.get(key, len(order)), key))


# -- metrics ------------------------------------------------------------------------------------


def _equal_steps(
    reader: StoreReader, runs: Sequence[RunSummary], axis: str, at: float | None
) -> tuple[list[int | None], str]:
    """Return the last step of each run within the same work, and that amount of work in words."""
    if not axis:
        return [None] * len(runs), ""
    field = {"step": "step", "tokens": "tokens", "wall": "elapsed"}[axis]
    ends = [float(getattr(run, field)) for run in runs]
    limit = min(ends) if at is None else at
    found = [
        int(limit) if axis == "step" else reader.step_within(run.key, axis, limit) for run in runs
    ]
    unit = {"step": "step {:.0f}", "tokens": "{:,.0f} tokens", "wall": "{:,.1f} s"}[axis]
    return found, unit.format(limit)


def _metrics(
    reader: StoreReader, runs: Sequence[RunSummary], baseline: RunSummary | None,
    keys: Iterable[str], steps: Sequence[int | None],
) -> tuple[MetricComparison, ...]:  # fmt: skip
    marked = [baseline is not None and run.key == baseline.key for run in runs]
    base = marked.index(True) if any(marked) else None
    found = []
    for key in keys:
        values = [
            reader.value_at(run.key, key, step) if step is not None else (None, None)
            for run, step in zip(runs, steps, strict=True)
        ]
        lines = [run.metrics.get(key) for run in runs]
        cells = []
        for place, (line, (at, at_step)) in enumerate(zip(lines, values, strict=True)):
            other = lines[base] if base is not None and base != place else None
            best = line.best if line else None
            last = line.last if line else None
            base_at = values[base][0] if base is not None and base != place else None
            delta = _minus(best, other.best if other else None)
            cells.append(
                MetricCell(
                    best=best, best_step=line.best_step if line else None, last=last,
                    last_step=line.last_step if line else None, at=at, at_step=at_step,
                    delta_best=delta, delta_last=_minus(last, other.last if other else None),
                    delta_at=_minus(at, base_at), better=_better(key, delta),
                )
            )  # fmt: skip
        found.append(MetricComparison(key=key, direction=spec(key).direction, cells=tuple(cells)))
    return tuple(found)


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _better(key: str, delta: float | None) -> bool | None:
    direction = spec(key).direction
    if not delta or direction == "none":
        return None
    return (delta > 0) == (direction == "up")


# -- seeds --------------------------------------------------------------------------------------


def _alike(
    runs: Sequence[RunSummary], settings: Sequence[Mapping[str, Any]]
) -> list[list[RunSummary]]:
    """Group the runs that differ only in the seed."""
    alike: dict[str, list[RunSummary]] = {}
    for run, values in zip(runs, settings, strict=True):
        rest = {path: value for path, value in values.items() if path not in _SEEDLESS}
        alike.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    return list(alike.values())


def _seed_groups(
    alike: Sequence[Sequence[RunSummary]], keys: Sequence[str]
) -> tuple[SeedGroup, ...]:
    return tuple(
        SeedGroup(
            runs=tuple(run.id for run in group),
            seeds=tuple(run.seed for run in group),
            best=_statistics(group, keys, "best"),
            last=_statistics(group, keys, "last"),
        )
        for group in alike
        if len(group) > 1
    )


def _statistics(
    group: Sequence[RunSummary], keys: Sequence[str], stat: str
) -> tuple[SeedStatistics, ...]:
    found = []
    for key in keys:
        values = [getattr(run.metrics[key], stat) for run in group if key in run.metrics]
        numbers = tuple(value for value in values if value is not None)
        if numbers:
            mean, std = statistics.mean_and_std(numbers)
            low, high = statistics.mean_interval(numbers)
            found.append(
                SeedStatistics(key=key, values=numbers, mean=mean, std=std, low=low, high=high)
            )
    return tuple(found)


# -- the same problems --------------------------------------------------------------------------


def _limits(
    runs: Sequence[RunSummary], steps: Sequence[int | None], axis: str
) -> Mapping[int, int]:
    """Return the last step within the equal work, by key, of the runs that did more."""
    if not axis:
        return {}
    found = ((run, -1 if step is None else step) for run, step in zip(runs, steps, strict=True))
    return {run.key: step for run, step in found if step < run.step}


def _tests(
    reader: StoreReader, alike: Sequence[Sequence[RunSummary]], base: RunSummary,
    limits: Mapping[int, int], words: str,
) -> tuple[tuple[PairedTest, ...], tuple[str, ...]]:  # fmt: skip
    """Test each setting against the baseline's; if all runs share one, each run by itself."""
    groups = [list(group) for group in alike]
    if len(groups) == 1:
        groups = [[run] for run in groups[0]]
    own = next(group for group in groups if base.key in {run.key for run in group})
    own.sort(key=lambda run: run.key != base.key)
    tests: list[PairedTest] = []
    notes: list[str] = []
    for group in groups:
        if group is not own:
            try:
                found = paired_tests(reader, group, own, limits)
                if not found and limits and paired_tests(reader, group, own):
                    notes.append(
                        f"no paired test of {_names(group)} and {_names(own)}: not both were "
                        f"evaluated by {words}"
                    )
                tests += found
            except CompareError as error:
                notes.append(str(error))
    return tuple(tests), tuple(notes)


def paired_tests(
    reader: StoreReader, runs: Sequence[RunSummary], base: Sequence[RunSummary],
    limits: Mapping[int, int] | None = None,
) -> list[PairedTest]:  # fmt: skip
    """Test two settings on the same held-out problems, by their runs' last evaluations.

    Problems are the unit: each has the share of right answers of a setting, averaged over its runs.
    `limits` are the last steps that count, by run.
    """
    prints = dict.fromkeys(run.dataset_fingerprint for run in (*runs, *base))
    if len(prints) > 1:
        raise CompareError(
            f"no paired test of {_names(runs)} and {_names(base)}: their data sets differ "
            f"({', '.join(sorted(text or 'unknown' for text in prints))})"
        )
    mine, theirs = ([(run, _last_by_mode(reader, run, (limits or {}).get(run.key)))
                     for run in group] for group in (runs, base))  # fmt: skip
    found = []
    for mode in ("greedy", "sampled"):
        one, other = ([(run, last[mode]) for run, last in group if mode in last]
                      for group in (mine, theirs))  # fmt: skip
        if one and other and (test := _paired_test(mode, one, other)):
            found.append(test)
    return found


Evaluations = Sequence[tuple[RunSummary, EvaluationView]]


def _paired_test(mode: str, runs: Evaluations, base: Evaluations) -> PairedTest | None:
    left, right = ([_shares(item) for _, item in group] for group in (runs, base))
    shared = sorted(set.intersection(*(set(shares) for shares in (*left, *right))))
    if len(shared) < 2:
        return None
    differences = tuple(
        sum(shares[key] for shares in left) / len(left)
        - sum(shares[key] for shares in right) / len(right)
        for key in shared
    )
    own, other = _evaluated(runs, left, shared), _evaluated(base, right, shared)
    from experiments.compare.paired import paired  # numpy takes a tenth of a second to load

    test = paired(differences)
    single = len(runs) == len(base) == own.samples == other.samples == 1
    return PairedTest(
        run=own.runs[0], baseline=other.runs[0], mode=mode, step=own.steps[0],
        baseline_step=other.steps[0], problems=len(shared), difference=test.mean,
        low=test.low, high=test.high, p_value=test.p_value,
        method="McNemar's exact test" if single and test.exact else "paired permutation test",
        own=own, other=other,
    )  # fmt: skip


def _evaluated(
    runs: Evaluations, shares: Sequence[Mapping[str, float]], shared: Sequence[str]
) -> Evaluated:
    return Evaluated(
        runs=tuple(run.id for run, _ in runs),
        shares=tuple(sum(found[key] for key in shared) / len(shared) for found in shares),
        steps=tuple(item.step for _, item in runs),
        samples=max(item.samples for _, item in runs),
    )


def _names(runs: Sequence[RunSummary]) -> str:
    return " + ".join(run.name for run in runs)


def _last_by_mode(
    reader: StoreReader, run: RunSummary, upto: int | None
) -> dict[str, EvaluationView]:
    found: dict[str, EvaluationView] = {}
    for item in reversed(reader.evaluations(run.key)):
        late = upto is not None and item.step > upto
        if item.mode not in found and not late and (whole := reader.evaluation(item.key)).rows:
            found[item.mode] = whole
    return found


def _shares(evaluation: EvaluationView) -> dict[str, float]:
    return {row.example_key: row.correct / row.samples for row in evaluation.rows if row.samples}


def side_by_side(
    reader: StoreReader, runs: Sequence[RunSummary], example_key: str, step: int | None = None
) -> SideBySide:
    """Return each run's last completions of an example, or its last ones up to `step`."""
    chosen: list[GroupView | None] = []
    for run in runs:
        groups = [
            group
            for group in reader.of_example(run.key, example_key)
            if step is None or group.step <= step
        ]
        chosen.append(reader.group(groups[-1].key) if groups else None)
    known = next((group for group in chosen if group is not None), None)
    if known is None:
        raise CompareError(f"none of these runs has sampled the example {example_key!r}")
    return SideBySide(
        example_key=example_key, prompt_text=known.prompt_text, target=known.target,
        groups=tuple(chosen),
    )  # fmt: skip


def grid(
    reader: StoreReader, runs: Sequence[RunSummary], rows_path: str, columns_path: str, key: str,
    stat: str = "best",
) -> GridView:  # fmt: skip
    """Tabulate a metric over two settings; runs with the same two values are averaged."""
    cells: dict[tuple[str, str], list[float]] = {}
    rows: dict[str, Any] = {}
    columns: dict[str, Any] = {}
    full = reader.runs(archived=True, keys=[run.key for run in runs], metrics=[key])
    for run in full:
        settings = reader.settings(run.key, in_force=True)
        row, column = settings.get(rows_path), settings.get(columns_path)
        rows[json.dumps(row)], columns[json.dumps(column)] = row, column
        line = run.metrics.get(key)
        value = getattr(line, stat) if line else None
        if value is not None:
            cells.setdefault((json.dumps(row), json.dumps(column)), []).append(value)
    left, top = sorted(rows, key=_order(rows)), sorted(columns, key=_order(columns))
    values = [[cells.get((row, column), []) for column in top] for row in left]
    return GridView(
        key=key, rows_path=rows_path, columns_path=columns_path,
        rows=tuple(rows[row] for row in left), columns=tuple(columns[column] for column in top),
        cells=tuple(
            tuple(sum(found) / len(found) if found else None for found in line) for line in values
        ),
        counts=tuple(tuple(len(found) for found in line) for line in values),
    )  # fmt: skip


def _order(values: Mapping[str, Any]) -> Any:
    def by(text: str) -> tuple[bool, float, str]:
        value = values[text]
        numeric = isinstance(value, int | float)
        return not numeric, float(value) if numeric else 0.0, text

    return by
