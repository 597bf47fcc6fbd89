"""The recipes that learn from sampled answers and their rewards, on the starter."""

from collections.abc import Iterator

from benchmarks.results.experiment import Experiment
from benchmarks.results.measured import Measured, difference, table
from benchmarks.results.starter import ARITHMETIC, LAST, STEPS

# The baseline first. Not here are `distill`, `sft` and `grpo-process`, which learn from a teacher,
# from given answers and from rewards for each equation, and `grpo-iterative`, which is `grpo` until
# step 50.
RECIPES = (
    "grpo",
    "reinforce",
    "dr-grpo",
    "dapo",
    "gspo",
    "cispo",
    "rloo",
    "ppo",
    "reinforce-baseline",
    "sapo",
    "bnpo",
    "vespo",
    "luspo",
    "grpo-sequence",
    "off-policy",
    "how-much",
)
GOAL = ".8"
TEXT = """\
As above with LoRA, each recipe with its own settings but one learning rate, 7e-4; 256 held-out
problems, sampled. Differences are to `grpo`; steps to an accuracy are the median of the seeds."""
ADVICE = """\
Take `grpo` unless you have a reason: only the last four differ from it for sure, and are worse.
What tells the others apart is how many updates a step has: `dapo`, `luspo` and `vespo` make four,
and reach the accuracy in about half of the steps and in less processor time. They also move further
from the reference; how far differs most between seeds. `gspo` makes four as well, but clips so
tightly that they add little. With one update the ratio is 1, and clipping has nothing to do:
`grpo`, `dr-grpo`, `cispo`, `bnpo`, `sapo` and `rloo` differ only in how they scale advantages and
weigh answers, and end alike. Without a baseline, `reinforce` is the last of these. Of the last
four, `ppo` learns its value head from nothing, `grpo-sequence` samples with weights that are up to
ten steps old, and `off-policy` and `how-much` make four and eight passes without a clipped ratio.
All had one learning rate and short answers with exact rewards: try a few rates on your own task.
Three seeds show differences of five points; ask smaller questions with more."""


def page(measured: Measured) -> Iterator[str]:
    """The recipes from best to worst."""
    yield TEXT
    ranking = measured.ranking("sampled", reach=GOAL)
    assert ranking is not None
    rows = []
    for item in ranking.settings:
        name = measured.setting_of(item.own.runs)
        goal, seconds = item.reached.step, "time/processor"
        rows.append(
            [
                f"`{name}`",
                "never" if goal is None else f"{goal:g}",
                measured.mean(name, "eval/accuracy", STEPS, STEPS),
                difference(item.test) if item.test else "",
                measured.mean(name, "entropy", *LAST),
                measured.mean(name, "kl", *LAST),
                measured.total(name, seconds),
                "" if goal is None else measured.total(name, seconds, goal),
            ]
        )
    head = ["recipe", f"steps to {GOAL}", "accuracy", "difference", "entropy", "KL"]
    head += ["processor s", f"to {GOAL}"]
    yield table(head, rows)
    if missing := [f"`{name}`" for name in RECIPES if name not in measured.runs]:
        yield f"Not trained yet: {', '.join(missing)}."
    yield ADVICE


EXPERIMENT = Experiment(
    title="Every recipe on the starter",
    shared=ARITHMETIC
    | {
        "evaluation.problems": 256,
        "evaluation.every": 5,
        "evaluation.greedy": False,
        "record.kl": True,
    },
    settings={name: {"algorithm.recipe": name} for name in RECIPES},
    page=page,
)
