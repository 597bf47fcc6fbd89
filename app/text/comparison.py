"""A comparison of runs as JSON and sentences, for the command line and the screen."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from grpo_engine.metrics import phase_seconds, spec
from grpo_tui.app.text.numbers import seconds, short, signed, tokens, value_text
from grpo_tui.experiments.compare.values import CODE, UNEQUAL_RATIO
from grpo_tui.experiments.starts import start_step

if TYPE_CHECKING:
    from grpo_tui.experiments.compare.values import (
        Comparison,
        Evaluated,
        MainEffect,
        PairedTest,
        RankedSetting,
        Ranking,
        SettingDifference,
    )
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import RunSummary

ALPHA = 0.05
ARROWS = {"up": "↑", "down": "↓", "none": ""}  # by the better direction of a metric
UNTESTED = "there are no held-out answers to the same problems (evaluation.every)"
GREEDY = "eval/greedy/"
RUN_FIELDS = ("id", "name", "status", "seed", "step", "tokens", "elapsed")  # fields in JSON
MAIN_METRICS = (
    "reward",
    "eval/accuracy",
    "eval/greedy/accuracy",
    "kl",
    "completions/mean_length",
    "entropy",
    "clip_ratio/region_mean",
    "frac_reward_zero_std",
)


def comparison_json(result: "Comparison", all_settings: bool) -> dict[str, Any]:
    """Return the comparison as JSON, keyed by run id."""

    def by_run(values: Iterable[Any]) -> dict[str, Any]:
        return {run.id: value for run, value in zip(result.runs, values, strict=True)}

    return {
        "runs": [{name: getattr(run, name) for name in RUN_FIELDS} for run in result.runs],
        "baseline": result.baseline,
        "at": result.at or None,
        "equal_work": result.equal_work,
        "settings": {item.path: by_run(item.values) for item in result.differing},
        "same": dict(result.same) if all_settings else None,
        "sources": list(result.sources),
        "by_recipe": {item.path: by_run(item.values) for item in result.by_recipe}
        if all_settings
        else None,
        "metrics": {
            item.key: {"direction": item.direction, "runs": by_run(map(asdict, item.cells))}
            for item in result.metrics
        },
        "seeds": list(result.seeds),
        "rankings": list(map(asdict, result.rankings)),
        "notes": list(result.notes),
    }


# -- sentences ----------------------------------------------------------------------------------


def verdict(comparison: "Comparison", chosen: str = "", axis: str = "", by: str = "--at") -> str:
    """Say which setting is better, how sure that is, and what would make it surer.

    After what is known of single settings, it is about the chosen run's setting, or the best one
    beside the baseline's. What matters less comes later, since screens cut it. `by` is what makes
    it compare at equal work, here on the axis.
    """
    ranking, rewards = ranking_of(comparison), _rewards_sentence(comparison)
    if ranking is None:
        name = next((run.name for run in comparison.runs if run.id == chosen), chosen)
        notes = (note for note in comparison.notes if name in note)
        return f"Which is better cannot be tested: {next(notes, UNTESTED)}. {rewards}".rstrip()
    rows = [row for row in ranking.settings if row.test]
    row = next((row for row in rows if chosen in row.own.runs), rows[0])
    assert row.test is not None
    result = sentence_of(row.test, comparison)
    if ranking.comparisons > 1:
        result = f"{result[:-1]}, corrected for {ranking.comparisons} comparisons."
    work, way = unequal(row.test, comparison, axis, by)
    if comparison.cut_at:
        work = f"Evaluations after {comparison.cut_at} are left out. {work}".strip()
    sentences = [_effects_sentence(ranking.effects), result, work, rewards, way]
    if not ranking.seeds:
        sentences.append("One seed each: the interval covers other problems, not other seeds.")
    sentences.append(_by_greedy(row, ranking, comparison))
    sentences.append(needed(row, ranking))
    if ranking.comparisons > 1:
        best = [
            setting_name(comparison, item.own.runs) for item in ranking.settings if item.may_be_best
        ]
        sentences.append(
            f"The best is {best[0]}."
            if len(best) == 1
            else f"Any of {len(best)} may be the best: {'; '.join(best[:4])}"
            f"{' …' if len(best) > 4 else ''}."
        )
    return " ".join(part for part in sentences if part)


def _rewards_sentence(comparison: "Comparison") -> str:
    """Say why the rewards of the runs are not comparable; empty if they are."""
    *paths, last = comparison.reward_settings or ("",)
    names = f"{', '.join(paths)} and {last} differ" if paths else f"{last} differs"
    return f"Rewards are not comparable: {names}." if last else ""


def _effects_sentence(effects: "Sequence[MainEffect]") -> str:
    """The settings whose effect is clear, averaged over the others, then those without."""
    clear = [effect for effect in effects if effect.p_value < ALPHA]
    names = [_leaf(effect.path) for effect in clear]
    parts = [
        f"{name} {value_text(effect.value)} instead of {value_text(effect.base)}: "
        f"{points(effect.difference)} points, {probability(effect.p_value)}"
        for name, effect in zip(names, clear, strict=True)
    ]
    unclear = dict.fromkeys(
        _leaf(effect.path) + f" {value_text(effect.value)}" * (_leaf(effect.path) in names)
        for effect in effects
        if effect not in clear
    )
    parts += [f"{', '.join(unclear)}: no clear effect"] if unclear else []
    return f"{'; '.join(parts)}." if parts else ""


def _leaf(path: str) -> str:
    return path if path.startswith(CODE) else path.rpartition(".")[2]


def unequal(test: "PairedTest", comparison: "Comparison", axis: str, by: str) -> tuple[str, str]:
    """Say which setting had clearly more training than the other, and how that is avoided.

    One that began from a checkpoint had what was trained until there as well.
    """
    (more, longer, start), (less, shorter, other) = sorted(
        (
            (
                _trained(side, comparison, axis),
                setting_name(comparison, side.runs),
                _start(side, comparison),
            )
            for side in (test.own, test.other)
        ),
        reverse=True,
    )
    # Tokens and time are estimates: they cannot tell evaluations up to the same amount apart.
    is_equal = comparison.equal_work and axis != "step"
    alike = start == other
    if alike and (is_equal or more < UNEQUAL_RATIO * max(1, less)):
        return "", ""
    way = (
        f"{by} compares at equal steps, tokens or time, where all were evaluated by then "
        "(evaluation.every)."
    ) * alike
    return (
        f"Unequal training: {longer} had {_work(axis, more)}{start}, "
        f"{shorter} {_work(axis, less)}{other}.",
        way,
    )


def _start(side: "Evaluated", comparison: "Comparison") -> str:
    """The checkpoint that some runs began from: ` after step 31 of base`; empty if all did."""
    names = {run.id: run_name(run, comparison.runs) for run in comparison.runs}
    index = next(index for index, run in enumerate(comparison.runs) if run.id in side.runs)
    step = start_step({item.path: item.values[index] for item in comparison.differing})
    origin = comparison.runs[index].parent or "another run"
    return "" if step is None else f" after step {step} of {names.get(origin, origin)}"


def _trained(side: "Evaluated", comparison: "Comparison", axis: str) -> float:
    """The mean steps of some runs until they were evaluated; tokens or seconds by their share."""
    field = {"tokens": "tokens", "wall": "elapsed"}.get(axis, "step")
    runs = {run.id: run for run in comparison.runs}
    return fmean(
        getattr(runs[run], field) * step / max(1, runs[run].step)
        for run, step in zip(side.runs, side.steps, strict=True)
    )


def _work(axis: str, amount: float) -> str:
    if axis == "tokens":
        return f"about {tokens(amount)} tokens"
    return f"about {seconds(amount)}" if axis == "wall" else f"{amount:g} steps"


def _by_greedy(row: "RankedSetting", ranking: "Ranking", comparison: "Comparison") -> str:
    """The same difference by greedy answers, if the verdict is from sampled ones."""
    tests = (
        setting.test
        for second in comparison.rankings
        if second is not ranking
        for setting in second.settings
        if setting.own.runs == row.own.runs
    )
    test = next(tests, None)
    if test is None or row.test is None:
        return ""
    sure = "" if test.p_value < ALPHA else "not significant, "
    up = row.test.difference >= 0  # the sign of the setting that is named first
    # Beside averaged effects it must say whose difference it is.
    pair = (test.own, test.other) if up else (test.other, test.own)
    names = " − ".join(setting_name(comparison, side.runs) for side in pair)
    of_pair = f" of {names}" if ranking.effects else ""
    return f"Greedy answers{of_pair}: {_size(test, up=up)}, {sure}{probability(test.p_value)}."


def _size(test: "PairedTest", *, up: bool = True) -> str:
    """A difference with its interval; the other way round if not `up`."""
    sign = 1 if up else -1
    low, high = sorted((sign * test.low, sign * test.high))
    return f"{points(sign * test.difference)} points (95%: {points(low)} to {points(high)})"


def needed(row: "RankedSetting", ranking: "Ranking") -> str:
    """Say how many more seeds or problems would tell a setting from the baseline's."""
    if row.test is None or row.test.p_value < ALPHA:
        return ""
    seeds, problems = row.test.more_seeds, row.test.more_problems
    ways = [f"{seeds} more seeds each"] if seeds else []
    ways += [f"{problems:,} more problems"] if problems else []
    if ways:
        return f"To be sure: {' or '.join(ways)}."
    if not row.test.difference:
        return ""
    limit = "100 more seeds each or 7,000" if ranking.seeds else "7,000"
    return f"To be sure would take more than {limit} more problems."


def rankings_of(comparison: "Comparison") -> "list[Ranking]":
    """Return the rankings as people see them: that by sampled answers first."""
    return sorted(comparison.rankings, key=lambda ranking: ranking.mode != "sampled")


def ranking_of(comparison: "Comparison") -> "Ranking | None":
    """Return the ranking that the verdict is from."""
    return next(iter(rankings_of(comparison)), None)


def ranked(comparison: "Comparison", run: str) -> "RankedSetting | None":
    """Return the run's setting in the ranking that the verdict is from."""
    ranking = ranking_of(comparison)
    rows = ranking.settings if ranking else ()
    return next((row for row in rows if run in row.own.runs), None)


def standing(test: "PairedTest") -> str:
    """Say how a setting did beside the baseline's: ▲ better, ▼ worse, if that is sure."""
    if test.p_value >= ALPHA:
        return "cannot tell"
    return f"{'▲' if test.difference > 0 else '▼'} {points(test.difference)} pt"


def ranking_title(ranking: "Ranking") -> str:
    """Name what a ranking is by, and what its intervals hold for."""
    bound = "at most" if spec(ranking.metric).direction == "down" else "at least"
    goal = f"{ranking.metric} {bound} {ranking.threshold:g}"
    if ranking.metric.endswith("/accuracy"):
        goal = f"{bound} {percent(ranking.threshold)}% right"
    return (
        f"{ranking.mode} answers to {ranking.problems} held-out problems; goal: {goal}; "
        f"{_interval(ranking, ranking.comparisons)}"
    )


def _interval(ranking: "Ranking", count: int) -> str:
    """What the intervals of so many differences hold for."""
    scope = "seeds and problems" if ranking.seeds else "problems, not seeds"
    return f"95% over {scope}" + f", all {count} at once" * (count > 1)


def ranking_rows(ranking: "Ranking", comparison: "Comparison") -> list[dict[str, str]]:
    """Return the settings from best to worst as text, the most important columns first.

    Columns that are empty are left out.
    """
    rows = [_ranking_row(row, ranking, comparison) for row in ranking.settings]
    return [{key: row[key] for key in row if any(row[key] for row in rows)} for row in rows]


def effects_title(ranking: "Ranking") -> str:
    """Name what the effects of single settings are by, and what their intervals hold for."""
    return (
        f"{ranking.mode} answers: each setting, averaged over the others; {ranking.problems} "
        f"held-out problems; {_interval(ranking, len(ranking.effects))}"
    )


def effect_rows(ranking: "Ranking") -> list[dict[str, str]]:
    """Return what each value of a setting changes as text, the most important columns first."""
    return [
        {
            "setting": f"{_leaf(effect.path)} {value_text(effect.base)} → "
            f"{value_text(effect.value)}",
            "points": points(effect.difference),
            "95%": f"{points(effect.low)} to {points(effect.high)}",
            "p": probability(effect.p_value).removeprefix("p ").removeprefix("= "),
            "right": f"{percent(effect.base_share)} → {percent(effect.share)}%",
            "pairs": str(effect.pairs),
        }
        for effect in ranking.effects
    ]


def _ranking_row(
    row: "RankedSetting", ranking: "Ranking", comparison: "Comparison"
) -> dict[str, str]:
    test, reached = row.test, row.reached
    unsure = test is not None and test.p_value >= ALPHA
    alone = sum(setting.may_be_best for setting in ranking.settings) == 1
    middle = "–" if reached.runs else ""  # Too few reached it for a median.
    unknown = ">100" if ranking.seeds else "?"
    more = {
        "more seeds": f"{test.more_seeds}" if test and test.more_seeds else unknown,
        "or problems": f"{test.more_problems:,}" if test and test.more_problems else ">7,000",
    }
    return {
        "setting": setting_name(comparison, row.own.runs),
        "points": points(test.difference) if test else "baseline",
        "95%": f"{points(test.low)} to {points(test.high)}" if test else "",
        "p": probability(test.p_value).removeprefix("p ").removeprefix("= ") if test else "",
        "right": f"{percent(row.own.share)}%",
        "best?": ("yes" if alone else "maybe") if row.may_be_best else "no",
        **{name: text if unsure else "" for name, text in more.items()},
        "reached": reached_text(reached.runs, len(row.own.runs)),
        "step": middle if reached.step is None else f"{reached.step:g}",
        "tokens": middle if reached.tokens is None else tokens(reached.tokens),
        "time": middle if reached.seconds is None else seconds(reached.seconds),
    }


def reached_text(reached: int, seeds: int) -> str:
    """Say how many of a setting's seeds reached the threshold: `1 of 2 seeds`, or `yes` of one."""
    if not reached:
        return "never"
    return f"{reached} of {seeds} seeds" if seeds > 1 else "yes"


def columns_of(comparison: "Comparison", *, pooled: bool) -> tuple[tuple[str, ...], ...]:
    """Return the runs of each column of a table: those of a setting where seeds are pooled."""
    seeds = {run: group for group in comparison.seeds for run in group} if pooled else {}
    return tuple(dict.fromkeys(seeds.get(run.id, (run.id,)) for run in comparison.runs))


def sentence_of(test: "PairedTest", comparison: "Comparison") -> str:
    """Put a paired test into words: the result, then the shares, the evaluation, the method."""
    names = [setting_name(comparison, side.runs) for side in (test.own, test.other)]
    up = test.difference >= 0
    sides = (test.own, test.other) if up else (test.other, test.own)
    evaluation, chance = f"on {evaluation_name(test, sides)}", probability(test.p_value)
    if test.difference == 0:
        share = f"{percent(test.own.share)}%"
        return (
            f"{' and '.join(names)} get as many right, {share}, {chance}, {evaluation}; "
            f"{test.method}."
        )
    better, worse = names if up else names[::-1]
    size = _size(test, up=up)
    by = f"in {test.mode} answers"
    result = f"{better} is better than {worse} {by}: {size}, {chance}."
    if test.p_value >= ALPHA:
        result = f"No significant difference {by}: {size} for {better} over {worse}, {chance}."
    shares = " and ".join(percent(side.share) for side in sides)
    return f"{result} Right: {shares}% {evaluation}; {test.method}."


def run_verdict(
    run: "RunSummary", tests: "Sequence[PairedTest]", setbacks: "Sequence[PairedTest]" = ()
) -> str:
    """Say by its last and first evaluations whether a run has learned, or how its reward went.

    `setbacks` compare the best evaluations with the last ones.
    """
    sentences = []
    for test in tests:
        change = "rose" if test.difference > 0 else "fell"
        change = change if test.p_value < ALPHA else "did not change significantly"
        sentences.append(
            f"Held-out accuracy {change}: from {percent(test.other.share)} to "
            f"{percent(test.own.share)}%, {_size(test)}, on "
            f"{evaluation_name(test, (test.other, test.own))}; {probability(test.p_value)}, "
            f"{test.method}."
        )
    for test in setbacks:
        if test.difference <= 0 or test.p_value >= ALPHA:
            continue
        sentences.append(
            f"It fell since step {test.own.steps[0]}: from {percent(test.own.share)} to "
            f"{percent(test.other.share)}%, {_size(test, up=False)}, on "
            f"{evaluation_name(test, (test.own, test.other))}; {probability(test.p_value)}, "
            f"{test.method}."
        )
    reward = run.metrics.get("reward")
    if not sentences and reward is not None and reward.last is not None:
        reason = "it has no two evaluations of the same problems (evaluation.every)"
        if is_unmeasured(run):
            reason = "held-out accuracy was not measured (evaluation.accuracy)"
        went = f"went from {short(reward.first)} to {short(reward.last)}"
        if reward.first_step == reward.last_step:
            went = f"was {short(reward.last)} in the only step that has one"
        sentences.append(f"Whether it learned cannot be tested: {reason}. Reward {went}.")
    return " ".join(sentences) or "Nothing was measured yet."


def is_unmeasured(run: "RunSummary") -> bool:
    """Whether a run was evaluated, and nothing said which answers were right."""
    names = {key.rpartition("/")[2] for key in run.metrics if key.startswith("eval/")}
    return "reward" in names and "accuracy" not in names


def evaluation_name(test: "PairedTest", sides: "Sequence[Evaluated]") -> str:
    """Name the evaluations of a test: the problems, greedy or sampled answers, each side's step."""
    sampling = "greedy answers"
    if test.mode != "greedy":
        counts = list(dict.fromkeys(side.samples for side in sides))
        sampling = (
            f"sampled {' and '.join(map(str, counts))} times" if counts != [1] else "sampled once"
        )
    ranges = [
        str(min(side.steps)) + (f"–{max(side.steps)}" if len(set(side.steps)) > 1 else "")
        for side in sides
    ]
    at = " and ".join(dict.fromkeys(ranges))
    return f"{test.problems} held-out problems, {sampling}, step{'s' * (not at.isdigit())} {at}"


def setting_name(comparison: "Comparison", runs: Sequence[str]) -> str:
    """Name runs by the settings they share and others do not: `beta 0.4 (2 seeds)`; one by name."""
    if len(runs) == 1:
        return run_name(next(run for run in comparison.runs if run.id == runs[0]), comparison.runs)
    index = next(index for index, run in enumerate(comparison.runs) if run.id in runs)
    differing = _distinguishing(comparison)
    leaves = [_leaf(item.path) for item in differing]
    parts = [
        f"{leaf if leaves.count(leaf) == 1 else item.path} {value_text(item.values[index])}"
        for item, leaf in zip(differing, leaves, strict=True)
        if item.path != "seed"
    ]
    if tuple(differing) == comparison.by_trainer:
        parts = [value_text(item.values[index]) for item in differing]
    count = f"{len(runs)} seeds"
    return f"{', '.join(parts)} ({count})" if parts else count


def names_of_settings(
    reader: "StoreReader", runs: "Sequence[RunSummary]"
) -> "dict[str, list[RunSummary]]":
    """The runs by the name of their setting: those that differ only in their seed together."""
    from grpo_tui.experiments.compare.runs import compare

    if len(runs) < 2:
        return {run.title: [run] for run in runs}
    result = compare(reader, runs)
    return {
        setting_name(result, ids): [run for run in runs if run.id in ids]
        for ids in columns_of(result, pooled=True)
    }


def _distinguishing(comparison: "Comparison") -> "Sequence[SettingDifference]":
    """The settings that tell those with several seeds apart.

    These are the trainer alone if it can, else those that are not minor, else all.
    """
    major = [item for item in comparison.differing if not item.minor and item.path != "seed"]
    indices = {run.id: index for index, run in enumerate(comparison.runs)}
    groups = [indices[group[0]] for group in comparison.seeds]
    for settings in (comparison.by_trainer, major):
        names = {tuple(value_text(item.values[index]) for item in settings) for index in groups}
        if settings and len(names) == len(groups):
            return settings
    return comparison.differing


def run_name(run: "RunSummary", runs: "Sequence[RunSummary]") -> str:
    """Return a run's name, followed by its id if another run has the same name or it has none."""
    unique = run.name and sum(other.name == run.name for other in runs) == 1
    return run.name if unique else f"{run.name} {run.id}".strip()


def phase_times(runs: "Sequence[RunSummary]") -> dict[str, float]:
    """Return the mean seconds of a step's phases, over the steps and the runs that have them."""
    means = ({key: line.mean for key, line in run.metrics.items() if line.mean} for run in runs)
    measured = [spent for item in means if (spent := phase_seconds(item))]
    names = dict.fromkeys(name for spent in measured for name in spent)
    return {name: fmean(spent.get(name, 0.0) for spent in measured) for name in names}


def metric_name(key: str) -> str:
    """Return a metric's key, with `(sampled)` where greedy answers have a metric of their own."""
    sampled = key.startswith("eval/") and not key.startswith(GREEDY)
    return f"{key} (sampled)" if sampled else key


def probability(p: float) -> str:
    """Format a p-value: `p = .031`, `p < .001`; never rounded up to the limit of .05."""
    if p < 0.001:
        return "p < .001"
    digits = 3
    while p < ALPHA <= float(f"{p:.{digits}f}"):
        digits += 1
    return f"p = {p:.{digits}f}".replace("0.", ".", 1)


def points(share: float) -> str:
    """Format a difference of shares in percentage points: `+3.1`, `−12`."""
    return signed(100 * share, 1)


def percent(share: float) -> str:
    """Format a share in percent without the sign: `82.1`, `79`."""
    return f"{100 * share:.1f}".removesuffix(".0")
