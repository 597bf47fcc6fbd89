"""Which alerts fire on healthy runs and which on broken ones?

    python -m benchmarks.alerts record [--folder F] [--only NAME] [--seed N]
    python -m benchmarks.alerts judge [--folder F]

`record` trains each case once and keeps its events in a compact file; cases that are there already
are skipped. `judge` replays the files and the published runs of docs/results.md through the alert
rules, which takes a minute, so a threshold can be tried without training. Thresholds are chosen on
seed 0 of the recorded cases; the other runs say how they do.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from benchmarks.results import store
from docs.screens import SEVERAL
from grpo_engine.alerts.change import SPAN
from grpo_engine.alerts.rules import RULES, RunLimits
from grpo_engine.alerts.state import Alerts
from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.events import (
    AlertEnded,
    AlertRaised,
    EvaluationFinished,
    Event,
    RunFailed,
    StepFinished,
    from_json,
    total_reward,
)
from grpo_engine.presets import preset
from grpo_engine.run_health import HEALTH_METRICS, Evidence, Judge, Label, health
from grpo_tui.app.feed import demo
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.reader import StoreReader

ROOT = Path(__file__).parents[1]
REWARDS = ROOT / "benchmarks" / "alert_rewards.py"
ANSWERS = ROOT / "benchmarks" / "alert_answers.py"
STEPS, EVERY, PROBLEMS, PROMPTS = 60, 15, 128, 8
TEACHER_SEED = 9
MEDIUM, SHORT = 40, 32  # steps of a run with another recipe, and of a broken one
OF_THE_MACHINE = ("busy_machine", "slow_products")  # not of the run
KEPT = ("StepFinished", "EvaluationFinished", "AlertRaised", "StepSkipped", "RunFailed")
Metrics = dict[str, float]
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of run: what is wrong with it, and the rules of which one should say so.

    `teacher` and `start` are cases whose models teach and are trained on.
    """

    name: str
    wrong: str = ""
    rules: tuple[str, ...] = ()
    seeds: Sequence[int] = range(3)
    steps: int = SHORT
    teacher: "Case | None" = None
    start: "Case | None" = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def rewards(*functions: str, weights: Sequence[float], **options: Any) -> Tree:
    """Return the section `rewards`, with the functions of `alert_rewards` by their bare names."""
    source = REWARDS.read_text(encoding="utf-8")
    names = [f"{REWARDS}:{name}" if f"def {name}(" in source else name for name in functions]
    return {"rewards": {"functions": names, "weights": list(weights), "options": options}}


def rate(value: float) -> Tree:
    """Return the section `optimizer` with this learning rate."""
    return {"optimizer": {"learning_rate": value}}


RECIPES = (
    "dr-grpo",
    "dapo",
    "gspo",
    "cispo",
    "rloo",
    "how-much",
    "ppo",
    "sapo",
    "bnpo",
    "grpo-sequence",
    "grpo-process",
    "reinforce",
    "reinforce-baseline",
    "off-policy",
    "luspo",
    "vespo",
)
REPEATING: Tree = {
    "task": {"name": f"{ANSWERS}:repeated_problem"},
    "rewards": {"functions": [], "weights": []},
    "algorithm": {"recipe": "sft"},
    "rollout": {"prompts": 32},
    **rate(3e-3),
}
TRAINED = Case(name="teacher by grpo", steps=MEDIUM)
REPEATER = Case(name="teacher that repeats", steps=80, changes=REPEATING)
BEGINNER = Case(name="student that repeats", steps=15, changes=REPEATING)
DISTILL = {"algorithm": {"recipe": "distill"}}
HEALTHY = (
    Case(name="grpo", seeds=range(10), steps=STEPS, changes={"algorithm": {"passes": 2}}),
    *(
        Case(
            name=name,
            steps=MEDIUM,
            changes={"algorithm": {"recipe": name}},
            seeds=range(6 if name == "ppo" else 3),
        )
        for name in RECIPES
    ),
    # refreshes its reference at step 50
    Case(name="grpo-iterative", steps=STEPS, changes={"algorithm": {"recipe": "grpo-iterative"}}),
    Case(name="distill", steps=24, teacher=TRAINED, changes=DISTILL),
    Case(name="distill slowly", steps=24, teacher=TRAINED, changes=DISTILL | rate(1e-4)),
    Case(
        name="distill after sft",
        steps=24,
        teacher=REPEATER,
        start=BEGINNER,
        changes=DISTILL | rate(1e-4),
    ),
    Case(
        name="rewards and a teacher", teacher=TRAINED, changes={"algorithm": {"teacher_weight": 1}}
    ),
)
HACKED = ("format_hacking", "held_out_fell")
STUCK = ("duplicates", "entropy_collapse", "no_signal")
TOO_FAR = ("kl_exploding", "kl_above_limit", "reward_fell", "held_out_fell", "gradient_spike")
FAST = {"optimizer": {"learning_rate": 2e-3}, "algorithm": {"beta": 1e-3}}
BROKEN = (
    Case(
        name="length reward", wrong="short answers pay more than right ones", rules=HACKED,
        changes=rewards("numeric_answer", "length", weights=(1, 4), length={"longest": 48}),
    ),
    Case(
        name="length alone", wrong="short answers pay, right ones hardly do",
        rules=(*HACKED, "length_collapse"),
        changes=rewards("numeric_answer", "length", weights=(0.1, 4), length={"longest": 48})
        | FAST,
    ),
    Case(
        name="repeated tags", wrong="every tag pays, however often it is there", rules=HACKED,
        changes=rewards("numeric_answer", "repeated_tags", weights=(0.1, 1)) | FAST,
    ),
    Case(
        name="padding", wrong="every token pays", rules=(*HACKED, "most_truncated"),
        changes=rewards("numeric_answer", "long", weights=(0.1, 1)) | FAST,
    ),
    Case(
        name="conflict", wrong="one reward pays for the tags, another for leaving them out",
        rules=("reward_conflict",),
        changes=rewards("numeric_answer", "format_all", "no_thinking", weights=(1, 1, 1)),
    ),
    Case(
        name="one phrase", wrong="a fixed phrase pays more than the right answer",
        rules=(*HACKED, *STUCK),
        changes=rewards("numeric_answer", "one_phrase", weights=(0.3, 1)) | FAST,
    ),
    Case(
        name="sign flipped", wrong="the weight of the accuracy reward is negative", rules=HACKED,
        changes=rewards("numeric_answer", "format_all", weights=(-1, 2)),
    ),
    Case(
        name="constant reward", wrong="one reward gives everything the same score", steps=14,
        rules=("reward_constant",),
        changes=rewards("numeric_answer", "always_one", weights=(1, 1)),
    ),
    Case(
        name="impossible", wrong="no answer can score", steps=14,
        rules=("no_signal", "reward_constant"), changes=rewards("impossible", weights=(1,)),
    ),
    Case(
        name="failing reward", wrong="a reward function raises errors", steps=6,
        rules=("reward_exception",),
        changes=rewards("numeric_answer", "fails", weights=(1, 1)),
    ),
    Case(
        name="huge reward once", wrong="one step pays two hundred times as much",
        rules=("gradient_spike",), steps=28,
        changes={**rewards("numeric_answer", "huge_once", weights=(1, 1)),
                 "algorithm": {"recipe": "dr-grpo"}},
    ),
    Case(name="rate x 30", wrong="learning rate 0.02", rules=TOO_FAR, changes=rate(0.02)),
    Case(
        name="KL explosion", wrong="learning rate 0.005 and beta 0.0001", rules=TOO_FAR,
        changes={**rate(0.005), "algorithm": {"beta": 1e-4, "passes": 2}},
    ),
    Case(
        name="too many passes", wrong="12 passes at learning rate 0.004", steps=14,
        rules=("clip_too_much", *TOO_FAR),
        changes={**rate(0.004), "algorithm": {"passes": 12}},
    ),
    Case(
        name="rate / 1000", wrong="learning rate 7e-7: nothing is learned", rules=("clip_never",),
        steps=14, changes={**rate(7e-7), "algorithm": {"passes": 2}},
    ),
    Case(
        name="beta 50", wrong="the KL penalty holds the policy where it is",
        rules=("nothing_learned",),
        changes={"algorithm": {"beta": 50.0, "passes": 2}},
    ),
    Case(
        name="cold", wrong="temperature 0.1: siblings are copies", rules=STUCK,
        changes={"rollout": {"temperature": 0.1}},
    ),
    Case(
        name="cut short", wrong="8 tokens are too few to answer", rules=("most_truncated",),
        steps=14, changes={"rollout": {"max_new_tokens": 8}},
    ),
    Case(
        name="far teacher", wrong="the teacher would give none of the policy's answers",
        rules=("teacher_too_far",), steps=14, teacher=REPEATER, changes=DISTILL | rate(1e-4),
    ),
    Case(
        name="far teacher, fast", wrong="the same at learning rate 7e-4",
        rules=("teacher_too_far", *TOO_FAR), steps=24, teacher=REPEATER, changes=DISTILL,
    ),
)  # fmt: skip
CASES = HEALTHY + BROKEN


def config_of(case: Case, seed: int) -> RunConfig:
    """Return the starter's settings with the case's changes; a recipe has its own passes."""
    base = preset("starter").tree
    recipe_only = {key: value for key, value in base["algorithm"].items() if key == "recipe"}
    tree = merge(
        {**base, "algorithm": recipe_only},
        {
            "seed": seed,
            "steps": case.steps,
            "rollout": {"prompts": PROMPTS},
            "evaluation": {"every": EVERY, "problems": PROBLEMS, "greedy": False, "pinned": 0},
            "checkpoint": {"every": 0, "best_by": "none"},
            "record": {"tokens": "none"},
        },
    )
    return build(merge(tree, case.changes))


def path_of(folder: Path, case: Case, seed: int) -> Path:
    """Return the file of a recorded run."""
    return folder / f"{case.name.replace(' ', '-').replace('/', 'by')}-{seed}.jsonl.gz"


def compact(event: Any) -> Tree | None:
    """Return what the rules, or rules to come, can read of an event; None for the rest."""
    from grpo_engine import events

    if isinstance(event, events.EvaluationFinished):
        return {**events.to_json(event), "rows": []}
    if isinstance(event, events.GroupScored):
        group = event.group
        return (
            None
            if group.origin != "train"
            else {
                "event": "Group",
                "step": event.step,
                "rows": [
                    [
                        len(rollout.ids),
                        rollout.finish,
                        hashlib.md5(repr(rollout.ids).encode()).hexdigest()[:8],
                        [reward.value for reward in rollout.rewards],
                    ]
                    for rollout in group.rollouts
                ],
            }
        )
    return events.to_json(event) if events.kind_of(event) in KEPT else None


def trained(folder: Path, case: Case) -> str:
    """The last checkpoint of a model of another run, which is trained first if it is not there."""
    from grpo_engine.control import Control
    from grpo_engine.run import checkpoint
    from grpo_engine.trainer import run

    workdir = folder / case.name.replace(" ", "-")
    if not checkpoint.steps(workdir):
        for event in run(config_of(case, TEACHER_SEED), Control(), folder=workdir):
            if isinstance(event, RunFailed):
                raise SystemExit(f"{case.name}: {event.message}")
    return str(checkpoint.folder(workdir, case.steps))


def record(case: Case, seed: int, path: Path) -> None:
    """Train one case and write its events."""
    from grpo_engine.control import Control
    from grpo_engine.trainer import run
    from grpo_engine.versions import versions

    tree: Tree = {}
    if case.teacher is not None:
        tree["teacher"] = {"path": trained(path.parent, case.teacher)}
    if case.start is not None:
        tree["model"] = {"adapter": trained(path.parent, case.start)}
    config = config_of(replace(case, changes=merge(case.changes, tree)), seed)
    lines: list[Tree] = [
        {
            "case": case.name,
            "seed": seed,
            "versions": dict(versions()),
            "revision": revision(),
            "config": config.model_dump(mode="json"),
        }
    ]
    with tempfile.TemporaryDirectory() as workdir:
        for event in run(config, Control(), folder=Path(workdir) / "run"):
            if isinstance(event, RunFailed) and event.step == 0:
                raise SystemExit(f"{case.name} {seed}: {event.message}")
            if (line := compact(event)) is not None:
                lines.append(line)
    part = path.with_suffix(".part")
    with gzip.open(part, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    part.replace(path)


def revision() -> str:
    """Return the commit that runs."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def order() -> Iterator[tuple[Case, int]]:
    """Return the runs so that a partial set is already useful."""
    starter, *further = HEALTHY
    yield starter, 0
    yield from ((case, 0) for case in BROKEN)
    yield starter, 1
    yield from ((case, 0) for case in further)
    for seed in range(1, 10):
        yield starter, seed
        yield from ((case, seed) for case in (*BROKEN, *further) if seed in case.seeds)


def record_all(folder: Path, only: Sequence[str], seeds: Sequence[int]) -> None:
    """Record what is missing."""
    from grpo_engine.cpu import blas

    blas.ensure()
    folder.mkdir(parents=True, exist_ok=True)
    for case, seed in order():
        path = path_of(folder, case, seed)
        is_chosen = (not only or case.name in only) and (not seeds or seed in seeds)
        if is_chosen and not path.exists():
            begun = time.monotonic()
            record(case, seed, path)
            print(f"{case.name} {seed}: {time.monotonic() - begun:.0f} s", flush=True)


# What a healthy run's metrics become where something is simulated, from step `LATE` on.
LATE = 25
Simulated = tuple[str, tuple[str, ...], Callable[[Metrics], Metrics]]
GAP = "sampling/sampling_logp_difference"
SIMULATED: Mapping[str, Simulated] = {
    "slow reward": (
        "reward functions take four fifths of a step",
        ("reward_slow",),
        lambda m: {"time/score": 4 * m.get("step_time", 0), "step_time": 5 * m.get("step_time", 0)},
    ),
    "slow machine": (
        "a step takes three times as long",
        ("step_time_doubled",),
        lambda m: {"step_time": 3 * m.get("step_time", 0)},
    ),
    "memory": (
        "a step needs 95 % of the memory",
        ("memory_near_limit",),
        lambda _: {"memory/peak_gb": 0.95 * MEMORY},
    ),
    "swapping": (
        "memory is short, and swap grows with each step",
        ("memory_swapped",),
        lambda m: {
            "memory/swap_gb": m.get("num_tokens", 0) / 1e3,
            "memory/footprint_gb": 5.0,
            "memory/pressure": 2.0,
        },
    ),
    "sampler mismatch": (
        "sampler and trainer differ by 0.01 nats a token",
        ("sampler_disagrees",),
        lambda _: {f"{GAP}/mean": 0.01, f"{GAP}/max": 0.4},
    ),
    "learned by heart": (
        "held-out accuracy stays at 31 % while training continues",
        ("held_out_flat",),
        lambda _: {"eval/accuracy": 0.3125},
    ),
    "many masked": (
        "importance correction leaves out 40 % of the tokens",
        ("many_masked",),
        lambda _: {"sampling/masked_ratio": 0.4},
    ),
}
MEMORY = 8.0
PROCESSORS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A recorded run with the first step of every alert that it raises, and its health."""

    case: str
    seed: int
    wrong: str
    rules: tuple[str, ...]
    fired: Mapping[str, int]
    health: str
    accuracy: tuple[float, float]
    origin: str = ""

    @property
    def gained(self) -> bool:
        """Whether held-out accuracy rose by more than a twentieth."""
        return self.accuracy[1] - self.accuracy[0] > 0.05

    @property
    def in_sight(self) -> bool:
        """Whether the thresholds were chosen with this run in sight: seed 0 and the recordings."""
        return self.seed == 0 or not self.origin


def read(path: Path) -> tuple[Tree, list[Tree]]:
    """Return the head and the events of a recorded run."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head, *lines = map(json.loads, file)
    return head, lines


def limits_of(config: RunConfig) -> RunLimits:
    """Return what the rules know about a run of the starter."""
    recipe = config.algorithm.resolved()
    names = [name.rpartition(":")[2] for name in config.rewards.functions]
    return RunLimits(
        updates_per_step=recipe.passes * recipe.minibatches,
        has_bounds=recipe.trust_rule.stops_at == "bounds",
        sequence_ratio=recipe.has_sequence_ratio,
        reads_rewards=recipe.reads_rewards,
        has_teacher=bool(config.teacher.path),
        accuracy="numeric_answer" if "numeric_answer" in names else None,
        weights=dict(zip(names, config.rewards.weights or [1.0] * len(names), strict=True)),
        memory_gb=MEMORY,
        processors=PROCESSORS,
        thresholds=config.alerts,
    )


def replay(
    head: Tree,
    lines: Sequence[Tree],
    change: Callable[[Metrics], Metrics] | None = None,
    *,
    between: bool = True,
) -> tuple[dict[str, int], str]:
    """Return the first step of every alert, and the health at the end.

    Without `between`, only the ends are evaluated.
    """
    config = RunConfig.model_validate(head["config"])
    sampled = sampled_rewards(config, lines)
    events = [
        from_json(line)
        for line in lines
        if line["event"] != "Group" and (between or line.get("moment") != "during")
    ]
    return judged(config, [changed(event, change, sampled) for event in events])


def sampled_rewards(config: RunConfig, lines: Sequence[Tree]) -> dict[int, Metrics]:
    """Return the mean rewards of all sampled answers by step, those of replaced groups included."""
    names = [name.rpartition(":")[2] for name in config.rewards.functions]
    rewards: dict[int, list[Sequence[float | None]]] = {}
    for line in lines:
        if line["event"] == "Group":
            rewards.setdefault(line["step"], []).extend(row[3] for row in line["rows"])
    means: dict[int, Metrics] = {}
    for step, rows in rewards.items():
        for index, name in enumerate(names):
            values = [value for row in rows if (value := row[index]) is not None]
            if values:
                key = f"sampled/rewards/{name}/mean"
                means.setdefault(step, {})[key] = statistics.fmean(values)
        total = [total_reward(row[: len(names)], config.rewards.weights) for row in rows]
        means[step]["sampled/reward"] = statistics.fmean(v for v in total if v is not None)
    return means


def changed(
    event: Event, change: Callable[[Metrics], Metrics] | None, sampled: Mapping[int, Metrics]
) -> Event:
    """Return the event with simulated numbers: steps from `LATE` on, and all evaluations.

    Steps with replaced groups get the mean rewards of all that was sampled.
    """
    if isinstance(event, StepFinished) and event.metrics.get("groups/refilled"):
        event = replace(event, metrics={**event.metrics, **sampled.get(event.step, {})})
    if change is None or not isinstance(event, StepFinished | EvaluationFinished):
        return event
    held_out = isinstance(event, EvaluationFinished)
    if event.step < LATE and not held_out:
        return event
    new = {
        key: value
        for key, value in change(dict(event.metrics)).items()
        if key.startswith("eval/") == held_out
    }
    return replace(event, metrics={**event.metrics, **new})


def judge_all(paths: Mapping[Path, Case], *, between: bool) -> list[Judged]:
    """Replay every recorded run through the rules."""
    results = []
    for path, case in paths.items():
        head, lines = read(path)
        seed = head["seed"]
        tried = [
            line["metrics"]["eval/accuracy"]
            for line in lines
            if line["event"] == "EvaluationFinished" and "eval/accuracy" in line["metrics"]
        ]
        ends = (tried[0], tried[-1]) if tried else (math.nan, math.nan)
        origin = f"revision {head['revision']} with mlx {head['versions']['mlx']}"
        fired, label = replay(head, lines, between=between)
        judgement = Judged(
            case=case.name,
            seed=seed,
            wrong=case.wrong,
            rules=case.rules,
            accuracy=ends,
            fired=fired,
            health=label,
            origin=origin,
        )
        results.append(judgement)
        if case is HEALTHY[0] and seed < 2:
            for name, (wrong, rules, change) in SIMULATED.items():
                fired, label = replay(head, lines, change, between=between)
                results.append(
                    replace(
                        judgement,
                        case=name,
                        wrong=f"simulated: {wrong}",
                        rules=rules,
                        fired=fired,
                        health=label,
                    )
                )
    return results


def stored_events(reader: StoreReader, run: int, *, between: bool) -> Iterator[Event]:
    """Return the steps and evaluations of a stored run in their order."""
    tried = reader.evaluations(run)
    # the values of evaluations are series as well
    keys = [key for key in reader.metric_keys(run) if not key.startswith("eval/")]
    series = (reader.metric_series(run, key) for key in keys)
    values = {item.key: dict(zip(item.steps, item.values, strict=True)) for item in series}
    for step in range(max(max(steps) for steps in values.values()) + 1):
        if step:
            metrics = {key: steps[step] for key, steps in values.items() if step in steps}
            yield StepFinished(step=step, metrics=metrics, tokens=0, elapsed=0.0)
        for evaluation in tried:
            if evaluation.step == step and (between or evaluation.moment != "during"):
                yield EvaluationFinished(
                    step=step,
                    moment=evaluation.moment,
                    mode=evaluation.mode,
                    problems=evaluation.problems,
                    samples=evaluation.samples,
                    metrics=evaluation.metrics,
                    rows=(),
                    seconds=0.0,
                )


def recordings(*, between: bool) -> Iterator[Judged]:
    """Judge the starter runs that come with the program: the preset at its full size."""
    for unpack in (demo.unpack, lambda folder: demo.unpack(folder, SEVERAL)):
        with (
            tempfile.TemporaryDirectory() as workdir,
            closing(StoreReader(unpack(Path(workdir)))) as r,
        ):
            for run in r.runs():
                config = RunConfig.model_validate(r.run(run.key).config)
                name = f"recorded, beta {config.algorithm.resolved().beta:g}"
                yield of_store(r, run.key, name, between=between)


def of_store(reader: StoreReader, run: int, name: str, *, between: bool) -> Judged:
    """Judge a stored run, as a healthy one."""
    config = RunConfig.model_validate(reader.run(run).config)
    events = list(stored_events(reader, run, between=between))
    tried = [
        event.metrics["eval/accuracy"]
        for event in events
        if isinstance(event, EvaluationFinished) and event.mode == "sampled"
    ]
    fired, label = judged(config, events)
    return Judged(
        case=name,
        seed=config.seed,
        wrong="",
        rules=(),
        fired=fired,
        health=label,
        accuracy=(tried[0], tried[-1]),
    )


# What is wrong with the published runs that fail, and the rules of which one should say so.
FAILS = {
    "hacked": ("short answers pay more than right ones", HACKED),
    "collapse": ("learning rate 0.02", TOO_FAR),
    "no-signal": ("no answer can score", ("no_signal", "reward_constant")),
    "far-teacher": ("the teacher would give none of the answers", ("teacher_too_far",)),
}


def published(*, between: bool) -> Iterator[Judged]:
    """Judge the runs of docs/results.md that this program trained by rewards or by a teacher."""
    with store.opened() as path, StoreReader(path) as reader:
        for run in sorted(reader.runs(archived=True), key=lambda run: run.name):
            name, _, number = run.name.rpartition("-")
            experiment, _, setting = name.partition("-")
            settings = reader.run(run.key).config
            if "trainer" in settings or settings["algorithm"]["recipe"] == "sft":
                continue
            wrong, rules = FAILS[setting] if experiment == "fails" else ("", ())
            result = of_store(
                reader, run.key, f"published, {experiment} {setting}", between=between
            )
            yield replace(
                result, seed=int(number), wrong=wrong, rules=rules, origin="docs/results.md"
            )


def judged(config: RunConfig, events: Sequence[Event]) -> tuple[dict[str, int], str]:
    """Return the first step of every alert of a run, the engine's included, and its health."""
    alerts = Alerts(limits_of(config))
    fired: dict[str, int] = {}
    recent: dict[str, tuple[int, str]] = {}  # the last step and the explanation by rule
    for event in events:
        raised = list(alerts.observe(event))
        if isinstance(event, AlertRaised) and is_repeated(event, alerts):
            raised = [event]
        for alert in raised:
            if isinstance(alert, AlertEnded):
                last, text = recent[alert.rule]
                recent[alert.rule] = max(last, alert.step - 1), text
            else:
                fired.setdefault(alert.rule, alert.step)
                recent[alert.rule] = alert.step, alert.explanation
    return fired, health(evidence(config, events, recent)).label


def evidence(
    config: RunConfig, events: Sequence[Event], alerts: Mapping[str, tuple[int, str]]
) -> Evidence:
    """Return what the verdict on a run is made from, as a store has it at the run's end."""
    steps = [event for event in events if isinstance(event, StepFinished)]
    tried = [
        event
        for event in events
        if isinstance(event, EvaluationFinished) and event.mode == "sampled"
    ]
    names = [*steps[0].metrics, *(name for event in tried[:1] for name in event.metrics)]
    judge = Judge.of(flat(config.model_dump(mode="json")), names)
    last = steps[-1].step
    measured = [(event.step, event.metrics) for event in steps]
    measured += [(event.step, event.metrics) for event in tried]
    failures = [event.message for event in events if isinstance(event, RunFailed)]
    return Evidence.of(
        {
            "evaluation.problems": config.evaluation.problems,
            "rollout.prompts": config.rollout.prompts,
        },
        {
            name: [(step, metrics[name]) for step, metrics in measured if name in metrics]
            for name in (*HEALTH_METRICS, judge.metric)
        },
        judge=judge,
        step=last,
        active=False,
        error=failures[-1] if failures else "",
        alerts={rule: text for rule, (step, text) in alerts.items() if step >= last - SPAN},
    )


def is_repeated(alert: AlertRaised, alerts: Alerts) -> bool:
    """Whether a recorded alert is of the engine, of the run, and would be raised again."""
    if alert.rule == "refills_exhausted":
        return not alerts.is_solving(alert.step)
    return alert.rule not in {*RULES, *OF_THE_MACHINE}


def tables(between: Sequence[Judged], ends: Sequence[Judged]) -> str:
    """Return the tables as Markdown: by rule, by broken case, by healthy recipe."""
    origins = sorted({run.origin for run in between if run.origin})
    sentence = f"Recorded at {', '.join(origins)}."
    sentence += f"\n\n{counts(between)}"
    parts = (by_health(between), by_rule(between, ends), by_case(between), by_recipe(between, ends))
    return "\n\n".join([sentence, *("\n".join(part) for part in parts)])


def counts(runs: Sequence[Judged]) -> str:
    """Say in how many runs the alerts were right."""
    broken = [run for run in runs if run.wrong]
    noticed = [run for run in broken if set(run.rules) & set(run.fired)]
    others = [run for run in runs if not run.wrong]
    learned = [run for run in others if run.gained]
    alarmed = [sum(bool(run.fired) for run in part) for part in (learned, others)]
    return (
        f"A rule for their fault noticed {len(noticed)} of {len(broken)} broken runs; "
        f"{alarmed[0]} of {len(learned)} others that learned raised something, "
        f"and {alarmed[1] - alarmed[0]} of {len(others) - len(learned)} that did not."
    )


def by_health(runs: Sequence[Judged]) -> Iterator[str]:
    """Tabulate how many healthy and broken runs get each verdict."""
    yield "| verdict | healthy runs | broken runs |"
    yield "| --- | --- | --- |"
    for label in get_args(Label):
        counts = [
            sum(run.health == label and bool(run.wrong) == broken for run in runs)
            for broken in (False, True)
        ]
        yield f"| {label} | {counts[0]} | {counts[1]} |"


def by_rule(between: Sequence[Judged], ends: Sequence[Judged]) -> Iterator[str]:
    """Tabulate hits and false alarms of each rule."""
    yield (
        "| rule | hits, in sight | hits, other seeds | other broken runs | false alarms, in sight "
        "| false alarms, other seeds | all, evaluated at the ends only |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    named = {rule for run in between for rule in (*run.fired, *run.rules)}
    for rule in (*RULES, *sorted(named - set(RULES))):
        expected = [run for run in between if rule in run.rules]
        unexpected = [run for run in between if run.wrong and rule not in run.rules]
        healthy = [run for run in between if not run.wrong]
        quiet = [run for run in ends if not run.wrong]
        cells = (
            share(rule, expected, in_sight=True),
            share(rule, expected, in_sight=False),
            share(rule, unexpected),
            share(rule, healthy, in_sight=True),
            share(rule, healthy, in_sight=False),
            share(rule, quiet),
        )
        yield f"| `{rule}` | {' | '.join(cells)} |"


def share(rule: str, runs: Sequence[Judged], *, in_sight: bool | None = None) -> str:
    """Return in how many runs the rule fired: of those in sight, of the others, or of all."""
    chosen = [run for run in runs if in_sight is None or run.in_sight == in_sight]
    return f"{sum(rule in run.fired for run in chosen)} of {len(chosen)}" if chosen else ""


def by_case(runs: Sequence[Judged]) -> Iterator[str]:
    """Tabulate what each broken run raised, and when."""
    yield (
        "| broken run | seed | what is wrong | right, held out | verdict | noticed by (step) "
        "| others |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for run in runs:
        if run.wrong:
            named = [f"`{rule}` ({run.fired[rule]})" for rule in run.rules if rule in run.fired]
            also = [
                f"`{rule}` ({step})" for rule, step in run.fired.items() if rule not in run.rules
            ]
            yield (
                f"| {run.case} | {run.seed} | {run.wrong} | {percent(run)} | {run.health} "
                f"| {', '.join(named) or '**missed**'} | {', '.join(also)} |"
            )


def by_recipe(between: Sequence[Judged], ends: Sequence[Judged]) -> Iterator[str]:
    """Tabulate the healthy runs and whatever they raised."""
    yield (
        "| healthy run | seed | right, held out | verdict | raised "
        "| raised, evaluated at the ends only |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    for run, quiet in zip(between, ends, strict=True):
        if not run.wrong:
            alarms = (
                ", ".join(f"`{rule}` ({step})" for rule, step in item.fired.items())
                for item in (run, quiet)
            )
            yield (
                f"| {run.case} | {run.seed} | {percent(run)} | {run.health} "
                f"| {' | '.join(alarms)} |"
            )


def percent(run: Judged) -> str:
    """Return held-out accuracy before and after."""
    return "" if math.isnan(run.accuracy[0]) else " to ".join(f"{v:.0%}" for v in run.accuracy)


def main() -> None:
    """Record or judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("record", "judge"))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parser.add_argument("--folder", type=Path, default=Path(cache) / "grpo-tui" / "alerts")
    parser.add_argument("--only", action="append", default=[], help="a case by name")
    parser.add_argument("--seed", action="append", type=int, default=[])
    arguments = parser.parse_args()
    if arguments.verb == "record":
        record_all(arguments.folder, arguments.only, arguments.seed)
        return
    paths = {
        path: case
        for case in CASES
        for seed in case.seeds
        if (path := path_of(arguments.folder, case, seed)).exists()
    }
    markdown = tables(
        *(
            [
                *judge_all(paths, between=between),
                *recordings(between=between),
                *published(between=between),
            ]
            for between in (True, False)
        )
    )
    print(markdown)


if __name__ == "__main__":
    main()
