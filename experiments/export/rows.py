"""Runs, metrics, rollouts, tokens and evaluations as rows."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from grpo_engine.events import Span
from grpo_tui.experiments.db.texts import iso
from grpo_tui.experiments.values import GroupView, RolloutView, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

Row = dict[str, Any]
PAGE = 200
METRIC_FIELDS = ("run", "name", "step", "at", "elapsed", "tokens")
NOT_METRICS = METRIC_FIELDS[:-1]  # the last field, tokens, is logged
SUMMARY = ("best", "best_step", "last", "last_step")
SCORES = ("reward", "advantage", "tokens", "finish", "clip_fraction", "kl")
_NAMES = [field.name for field in fields(RunSummary)]
RUN_FIELDS = _NAMES[: _NAMES.index("attempts") + 1]


def rows_of(table: str, reader: "StoreReader", runs: Iterable[RunSummary]) -> Iterator[Row]:
    """Return the rows of an export, read lazily."""
    return chain.from_iterable(WHAT[table](reader, run) for run in runs)


def run_row(run: RunSummary) -> Row:
    """Return a run as one flat row: fields, then best, last and their steps for each metric."""
    return {
        **{name: getattr(run, name) for name in RUN_FIELDS},
        **run.columns,
        **{
            f"{name} {key}": getattr(line, name)
            for key, line in run.metrics.items()
            for name in SUMMARY
        },
    }


def run_rows(reader: "StoreReader", run: RunSummary) -> Iterator[Row]:
    """One row with the summaries of all metrics and all settings."""
    detail = reader.run(run.key)
    settings = {f"cfg.{path}": value for path, value in detail.settings.items()}
    yield run_row(detail.summary) | settings


def metric_rows(reader: "StoreReader", run: RunSummary, *, after: int = -1) -> Iterator[Row]:
    """One row per trained or evaluated step beyond `after`, one column per metric."""
    keys = reader.metric_keys(run.key)
    empty = dict.fromkeys((*METRIC_FIELDS, *keys)) | {"run": run.id, "name": run.name}
    views = reader.steps(run.key, after=after)
    for first in range(0, len(views) + 1, PAGE):
        page = views[first : first + PAGE]
        # The last page includes all unfinished steps; a damaged step counts as 0.
        end = max(after, page[-1].step) if len(page) == PAGE else None
        rows = defaultdict[int, Row](empty.copy)
        for view in page:
            rows[view.step] |= {"at": iso(view.at), "elapsed": view.elapsed, "tokens": view.tokens}
        for key in keys:
            series = reader.metric_series(run.key, key, after=after, until=end)
            for step, value in zip(series.steps, series.values, strict=True):
                rows[step][key] = value
        for step in sorted(rows):
            yield rows[step] | {"step": step}
        after = after if end is None else end


def finite_metrics(row: Row) -> dict[str, float]:
    """The finite values of a step by metric."""
    return {
        name: float(value)
        for name, value in row.items()
        if name not in NOT_METRICS and value is not None and math.isfinite(value)
    }


def groups_of(reader: "StoreReader", run: RunSummary, **columns: Any) -> Iterator[GroupView]:
    """Yield the groups of a run with these values of their columns, read in pages."""
    after = 0
    while page := reader.groups(run.key, after=after, limit=PAGE, **columns):
        yield from page
        after = page[-1].key


def _group_columns(run: str, group: GroupView) -> Row:
    return {"run": run, "step": group.step, "origin": group.origin, "group": group.index}


def rollout_row(run: str, group: GroupView, rollout: RolloutView) -> Row:
    """Return a rollout as one flat row, with a column for each reward function."""
    return {
        **_group_columns(run, group),
        "index": rollout.index,
        "example_key": group.example_key,
        "prompt": group.prompt_text,
        "completion": rollout.text,
        "target": group.target,
        **{name: getattr(rollout, name) for name in SCORES},
        "reward_mean": group.reward_mean,
        "reward_std": group.reward_std,
        "group_std": group.reward_std,
        "no_signal": group.no_signal,
        "rollout": rollout.key,
        "failed": rollout.failed,
        **{f"reward/{item.name}": item.value for item in rollout.rewards},
    }


def rollout_rows(reader: "StoreReader", run: RunSummary) -> Iterator[Row]:
    for group in groups_of(reader, run):
        for rollout in group.rollouts:
            yield rollout_row(run.id, group, rollout)


def turns_of(rollout: RolloutView) -> Iterator[tuple[Span, str]]:
    """Each turn of the model and reply of its environment with its text."""
    tokens, chars = rollout.tokens or 0, len(rollout.text)
    single = Span(start=0, length=tokens, kind="model", turn=0, chars=chars)
    start = 0
    for span in rollout.spans or (single,):
        yield span, rollout.text[start : start + span.chars]
        start += span.chars


def turn_rows(reader: "StoreReader", run: RunSummary) -> Iterator[Row]:
    """One row per turn of the model and per reply of its environment."""
    for group in groups_of(reader, run):
        for rollout in group.rollouts:
            for span, text in turns_of(rollout):
                yield {
                    **_group_columns(run.id, group),
                    "index": rollout.index,
                    "turn": span.turn,
                    "kind": span.kind,
                    "name": span.name,
                    "text": text,
                    "tokens": rollout.tokens and (span.length or None),
                    "reward": span.reward,
                    "ms": span.ms,
                    "error": span.error,
                    "rollout": rollout.key,
                    **{f"info/{name}": value for name, value in span.info.items()},
                }


def token_rows(reader: "StoreReader", run: RunSummary) -> Iterator[Row]:
    passes = reader.max_passes(run.key)  # a step may have fewer
    for group in groups_of(reader, run):
        view = reader.tokens(run.key, group.key) if group.has_tokens else None
        rollouts = {rollout.index: rollout for rollout in group.rollouts}
        for row in view.rows if view else ():
            rollout = rollouts.get(row.index)
            text = rollout.text if rollout else ""
            advantages = row.advantages or (rollout and [rollout.advantage] * len(row.ids))
            columns: dict[str, Any] = {
                "text": [text[start:end] for start, end in pairwise((0, *row.ends))],
                "sampler": row.sampler,
                "old": row.old,
                "reference": row.reference,
                **({"teacher": row.teacher} if row.teacher else {}),
                **dict.fromkeys((f"pass_{n}" for n in range(1, passes + 1)), ()),
                **{f"pass_{n}": values for n, values in enumerate(row.passes, start=1)},
                "after": row.after,
                "entropy": row.entropy,
                "advantage": advantages,
            }
            for position, token in enumerate(row.ids):
                yield {
                    **_group_columns(run.id, group),
                    "index": row.index,
                    "position": position,
                    "id": token,
                    **{
                        name: values[position] if values else None
                        for name, values in columns.items()
                    },
                }


def evaluation_rows(reader: "StoreReader", run: RunSummary) -> Iterator[Row]:
    """One row per held-out problem of each evaluation."""
    for item in reader.evaluations(run.key):
        for row in reader.samples(item.key):
            yield {
                "run": run.id,
                "name": run.name,
                "step": item.step,
                "moment": item.moment,
                "mode": item.mode,
                "example_key": row.example_key,
                "correct": row.correct,
                "samples": row.samples,
                **{f"reward/{name}": value for name, value in row.rewards.items()},
                **{f"n/{name}": count for name, count in row.scored.items()},
            }


WHAT: "dict[str, Callable[[StoreReader, RunSummary], Iterator[Row]]]" = {
    "runs": run_rows,
    "metrics": metric_rows,
    "rollouts": rollout_rows,
    "turns": turn_rows,
    "tokens": token_rows,
    "evaluations": evaluation_rows,
}
