"""Compare runs: settings, metrics at equal work, statistics over seeds, tests per problem."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from math import inf, isfinite
from statistics import median
from typing import TYPE_CHECKING, Any

from grpo_engine.errors import quoted
from grpo_engine.metrics import METRICS, natural_range, spec
from grpo_tui.experiments.compare import statistics
from grpo_tui.experiments.compare.values import (  # fmt: skip
    Comparison,
    Effect,
    Evaluated,
    MetricCell,
    MetricComparison,
    PairedTest,
    RankedSetting,
    Ranking,
    Reached,
    SeedGroup,
    SeedStatistics,
    SettingDifference,
    SideBySide,
)
from grpo_tui.experiments.errors import CompareError
from grpo_tui.experiments.values import EvaluationView, GroupView, MetricSummary, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

AXES = ("step", "tokens", "wall")
_SEEDLESS = ("seed", "name")


def compare(
    reader: "StoreReader", runs: Sequence[RunSummary], *, baseline: RunSummary | None = None,
    keys: Sequence[str] = (), axis: str = "", at: float | None = None, reach: str = "",
    or_last: bool = False, values_at: float | None = None,
) -> Comparison:  # fmt: skip
    """Compare runs by the settings in force: a setting left to the recipe has the recipe's value.

    With `axis` step, tokens or wall, also compare each metric at the same step, tokens or seconds:
    at `at`, or by default where the shortest run ends. Deltas are relative to `baseline`. `reach`
    is the held-out accuracy, or a metric's value as in `reward=.9`, that the settings race to.
    `or_last` takes the last evaluations of all runs if one was not evaluated up to there. With
    `values_at` the metrics alone are compared at another place.
    """
    goal = threshold(reach)
    if axis not in ("", *AXES):
        raise CompareError(
            f"runs cannot be compared at equal {quoted(axis)}; choose step, tokens, wall"
        )
    functions = [reader.functions(run.key) for run in runs]
    stored, settings = (
        [
            reader.settings(run.key, in_force=in_force) | _versions(sources)
            for run, sources in zip(runs, functions, strict=True)
        ]
        for in_force in (False, True)
    )
    differing, by_recipe = _differences(settings, stored)
    keys = keys or _all_keys(reader, runs)
    full = reader.runs(archived=True, keys=[run.key for run in runs], metrics=keys)
    by_key = {run.key: run for run in full}
    runs = [by_key[run.key] for run in runs]
    steps, position = _equal_steps(reader, runs, axis, at)
    alike = _alike(runs, settings)
    changed = {"name", *(item.path for item in (*differing, *by_recipe))}
    base, limits = baseline or runs[0], _limits(runs, steps, axis)
    if or_last and any(
        not any(_evaluations(reader, run, limits.get(run.key)))
        and any(_evaluations(reader, run, None))
        for run in runs
    ):
        limits = {}
    tests, notes = _tests(reader, alike, base, limits, position)
    if values_at is not None:
        steps, position = _equal_steps(reader, runs, axis, values_at)
    return Comparison(
        runs=tuple(runs),
        baseline=baseline.id if baseline else None,
        at=position,
        differing=differing,
        by_recipe=by_recipe,
        sources=_sources(runs, functions, [run.id for run in runs].index(base.id)),
        same={path: value for path, value in settings[0].items() if path not in changed},
        metrics=_metrics(reader, runs, baseline, keys, steps),
        seeds=_seed_groups(alike, keys),
        tests=tests,
        rankings=_rankings(reader, _compared(alike, base), limits, goal),
        notes=notes,
    )


def _versions(functions: Mapping[str, Any]) -> dict[str, str]:
    """Settings whose value is a function, with the first digits of its file's hash."""
    return {
        f"algorithm.{choice}": f"{source['name'].rpartition('/')[2]} {source['sha256'][:7]}"
        for choice, source in functions.items()
    }


def _sources(
    runs: Sequence[RunSummary], functions: Sequence[Mapping[str, Any]], base: int
) -> tuple[str, ...]:
    """A diff of the baseline's functions and the others': of files, or of functions alone."""
    diffs: dict[tuple[str, ...], None] = {}
    for run, sources in zip(runs, functions, strict=True):
        for choice in (choice for choice in functions[base] if choice in sources):
            old, new = functions[base][choice], sources[choice]
            part, title = ("text", "file") if old["name"] == new["name"] else ("code", "name")
            diffs[
                tuple(
                    unified_diff(
                        old[part].splitlines(),
                        new[part].splitlines(),
                        lineterm="",
                        fromfile=f"{old[title]} of {runs[base].name}",
                        tofile=f"{new[title]} of {run.name}",
                    )
                )
            ] = None
    return tuple(line for diff in diffs for line in diff)


def _differences(
    settings: Sequence[Mapping[str, Any]], stored: Sequence[Mapping[str, Any]]
) -> tuple[tuple[SettingDifference, ...], tuple[SettingDifference, ...]]:
    """The settings in force that differ: those that the stored ones do as well, and the others."""
    changed: list[SettingDifference] = []
    by_recipe: list[SettingDifference] = []
    for path in {path for values in settings for path in values} - {"name"}:
        if _is_different(settings, path):
            minor = only_recorded(path) or any(path not in values for values in stored)
            values = tuple(values.get(path) for values in settings)
            item = SettingDifference(path=path, values=values, minor=minor)
            (changed if _is_different(stored, path) else by_recipe).append(item)

    def order(item: SettingDifference) -> tuple[bool, str]:
        return item.minor, item.path

    return tuple(sorted(changed, key=order)), tuple(sorted(by_recipe, key=order))


def only_recorded(path: str) -> bool:
    """Whether a setting is about what a run records, and not about how it is trained."""
    return path.startswith("record.")


def _is_different(settings: Sequence[Mapping[str, Any]], path: str) -> bool:
    texts = {json.dumps(values[path], sort_keys=True) if path in values else ""
             for values in settings}  # fmt: skip
    return len(texts) > 1


def _all_keys(reader: "StoreReader", runs: Sequence[RunSummary]) -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in reader.metric_keys(run.key))
    order = {name: index for index, name in enumerate(METRICS)}
    return sorted(keys, key=lambda key: (order.get(key, len(order)), key))


# -- metrics ------------------------------------------------------------------------------------


def _equal_steps(
    reader: "StoreReader", runs: Sequence[RunSummary], axis: str, at: float | None
) -> tuple[list[int | None], str]:
    """Return the last step of each run within the same work, and that amount of work in words."""
    if not axis:
        return [None] * len(runs), ""
    field = {"step": "step", "tokens": "tokens", "wall": "elapsed"}[axis]
    ends = [float(getattr(run, field)) for run in runs]
    limit = min(ends) if at is None else at
    last_steps = [
        int(limit) if axis == "step" else reader.step_within(run.key, axis, limit) for run in runs
    ]
    unit = {"step": "step {:.0f}", "tokens": "{:,.0f} tokens", "wall": "{:,.1f} s"}[axis]
    return last_steps, unit.format(limit)


def _metrics(
    reader: "StoreReader", runs: Sequence[RunSummary], baseline: RunSummary | None,
    keys: Iterable[str], steps: Sequence[int | None],
) -> tuple[MetricComparison, ...]:  # fmt: skip
    base = next((run for run in runs if baseline and run.key == baseline.key), None)
    metrics = []
    for key in keys:
        values = {
            run.key: reader.value_at(run.key, key, step) if step is not None else (None, None)
            for run, step in zip(runs, steps, strict=True)
        }
        cells = []
        for run in runs:
            at, at_step = values[run.key]
            base_series = base.metrics.get(key) if base and base is not run else None
            base_at = values[base.key][0] if base and base is not run else None
            cells.append(_cell(key, run.metrics.get(key), base_series, at, at_step, base_at))
        metrics.append(MetricComparison(key=key, direction=spec(key).direction, cells=tuple(cells)))
    return tuple(metrics)


def _cell(
    key: str, series: MetricSummary | None, base: MetricSummary | None, at: float | None,
    at_step: int | None, base_at: float | None,
) -> MetricCell:  # fmt: skip
    """A run's numbers of a metric, beside those of the baseline."""
    best, best_step, last, last_step = (
        getattr(series, name, None) for name in ("best", "best_step", "last", "last_step")
    )
    delta = _minus(best, base.best if base else None)
    return MetricCell(
        best=best, best_step=best_step, last=last, last_step=last_step, at=at, at_step=at_step,
        delta_best=delta, delta_last=_minus(last, base.last if base else None),
        delta_at=_minus(at, base_at), better=_better(key, delta),
    )  # fmt: skip


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
    results = []
    for key in keys:
        values = [getattr(run.metrics[key], stat) for run in group if key in run.metrics]
        numbers = tuple(value for value in values if value is not None)
        if numbers:
            mean, std = statistics.mean_and_std(numbers)
            low, high = statistics.mean_interval(numbers, limits=natural_range(key))
            results.append(
                SeedStatistics(key=key, values=numbers, mean=mean, std=std, low=low, high=high)
            )
    return tuple(results)


# -- the same problems --------------------------------------------------------------------------


def _limits(
    runs: Sequence[RunSummary], steps: Sequence[int | None], axis: str
) -> Mapping[int, int]:
    """Return the last step within the equal work, by key, of the runs that did more."""
    if not axis:
        return {}
    pairs = ((run, -1 if step is None else step) for run, step in zip(runs, steps, strict=True))
    return {run.key: step for run, step in pairs if step < run.step}


def _tests(
    reader: "StoreReader", alike: Sequence[Sequence[RunSummary]], base: RunSummary,
    limits: Mapping[int, int], position: str,
) -> tuple[tuple[PairedTest, ...], tuple[str, ...]]:  # fmt: skip
    """Test each setting against the baseline's; if all runs share one, each run by itself."""
    base_runs, *groups = _compared(alike, base)
    tests: list[PairedTest] = []
    notes: list[str] = []
    for group in groups:
        try:
            results = paired_tests(reader, group, base_runs, limits)
            if not results and limits and paired_tests(reader, group, base_runs):
                notes.append(
                    f"no paired test of {_names(group)} and {_names(base_runs)}: not both were "
                    f"evaluated in training by {position}"
                )
            unmeasured = [run.name for run in (*group, *base_runs) if _is_unmeasured(reader, run)]
            if unmeasured:
                notes.append(
                    f"no paired test of {_names(group)} and {_names(base_runs)}: the held-out "
                    f"accuracy of {' and '.join(unmeasured)} was not measured"
                )
            tests += results
        except CompareError as error:
            notes.append(str(error))
    return tuple(tests), tuple(notes)


def _compared(alike: Sequence[Sequence[RunSummary]], base: RunSummary) -> list[list[RunSummary]]:
    """Return the settings' runs, the baseline's first; single runs if all share one setting."""
    groups = [list(group) for group in alike]
    if len(groups) == 1:
        groups = [[run] for run in groups[0]]
    base_runs = next(group for group in groups if base.key in {run.key for run in group})
    base_runs.sort(key=lambda run: run.key != base.key)
    return [base_runs, *(group for group in groups if group is not base_runs)]


def paired_tests(
    reader: "StoreReader", runs: Sequence[RunSummary], base: Sequence[RunSummary],
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
    run_items, base_items = ([(run, _last_by_mode(reader, run, (limits or {}).get(run.key)))
                     for run in group] for group in (runs, base))  # fmt: skip
    results = []
    for mode in ("greedy", "sampled"):
        left, right = ([(run, last[mode]) for run, last in group if mode in last]
                      for group in (run_items, base_items))  # fmt: skip
        if left and right and (test := _paired_test(mode, left, right)):
            results.append(test)
    return results


def _is_unmeasured(reader: "StoreReader", run: RunSummary) -> bool:
    """Whether a run was evaluated, and nothing said which answers were right."""
    items = reader.evaluations(run.key)
    return bool(items) and not any("eval/accuracy" in item.metrics for item in items)


def progress(reader: "StoreReader", run: RunSummary) -> list[PairedTest]:
    """Test a run's last evaluations against its first ones: has it learned?"""
    evaluations = reader.evaluations(run.key, rows=True)
    results = []
    for mode in ("greedy", "sampled"):
        items = [item for item in evaluations if item.mode == mode and _shares(item)]
        if len(items) > 1 and (test := _paired_test(mode, [(run, items[-1])], [(run, items[0])])):
            results.append(test)
    return results


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
    left_side, right_side = _evaluated(runs, left, shared), _evaluated(base, right, shared)
    from grpo_tui.experiments.compare.effects import (
        paired,  # numpy takes a tenth of a second to load
    )

    test = paired(differences)
    single = len(runs) == len(base) == left_side.samples == right_side.samples == 1
    method = "McNemar's exact test" if single and test.exact else "paired permutation test"
    result = Effect(test.mean, test.low, test.high, test.p_value, method)
    return _pair(result, mode, left_side, right_side, len(shared))


def _pair(result: Effect, mode: str, own: Evaluated, other: Evaluated, problems: int) -> PairedTest:
    return PairedTest(
        run=own.runs[0], baseline=other.runs[0], mode=mode, step=own.steps[0],
        baseline_step=other.steps[0], problems=problems, difference=result.difference,
        low=result.low, high=result.high, p_value=result.p_value, method=result.method, own=own,
        other=other,
    )  # fmt: skip


def _evaluated(
    runs: Evaluations, shares: Sequence[Mapping[str, float]], shared: Sequence[str]
) -> Evaluated:
    return Evaluated(
        runs=tuple(run.id for run, _ in runs),
        shares=tuple(sum(run[key] for key in shared) / len(shared) for run in shares),
        steps=tuple(item.step for _, item in runs),
        samples=max(item.samples for _, item in runs),
    )


def _names(runs: Sequence[RunSummary]) -> str:
    return " + ".join(run.name for run in runs)


def _last_by_mode(
    reader: "StoreReader", run: RunSummary, upto: int | None
) -> dict[str, EvaluationView]:
    last: dict[str, EvaluationView] = {}
    for item in _evaluations(reader, run, upto):
        if item.mode not in last and _shares(evaluation := reader.evaluation(item.key)):
            last[item.mode] = evaluation
    return last


def _evaluations(
    reader: "StoreReader", run: RunSummary, upto: int | None
) -> Iterator[EvaluationView]:
    """The evaluations of a run up to a step, last first; of a trained one not those before it."""
    trained = (run.step if upto is None else upto) > 0
    for item in reversed(reader.evaluations(run.key)):
        if (upto is None or item.step <= upto) and not (trained and item.moment == "before"):
            yield item


def _shares(evaluation: EvaluationView) -> dict[str, float]:
    """The share of right samples of each problem that was judged."""
    return {
        row.example_key: row.correct / row.samples
        for row in evaluation.rows
        if row.samples and row.correct is not None
    }


# -- the settings of a sweep ----------------------------------------------------------------------


def threshold(reach: str) -> tuple[str, float] | None:
    """Read `0.8`, a held-out accuracy, or `METRIC=VALUE`."""
    key, _, value = reach.rpartition("=")
    try:
        number = float(value) if reach else inf
    except ValueError:
        number = inf
    if reach and not isfinite(number):
        raise CompareError(f"nothing can reach {quoted(reach)}; give a number, or METRIC=NUMBER")
    return (key, number) if reach else None


def _rankings(
    reader: "StoreReader", settings: Sequence[Sequence[RunSummary]], limits: Mapping[int, int],
    goal: tuple[str, float] | None,
) -> tuple[Ranking, ...]:  # fmt: skip
    """Rank the settings by greedy and by sampled answers; the baseline's runs come first."""
    prints = {run.dataset_fingerprint for run in settings[0]}
    last = [
        [(run, _last_by_mode(reader, run, limits.get(run.key))) for run in group]
        for group in settings
        if len(prints) == 1 and prints == {run.dataset_fingerprint for run in group}
    ]
    rankings = []
    for mode in ("greedy", "sampled"):
        groups = [[(run, by[mode]) for run, by in group if mode in by] for group in last]
        if len(groups) > 1 and groups[0]:
            rankings.append(_ranking(reader, mode, [group for group in groups if group], goal))
    return tuple(ranking for ranking in rankings if ranking is not None)


def _ranking(
    reader: "StoreReader", mode: str, groups: Sequence["Evaluations"],
    goal: tuple[str, float] | None,
) -> Ranking | None:  # fmt: skip
    """Rank settings by the problems that all their runs answered."""
    import numpy as np

    from grpo_tui.experiments.compare.effects import effect, spread_of

    shares = [[_shares(item) for _, item in group] for group in groups]
    problems = sorted(set.intersection(*(set(run) for group in shares for run in group)))
    if len(groups) < 2 or len(problems) < 2:
        return None
    sweep = [np.array([[run[key] for key in problems] for run in group]) for group in shares]
    spread, count = spread_of(sweep), len(groups) - 1
    sides = [_evaluated(group, side, problems) for group, side in zip(groups, shares, strict=True)]
    order = sorted(range(len(groups)), key=lambda index: -sides[index].share)
    key = "eval/greedy/accuracy" if mode == "greedy" else "eval/accuracy"
    metric, value = goal or ("", sides[0].share)
    metric = metric or key
    ranked = []
    for index in order:
        side = sides[index]
        result = effect(sweep[index], sweep[0], spread, count) if index else None
        leads = index == order[0] or effect(sweep[order[0]], sweep[index], spread, count).low <= 0
        ranked.append(
            RankedSetting(
                own=side, may_be_best=leads,
                test=_pair(result, mode, side, sides[0], len(problems)) if result else None,
                more_seeds=result.more_seeds if result else None,
                more_problems=result.more_problems if result else None,
                reached=_reached(reader, [run for run, _ in groups[index]], metric, value),
            )
        )  # fmt: skip
    return Ranking(
        mode=mode, problems=len(problems), comparisons=count, seeds=spread.freedom > 0,
        metric=metric, threshold=value, settings=tuple(ranked),
    )  # fmt: skip


def _reached(reader: "StoreReader", runs: Sequence[RunSummary], key: str, goal: float) -> Reached:
    """Return the median step, tokens and seconds of the first value that is good enough."""
    sign = -1 if spec(key).direction == "down" else 1
    reached: list[tuple[float, float, float]] = []
    for run in runs:
        series = reader.metric_series(run.key, key)
        steps = zip(series.steps, series.values, strict=True)
        first = next((step for step, value in steps if sign * (value - goal) >= -1e-9), None)
        if first is not None:
            work_done = zip(*reader.work(run.key), strict=True)
            work = [(tokens, seconds) for step, tokens, seconds in work_done if step <= first]
            reached.append((first, *(work[-1] if work else (0, 0.0))))
    never = [(inf, inf, inf)] * (len(runs) - len(reached))
    step, tokens, seconds = (
        middle if isfinite(middle := median(values)) else None
        for values in zip(*reached, *never, strict=True)
    )
    return Reached(runs=len(reached), step=step, tokens=tokens, seconds=seconds)


def side_by_side(
    reader: "StoreReader", runs: Sequence[RunSummary], example_key: str, step: int | None = None
) -> SideBySide:
    """Return each run's last completions of an example, or its last ones up to `step`."""
    groups_by_run: list[GroupView | None] = []
    for run in runs:
        groups = [
            group
            for group in reader.of_example(run.key, example_key)
            if step is None or group.step <= step
        ]
        groups_by_run.append(reader.group(groups[-1].key) if groups else None)
    first = next((group for group in groups_by_run if group is not None), None)
    if first is None:
        raise CompareError(f"none of these runs has sampled the example {quoted(example_key)}")
    return SideBySide(
        example_key=example_key, prompt_text=first.prompt_text, target=first.target,
        groups=tuple(groups_by_run),
    )  # fmt: skip
