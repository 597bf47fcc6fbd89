"""Training prompts tried before a run: how many would have a signal, and what that costs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.evaluation.statistics import Interval, bootstrap, signal_at_k
from grpo_engine.events import Event
from grpo_engine.run.session import is_stopping
from grpo_engine.run.user_objects import NO_OBJECTS
from grpo_engine.setup.opening import load_run
from grpo_engine.setup.parts import load_tasks
from grpo_engine.training.drawing import Drawing, take_rates
from grpo_engine.training.sampling import SampleRequest, sample_and_score

ENOUGH = 0.8  # share of prompts with a signal that a group size should reach


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsProbed:
    """The scores of the answers to some prompts at one temperature."""

    temperature: float
    keys: tuple[str, ...]  # of the prompts
    rewards: tuple[tuple[float | None, ...], ...]  # of the answers to each
    right: tuple[int | None, ...]  # right answers to each; None if nothing says so
    tokens: int  # of all answers
    seconds: float  # of sampling and scoring


def probe(
    config: RunConfig, control: Control, *, folder: Path, prompts: int, samples: int,
    temperatures: Sequence[float],
) -> Iterator[Event | PromptsProbed]:  # fmt: skip
    """Sample answers to the first training prompts, at each temperature, a few at a time."""
    with ExitStack() as stack:
        tasks = load_tasks(config, NO_OBJECTS)
        count = min(prompts, sum(len(task.task.train) for task in tasks))
        size = max(1, config.rollout.rows // samples)
        run = yield from load_run(config, control, folder, stack, tasks, 0)
        yield from take_rates(run)
        examples = list({example.key: example for example in Drawing(run).take(count)}.values())
        for temperature in temperatures:
            sampling = replace(run.sampling, temperature=temperature)
            for start in range(0, len(examples), size):
                if is_stopping(run):
                    return
                begun = run.clock.now()
                groups = yield from sample_and_score(run, 0, SampleRequest(
                    examples=examples[start : start + size], sampling=sampling, rows=samples,
                    first=start, origin="eval",
                ))  # fmt: skip
                yield PromptsProbed(
                    temperature=temperature,
                    keys=tuple(group.example.key for group in groups),
                    rewards=tuple(tuple(group.totals) for group in groups),
                    right=tuple(group.right.count(group.scores) for group in groups),
                    tokens=sum(len(rollout.ids) for group in groups for rollout in group.rollouts),
                    seconds=run.clock.now() - begun,
                )  # fmt: skip


def merged(parts: Sequence[PromptsProbed]) -> list[PromptsProbed]:
    """One for each temperature, in the order that they were tried."""
    result: dict[float, PromptsProbed] = {}
    for part in parts:
        before = result.get(part.temperature)
        result[part.temperature] = part if before is None else replace(
            before,
            **{name: getattr(before, name) + getattr(part, name)
               for name in ("keys", "rewards", "right", "tokens", "seconds")},
        )  # fmt: skip
    return list(result.values())


def sizes_of(config: RunConfig, samples: int) -> list[int]:
    """The group sizes to report: powers of 2, and the run's own."""
    return sorted({2**n for n in range(1, 9) if 2**n <= samples} | {config.rollout.group_size})


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAt:
    """What a group size would give."""

    group_size: int
    share: float  # of the prompts that would have a signal
    interval: Interval
    seconds: float  # of sampling and scoring a step


def signals(probed: PromptsProbed, sizes: Sequence[int], prompts: int) -> list[SignalAt]:
    """The share of prompts with a signal at each group size; a step has this many prompts."""
    scored = [[reward for reward in rewards if reward is not None] for rewards in probed.rewards]
    answers = sum(map(len, probed.rewards))
    result = []
    for size in sizes:
        chances = [signal_at_k(rewards, size) for rewards in scored if len(rewards) >= size]
        if chances:
            result.append(
                SignalAt(
                    group_size=size, share=sum(chances) / len(chances),
                    interval=bootstrap(chances), seconds=probed.seconds / answers * prompts * size,
                )
            )  # fmt: skip
    return result


def recommended(results: Sequence[SignalAt]) -> SignalAt | None:
    """The first, so smallest, group size where enough prompts have a signal; None without one."""
    return next((signal for signal in results if signal.share >= ENOUGH), None)


def pass_rates(probed: PromptsProbed) -> dict[str, float]:
    """The share of right answers to each prompt, where something says which are right."""
    answers = len(probed.rewards[0])
    counts = zip(probed.keys, probed.right, strict=True)
    return {key: count / answers for key, count in counts if count is not None}


def to_json(probed: PromptsProbed, results: Sequence[SignalAt]) -> dict[str, Any]:
    """The findings at one temperature as JSON values."""
    best, answers = recommended(results), len(probed.rewards[0])
    rates = pass_rates(probed)
    return {
        "temperature": probed.temperature, "prompts": len(probed.keys), "answers": answers,
        "tokens": probed.tokens, "seconds": probed.seconds,
        "pass_rates": rates or None,
        "group_sizes": [
            {"group_size": signal.group_size, "share": signal.share, "low": signal.interval[0],
             "high": signal.interval[1], "seconds": signal.seconds}
            for signal in results
        ],
        "recommended": best.group_size if best else None,
    }  # fmt: skip


BINS = 10


def histogram(rates: Sequence[float]) -> list[tuple[str, int]]:
    """How many prompts have which pass rate; those that are always or never right apart."""
    counts = [0] * BINS
    for rate in rates:
        if 0 < rate < 1:
            counts[min(BINS - 1, int(rate * BINS))] += 1
    rows = [("never", sum(rate == 0 for rate in rates))]
    rows += [(f"{n * BINS} to {(n + 1) * BINS}%", count) for n, count in enumerate(counts)]
    return [*rows, ("always", sum(rate == 1 for rate in rates))]
