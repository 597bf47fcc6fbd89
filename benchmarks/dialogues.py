"""Tokens per second of dialogues: with instant replies, with slow ones, and of programs that ask.

    python -m benchmarks.dialogues MODEL [--rows 64] [--turns 4] [--answer 16] [--rounds 2]

Nearly all answers have the same length, so all rows wait at once and none can be decoded meanwhile.
The time has the begin and the end of the environments in it, and so the start of the programs.
"""

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from grpo_engine.config.parse import build
from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.environments.client import EnvironmentClient, Episode
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.dialogue import Dialogues
from grpo_engine.rollouts.row import THINK_END
from grpo_engine.rollouts.types import PromptRows, Sampling
from grpo_engine.tasks.base import Task

PROMPT, REPLY = 64, 10  # tokens
ENVIRONMENT = """
import random, time
from grpo_engine.environments.protocol import Reply

class Waits:
    def reset(self, row, seed, index):
        self.random, self.left, self.most = random.Random(index), row["turns"], row["most"]

    def step(self, answer):
        time.sleep(self.random.uniform(0, self.most))
        self.left -= 1
        return Reply([{"role": "user", "content": "and?"}], done=not self.left)
"""
PROGRAM = """
import json, os, sys
from urllib.request import Request, urlopen

row, messages = json.load(sys.stdin), [{"role": "user", "content": "and?"}]
for turn in range(row["turns"]):
    data = json.dumps({"messages": messages}).encode()
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data, key)) as reply:
        messages.append(json.load(reply)["choices"][0]["message"])
    messages.append({"role": "user", "content": "and?"})
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one batch of dialogues took."""

    tokens: int
    seconds: float
    processor: float  # seconds of this process
    waited: float  # seconds in which no row could be decoded


def measure(
    policy: Policy, pool: EnvironmentClient, most: float, options: argparse.Namespace
) -> Measured:
    """Sample one batch of dialogues with replies that take up to `most` seconds."""
    dice = random.Random(0)
    ids = tuple(dice.randrange(3, policy.vocabulary) for _ in range(PROMPT + REPLY))
    end = len(policy.tokenizer.encode(THINK_END, add_special_tokens=False))
    sampling = Sampling(
        max_new_tokens=options.turns * options.answer + 1,
        ignore_end=True,
        stop=(THINK_END,),
        think_budget=options.answer - end,
    )
    row = {"turns": options.turns, "most": most}
    begun, used = time.perf_counter(), time.process_time()
    pool.begin([Episode(environment="", row=row, seed=0, index=i) for i in range(options.rows)])
    dialogues = Dialogues(
        episodes=pool, tokens=lambda *_: ids[PROMPT:], end_token=None, max_turns=options.turns
    )
    prompt = PromptRows(key="p", group=0, ids=ids[:PROMPT], rows=options.rows)
    drawing = sample_groups(policy, [prompt], sampling, seed=0, step=1, dialogues=dialogues)
    try:
        while True:
            next(drawing)
    except StopIteration as ended:
        rollouts = ended.value
    pool.finish([False] * options.rows)
    seconds = time.perf_counter() - begun
    tokens = sum(rollout.length for rollout in rollouts)
    return Measured(tokens, seconds, time.process_time() - used, dialogues.waited)


def main() -> None:
    """Print a line per round, instant and slow in turn."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--answer", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--most", type=float, default=0.5, help="seconds of the slowest reply")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    blas.set_threads(blas.ensure().threads)
    policy = load_policy(ModelConfig(path=options.model), seed=0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "waits.py").write_text(ENVIRONMENT)
        (Path(folder) / "program.py").write_text(PROGRAM)
        waits, programs = (
            build({"task": {"environment": name}, "rewards": {"time_limit": 60}})
            for name in (f"{folder}/waits.py:Waits", f"agent: python {folder}/program.py")
        )
        task = Task(name="dialogues", train=())
        with (
            EnvironmentClient(waits, task, Path(folder)) as pool,
            EnvironmentClient(programs, task, Path(folder)) as agents,
        ):
            print("| replies | tokens/s | s | s waited | processor s | of instant |")
            for _ in range(options.rounds):
                instant = measure(policy, pool, 0.0, options)
                slow = measure(policy, pool, options.most, options)
                program = measure(policy, agents, 0.0, options)
                for name, result in (("instant", instant), ("slow", slow), ("programs", program)):
                    share = result.tokens / result.seconds / (instant.tokens / instant.seconds)
                    print(
                        f"| {name} | {result.tokens / result.seconds:.0f} | {result.seconds:.1f} "
                        f"| {result.waited:.2f} | {result.processor:.1f} | {share:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
