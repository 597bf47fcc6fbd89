"""Held-out evaluation, greedy and sampled: accuracy with its interval, pass@k, every reward.

The sampling noise does not depend on the step, so two evaluations differ only by the policy.
"""

import statistics
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, Literal

from grpo_engine.config.stop_when import is_better
from grpo_engine.errors import ConfigError
from grpo_engine.evaluation.statistics import (
    Interval,
    bootstrap,
    bootstrap_ratio,
    pass_at_ks,
    share_with_interval,
    wilson,
)
from grpo_engine.events import (
    CUT,
    EvaluationFinished,
    EvaluationSample,
    Event,
    PhaseStarted,
    evaluation_series,
)
from grpo_engine.metrics import spec
from grpo_engine.rewards.shape import well_formed
from grpo_engine.rollouts.types import Sampling
from grpo_engine.run.session import EngineRun, is_stopping
from grpo_engine.training.report import groups_by_task, groups_scored
from grpo_engine.training.samples import SampledGroup, failures, known_scores, mean_scores
from grpo_engine.training.sampling import SampleRequest, sample_and_score
from grpo_engine.training.step import end_if_met

Moment = Literal["before", "during", "after"]
Mode = Literal["greedy", "sampled"]
# built-in rewards that score `<think>…</think><answer>…</answer>`, in part or as a whole
TAGGED = ("format_parts", "format_all")
AT_A_TIME = 64  # the fewest rows decoded together, even if the run itself uses fewer


def evaluate_if_scheduled(run: EngineRun) -> Iterator[Event]:
    """Between steps: evaluate at the set interval, and after the last step."""
    config, step = run.config.evaluation, run.step
    if config.before_and_after and run.is_complete:
        yield from evaluate(run, step, "after")
    elif config.every and step % config.every == 0:
        yield from evaluate(run, step, "during")


def evaluate(run: EngineRun, step: int, moment: Moment) -> Generator[Event, None, bool]:
    """Evaluate in each mode of the settings and remember the best step.

    Return False if the user stopped it; a stop takes effect at the next group of rows.
    """
    if not any(part.task.held_out and part.scorer.names for part in run.parts):
        return True
    config = run.config.evaluation
    modes: list[tuple[Mode, int]] = [("greedy", 1)] if config.greedy else []
    if config.samples:
        modes.append(("sampled", config.samples))
    measured: dict[str, float] = {}  # the plain names are the sampled answers', if there are any
    for mode, samples in modes:
        finished = yield from _evaluate_mode(run, step, moment, mode, samples)
        if finished is None:
            return False
        yield finished
        yield from run.alerts.observe(finished)
        measured |= {**finished.metrics, **evaluation_series(finished)}
    if measured:
        _remember_best(run, step, measured)
        yield from end_if_met(run, measured)
    return True


def _remember_best(run: EngineRun, step: int, measured: Mapping[str, float]) -> None:
    """Remember the step if its policy is the best so far; the untrained one is not among them."""
    metric = run.config.checkpoint.best_by
    if metric in ("", "none"):
        metric = "eval/accuracy" if "eval/accuracy" in measured else "eval/reward"
    has_failed = any("/failed/" in name for name in measured)
    if has_failed and not {metric, run.progress.best_metric or metric} <= measured.keys():
        return  # the reward function failed on all samples
    if metric not in measured:
        raise ConfigError(
            f"checkpoint.best_by {metric!r} is not among what an evaluation measures; choose from "
            f"{', '.join(name for name in measured if spec(name).direction != 'none')}",
            "checkpoint.best_by",
        )
    progress = run.progress
    scorer = run.parts[0].scorer
    # an older checkpoint does not name it, and did not measure accuracy beside other rewards
    before = progress.best_metric or (metric if scorer.right == scorer.held_out_right else "")
    best = progress.best_score if before == metric else None
    if step > 0 and is_better(metric, measured[metric], best):
        progress.best_step, progress.best_score = step, measured[metric]
        progress.best_metric = metric


def _evaluate_mode(
    run: EngineRun, step: int, moment: Moment, mode: Mode, samples: int
) -> Generator[Event, None, EvaluationFinished | None]:
    sampling = sampling_of(run, mode)
    problems = [e for part in run.parts for e in part.held_out(run.config.evaluation.problems)]
    begun = run.clock.now()
    rows = max(AT_A_TIME, run.config.rollout.rows)
    batch = max(1, rows // samples)
    # greedy groups are numbered from 0, sampled ones follow
    first = len(problems) if mode == "sampled" and run.config.evaluation.greedy else 0
    groups: list[SampledGroup] = []
    yield PhaseStarted(step=step, phase="evaluate", total=len(problems) * samples, detail=mode)
    for start in range(0, len(problems), batch):
        if is_stopping(run):
            return None
        fresh = yield from sample_and_score(
            run,
            step,
            SampleRequest(
                examples=problems[start : start + batch],
                sampling=sampling,
                rows=samples,
                first=first + start,
                origin="eval",
            ),
        )
        yield from groups_scored(
            run, step, fresh, [None] * samples * len(fresh), origin="eval", sampling=sampling
        )
        groups += fresh
    return EvaluationFinished(
        step=step,
        moment=moment,
        mode=mode,
        problems=len(problems),
        samples=samples,
        metrics=summarise(groups) | _by_task(run, groups),
        rows=tuple(_row(group) for group in groups),
        seconds=run.clock.now() - begun,
    )


def sampling_of(run: EngineRun, mode: Mode) -> Sampling:
    """Sampling for evaluation: greedy, or with its own settings."""
    plain = replace(run.sampling, min_p=0.0, repetition_penalty=1.0)
    plain = replace(plain, temperature=float(mode == "sampled"), top_p=1.0, top_k=0)
    if mode == "greedy":
        return plain
    changes: Any = run.config.evaluation.sampling
    return replace(plain, **changes)


def _by_task(run: EngineRun, groups: Sequence[SampledGroup]) -> dict[str, float]:
    """The metrics of each of several tasks, as `eval/task/LABEL/…`."""
    metrics: dict[str, float] = {}
    for label, of_task in groups_by_task(run, groups).items():
        for name, value in summarise(of_task).items() if of_task else ():
            metrics[name.replace("eval", f"eval/task/{label}", 1)] = value
    return metrics


def summarise(groups: Sequence[SampledGroup]) -> dict[str, float]:
    """Metrics over all problems; the ends of 95 % intervals are named `_low` and `_high`.

    `eval/scored/…` has the number of answers behind a mean, without those that have no score.
    """
    totals = [[v for v in group.totals if v is not None] for group in groups]
    means = [statistics.fmean(values) for values in totals if values]
    mean = statistics.fmean(means) if means else float("nan")
    metrics = _with_interval("reward", mean, bootstrap(means))
    metrics |= {f"eval/rewards/{name}": mean for name, mean in mean_scores(groups).items()}
    scored = {"reward": sum(map(len, totals))}
    scored |= {f"rewards/{name}": len(values) for name, values in known_scores(groups).items()}
    lengths = [rollout.length for group in groups for rollout in group.rollouts]
    truncated = [rollout.finish in CUT for group in groups for rollout in group.rollouts]
    metrics["eval/mean_length"] = statistics.fmean(lengths)
    metrics["eval/truncated"] = statistics.fmean(truncated)
    metrics |= _turns(groups)
    if counts := [c for group in groups if (c := group.right.count(group.scores)) is not None]:
        metrics |= _with_interval("accuracy", *share_with_interval(counts))
        metrics |= pass_at_ks(counts, len(groups[0].rollouts))
        scored["accuracy"] = sum(judged for _, judged in counts)
    if formatted := [group for group in groups if group.format in group.scores.names]:
        metrics |= _by_format(formatted)
    metrics |= {f"eval/scored/{name}": float(count) for name, count in scored.items()}
    return metrics | {f"eval/failed/{name}": float(n) for name, n in failures(groups).items()}


def _with_interval(name: str, value: float, interval: Interval) -> dict[str, float]:
    low, high = interval
    return {f"eval/{name}": value, f"eval/{name}_low": low, f"eval/{name}_high": high}


def _turns(groups: Sequence[SampledGroup]) -> dict[str, float]:
    """Mean turns of the model; empty without environments."""
    turns = [
        statistics.fmean(sum(span.kind == "model" for span in r.spans) for r in group.rollouts)
        for group in groups
        if any(rollout.spans for rollout in group.rollouts)
    ]
    return _with_interval("turns", statistics.fmean(turns), bootstrap(turns)) if turns else {}


def _by_format(groups: Sequence[SampledGroup]) -> dict[str, float]:
    """Share of well-formed answers, and accuracy among them."""
    formed = [_well_formed(group) for group in groups]
    checked = [[well for well in row if well is not None] for row in formed]
    shares = [(sum(row), len(row)) for row in checked if row]
    metrics = _with_interval("format", *share_with_interval(shares)) if shares else {}
    counts, right = [], []
    for group, row in zip(groups, formed, strict=True):
        if group.right.count(group.scores) is not None:
            results = compress(group.scores.of(group.right.function), row)
            scores = [result.value for result in results if not result.missing]
            counts.append(len(scores))
            right.append(sum(map(group.right.accepts, scores)))
    if not sum(counts):
        return metrics
    successes, trials = sum(right), sum(counts)
    interval = bootstrap_ratio(right, counts) if max(counts) > 1 else wilson(successes, trials)
    return metrics | _with_interval("accuracy_of_formatted", successes / trials, interval)


def _well_formed(group: SampledGroup) -> list[bool | None]:
    """Which answers are well formed: by a built-in format's rule, else by a positive score.

    None where the function failed.
    """
    if group.format in TAGGED:
        return [well_formed(group.prefill + rollout.text) for rollout in group.rollouts]
    return [None if r.missing else (r.value or 0) > 0 for r in group.scores.of(group.format)]


def _row(group: SampledGroup) -> EvaluationSample:
    correct, samples = group.right.count(group.scores) or (None, len(group.rollouts))
    return EvaluationSample(
        example_key=group.example.key,
        correct=correct,
        samples=samples,
        rewards=mean_scores([group]),
        scored={name: float(len(values)) for name, values in known_scores([group]).items()},
    )
