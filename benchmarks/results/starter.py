"""The starter by this program and by TRL: LoRA and all weights, GRPO and TRL's defaults."""

from collections.abc import Iterator

from benchmarks.results import pictures
from benchmarks.results.experiment import Experiment
from benchmarks.results.measured import TRL, Measured, difference, p_text, table

ARITHMETIC = {
    "task.name": "arithmetic",
    "rewards.functions": ["numeric_answer", "format_all"],
    "rewards.weights": [1.0, 2.0],
    "rollout.prompts": 8,
    "rollout.group_size": 8,
    "rollout.max_new_tokens": 48,
    "optimizer.learning_rate": 7e-4,
    "optimizer.micro_rows": 64,
    "model.grad_checkpoint": "off",
    "checkpoint.every": 0,
    "record.tokens": "none",
    "steps": 40,
}
ALL_WEIGHTS = {"model.tuning": "full", "optimizer.learning_rate": 1e-4}
# TRL's defaults but for the learning rate, 1e-6, by which nothing is learned in 40 steps.
DEFAULTS = {"algorithm.beta": 0.0, "algorithm.weight": "per_token", "optimizer.schedule": "linear"}
GRPO = {"algorithm.beta": 0.04, "algorithm.passes": 2}


STEPS = 40
LAST = (STEPS - 9, STEPS)  # steps of which means are taken
NAMES = {
    "lora": "LoRA, GRPO",
    "full": "all weights, GRPO",
    "lora-defaults": "LoRA, TRL's defaults",
    "full-defaults": "all weights, TRL's defaults",
}
METRICS = {
    "greedy": ("eval/greedy/accuracy", STEPS, STEPS),
    "sampled": ("eval/accuracy", STEPS, STEPS),
    "reward": ("reward", *LAST),
    "length": ("completions/mean_length", *LAST),
    "KL": ("kl", *LAST),
    "entropy": ("entropy", *LAST),
}


def summary(measured: Measured) -> str:
    """README's table: held-out accuracy of both trainers and their difference."""
    rows = [
        [
            NAMES[setting],
            *(measured.mean(name, *METRICS["sampled"]) for name in (setting, setting + TRL)),
            difference(measured.test("sampled", setting, setting + TRL)),
        ]
        for setting in NAMES
        if setting + TRL in measured.runs
    ]
    return table(["", "here", "TRL", "difference, points"], rows)


CURVES = {
    "eval/accuracy": "held-out accuracy",
    "reward": "reward",
    "completions/mean_length": "length, tokens",
    "kl": "KL, nats a token",
    "entropy": "entropy, nats a token",
}
TEXT = """\
Sums, differences and products, 40 steps of 8 prompts x 8 answers: GRPO with a beta of .04 and two
passes; TRL's defaults but for the learning rate, which is 7e-4 with LoRA of rank 8 and 1e-4 with
all weights. TRL ran the scripts of `grpo-tui config export --to trl`, which `grpo_tui.trl.watch`
records; `grpo-tui eval` scored its trained weights on the same 512 held-out problems, with the same
noise. Reward, length, KL and entropy are means of the last ten steps."""


def page(measured: Measured) -> Iterator[str]:
    """Both trainers by setting: where they ended, their difference, and their curves."""
    yield TEXT
    trained = {name: text for name, text in NAMES.items() if name in measured.runs}
    if missing := [text for name, text in NAMES.items() if name + TRL not in measured.runs]:
        yield f"Not trained by TRL yet: {'; '.join(missing)}."
    yield table(
        ["", "trainer", *METRICS],
        [
            [NAMES[setting], trainer, *cells(measured, setting + ending)]
            for setting in trained
            for trainer, ending in (("here", ""), ("TRL", TRL))
            if setting + ending in measured.runs
        ],
    )
    yield "TRL's held-out accuracy after training minus this program's, in points:"
    yield table(["", "greedy", "p", "sampled", "p"], list(differences(measured)))
    yield pictures.drawn("starter", measured, trained, {"": "here", TRL: "TRL"}, CURVES)


def cells(measured: Measured, setting: str) -> Iterator[str]:
    for metric, first, last in METRICS.values():
        yield measured.mean(setting, metric, first, last, digits=1 if "length" in metric else 3)


def differences(measured: Measured) -> Iterator[list[str]]:
    for setting, name in NAMES.items():
        if setting + TRL not in measured.runs:
            continue
        row = [name]
        for mode in ("greedy", "sampled"):
            test = measured.test(mode, setting, setting + TRL)
            row += [difference(test), p_text(test.p_value)]
        yield row


EXPERIMENT = Experiment(
    title="The starter, here and by TRL",
    shared=ARITHMETIC | {"evaluation.problems": 512, "evaluation.every": 10},
    settings={
        "lora": GRPO,
        "full": GRPO | ALL_WEIGHTS,
        "lora-defaults": DEFAULTS,
        "full-defaults": DEFAULTS | ALL_WEIGHTS,
    },
    in_trl=("lora", "full", "lora-defaults", "full-defaults"),
    page=page,
)
