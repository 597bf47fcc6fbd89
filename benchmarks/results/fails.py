"""Runs that fail in four ways, and what Watch, the alerts and `grpo-tui audit` say of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.results.experiment import Experiment
from benchmarks.results.measured import Measured, table
from benchmarks.results.starter import ARITHMETIC
from benchmarks.results.training import ROOT
from grpo_engine.events import AlertRaised, EvaluationFinished, StepFinished
from grpo_tui.app.feed.run_state import RunState
from grpo_tui.app.feed.snapshot import Head
from grpo_tui.app.text.findings import audit
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.values import RunSummary

PAGE = 500  # events that are read at a time
TEACHER = "fails-teacher-1:80"  # the first run of a setting of this experiment, at its last step
NAMES = {
    "hacked": "hacked: being short pays four times being right",
    "collapse": "collapse: learning rate .02",
    "no-signal": "no signal: only `\\boxed{` pays, which never comes",
    "far-teacher": "far teacher: it would give none of the answers",
}
TEXT = """\
The starter as above, in four ways that do not work; the far teacher was trained by `sft` to repeat
the problem. Beside what was said are the steps at which the seeds said it first; what one alone
said is left out. `audit` has the severity with which it ends for the first seed, and the topics
that count."""


def page(measured: Measured) -> Iterator[str]:
    """What was said of each kind of run."""
    yield TEXT
    head = ["run", "held-out accuracy", "Watch", "alerts", "`audit`"]
    yield table(head, [row(measured, setting) for setting in NAMES if setting in measured.runs])


def row(measured: Measured, setting: str) -> list[str]:
    """A kind of run: accuracy before and after, words, alerts, findings."""
    reader, runs = measured.reader, measured.runs[setting]
    last = max(run.step for run in runs)
    ends = (measured.mean(setting, "eval/accuracy", at, at) for at in (0, last))
    alerts = [{a.rule: a.first_step for a in reader.alerts(run.key)} for run in runs]
    result = audit(reader, runs[0])
    topics = dict.fromkeys(item.topic for item in result.findings if item.counts)
    return [
        NAMES[setting],
        " to ".join(ends),
        listed([labels(reader, run) for run in runs]),
        listed(alerts, "`"),
        f"{result.worst}: {', '.join(topics)}",
    ]


def labels(reader: StoreReader, run: RunSummary) -> Mapping[str, int]:
    """The words for a run's health on Watch, with the first step of each."""
    state, after, by_step = RunState(Head()), 0, dict[int, str]()
    while records := events_after(reader, run.key, after, limit=PAGE, tokens=False):
        for record in records:
            state.apply(record.event, record.at or None)
            if isinstance(record.event, StepFinished | EvaluationFinished | AlertRaised):
                by_step[record.event.step] = state.snapshot().health.label
        after = records[-1].seq
    first = {label: step for step, label in reversed(by_step.items())}
    return {
        label: first[label] for label in dict.fromkeys(by_step.values()) if label != "too early"
    }


def listed(runs: Sequence[Mapping[str, int]], mark: str = "") -> str:
    """What several runs said, the first first, with the range of the steps."""
    steps: dict[str, list[int]] = defaultdict(list)
    for name, step in (pair for run in runs for pair in run.items()):
        steps[name].append(step)
    common = sorted(
        (min(numbers), max(numbers), name) for name, numbers in steps.items() if len(numbers) > 1
    )
    return ", ".join(
        f"{mark}{name}{mark} {low}" + f"–{high}" * (high > low) for low, high, name in common
    )


EXPERIMENT = Experiment(
    title="Runs that fail",
    shared=ARITHMETIC
    | {
        "steps": 32,
        "evaluation.problems": 128,
        "evaluation.every": 8,
        "evaluation.greedy": False,
        "evaluation.pinned": 0,
    },
    settings={
        "teacher": {
            "task.name": f"{ROOT / 'benchmarks' / 'alert_answers.py'}:repeated_problem",
            "rewards.functions": [],
            "rewards.weights": [],
            "algorithm.recipe": "sft",
            "rollout.prompts": 32,
            "optimizer.learning_rate": 3e-3,
            "steps": 80,
        },
        "hacked": {
            "rewards.functions": ["numeric_answer", "length"],
            "rewards.weights": [1.0, 4.0],
            "rewards.options": {"length": {"longest": 48}},
        },
        "collapse": {"optimizer.learning_rate": 0.02},
        "no-signal": {
            "rewards.functions": ["regex", "numeric_answer"],
            "rewards.weights": [1.0, 0.0],
            "rewards.options": {"regex": {"pattern": r"\\boxed\{"}},
        },
        "far-teacher": {
            "algorithm.recipe": "distill",
            "teacher.path": TEACHER,
            "optimizer.learning_rate": 1e-4,
            "steps": 16,
        },
    },
    page=page,
)
