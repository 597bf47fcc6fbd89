"""Training prompts tried before a run: how many would have a signal, and what that costs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.evaluation.statistics import Count, bootstrap, signal_at_k
from grpo_engine.events import Event
from grpo_engine.run.session import is_stopping
from grpo_engine.run.user_objects import NO_OBJECTS
from grpo_engine.setup.opening import RunContext, load_run
from grpo_engine.setup.parts import load_tasks
from grpo_engine.training.drawing import Drawing, take_rates
from grpo_engine.training.sampling import SampleRequest, sample_and_score

ENOUGH = 0.8  # share of prompts with a signal that a group size should reach


@dataclass(slots=True, kw_only=True)
class PromptsProbed:
    """The samples of some prompts at one temperature."""

    temperature: float
    keys: list[str] = field(default_factory=list)
    rewards: list[list[float | None]] = field(default_factory=list)  # by prompt and sample
    right: list[Count | None] = field(default_factory=list)  # by prompt; None if unknown
    tokens: int = 0
    seconds: float = 0.0  # sampling and scoring


def probe(
    config: RunConfig,
    control: Control,
    *,
    folder: Path,
    prompts: int,
    samples: int,
    temperatures: Sequence[float],
) -> Iterator[Event | PromptsProbed]:
    """Sample answers to the first training prompts, at each temperature, a few at a time."""
    with ExitStack() as stack:
        tasks = load_tasks(config, NO_OBJECTS)
        count = min(prompts, sum(len(task.task.train) for task in tasks))
        size = max(1, config.rollout.rows // samples)
        context = RunContext(config=config, control=control, folder=folder, stack=stack)
        run = yield from load_run(context, tasks)
        yield from take_rates(run)
        examples = list({example.key: example for example in Drawing(run).take(count)}.values())
        for temperature in temperatures:
            result = PromptsProbed(temperature=temperature)
            sampling = replace(run.sampling, temperature=temperature)
            for start in range(0, len(examples), size):
                if is_stopping(run):
                    break
                begun = run.clock.now()
                groups = yield from sample_and_score(
                    run,
                    0,
                    SampleRequest(
                        examples=examples[start : start + size],
                        sampling=sampling,
                        rows=samples,
                        first=start,
                        origin="eval",
                    ),
                )
                for group in groups:
                    result.keys.append(group.example.key)
                    result.rewards.append(list(group.totals))
                    result.right.append(group.right.count(group.scores))
                    result.tokens += sum(len(rollout.ids) for rollout in group.rollouts)
                result.seconds += run.clock.now() - begun
            if result.keys:
                yield result


def sizes_of(config: RunConfig, samples: int) -> list[int]:
    """The group sizes to report: powers of 2, and the run's own."""
    return sorted({2**n for n in range(1, 9) if 2**n <= samples} | {config.rollout.group_size})


class SignalAt(TypedDict):
    """The signal and the cost of a group size."""

    group_size: int
    share: float  # prompts with a signal
    low: float  # interval of the share
    high: float
    seconds: float  # sampling and scoring of a step


def signals(probed: PromptsProbed, sizes: Sequence[int], prompts: int) -> list[SignalAt]:
    """The share of prompts with a signal at each group size; a step has this many prompts."""
    scored = [[reward for reward in rewards if reward is not None] for rewards in probed.rewards]
    sample_seconds = probed.seconds / sum(map(len, probed.rewards))
    result = []
    for size in sizes:
        chances = [signal_at_k(rewards, size) for rewards in scored if len(rewards) >= size]
        if chances:
            low, high = bootstrap(chances)
            result.append(
                SignalAt(
                    group_size=size,
                    share=sum(chances) / len(chances),
                    low=low,
                    high=high,
                    seconds=sample_seconds * prompts * size,
                )
            )
    return result


def recommended(results: Sequence[SignalAt]) -> int | None:
    """The smallest group size where enough prompts have a signal; None without one."""
    return next((item["group_size"] for item in results if item["share"] >= ENOUGH), None)


def pass_rates(probed: PromptsProbed) -> dict[str, float]:
    """The share of right answers to each prompt, where something says which are right."""
    counts = zip(probed.keys, probed.right, strict=True)
    return {key: count[0] / count[1] for key, count in counts if count}
