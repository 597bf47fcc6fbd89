"""SmolLM2-135M-Instruct solves countdown, and sums of reasoning-gym: by `sft`, then by GRPO."""

from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import Any

from benchmarks.results.experiment import Experiment
from benchmarks.results.measured import Measured, table
from benchmarks.results.reversing import gain, rows
from benchmarks.results.training import ROOT
from tests.smollm2 import model_folder

FILE = ROOT / "benchmarks" / "solved_problems.py"
SFT_STEPS, GRPO_STEPS = 8, 12
METRICS = {"greedy": "eval/greedy/accuracy", "sampled": "eval/accuracy"}
TRAINING = (
    f"`sft` shows SmolLM2-135M-Instruct {SFT_STEPS} steps of 16 solved problems; GRPO goes on from "
    f"the weights of its first seed with {GRPO_STEPS} steps of 4 problems x 8 answers, LoRA of "
    "rank 16, a beta of .04 and a learning rate of 3e-4, and is rewarded for right answers alone. "
    "64 problems are held out."
)


def experiment(
    title: str, text: str, generator: str, options: Mapping[str, Any], reward: str
) -> Experiment:
    """`sft` on solved problems of a generator, then GRPO with its own reward."""

    def page(measured: Measured) -> Iterator[str]:
        yield fill(f"{text} {TRAINING}", 100, break_on_hyphens=False)
        yield table(
            ["", "", *METRICS, "KL, last 5 steps", "processor s"],
            [line for name in measured.runs for line in rows(measured, name, METRICS)],
        )
        yield from gain(measured)

    return Experiment(
        title=title,
        model=model_folder,
        shared={
            "task.name": f"{FILE}:solved",
            "task.options": {"generator": generator, "options": dict(options)},
            "task.held_out_size": 64,
            "rewards.functions": [reward],
            "evaluation.accuracy": f"{reward} >= 1",
            "evaluation.problems": 64,
            "rollout.max_new_tokens": 14,
            "rollout.group_size": 8,
            "model.lora_rank": 16,
            "checkpoint.every": 0,
            "record.tokens": "none",
        },
        settings={
            "sft": {
                "algorithm.recipe": "sft",
                "rollout.prompts": 16,
                "optimizer.learning_rate": 1e-3,
                "steps": SFT_STEPS,
            },
            "grpo": {
                "algorithm.beta": 0.04,
                "rollout.prompts": 4,
                "optimizer.learning_rate": 3e-4,
                "steps": GRPO_STEPS,
            },
        },
        starts={"grpo": "sft"},
        page=page,
    )


COUNTDOWN = experiment(
    "Countdown: SmolLM2-135M-Instruct",
    "Countdown with two numbers up to 20 and `+-*`: a right answer to `Using each of 13 and 18 "
    "exactly once, write an expression that equals 5.` is `18 - 13`.",
    "countdown",
    {"numbers": 2, "largest": 20, "operators": "+-*"},
    "countdown",
)
SUMS = experiment(
    "A task of reasoning-gym: SmolLM2-135M-Instruct",
    "`chain_sum` with two numbers of one or two digits: the right answer to `State the "
    "final answer to the following arithmetic problem: 24 - 7 =` is `17`.",
    "reasoning-gym:chain_sum",
    {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "gym_score",
)
