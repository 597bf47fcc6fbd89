"""Scripted events: a run without an engine."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_engine import events as ev
from grpo_tui.experiments.compare.values import Comparison, PairedTest
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import Recorder, start_run
from grpo_tui.experiments.search import search
from grpo_tui.experiments.values import SearchHit

CONFIG = {
    "name": "",
    "seed": 0,
    "steps": 10,
    "model": {"path": "starter"},
    "task": {"name": "arithmetic"},
    "algorithm": {"recipe": "grpo", "beta": 0.04},
    "optimizer": {"learning_rate": 1e-5, "name": "adamw"},
    "record": {"tokens": "all"},
}


def sql(path: Path, *statements: str) -> list[Any]:
    """Execute statements on a store behind its back, and return the rows of the last one."""
    rows: list[Any] = []
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            rows = conn.execute(statement).fetchall()
    return rows


def recorded(path: Path, *events: ev.Event, tree: Any = None, **options: Any) -> Recorder:
    """Record a run with these events, and return its recorder, which is closed."""
    handle = start_run(path, tree or CONFIG, **options)
    put_all(handle, *events)
    assert handle.close(), trouble(handle)
    return handle


def integrity(reader: StoreReader) -> str:
    """`ok`, or the damage that SQLite finds in the file."""
    return str(reader.file.execute("PRAGMA integrity_check").fetchone()[0])


def metrics_at(reader: StoreReader, run: int, step: int) -> dict[str, float]:
    """The metrics of a step."""
    series = (reader.metric_series(run, key, after=step - 1) for key in reader.metric_keys(run))
    return {item.key: item.values[0] for item in series if item.steps[:1] == (step,)}


def config(**sections: object) -> dict[str, object]:
    """The configuration with sections or top-level settings replaced."""
    return {**CONFIG, **sections}


def started(step: int = 0, fingerprint: str = "data", recipe: str = "grpo") -> ev.RunStarted:
    return ev.RunStarted(
        step=step,
        config={},
        total_steps=10,
        resumed=step > 0,
        versions={"mlx": "1"},
        device="cpu",
        threads=1,
        dataset_fingerprint=fingerprint,
        recipe=recipe,
    )


def rollout(index: int, text: str, reward: float | None) -> ev.Rollout:
    return ev.Rollout(
        index=index,
        ids=(1, 2, 3),
        text=text,
        finish="stop",
        reward=reward,
        advantage=0.5,
        rewards=(ev.RewardValue(name="accuracy", value=reward, weight=1.0, reason="as computed"),),
        sampler_logprobs=(-0.5, -1.0, -2.0),
        ends=(1, 2, len(text)),
    )


def group(
    index: int = 0,
    texts: tuple[str, ...] = ("yes", "no"),
    origin: ev.Origin = "train",
    prompt: str = "1 + 1 = ?",
    rewards: tuple[float | None, ...] = (),
) -> ev.Group:
    scores = rewards or tuple(float(place == 0) for place in range(len(texts)))
    return ev.Group(
        index=index,
        origin=origin,
        example_key=f"example-{index}",
        prompt_text=prompt,
        prompt_ids=(7, 8),
        prompt_hash=f"hash-{index}",
        target="2",
        rollouts=tuple(
            rollout(place, text, score)
            for place, (text, score) in enumerate(zip(texts, scores, strict=True))
        ),
        reward_mean=0.5,
        reward_std=0.5,
        sampling={"temperature": 1.0},
    )


def numbers(index: int = 0, origin: ev.Origin = "train", step: int = 1, rows: int = 2) -> ev.Event:
    return ev.TokensScored(
        step=step,
        group=index,
        origin=origin,
        numbers=tuple(
            ev.TokenNumbers(
                index=row,
                old=(-0.5, -1.0, -2.0),
                reference=(-0.5, -1.5, -2.0),
                passes=((-0.5, -1.0, -2.0), (-0.25, -1.0, -2.0)),
                after=(-0.25, -0.5, -2.0),
                entropy=(0.5, 1.0, 0.25),
                clip_fraction=0.25,
                kl=0.125,
            )
            for row in range(rows)
        ),
    )


def finished(step: int, reward: float = 0.5, **metrics: float) -> ev.StepFinished:
    return ev.StepFinished(
        step=step,
        metrics={"reward": reward, "kl": step / 100, **metrics},
        tokens=100 * step,
        elapsed=float(step),
    )


def step_events(step: int, groups: int = 2) -> Iterator[ev.Event]:
    """Groups, their token numbers, two passes, and the step."""
    for index in range(groups):
        yield ev.GroupScored(step=step, group=group(index))
        yield numbers(index, step=step)
    for index in (1, 2):
        yield ev.PassFinished(
            step=step,
            index=index,
            minibatch=0,
            loss=0.1,
            clip_low=0.0,
            clip_high=0.0,
            kl_to_old=0.0,
            grad_norm=1.0,
            learning_rate=1e-5,
        )
    yield finished(step, reward=step / 10)


def evaluated(
    step: int, right: tuple[int, ...] = (1, 0), mode: str = "sampled", samples: int = 1
) -> ev.EvaluationFinished:
    rows = tuple(
        ev.EvaluationSample(example_key=f"e{place}", correct=count, samples=samples, rewards={})
        for place, count in enumerate(right)
    )
    share = sum(right) / (len(right) * samples)
    return ev.EvaluationFinished(
        step=step,
        moment="after",
        mode="sampled" if mode == "sampled" else "greedy",
        problems=len(right),
        samples=samples,
        metrics={"eval/accuracy": share},
        rows=rows,
        seconds=1.0,
    )


def fallen() -> Iterator[ev.Event]:
    """A run of 24 steps whose held-out answers are worse after step 10 and score more.

    Of 200 problems .60 and then .40 are right: .20 > 4 sqrt(.6*.4/200 + .4*.6/200) = .196.
    """
    yield replace(started(), config={"evaluation": {"samples": 1}}, total_steps=24)
    for step in range(25):
        if step:
            yield finished(step)
        if step in (0, 10, 24):
            right, reward = {0: (40, 0.1), 10: (120, 0.2), 24: (80, 0.4)}[step]
            metrics = {
                "eval/reward": reward,
                "eval/reward_low": reward - 0.05,
                "eval/reward_high": reward + 0.05,
                "eval/scored/accuracy": 200.0,
            }
            for mode in ("greedy", "sampled"):
                one = evaluated(step, (1,) * right + (0,) * (200 - right), mode)
                yield replace(one, metrics={**one.metrics, **metrics})
    yield ended(24)


def alerted(step: int, **changes: Any) -> ev.AlertRaised:
    alert = ev.AlertRaised(
        step=step,
        rule="kl_high",
        severity="warning",
        explanation="why",
        remedy="what",
        value=1.0,
        limit=0.5,
    )
    return replace(alert, **changes)


def ended(step: int) -> ev.RunFinished:
    return ev.RunFinished(step=step, reason="completed", summary={})


def put_all(handle: Recorder, *events: ev.Event) -> None:
    for event in events:
        handle.put(event)


def record_run(
    path: Path,
    *,
    steps: int = 3,
    tree: dict[str, object] | None = None,
    name: str = "",
    fingerprint: str = "data",
    last: tuple[ev.Event, ...] = (),
) -> str:
    """Record a whole small run and return its id."""
    algorithm: Any = (tree or CONFIG)["algorithm"]
    first = started(fingerprint=fingerprint, recipe=algorithm["recipe"])
    events = (event for step in range(1, steps + 1) for event in step_events(step))
    return recorded(path, first, *events, *last, ended(steps), tree=tree, name=name).id


def trouble(handle: Recorder) -> str:
    """The store's current problem in words; empty if there is none."""
    return handle.board.view.store_warning


def hits_of(reader: StoreReader, text: str, run: str = "@last", **options: Any) -> list[SearchHit]:
    """All hits of a search."""
    return [hit for hit in search(reader, reader.resolve(run).key, text, **options) if hit]


def paired_tests(comparison: Comparison) -> tuple[PairedTest, ...]:
    """Each setting against the baseline's."""
    rows = (row for ranking in comparison.rankings for row in ranking.settings)
    return tuple(row.test for row in rows if row.test)


def same(left: object, right: object) -> bool:
    """Equality where NaN equals NaN; zeros of either sign are equal, as in Python."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and (left == right or repr(left) == repr(right) == "nan")


NAN = math.nan
