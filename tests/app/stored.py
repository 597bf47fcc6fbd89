"""A small run in a real store, for every screen: two passes, pinned prompts, token numbers."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.experiments.db.tables import RUN
from grpo_tui.experiments.record.recorder import Recorder, start_run
from tests.app.script import CONFIG, Script, answer, scored, skill_at
from tests.patience import PATIENCE

PINNED = ((17, 25), (31, 9))
STEPS = 6


def with_ends(group: ev.Group) -> ev.Group:
    """The group with tokens of three characters; the last one may be longer."""
    completions = []
    for one in group.rollouts:
        count = len(one.ids)
        ends = (*(3 * (t + 1) for t in range(count - 1)), len(one.text))
        completions.append(replace(one, ends=ends))
    return replace(group, rollouts=tuple(completions))


def numbers(rng: random.Random, group: ev.Group, passes: int) -> tuple[ev.TokenNumbers, ...]:
    """Token numbers of a group: near the old ones, a few beyond the clip range."""
    found = []
    tokens = 4 * sum(len(one.ids) for one in group.rollouts)  # of four groups alike
    totals = ev.UpdateTotals(rows=4 * len(group.rollouts), tokens=tokens)
    for one in group.rollouts:
        count = len(one.ids)
        old = tuple(math.log(rng.uniform(0.05, 0.99)) for _ in range(count))
        new = tuple(min(-1e-4, x + rng.gauss(0, 0.12)) for x in old)
        found.append(
            ev.TokenNumbers(
                index=one.index,
                old=old,
                reference=tuple(x - 0.02 for x in old),
                passes=(old, new)[:passes],
                after=new,
                entropy=tuple(rng.random() for _ in range(count)),
                advantages=tuple([one.advantage or 0.0] * count),
                clip_fraction=0.1,
                kl=0.02,
                updates=(totals,) * passes,
            )
        )
    return tuple(found)


def pinned_groups(rng: random.Random, step: int) -> Iterator[ev.Group]:
    """The pinned prompts with their answers at this step."""
    for index, prompt in enumerate(PINNED):
        answers = [answer(rng, prompt, skill_at(step * 40)) for _ in range(4)]
        group = scored(step, index, prompt, answers).group
        yield with_ends(replace(group, origin="pinned"))


def run_events(steps: int = STEPS, seed: int = 3, prompts: int = 4) -> Iterator[ev.Event]:
    """The scripted run with pinned prompts at every second step and all token numbers."""
    return iter(_run_events(steps, seed, prompts))


@cache
def _run_events(steps: int, seed: int, prompts: int) -> tuple[ev.Event, ...]:
    return tuple(_made(steps, seed, prompts))


def _made(steps: int, seed: int, prompts: int) -> Iterator[ev.Event]:
    rng = random.Random(seed)
    script = Script(
        steps=steps,
        total_steps=steps,
        prompts=prompts,
        group=4,
        seed=seed,
        progress=False,
        finished=True,
    )
    waiting: list[ev.Group] = []
    for event in script.events():
        if isinstance(event, ev.GroupScored):
            group = with_ends(event.group)
            waiting.append(group)
            yield replace(event, group=group)
            continue
        if isinstance(event, ev.StepFinished):
            for group in waiting:
                yield ev.TokensScored(
                    step=event.step,
                    group=group.index,
                    origin="train",
                    numbers=numbers(rng, group, 2),
                )
            waiting.clear()
            if event.step % 2 == 0:
                for group in pinned_groups(rng, event.step):
                    yield ev.GroupScored(step=event.step, group=group)
                    yield ev.TokensScored(
                        step=event.step,
                        group=group.index,
                        origin="pinned",
                        numbers=numbers(rng, group, 0),
                    )
        yield event


def record(
    path: Path,
    events: Iterator[ev.Event] | None = None,
    sweep: int | None = None,
    parent: str = "",
    **changes: Any,
) -> int:
    """Write a run to the store and return its key; `changes` are sections of its config."""
    tree = {**CONFIG, **changes}
    handle = start_run(path, build(tree), name=str(tree.get("name", "")), parent=parent)
    for event in events if events is not None else run_events():
        handle.put(event)
    handle.close()
    if sweep is not None:
        with handle.store.transaction() as conn:
            conn.execute(RUN.update().where(RUN.c.id == handle.key).values(sweep_id=sweep))
    return handle.key


def half_recorded(path: Path) -> tuple[Recorder, Callable[[], None]]:
    """The recorder of a run that is half way, and what records the other half."""
    events, half = list(run_events()), STEPS // 2
    later = next(index for index, event in enumerate(events) if event.step > half)
    recorder = start_run(path, build(CONFIG))

    def put(events: Iterable[ev.Event]) -> None:
        for event in events:
            recorder.put(event)
        recorder.flush()

    put(events[:later])
    return recorder, partial(put, events[later:])


def workbench(store: Path, theme: str = "dark", mode: str = "watch") -> Workbench:
    """The workbench on the last run of a store, which has been read."""
    preferences = Preferences()
    preferences.remember(theme=theme)
    feed = StoreFeed(store, "@last")
    assert feed.caught_up.wait(PATIENCE)
    return Workbench(store, feed=feed, mode=mode, preferences=preferences)
