"""Which alerts fire on healthy runs and which on broken ones?

    python -m benchmarks.alerts record [--folder F] [--only NAME] [--seed N]
    python -m benchmarks.alerts judge [--folder F] [--part choose|report|all] [--write]

`record` trains each case once and keeps its events in a compact file; cases that are there already
are skipped. `judge` replays the files through the alert rules, which takes seconds, so a threshold
can be tried without training. Thresholds are chosen on the even seeds and reported on the odd ones.
`--write` puts the tables into docs/alerts.md.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.presets import preset
from grpo_engine.alerts.rules import RULES
from grpo_engine.alerts.state import Alerts, Limits
from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import AlertsConfig, RunConfig
from grpo_engine.events import StepFinished, from_json

ROOT = Path(__file__).parents[1]
REWARDS = ROOT / "benchmarks" / "alert_rewards.py"
STEPS, EVERY, PROBLEMS, PROMPTS = 60, 15, 128, 8
SHORT = 32  # steps of a broken run
OF_THE_MACHINE = ("busy_machine", "slow_products")  # not of the run
KEPT = ("StepFinished", "EvaluationFinished", "AlertRaised", "StepSkipped", "RunFailed")
Metrics = dict[str, float]
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of run: what is wrong with it, and the rules of which one should say so."""

    name: str
    wrong: str = ""
    rules: tuple[str, ...] = ()
    seeds: Sequence[int] = (0, 1)
    steps: int = SHORT
    changes: Mapping[str, Any] = field(default_factory=dict)


def rewards(*functions: str, weights: Sequence[float], **options: Any) -> Tree:
    """Return the section `rewards`, with the functions of `alert_rewards` by their bare names."""
    own = REWARDS.read_text(encoding="utf-8")
    names = [f"{REWARDS}:{name}" if f"def {name}(" in own else name for name in functions]
    return {"rewards": {"functions": names, "weights": list(weights), "options": options}}


def rate(value: float) -> Tree:
    """Return the section `optimizer` with this learning rate."""
    return {"optimizer": {"learning_rate": value}}


RECIPES = (
    "dr-grpo", "dapo", "gspo", "cispo", "sapo", "bnpo", "rloo", "grpo-iterative", "grpo-sequence",
    "how-much", "ppo", "reinforce-baseline", "reinforce", "off-policy",
)  # fmt: skip
HEALTHY = (
    Case(name="grpo", seeds=range(10), steps=STEPS, changes={"algorithm": {"passes": 2}}),
    *(
        Case(name=name, steps=STEPS, changes={"algorithm": {"recipe": name}})
        for name in RECIPES
    ),
)  # fmt: skip
BROKEN = (
    Case(
        name="length reward", wrong="short answers pay more than right ones",
        changes=rewards("numeric_answer", "length", weights=(1, 4), length={"longest": 48}),
    ),
    Case(
        name="repeated tags", wrong="every tag pays, however often it is there",
        changes=rewards("numeric_answer", "repeated_tags", weights=(1, 1)),
    ),
    Case(
        name="padding", wrong="every token pays",
        changes=rewards("numeric_answer", "long", weights=(1, 1)),
    ),
    Case(
        name="conflict", wrong="one reward pays for the tags, another for leaving them out",
        changes=rewards("numeric_answer", "format_all", "no_thinking", weights=(1, 1, 1)),
    ),
    Case(
        name="one phrase", wrong="a fixed phrase pays more than the right answer",
        changes=rewards("numeric_answer", "one_phrase", weights=(1, 1)),
    ),
    Case(
        name="sign flipped", wrong="the weight of the accuracy reward is negative",
        changes=rewards("numeric_answer", "format_all", weights=(-1, 2)),
    ),
    Case(
        name="constant reward", wrong="one reward gives everything the same score",
        changes=rewards("numeric_answer", "always_one", weights=(1, 1)),
    ),
    Case(
        name="impossible", wrong="no answer can score", steps=20,
        changes=rewards("impossible", weights=(1,)),
    ),
    Case(
        name="failing reward", wrong="a reward function raises errors", steps=12,
        changes=rewards("numeric_answer", "fails", weights=(1, 1)),
    ),
    Case(
        name="huge reward once", wrong="one step pays two hundred times as much",
        changes={**rewards("numeric_answer", "huge_once", weights=(1, 1)),
                 "algorithm": {"recipe": "dr-grpo"}},
    ),
    Case(name="rate x 30", wrong="learning rate 0.02", changes=rate(0.02)),
    Case(
        name="KL explosion", wrong="learning rate 0.005 and beta 0.0001",
        changes={**rate(0.005), "algorithm": {"beta": 1e-4, "passes": 2}},
    ),
    Case(
        name="too many passes", wrong="12 passes at learning rate 0.004", steps=24,
        changes={**rate(0.004), "algorithm": {"passes": 12}},
    ),
    Case(
        name="rate / 1000", wrong="learning rate 7e-7: nothing is learned",
        changes={**rate(7e-7), "algorithm": {"passes": 2}},
    ),
    Case(
        name="beta 50", wrong="the KL penalty holds the policy where it is",
        changes={"algorithm": {"beta": 50.0, "passes": 2}},
    ),
    Case(
        name="cold", wrong="temperature 0.1: siblings are copies",
        changes={"rollout": {"temperature": 0.1}},
    ),
    Case(
        name="cut short", wrong="8 tokens are too few to answer",
        changes={"rollout": {"max_new_tokens": 8}},
    ),
    Case(
        name="four problems", wrong="trained on four problems, which it learns by heart", steps=60,
        changes={"task": {"train_size": 4}, "rollout": {"prompts": 4}},
    ),
)  # fmt: skip
CASES = HEALTHY + BROKEN


def config_of(case: Case, seed: int) -> RunConfig:
    """Return the starter's settings with the case's changes; a recipe has its own passes."""
    base = preset("starter").tree
    own = {key: value for key, value in base["algorithm"].items() if key == "recipe"}
    tree = merge({**base, "algorithm": own}, {
        "seed": seed, "steps": case.steps, "rollout": {"prompts": PROMPTS},
        "evaluation": {
            "every": EVERY, "problems": PROBLEMS, "greedy": False, "pinned": 0,
        },
        "checkpoint": {"every": 0, "best": False},
        "record": {"tokens": "none", "after_groups": 0},
    })  # fmt: skip
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
        return None if group.origin != "train" else {
            "event": "Group", "step": event.step,
            "rows": [
                [len(one.ids), one.finish, hashlib.md5(repr(one.ids).encode()).hexdigest()[:8],
                 [reward.value for reward in one.rewards]]
                for one in group.rollouts
            ],
        }  # fmt: skip
    return events.to_json(event) if events.kind_of(event) in KEPT else None


def record(case: Case, seed: int, path: Path) -> None:
    """Train one case and write its events."""
    from grpo_engine.control import Control
    from grpo_engine.trainer import run
    from grpo_engine.versions import versions

    config = config_of(case, seed)
    lines: list[Tree] = [{
        "case": case.name, "seed": seed, "versions": dict(versions()), "revision": revision(),
        "config": config.model_dump(mode="json"),
    }]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        for event in run(config, Control(), folder=Path(place) / "run"):
            if (line := compact(event)) is not None:
                lines.append(line)
    part = path.with_suffix(".part")
    with gzip.open(part, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    part.replace(path)


def revision() -> str:
    """Return the commit that runs."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout.strip()


def order() -> Iterator[tuple[Case, int]]:
    """Return the runs so that a partial set is already useful."""
    starter, *others = HEALTHY
    rest = (*BROKEN, *others)
    yield starter, 0
    yield from ((case, 0) for case in rest)
    yield from ((starter, seed) for seed in starter.seeds[1:])
    yield from ((case, seed) for case in rest for seed in case.seeds[1:])


def record_all(folder: Path, only: Sequence[str], seeds: Sequence[int]) -> None:
    """Record what is missing."""
    from grpo_engine.platform import blas

    blas.ensure()
    folder.mkdir(parents=True, exist_ok=True)
    for case, seed in order():
        path = path_of(folder, case, seed)
        wanted = (not only or case.name in only) and (not seeds or seed in seeds)
        if wanted and not path.exists():
            begun = time.monotonic()
            record(case, seed, path)
            print(f"{case.name} {seed}: {time.monotonic() - begun:.0f} s", flush=True)


# What a healthy run's metrics become where something is simulated, from step `LATE` on.
LATE = 25
Simulated = tuple[str, tuple[str, ...], Callable[[Metrics], Metrics]]
GAP = "sampling/sampling_logp_difference"
SIMULATED: Mapping[str, Simulated] = {
    "slow reward": (
        "reward functions take four fifths of a step", ("reward_slow",),
        lambda m: {"time/score": 4 * m["step_time"], "step_time": 5 * m["step_time"]},
    ),
    "slow machine": (
        "a step takes three times as long", ("step_time_doubled",),
        lambda m: {"step_time": 3 * m["step_time"]},
    ),
    "memory": (
        "a step needs 95 % of the memory", ("memory_near_limit",),
        lambda _: {"memory/peak_gb": 0.95 * MEMORY},
    ),
    "sampler mismatch": (
        "sampler and trainer differ by 0.01 nats a token", ("sampler_disagrees",),
        lambda _: {f"{GAP}/mean": 0.01, f"{GAP}/max": 0.4},
    ),
    "many masked": (
        "importance correction leaves out 40 % of the tokens", ("many_masked",),
        lambda _: {"sampling/masked_ratio": 0.4},
    ),
}  # fmt: skip
MEMORY = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A recorded run with the first step of every alert that it raises."""

    case: str
    seed: int
    wrong: str
    rules: tuple[str, ...]
    fired: Mapping[str, int]
    accuracy: tuple[float, float]

    @property
    def noticed(self) -> bool:
        """Whether one of the rules that know this fault fired."""
        return any(rule in self.fired for rule in self.rules)


def read(path: Path) -> tuple[Tree, list[Tree]]:
    """Return the head and the events of a recorded run."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head, *lines = map(json.loads, file)
    return head, lines


def limits_of(config: RunConfig) -> Limits:
    """Return what the rules know about a run of the starter."""
    recipe = config.algorithm.resolved()
    names = [name.rpartition(":")[2] for name in config.rewards.functions]
    return Limits(
        updates_per_step=recipe.passes * recipe.minibatches,
        has_bounds=recipe.trust == "clip",
        accuracy="numeric_answer" if "numeric_answer" in names else None,
        weights=dict(zip(names, config.rewards.weights, strict=True)),
        memory_gb=MEMORY,
        thresholds=AlertsConfig(),
    )


def replay(
    head: Tree, lines: Sequence[Tree], change: Callable[[Metrics], Metrics] | None = None,
    *, between: bool = True,
) -> dict[str, int]:  # fmt: skip
    """Return the first step of every alert; without `between`, only the ends are evaluated."""
    alerts = Alerts(limits_of(build(head["config"])))
    fired: dict[str, int] = {}
    for line in lines:
        if line["event"] == "AlertRaised":
            if line["rule"] not in RULES and line["rule"] not in OF_THE_MACHINE:
                fired.setdefault(line["rule"], line["step"])
            continue
        if line["event"] not in ("StepFinished", "EvaluationFinished"):
            continue
        if not between and line.get("moment") == "during":
            continue
        event = from_json(line)
        if change is not None and isinstance(event, StepFinished) and event.step >= LATE:
            event = replace(event, metrics={**event.metrics, **change(dict(event.metrics))})
        for alert in alerts.observe(event):
            fired.setdefault(alert.rule, alert.step)
    return fired


def judge_all(folder: Path, *, between: bool) -> list[Judged]:
    """Replay every recorded run through the rules."""
    found = []
    for case in CASES:
        for seed in case.seeds:
            if not (path := path_of(folder, case, seed)).exists():
                continue
            head, lines = read(path)
            tried = [line["metrics"]["eval/accuracy"] for line in lines
                     if line["event"] == "EvaluationFinished"
                     and "eval/accuracy" in line["metrics"]]  # fmt: skip
            ends = (tried[0], tried[-1]) if tried else (math.nan, math.nan)
            fired = replay(head, lines, between=between)
            found.append(Judged(case=case.name, seed=seed, wrong=case.wrong, rules=case.rules,
                                fired=fired, accuracy=ends))  # fmt: skip
            if case is HEALTHY[0] and seed < 2:
                for name, (wrong, rules, change) in SIMULATED.items():
                    fired = replay(head, lines, change, between=between)
                    found.append(Judged(case=name, seed=seed, wrong=f"simulated: {wrong}",
                                        rules=rules, fired=fired, accuracy=ends))  # fmt: skip
    return found


def main() -> None:
    """Record or judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("record", "judge"))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parser.add_argument("--folder", type=Path, default=Path(cache) / "grpo-tui" / "alerts")
    parser.add_argument("--only", action="append", default=[], help="a case by name")
    parser.add_argument("--ends", action="store_true", help="as if evaluated at the ends only")
    parser.add_argument("--seed", action="append", type=int, default=[])
    asked = parser.parse_args()
    if asked.verb == "record":
        record_all(asked.folder, asked.only, asked.seed)
        return
    for run in judge_all(asked.folder, between=not asked.ends):
        mark = "healthy" if not run.wrong else "noticed" if run.noticed else "MISSED"
        print(f"{run.case:18} {run.seed} {mark:8} {run.accuracy[0]:.2f} {run.accuracy[1]:.2f} "
              f"{dict(run.fired)}")  # fmt: skip


if __name__ == "__main__":
    main()
