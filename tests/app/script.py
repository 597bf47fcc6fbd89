"""A realistic run as plain events, used by the tests, golden files and pictures of every screen.

The numbers are consistent: rewards follow from the answers, advantages are the standardised rewards
of a group, and means are means. Everything is generated from one seed.
"""

import dataclasses
import itertools
import math
import random
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from grpo_engine import events as ev
from grpo_tui.app.feed.feed import Feed
from grpo_tui.app.feed.snapshot import Head, Request
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.values import BoardView, TimedEvent

CONFIG = {
    "name": "calm-otter",
    "seed": 0,
    "steps": 500,
    "model": {"path": "starter", "tuning": "lora"},
    "task": {"name": "arithmetic"},
    "rollout": {"prompts": 8, "group_size": 8, "max_new_tokens": 64, "temperature": 1.0},
    "algorithm": {"recipe": "grpo", "passes": 2, "clip_low": 0.2, "clip_high": 0.2, "beta": 0.04},
    "optimizer": {"learning_rate": 1e-4},
    "rewards": {"functions": ["accuracy", "format"], "weights": [1.0, 0.1]},
}
FIRST_WALL_TIME = 1_700_000_000.0


def algorithm(**changes: object) -> dict[str, object]:
    """The scripted run's algorithm with other settings."""
    return {**CONFIG["algorithm"], **changes}  # type: ignore[dict-item]  # CONFIG holds kinds mixed


@dataclass(frozen=True, slots=True)
class Script:
    """The length of the scripted run and the size of its groups."""

    steps: int = 212
    total_steps: int = 500
    prompts: int = 8
    group: int = 8
    seed: int = 7
    progress: bool = True
    finished: bool = False
    answers_of_last: int = 10**9
    slices: int = 2  # of a step's answers, an event each

    def events(self) -> Iterator[ev.Event]:
        """The whole run; steps are counted from 1."""
        return iter(_made_once(self))

    def made(self) -> Iterator[ev.Event]:
        rng = random.Random(self.seed)
        yield started(self.total_steps)
        yield ev.ModelLoaded(
            step=0,
            path="starter",
            parameters=1_853_440,
            trainable=147_456,
            dtype="float32",
            seconds=0.4,
        )
        yield evaluation(0, 0.08, "before")
        for step in range(1, self.steps + 1):
            yield from step_events(step, rng, self)
        if self.finished:
            yield evaluation(self.steps, skill_at(self.steps), "after")
            yield ev.RunFinished(
                step=self.steps, reason="completed", summary={"reward": reward_at(self.steps)}
            )

    def sampling(self, share: float = 0.6) -> Iterator[ev.Event]:
        """The run, followed by a step in the middle of sampling."""
        yield from self.events()
        rng = random.Random(self.seed + 1)
        step = self.steps + 1
        problems = [problem(rng) for _ in range(self.prompts)]
        yield ev.PhaseStarted(step=step, phase="generate", total=self.prompts * self.group)
        yield prompts_started(step, problems, self.group)
        answers = [[answer(rng, p, skill_at(step)) for _ in range(self.group)] for p in problems]
        yield from progress(step, answers, share)


@cache
def _made_once(script: Script) -> tuple[ev.Event, ...]:
    return tuple(script.made())


def started(total_steps: int = 500, resumed_from: int = 0) -> ev.RunStarted:
    """The first event of the run, or of a new attempt."""
    return ev.RunStarted(
        step=resumed_from,
        config={**CONFIG, "steps": total_steps},
        total_steps=total_steps,
        resumed=resumed_from > 0,
        versions={"mlx": "0.32.4"},
        device="cpu",
        threads=2,
        dataset_fingerprint="a1b2c3",
        recipe="grpo",
    )


def skill_at(step: int) -> float:
    """The probability of a right answer: rises, with a plateau."""
    return 0.08 + 0.6 * (1 - math.exp(-step / 120))


def reward_at(step: int) -> float:
    """The expected reward: accuracy plus a tenth for the format."""
    return skill_at(step) + 0.1 * min(1.0, 0.3 + step / 40)


def problem(rng: random.Random) -> tuple[int, int]:
    """Two numbers below 100 to add."""
    return rng.randint(2, 98), rng.randint(2, 98)


def prompt_of(a: int, b: int) -> str:
    """The problem as the model sees it."""
    return f"{a} + {b} = ?"


def answer(rng: random.Random, numbers: tuple[int, int], skill: float) -> tuple[str, bool, bool]:
    """An answer's text, whether it is right, and whether it was cut off."""
    a, b = numbers
    total = a + b
    right = rng.random() < skill
    shown = total if right else total + rng.choice([-10, -2, -1, 1, 2, 10, 100])
    ways = (
        f"{a % 10}+{b % 10}={a % 10 + b % 10}, {a // 10}0+{b // 10}0={a // 10 + b // 10}0",
        f"{a}+{b // 10}0={a + b // 10 * 10}; then +{b % 10}",
        f"start at {max(a, b)} and add {min(a, b)}",
        f"{a} and {b} are both numbers and to add them I look at the tens first",
    )
    cut = not right and rng.random() < 0.15
    text = f"<think>{rng.choice(ways)}</think>"
    return (text[:-8] if cut else f"{text}<answer>{shown}</answer>"), right and not cut, cut


def prompts_started(step: int, problems: list[tuple[int, int]], rows: int) -> ev.PromptsStarted:
    """The prompts of a step."""
    return ev.PromptsStarted(
        step=step,
        prompts=tuple(
            ev.PromptStarted(
                group=i, origin="train", prompt_text=prompt_of(*p), target=str(sum(p)), rows=rows
            )
            for i, p in enumerate(problems)
        ),
    )


def progress(
    step: int, answers: list[list[tuple[str, bool, bool]]], share: float = 1.0, slices: int = 6
) -> Iterator[ev.RolloutsAdvanced]:
    """The answers as they arrive, up to a share of the longest one."""
    longest = max(len(text) for group in answers for text, _, _ in group)
    total = sum(len(group) for group in answers)
    limit = max(1, int(longest * share))
    edges = [round(limit * i / slices) for i in range(slices + 1)]
    tokens = finished = 0
    for start, end in itertools.pairwise(edges):
        rows = []
        for g, group in enumerate(answers):
            for i, (text, _, cut) in enumerate(group):
                piece = text[start:end]
                if not piece:
                    continue
                done = end >= len(text)
                finished += done
                tokens += max(1, len(piece) // 3)
                finish: ev.Finish | None = ("length" if cut else "stop") if done else None
                rows.append(
                    ev.RowDelta(
                        group=g, index=i, text=piece, tokens=max(1, len(piece) // 3), finish=finish
                    )
                )
        yield ev.RolloutsAdvanced(
            step=step,
            rows=tuple(rows),
            tokens=tokens,
            finished=finished,
            total=total,
            tokens_per_second=1412.0,
        )


def scored(
    step: int, index: int, numbers: tuple[int, int], answers: list[tuple[str, bool, bool]]
) -> ev.GroupScored:
    """A group with its rewards and standardised advantages."""
    values = [(1.0 if right else 0.0, 0.0 if cut else 1.0) for _, right, cut in answers]
    totals = [a + 0.1 * f for a, f in values]
    mean = statistics.fmean(totals)
    std = statistics.stdev(totals) if len(totals) > 1 else 0.0
    no_signal = ""
    if std == 0:
        no_signal = "all right" if values[0][0] else "all wrong"
    completions = []
    for i, ((text, _, cut), (accuracy, form), total) in enumerate(
        zip(answers, values, totals, strict=True)
    ):
        ids = tuple(range(3, 3 + max(1, len(text) // 3)))
        reason = "equals the target" if accuracy else "another number"
        completions.append(
            ev.Rollout(
                index=i,
                ids=ids,
                text=text,
                finish="length" if cut else "stop",
                reward=total,
                rewards=(
                    ev.RewardValue(name="accuracy", value=accuracy, weight=1.0, reason=reason),
                    ev.RewardValue(
                        name="format",
                        value=form,
                        weight=0.1,
                        reason="both tags found" if form else "no </think>",
                    ),
                ),
                advantage=(total - mean) / (std + 1e-4),
                sampler_logprobs=tuple(-0.3 for _ in ids),
            )
        )
    prompt = prompt_of(*numbers)
    return ev.GroupScored(
        step=step,
        group=ev.Group(
            index=index,
            origin="train",
            example_key=f"{numbers[0]}+{numbers[1]}",
            prompt_text=prompt,
            prompt_ids=(1, 2),
            prompt_hash=prompt,
            target=str(sum(numbers)),
            rollouts=tuple(completions),
            reward_mean=mean,
            reward_std=std,
            no_signal=no_signal,
            sampling={"temperature": 1.0},
        ),
    )


def step_events(step: int, rng: random.Random, script: Script) -> Iterator[ev.Event]:
    """One step from sampling to its metrics."""
    problems = [problem(rng) for _ in range(script.prompts)]
    hard = [skill_at(step) * rng.choice([0.0, 0.6, 1.0, 1.0, 1.4, 9.0]) for _ in problems]
    answers = [
        [answer(rng, p, skill) for _ in range(script.group)]
        for p, skill in zip(problems, hard, strict=True)
    ]
    rows = script.prompts * script.group
    if script.progress:
        yield ev.PhaseStarted(step=step, phase="generate", total=rows)
        yield prompts_started(step, problems, script.group)
        yield from progress(step, answers, slices=script.slices)
        yield ev.PhaseStarted(step=step, phase="score", total=rows)
    groups = [scored(step, i, p, a) for i, (p, a) in enumerate(zip(problems, answers, strict=True))]
    yield from groups
    if script.progress:
        yield ev.PhaseStarted(step=step, phase="logprobs", total=rows)
        yield ev.PhaseStarted(step=step, phase="update", total=2, detail="pass 1 of 2")
    low, high = 0.012 + 0.01 * rng.random(), 0.034 + 0.02 * rng.random()
    for index in (1, 2):
        yield ev.PassFinished(
            step=step,
            index=index,
            minibatch=1,
            loss=rng.gauss(0, 0.004),
            clip_low=low * (index - 1),
            clip_high=high * (index - 1),
            kl_to_old=0.001 * index,
            grad_norm=0.4 + 0.2 * rng.random(),
            learning_rate=1e-4,
        )
    yield ev.StepFinished(
        step=step,
        metrics=metrics(step, rng, groups, low, high),
        tokens=step * 1700,
        elapsed=step * 2.1,
    )
    dead = sum(bool(g.group.no_signal) for g in groups)
    if dead * 2 > len(groups):
        yield ev.AlertRaised(
            step=step,
            rule="no_signal",
            severity="warning",
            explanation=f"{dead} of {len(groups)} prompts give no signal.",
            remedy="Try harder or easier tasks, or dynamic sampling.",
            value=dead / len(groups),
            limit=0.5,
        )
    if step % 50 == 0:
        yield evaluation(step, skill_at(step), "during")
        yield ev.CheckpointSaved(step=step, path=f"checkpoints/{step}", best=True, seconds=0.1)


def metrics(
    step: int, rng: random.Random, groups: list[ev.GroupScored], low: float, high: float
) -> dict[str, float]:
    """The step's metrics, means over its answers where possible."""
    answers = [c for g in groups for c in g.group.rollouts]
    lengths = [len(c.ids) for c in answers]
    kl = 0.018 * (1 - math.exp(-step / 90)) + 0.002 * rng.random()
    return {
        "reward": statistics.fmean(c.reward or 0.0 for c in answers),
        "reward_std": statistics.fmean(g.group.reward_std or 0.0 for g in groups),
        "frac_reward_zero_std": statistics.fmean(bool(g.group.no_signal) for g in groups),
        "rewards/accuracy/mean": statistics.fmean(c.rewards[0].value or 0.0 for c in answers),
        "rewards/format/mean": statistics.fmean(c.rewards[1].value or 0.0 for c in answers),
        "loss": rng.gauss(0.001, 0.004),
        "kl": kl,
        "entropy": 0.9 * math.exp(-step / 300) + 0.05 * rng.random(),
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": low + high,
        "completions/mean_length": statistics.fmean(lengths),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": statistics.fmean(c.finish == "length" for c in answers),
        "grad_norm": 0.5 + 0.3 * rng.random() + (2.0 if step % 71 == 0 else 0.0),
        "learning_rate": 1e-4,
        "step_time": 2.1 + 0.2 * rng.random(),
        "time/generate": 1.2,
        "time/score": 0.1,
        "time/logprobs": 0.2,
        "time/update": 0.6,
        "tokens_per_second": 1400 + 40 * rng.random(),
        "memory/peak_gb": 1.9,
    }


def evaluation(step: int, accuracy: float, moment: str) -> ev.EvaluationFinished:
    """A held-out evaluation."""
    rows = tuple(
        ev.EvaluationSample(
            example_key=f"held-{i}",
            correct=int(i < 128 * accuracy),
            samples=1,
            rewards={"accuracy": float(i < 128 * accuracy)},
        )
        for i in range(128)
    )
    return ev.EvaluationFinished(
        step=step,
        moment=moment,  # type: ignore[arg-type]
        mode="greedy",
        problems=128,
        samples=1,
        rows=rows,
        seconds=3.0,
        metrics={"eval/accuracy": accuracy, "eval/reward": accuracy + 0.1, "eval/format": 1.0},
    )


HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07\x1b[2J",
    "[bold red]markup[/] [link=x]y[/] \\[x]",
    "\u202eright to left override\u202c \u2066isolate\u2069",
    "NUL \x00 and \x7f and \x9b31m and \ud83d",
    "👨\u200d👩\u200d👧\u200d👦 family 👍🏽 🇩🇪 ❤️ 🏳️\u200d🌈",
    "日本語の長い文章はセル幅が二つ分である" * 3,
    "e" + "\u0301" * 40 + " zalgo \u200b\u2060\ufeff invisible",
    "x" * 1_000_000,
)


def hostile_group(step: int) -> ev.GroupScored:
    """A group with hostile prompt, answers and reasons."""
    answers = [(text, i % 2 == 0, False) for i, text in enumerate(HOSTILE)]
    event = scored(step, 0, (17, 25), answers)
    prompt = "\x1b[5m" + "\u202e 17 + 25 \x00 = ?\n" * 3
    group = dataclasses.replace(event.group, prompt_text=prompt, target="\u202e42")
    return dataclasses.replace(event, group=group)


SCRIPT_SECONDS = {"generate": 1.2, "score": 0.1, "logprobs": 0.2, "update": 0.6}


class ScriptFeed(Feed):
    """A list of events played at once or in slices."""

    run = 1

    def __init__(
        self,
        events: Iterable[ev.Event],
        *,
        name: str = "calm-otter",
        at: float | None = None,
        slice_size: int = 0,
        may_control: bool = True,
    ) -> None:
        super().__init__(Head(id="k3f9", name=name))
        self._events = iter(events)
        self._board = Board()
        self._view = self._told = self._board.view
        self._at = at
        self._slice = slice_size
        self.may_control = may_control
        self.asked: list[Request] = []
        self.pinned: list[str] = []

    def facts(self) -> list[TimedEvent]:
        """The next slice of the list."""
        found: list[TimedEvent] = []
        for event in self._events:
            self._board.apply(event)
            found.append((self._at, event))
            if len(found) == self._slice:
                break
        return found

    def board(self) -> BoardView | None:
        """The board, rebuilt from the events; its phases took as long as the script says."""
        view = self._board.view
        if view is not self._view:
            seconds = {name: SCRIPT_SECONDS.get(name, 0.1) for name in view.phase_seconds}
            self._view = view
            self._told = dataclasses.replace(view, phase_seconds=seconds, phase_started=0.0)
        return self._told

    def ask(self, verb: Request) -> None:
        """Remember what was asked."""
        self.asked.append(verb)

    def pin(self, example_key: str) -> None:
        """Remember what was asked."""
        self.pinned.append(example_key)
