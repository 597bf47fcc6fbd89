"""Beta and learning rate crossed, and one more value of rank and of group size, on the starter."""

from collections.abc import Iterator

from benchmarks.results.experiment import Experiment
from benchmarks.results.measured import Measured, difference, p_text, table
from benchmarks.results.starter import ARITHMETIC, STEPS

TEXT = """\
How to decide with this program: `grpo-tui compare` on a sweep. The baseline is GRPO with LoRA of
rank 8, 8 answers to a prompt, a beta of .04 and a learning rate of 7e-4; 256 held-out problems."""
CROSSED = ("base", "beta-0", "slow", "beta-0-slow")
SLOW = {"optimizer.learning_rate": 2e-4}
NO_KL = {"algorithm.beta": 0.0}


def page(measured: Measured) -> Iterator[str]:
    """Each setting beside the baseline, and what the two crossed ones change on average."""
    yield TEXT
    ranking = measured.ranking("sampled")
    assert ranking is not None
    rows = []
    for item in ranking.settings:
        name = measured.setting_of(item.own.runs)
        accuracy = measured.mean(name, "eval/accuracy", STEPS, STEPS)
        test = difference(item.test) if item.test else ""
        rows.append([name, accuracy, test, measured.total(name, "time/processor")])
    yield table(["setting", "accuracy", "difference", "processor s"], rows)
    crossed = measured.ranking("sampled", *filter(measured.runs.__contains__, CROSSED))
    if crossed and crossed.effects:
        yield "Averaged over the values of the other setting:"
        rows = [
            [f"`{effect.path}` {effect.value:g}", difference(effect), p_text(effect.p_value)]
            for effect in crossed.effects
        ]
        yield table(["", "difference", "p"], rows)


EXPERIMENT = Experiment(
    title="Deciding on settings",
    shared=ARITHMETIC
    | {"evaluation.problems": 256, "evaluation.every": 10, "evaluation.greedy": False},
    settings={
        "base": {},
        "beta-0": NO_KL,
        "slow": SLOW,
        "beta-0-slow": NO_KL | SLOW,
        "rank-2": {"model.lora_rank": 2},
        "rank-32": {"model.lora_rank": 32},
        "group-4": {"rollout.group_size": 4, "optimizer.micro_rows": 32},
        "group-16": {"rollout.group_size": 16},
    },
    page=page,
)
