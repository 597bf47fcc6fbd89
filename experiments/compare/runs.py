"""Compare runs: settings, metrics at equal work, statistics over seeds, tests per problem."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from math import inf, isfinite
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from grpo_engine.errors import quoted
from grpo_engine.metrics import METRICS, count_of, natural_range, spec
from grpo_tui.experiments.compare.values import (
    CODE,
    TRAINER,
    UNEQUAL_RATIO,
    Comparison,
    Effect,
    Evaluated,
    MainEffect,
    MetricCell,
    MetricComparison,
    PairedTest,
    RankedSetting,
    Ranking,
    Reached,
    SettingDifference,
    reads_rewards,
)
from grpo_tui.experiments.errors import QueryError, check_choice
from grpo_tui.experiments.values import EvaluationView, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

Runs = Sequence[RunSummary]
Settings = Mapping[str, Any]  # by path
AMOUNTS = {"step": "step", "tokens": "tokens", "wall": "elapsed"}  # by axis
MODES = ("greedy", "sampled")
_SEEDLESS = ("seed", "name")
_THIS = {TRAINER: "grpo-tui"}  # the trainer of runs that name none


@dataclass(frozen=True, slots=True)
class Judged:
    """The results of a run in an evaluation: the share of right samples by problem."""

    run: RunSummary
    evaluation: EvaluationView
    shares: Mapping[str, float]


def compare(
    reader: "StoreReader",
    runs: Runs,
    *,
    baseline: RunSummary | None = None,
    keys: Sequence[str] = (),
    axis: str = "",
    at: float | None = None,
    reach: str = "",
    values_at: float | None = None,
) -> Comparison:
    """Compare runs by the settings in force: a setting left to the recipe has the recipe's value.

    With `axis` step, tokens or wall, also compare each metric at the same step, tokens or seconds:
    at `at`, or by default where the shortest run ends. Deltas are relative to `baseline`. `reach`
    is the held-out accuracy, or a metric's value as in `reward=.9`, that the settings race to.
    Evaluations are the last ones up to there, or the last of all if a run has none up to there or
    if those are of unequal work.
    With `values_at` the metrics alone are compared at another amount of work.
    """
    goal = threshold(reach)
    if axis:
        check_choice("axis", axis, AMOUNTS)
    settings = _Settings.of(reader, runs)
    differing, by_recipe = _differences(settings.in_force, settings.stored)
    keys = keys or _all_keys(reader, runs)
    order = [run.key for run in runs]
    full = reader.runs(archived=True, keys=order, metrics=keys)
    runs = sorted(full, key=lambda run: order.index(run.key))
    base = next((run for run in runs if baseline and run.key == baseline.key), None)
    steps, limit = _equal_steps(reader, runs, axis, at)
    last = _last_evaluations(reader, runs, steps, axis)
    alike = _alike(runs, settings.in_force, {item.path for item in differing})
    groups = _compared(alike, base or runs[0])
    position = limit
    if values_at is not None:
        steps, position = _equal_steps(reader, runs, axis, values_at)
    return Comparison(
        runs=tuple(runs),
        baseline=base.id if base else None,
        at=position,
        equal_work=last.equal_work,
        cut_at=limit if last.cut else "",
        differing=differing,
        by_recipe=by_recipe,
        sources=_sources(runs, settings.functions, runs.index(base or runs[0])),
        same=settings.same({"name", *(item.path for item in (*differing, *by_recipe))}),
        metrics=tuple(
            _metric(reader, runs, base, key, steps, comparable=not reads_rewards(key, differing))
            for key in keys
        ),
        seeds=tuple(tuple(run.id for run in group) for group in alike if len(group) > 1),
        rankings=_rankings(reader, groups, last.by_run, goal, _varied(runs, differing)),
        notes=tuple(_reasons(reader, groups, last.by_run)),
    )


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of runs as they are stored and in force, and the functions among them."""

    functions: Sequence[Mapping[str, Any]]
    stored: Sequence[Settings]
    in_force: Sequence[Settings]

    @classmethod
    def of(cls, reader: "StoreReader", runs: Runs) -> "_Settings":
        """Read the settings; code files and the trainer are compared as settings are."""
        functions = [reader.functions(run.key) for run in runs]
        versions = [
            _versions(sources) | _files(reader.code(run.key), sources)
            for run, sources in zip(runs, functions, strict=True)
        ]
        stored, in_force = (
            [
                reader.settings(run.key, in_force=in_force) | of_run
                for run, of_run in zip(runs, versions, strict=True)
            ]
            for in_force in (False, True)
        )
        if any(TRAINER in values for values in stored):
            stored, in_force = ([_THIS | values for values in both] for both in (stored, in_force))
        return cls(functions, stored, in_force)

    def same(self, changed: Collection[str]) -> dict[str, Any]:
        """The settings that all runs have alike."""
        return {
            path: value
            for path, value in self.in_force[0].items()
            if path not in changed
            and not any(_is_unrecorded(values, path) for values in self.in_force)
        }


@dataclass(frozen=True, slots=True)
class _Evaluations:
    """The evaluations that runs are ranked by, by the key of each run and by mode.

    `equal_work` is whether they are those within the limit, and `cut` whether that left out later
    ones.
    """

    by_run: Mapping[int, Mapping[str, Judged]]
    equal_work: bool
    cut: bool


def _last_evaluations(
    reader: "StoreReader", runs: Runs, steps: Sequence[int | None], axis: str
) -> _Evaluations:
    """The last evaluations of each run up to its step; of all, where these are of unequal work."""
    unlimited = {run.key: _last_by_mode(reader, run) for run in runs}
    limited = {
        run.key: _last_by_mode(reader, run, step) for run, step in zip(runs, steps, strict=True)
    }
    amounts = [
        getattr(run, AMOUNTS[axis]) * item.evaluation.step / max(1, run.step)
        for run in runs
        for item in limited[run.key].values()
        if axis
    ]
    is_lacking = any(unlimited[run] and not limited[run] for run in limited)
    if is_lacking or max(amounts, default=0) >= UNEQUAL_RATIO * max(1, min(amounts, default=0)):
        return _Evaluations(by_run=unlimited, equal_work=False, cut=False)
    return _Evaluations(by_run=limited, equal_work=bool(axis), cut=limited != unlimited)


def _reasons(
    reader: "StoreReader", groups: Sequence[Runs], last: Mapping[int, Mapping[str, Judged]]
) -> Iterator[str]:
    """Why settings are not tested against the first."""
    first, *others = groups
    for group in others:
        if reason := _untested(reader, first, group, last):
            yield reason
    if not others and len(first) > 1:
        *names, last_name = (run.name for run in first)
        reason = f"{', '.join(names)} and {last_name} are runs of one setting"
        yield _untested(reader, first[:1], first[1:], last) or reason


def _versions(functions: Mapping[str, Any]) -> dict[str, str]:
    """Settings whose value is a function, with the first digits of its file's hash."""
    return {
        f"algorithm.{choice}": f"{source['name'].rpartition('/')[2]} {source['sha256'][:7]}"
        for choice, source in functions.items()
    }


def _files(code: Mapping[str, Any], functions: Mapping[str, Any]) -> dict[str, str]:
    """The first digits of each code file's hash, without the files that `_versions` has."""
    known = {source["sha256"] for source in functions.values()}
    digests = {name: str(file.get("sha256", "")) for name, file in code.items()}
    return {
        CODE + name: digest[:7]
        for name, digest in digests.items()
        if digest and digest not in known
    }


def _sources(runs: Runs, functions: Sequence[Mapping[str, Any]], base: int) -> tuple[str, ...]:
    """Diffs from the baseline's functions: of their files, or of the functions alone."""
    lines: list[str] = []
    for run, sources in zip(runs, functions, strict=True):
        for choice in filter(sources.__contains__, functions[base]):
            old, new = functions[base][choice], sources[choice]
            part = "text" if old["name"] == new["name"] else "code"
            titles = f"{old['name']} of {runs[base].name}", f"{new['name']} of {run.name}"
            texts = old[part].splitlines(), new[part].splitlines()
            lines += unified_diff(*texts, *titles, lineterm="")
    return tuple(lines)


def _differences(
    settings: Sequence[Settings], stored: Sequence[Settings]
) -> tuple[tuple[SettingDifference, ...], tuple[SettingDifference, ...]]:
    """The settings in force that differ: those that differ as stored, and the others."""
    differing = [
        SettingDifference(
            path=path,
            values=tuple(values.get(path) for values in settings),
            minor=only_recorded(path) or any(path not in values for values in stored),
        )
        for path in sorted({path for values in settings for path in values} - {"name"})
        if _is_different(settings, path)
    ]
    differing.sort(key=lambda item: item.minor)
    changed = tuple(item for item in differing if _is_different(stored, item.path))
    return changed, tuple(item for item in differing if item not in changed)


def only_recorded(path: str) -> bool:
    """Whether a setting affects the record of a run and not its training."""
    return path.startswith("record.")


def _is_different(settings: Sequence[Settings], path: str) -> bool:
    """Whether runs have several values; what a run did not record is not compared."""
    texts = {
        json.dumps(values[path], sort_keys=True) if path in values else ""
        for values in settings
        if not _is_unrecorded(values, path)
    }
    return len(texts) > 1


def _is_unrecorded(settings: Settings, path: str) -> bool:
    """Whether a run may have the setting and did not record it, as one of another trainer.

    The hashes of code files are missing from the records of older versions.
    """
    if path.startswith(CODE):
        return path not in settings
    is_foreign = settings.get(TRAINER, _THIS[TRAINER]) != _THIS[TRAINER]
    return is_foreign and path not in settings and not path.startswith("trainer.")


def _all_keys(reader: "StoreReader", runs: Runs) -> list[str]:
    keys = {key for run in runs for key in reader.metric_keys(run.key)}
    return [*filter(keys.__contains__, METRICS), *sorted(keys.difference(METRICS))]


# -- metrics ------------------------------------------------------------------------------------


def _equal_steps(
    reader: "StoreReader", runs: Runs, axis: str, at: float | None
) -> tuple[list[int | None], str]:
    """Return the last step of each run within the same work, and that amount of work in words."""
    if not axis:
        return [None] * len(runs), ""
    amount = AMOUNTS[axis]
    limit = min(getattr(run, amount) for run in runs) if at is None else at
    unit = {"step": "step {:.0f}", "tokens": "{:,.0f} tokens", "wall": "{:,.1f} s"}[axis]
    steps: list[int | None] = [reader.step_within(run.key, amount, limit) for run in runs]
    return steps, unit.format(limit)


def _metric(
    reader: "StoreReader",
    runs: Runs,
    base: RunSummary | None,
    key: str,
    steps: Sequence[int | None],
    *,
    comparable: bool,
) -> MetricComparison:
    """The runs' values of a metric, and the differences of their best to the baseline's."""
    cells, count = [], count_of(key)
    of_base = getattr(base.metrics.get(key), "best", None) if base else None
    for run, step in zip(runs, steps, strict=True):
        names = ("best", "best_step", "last", "last_step")
        values: Any = {name: getattr(run.metrics.get(key), name, None) for name in names}
        delta = None
        if comparable and run is not base and None not in (of_base, values["best"]):
            delta = values["best"] - of_base
        at, at_step = (None, None) if step is None else reader.value_at(run.key, key, step)
        values |= {"at": at, "at_step": at_step}
        counts: dict[str, Any] = {
            f"{name}_n": reader.value_at(run.key, count, values[f"{name}_step"])[0]
            for name in ("best", "last", "at")
            if count and values[f"{name}_step"] is not None
        }
        cells.append(MetricCell(**values, **counts, delta_best=delta))
    return MetricComparison(
        key=key,
        direction=spec(key).direction if comparable else "none",
        cells=tuple(cells),
        comparable=comparable,
    )


# -- seeds --------------------------------------------------------------------------------------


def _alike(
    runs: Runs, settings: Sequence[Settings], differing: Collection[str]
) -> list[list[RunSummary]]:
    """Group the runs that differ only in the seed and in what they record.

    Code files count where those that recorded them differ.
    """
    alike: dict[str, list[RunSummary]] = {}
    for run, values in zip(runs, settings, strict=True):
        same = {
            path: value
            for path, value in values.items()
            if path not in _SEEDLESS
            and not only_recorded(path)
            and (path in differing or not path.startswith(CODE))
        }
        alike.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    return list(alike.values())


# -- the same problems --------------------------------------------------------------------------


def _varied(runs: Runs, differing: Sequence[SettingDifference]) -> dict[str, Settings]:
    """The settings of each run, by its id, of which a sweep may have tried several values."""
    varied = [item for item in differing if item.path != "seed" and not item.minor]
    return {
        run.id: {item.path: item.values[index] for item in varied} for index, run in enumerate(runs)
    }


def _rankings(
    reader: "StoreReader",
    groups: Sequence[Runs],
    last: Mapping[int, Mapping[str, Judged]],
    goal: tuple[str, float] | None,
    varied: Mapping[str, Settings],
) -> tuple[Ranking, ...]:
    """Rank the settings whose problems are those of the baseline's setting, the first one."""
    prints = _data(groups[0])
    alike = [group for group in groups if len(_data(group) | prints) <= max(1, len(prints))]
    rankings = []
    for mode in MODES:
        base, *others = (
            [last[run.key][mode] for run in group if mode in last[run.key]] for group in alike
        )
        if base and len(prints) <= 1:
            rankings.append(_ranking(reader, mode, [base, *filter(None, others)], goal, varied))
    return tuple(filter(None, rankings))


def _data(runs: Runs) -> set[str]:
    """The data sets of runs; of one that another trainer recorded, the problems alone say it."""
    return {run.dataset_fingerprint for run in runs} - {""}


def _untested(
    reader: "StoreReader", base: Runs, group: Runs, last: Mapping[int, Mapping[str, Judged]]
) -> str:
    """The reason for no test of a setting against the baseline's; empty if there is a test."""
    runs = (*group, *base)
    prints = sorted(_data(runs))
    tasks = sorted({run.task for run in runs})
    if len(prints) > 1:
        reason = f"their data sets differ ({', '.join(tasks if len(tasks) > 1 else prints)})"
    elif unmeasured := [run.name for run in runs if _is_unmeasured(reader, run)]:
        reason = f"the held-out accuracy of {' and '.join(unmeasured)} was not measured"
    elif early := [run for run in runs if not last[run.key] and reader.evaluations(run.key)]:
        reason = f"{' and '.join(run.name for run in early)} was evaluated only before training"
        reason += "; wait for the next evaluation" * any(run.active for run in early)
    elif all(last[run.key] for run in runs) and not _share_problems(
        [last[run.key] for run in runs]
    ):
        reason = "they were not evaluated on the same problems in the same way (greedy or sampled)"
    else:
        return ""
    names = (" + ".join(run.name for run in side) for side in (group, base))
    return f"no paired test of {' and '.join(names)}: {reason}"


def _share_problems(judged: Sequence[Mapping[str, Judged]]) -> bool:
    """Whether runs have problems in common, all with greedy or all with sampled answers."""
    return any(
        len(set.intersection(*(set(modes[mode].shares) for modes in judged))) > 1
        for mode in MODES
        if all(mode in modes for modes in judged)
    )


def _compared(alike: Sequence[Runs], base: RunSummary) -> list[list[RunSummary]]:
    """Sort the runs of each setting, and the settings: the baseline comes first."""
    base_first = [sorted(group, key=lambda run: run is not base) for group in alike]
    return sorted(base_first, key=lambda group: group[0] is not base)


def _is_unmeasured(reader: "StoreReader", run: RunSummary) -> bool:
    """Whether a run was evaluated and nothing judged its samples."""
    items = reader.evaluations(run.key)
    return bool(items) and not any("eval/accuracy" in item.metrics for item in items)


@dataclass(frozen=True, slots=True)
class ProblemShares:
    """The shares of right samples of several settings on the same problems."""

    mode: str
    sides: list[Evaluated]
    shares: list[Any]  # an array [runs, problems] for each side
    problems: int

    @classmethod
    def of(cls, mode: str, groups: Sequence[Sequence[Judged]]) -> "ProblemShares | None":
        """Take the problems that all runs have; None if there is nothing to compare."""
        import numpy as np

        problems = sorted(
            set.intersection(*(set(item.shares) for group in groups for item in group))
        )
        if len(groups) < 2 or len(problems) < 2:
            return None
        shares = [
            np.array([[item.shares[key] for key in problems] for item in group]) for group in groups
        ]
        sides = [
            Evaluated(
                runs=tuple(item.run.id for item in group),
                shares=tuple(table.mean(1).tolist()),
                steps=tuple(item.evaluation.step for item in group),
                samples=max(item.evaluation.samples for item in group),
            )
            for group, table in zip(groups, shares, strict=True)
        ]
        return cls(mode, sides, shares, len(problems))

    def effect(self, index: int, base: int) -> Effect:
        """The difference of two settings, corrected for all comparisons with one of them."""
        from grpo_tui.experiments.compare.effects import effect, spread_of

        spread = spread_of(self.shares)
        return effect(self.shares[index], self.shares[base], spread, len(self.shares) - 1)

    def main_effect(
        self, pairs: Sequence[tuple[int, int]], comparisons: int, **setting: Any
    ) -> MainEffect:
        """The mean difference of pairs of settings."""
        from grpo_tui.experiments.compare.effects import mean_effect, spread_of

        sides = [(self.shares[left], self.shares[right]) for left, right in pairs]
        effect = mean_effect(sides, spread_of(self.shares), comparisons)
        return MainEffect(
            **asdict(effect),
            **setting,
            share=fmean(self.sides[left].share for left, _ in pairs),
            base_share=fmean(self.sides[right].share for _, right in pairs),
            pairs=len(pairs),
        )

    def test(self, index: int) -> PairedTest:
        """The difference between a setting and the first one."""
        return PairedTest(
            **asdict(self.effect(index, 0)),
            mode=self.mode,
            problems=self.problems,
            own=self.sides[index],
            other=self.sides[0],
        )


def progress(reader: "StoreReader", run: RunSummary) -> list[PairedTest]:
    """Test a run's last evaluations against its first ones: has it learned?"""
    return [
        shares.test(1)
        for mode, items in _by_mode(reader, run)
        if len(items) > 1 and (shares := ProblemShares.of(mode, [items[:1], items[-1:]]))
    ]


def setbacks(reader: "StoreReader", run: RunSummary) -> list[PairedTest]:
    """Test the best evaluations after the first against the last, corrected for the choice."""
    tests = []
    for mode, (_, *items) in _by_mode(reader, run):
        groups = [items[-1:], *([item] for item in items[:-1])]
        if len(items) > 1 and (shares := ProblemShares.of(mode, groups)):
            best = max(range(1, len(groups)), key=lambda index: shares.sides[index].share)
            tests.append(shares.test(best))
    return tests


def _by_mode(reader: "StoreReader", run: RunSummary) -> Iterator[tuple[str, list[Judged]]]:
    """The evaluations of a run whose answers were judged, greedy and sampled ones apart."""
    judged = [_judged(reader, run, item) for item in reader.evaluations(run.key)]
    for mode in MODES:
        if items := [item for item in judged if item.evaluation.mode == mode and item.shares]:
            yield mode, items


def _last_by_mode(
    reader: "StoreReader", run: RunSummary, upto: int | None = None
) -> dict[str, Judged]:
    """The last evaluations of a run up to a step; for a trained run, not those before training."""
    last: dict[str, Judged] = {}
    trained = run.step > 0 and upto != 0
    for item in reversed(reader.evaluations(run.key)):
        counts = (upto is None or item.step <= upto) and not (trained and item.moment == "before")
        if counts and item.mode not in last and (judged := _judged(reader, run, item)).shares:
            last[item.mode] = judged
    return last


def _judged(reader: "StoreReader", run: RunSummary, evaluation: EvaluationView) -> Judged:
    shares = {
        row.example_key: row.correct / row.samples
        for row in reader.samples(evaluation.key)
        if row.samples and row.correct is not None
    }
    return Judged(run, evaluation, shares)


# -- the settings of a sweep ----------------------------------------------------------------------


def threshold(reach: str) -> tuple[str, float] | None:
    """Read `0.8`, a held-out accuracy, or `METRIC=VALUE`."""
    if not reach:
        return None
    key, _, value = reach.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = inf
    low, high = natural_range(key or "eval/accuracy")
    if not (isfinite(number) and low <= number <= high):
        raise QueryError(
            f"nothing can reach {quoted(reach)}; give an accuracy from 0 to 1, or METRIC=NUMBER"
        )
    return key, number


def _ranking(
    reader: "StoreReader",
    mode: str,
    groups: Sequence[Sequence[Judged]],
    goal: tuple[str, float] | None,
    varied: Mapping[str, Settings],
) -> Ranking | None:
    """Rank settings by the problems that all their runs have."""
    shares = ProblemShares.of(mode, groups)
    if shares is None:
        return None
    sides = shares.sides
    order = sorted(range(len(groups)), key=lambda index: -sides[index].share)
    metric, value = goal or ("", sides[0].share)
    metric = metric or ("eval/greedy/accuracy" if mode == "greedy" else "eval/accuracy")
    return Ranking(
        mode=mode,
        problems=shares.problems,
        comparisons=len(groups) - 1,
        seeds=any(len(side.runs) > 1 for side in sides),
        metric=metric,
        threshold=value,
        settings=tuple(
            RankedSetting(
                own=sides[index],
                may_be_best=shares.effect(order[0], index).low <= 0,
                test=shares.test(index) if index else None,
                reached=_reached(reader, [item.run for item in groups[index]], metric, value),
            )
            for index in order
        ),
        effects=_main_effects(shares, [varied[side.runs[0]] for side in sides]),
    )


def _main_effects(shares: ProblemShares, settings: Sequence[Settings]) -> tuple[MainEffect, ...]:
    """Compare each value of a setting with the baseline's, the first one, over the other settings.

    That takes two pairs at least that differ in this setting alone.
    """
    texts = [
        {path: json.dumps(value, sort_keys=True) for path, value in item.items()}
        for item in settings
    ]
    compared: list[tuple[str, Any, list[tuple[int, int]]]] = []
    for path, base in texts[0].items():
        cells: dict[tuple[str, ...], dict[str, int]] = {}
        for index, item in enumerate(texts):
            others = tuple(text for name, text in item.items() if name != path)
            cells.setdefault(others, {})[item[path]] = index
        values = {item[path]: settings[index][path] for index, item in enumerate(texts)}
        for text, value in values.items():
            pairs = [(row[text], row[base]) for row in cells.values() if {text, base} <= row.keys()]
            if text != base and len(pairs) > 1:
                compared.append((path, value, pairs))
    return tuple(
        shares.main_effect(pairs, len(compared), path=path, value=value, base=settings[0][path])
        for path, value, pairs in compared
    )


def _reached(reader: "StoreReader", runs: Runs, key: str, goal: float) -> Reached:
    """Return the median step, tokens and seconds of the first value that is good enough."""
    sign = -1 if spec(key).direction == "down" else 1
    amounts = []
    for run in runs:
        series = reader.metric_series(run.key, key)
        steps = zip(series.steps, series.values, strict=True)
        first = next((step for step, value in steps if sign * (value - goal) >= -1e-9), inf)
        ends = [(0, 0, 0.0), *(end for end in reader.steps(run.key) if end.step <= first)]
        amounts.append((first, *ends[-1][1:3]) if first < inf else (inf, inf, inf))
    step, tokens, elapsed = (
        middle if isfinite(middle := median(values)) else None
        for values in zip(*amounts, strict=True)
    )
    return Reached(
        runs=sum(first < inf for first, *_ in amounts), step=step, tokens=tokens, seconds=elapsed
    )
