"""Training prompts tried before a run: how many would have a signal, and what that costs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.evaluation.statistics import Interval, bootstrap, signal_at_k
from grpo_engine.events import Event
from grpo_engine.run.session import is_stopping
from grpo_engine.setup.opening import load_run
from grpo_engine.tasks.base import draw, load_task
from grpo_engine.train.samples import SampledGroup
from grpo_engine.train.sampling import sample_and_score

ENOUGH = 0.8  # share of prompts with a signal that a group size should reach


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsProbed:
    """The scores of the answers at one temperature."""

    temperature: float
    keys: tuple[str, ...]  # of the prompts
    rewards: tuple[tuple[float | None, ...], ...]  # of the answers to each
    right: tuple[int, ...] | None  # right answers to each; None if nothing says so
    tokens: int  # of all answers
    seconds: float  # of sampling and scoring


def probe(
    config: RunConfig, control: Control, *, folder: Path, prompts: int, samples: int,
    temperatures: Sequence[float],
) -> Iterator[Event | PromptsProbed]:  # fmt: skip
    """Sample answers to the first training prompts, at each temperature."""
    with ExitStack() as stack:
        task = load_task(config.task)
        run = yield from load_run(config, control, folder, stack, task, 0, threads=1)
        examples = draw(task, config.seed, 0, min(prompts, len(task.train)))
        each = max(1, config.rollout.prompts * config.rollout.group_size // samples)
        for temperature in temperatures:
            sampling = replace(run.sampling, temperature=temperature)
            begun = run.clock.now()
            groups: list[SampledGroup] = []
            for start in range(0, len(examples), each):
                if is_stopping(run):
                    return
                groups += yield from sample_and_score(
                    run, 0, examples[start : start + each], sampling, rows=samples, first=start,
                    origin="eval",
                )  # fmt: skip
            right = run.scorer.right
            yield PromptsProbed(
                temperature=temperature,
                keys=tuple(example.key for example in examples),
                rewards=tuple(tuple(group.totals) for group in groups),
                right=tuple(right.count(group.scores) for group in groups)
                if right.function else None,
                tokens=sum(len(rollout.ids) for group in groups for rollout in group.rollouts),
                seconds=run.clock.now() - begun,
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAt:
    """What a group size would give."""

    group_size: int
    share: float  # of the prompts that would have a signal
    interval: Interval
    seconds: float  # of sampling and scoring a step


def signals(probed: PromptsProbed, sizes: Sequence[int], prompts: int) -> list[SignalAt]:
    """The share of prompts with a signal at each group size; a step has this many prompts."""
    known = [[one for one in rewards if one is not None] for rewards in probed.rewards]
    answers = sum(map(len, probed.rewards))
    found = []
    for size in sizes:
        chances = [signal_at_k(rewards, size) for rewards in known if len(rewards) >= size]
        if chances:
            found.append(
                SignalAt(
                    group_size=size, share=sum(chances) / len(chances),
                    interval=bootstrap(chances), seconds=probed.seconds / answers * prompts * size,
                )
            )  # fmt: skip
    return found


def recommended(found: Sequence[SignalAt]) -> SignalAt | None:
    """The smallest group size at which enough prompts have a signal; None if none reaches that."""
    reached = [one for one in found if one.share >= ENOUGH]
    return min(reached, key=lambda one: one.group_size) if reached else None
