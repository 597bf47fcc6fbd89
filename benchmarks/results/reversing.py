"""SmolLM2-135M-Instruct reverses the words of a line: by `sft`, then by GRPO, here and in TRL."""

from collections.abc import Iterator, Mapping

from benchmarks.results.experiment import Experiment
from benchmarks.results.measured import TRL, Measured, difference, p_text, table, with_interval
from benchmarks.results.training import ROOT
from tests.smollm2 import model_folder

FILE = ROOT / "benchmarks" / "reversed_words.py"
STEPS = 20
NAMES = {"sft": "`sft`", "grpo": "GRPO after it", f"grpo{TRL}": "GRPO after it, in TRL"}
METRICS = {
    "greedy": "eval/greedy/accuracy",
    "sampled": "eval/accuracy",
    "similarity, sampled": "eval/rewards/similarity",
}
TEXT = """\
Lines of three to five words of a story: the right answer to `Reverse the order of the words: the
great hall` is `hall great the`. Of 2,174 lines 96 are held out. `sft` shows SmolLM2-135M-Instruct
20 steps of 16 lines; GRPO goes on from the weights of its first seed with 20 steps of 4 lines x 8
answers, LoRA of rank 16, a beta of .04 and a learning rate of 2e-4. It is rewarded with the share
of words in common with the right answer, in order, and with 1 for the right answer itself."""


def page(measured: Measured) -> Iterator[str]:
    """Each training: held-out accuracy before and after it, and what that took."""
    yield TEXT
    head = ["", "", *METRICS, "KL, last 5 steps", "processor s"]
    names = [name for name in NAMES if name in measured.runs]
    yield table(head, [line for name in names for line in rows(measured, name, METRICS)])
    yield from gain(measured)
    if f"grpo{TRL}" not in names:
        yield "Not trained by TRL yet."
        return
    for mode in ("greedy", "sampled"):
        test = measured.test(mode, "grpo", f"grpo{TRL}")
        yield f"TRL minus here, {mode}, in points: {difference(test)}, p {p_text(test.p_value)}."


def rows(measured: Measured, setting: str, metrics: Mapping[str, str]) -> Iterator[list[str]]:
    """The values of held-out metrics before and after a training."""
    last = max(run.step for run in measured.runs[setting])
    before, after = (
        [measured.mean(setting, metric, step, step) for metric in metrics.values()]
        for step in (0, last)
    )
    yield [NAMES[setting], "before", *before, "", ""]
    kl = measured.mean(setting, "kl", last - 4, last)
    yield ["", "after", *after, kl, measured.total(setting, "time/processor")]


def gain(measured: Measured) -> Iterator[str]:
    """What GRPO added to held-out accuracy, seed by seed, once it has been trained."""
    if "grpo" not in measured.runs:
        return
    last = max(run.step for run in measured.runs["grpo"])
    texts = []
    for mode, metric in (("greedy", "eval/greedy/accuracy"), ("sampled", "eval/accuracy")):
        before, after = (measured.values("grpo", metric, step, step) for step in (0, last))
        gains = [end - start for start, end in zip(before, after, strict=True)]
        texts.append(f"{mode} {with_interval(gains)}")
    yield f"What GRPO added: {', '.join(texts)}."


EXPERIMENT = Experiment(
    title="Real text: SmolLM2-135M-Instruct, `sft` and then GRPO",
    model=model_folder,
    shared={
        "task.name": f"{FILE}:lines",
        "task.held_out_size": 96,
        "rewards.functions": [f"{FILE}:similarity", "exact_answer"],
        "evaluation.accuracy": "exact_answer >= 1",
        "rollout.max_new_tokens": 20,
        "rollout.group_size": 8,
        "model.lora_rank": 16,
        "task.bad_rows": "skip",
        "checkpoint.every": 0,
        "evaluation.problems": 96,
        "record.tokens": "none",
    },
    settings={
        "sft": {
            "algorithm.recipe": "sft",
            "rewards.functions": [],
            "rollout.prompts": 16,
            "optimizer.learning_rate": 1e-3,
            "steps": STEPS,
        },
        "grpo": {
            "algorithm.beta": 0.04,
            "rollout.prompts": 4,
            "optimizer.learning_rate": 2e-4,
            "steps": STEPS,
        },
    },
    starts={"grpo": "sft"},
    in_trl=("grpo",),
    page=page,
)
