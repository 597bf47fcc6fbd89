"""Kills runs of the starter at random moments and checks that each resumes bit for bit.

    python -m tests.tools.kills [--kills 200] [--seed 1] [--results FILE] [--only WORD]

Ten recipes, LoRA and full, float32 and bfloat16, equally often. Every moment follows from the seed,
the case and the number of the kill, which a failure names: `--only` repeats one case. Results are
kept in a file of JSON lines, so that an interrupted run can be continued.

A run is a fork of this process, which has loaded MLX but computed nothing with it: a start takes
half as long. The run's facts, its last checkpoint and its rows in the store must be those of a run
that was never killed.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from grpo_engine.config.parse import build, merge, write_yaml
from grpo_tui.experiments.reader import StoreReader
from tests.e2e.training import TIMED, events_in, facts_by_step
from tests.experiments.made import metrics_at

STEPS = 6
LOADED = (
    "mlx_lm.models.llama",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "grpo_tui.app.cli.run_config",
    "grpo_tui.app.cli.verbs.train",
    "grpo_tui.app.jobs.headless",
    "grpo_tui.app.trial.ready",
    "grpo_tui.app.trial.service",
    "grpo_tui.experiments.record.recorder",
    "grpo_engine.tasks.arithmetic",
    "grpo_engine.trainer",
)
AGAIN = 0.25  # share of resumed runs that are killed once more
IN_SAVE = 0.4  # share of kills that are timed from the beginning of a checkpoint
SAVE_S = 0.04  # writing and flushing a checkpoint takes about half as long
REWARDS = """
def steps(completions, **_):
    texts = [messages[0]["content"] for messages in completions]
    return [[(len(text) // 2, float(len(text) % 2)), (len(text), len(set(text)) / 12)]
            for text in texts]
"""
BASE: Mapping[str, Any] = {
    "steps": STEPS,
    "seed": 3,
    "model": {"path": "starter", "lora_rank": 4},
    "task": {"train_size": 64, "held_out_size": 16},
    "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 12},
    "optimizer": {"learning_rate": 1e-3, "micro_rows": 4, "schedule": "cosine", "warmup_steps": 2},
    "evaluation": {
        "problems": 4,
        "pinned": 1,
        "pinned_every": 2,
        "every": 4,
        "before_and_after": False,
    },
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"algorithm": {"passes": 2, "minibatches": 2}},
    "grpo-iterative": {"algorithm": {"ref_refresh_every": 2}, "optimizer": {"name": "adam"}},
    "grpo-process": {"optimizer": {"name": "sgd"}},
    "grpo-sequence": {"algorithm": {"sampler_sync_every": 2}},
    "dr-grpo": {"algorithm": {"entropy_target": 1.0}, "optimizer": {"name": "lion"}},
    "dapo": {"algorithm": {"refill_rounds": 2}, "optimizer": {"name": "muon"}},
    "gspo": {},
    "rloo": {"optimizer": {"name": "adafactor"}},
    "how-much": {},
    "ppo": {"algorithm": {"passes": 2}},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One combination, and where its files are."""

    recipe: str
    tuning: str
    dtype: str
    root: Path

    @property
    def name(self) -> str:
        return f"{self.recipe}/{self.tuning}/{self.dtype}"

    @property
    def folder(self) -> Path:
        return self.root / self.name.replace("/", "-")

    def write(self) -> Path:
        """Write its settings; every second case saves after each step, the others after two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        changes: dict[str, Any] = {
            "model": {"tuning": self.tuning, "dtype": self.dtype},
            "algorithm": {"recipe": self.recipe},
            "checkpoint": {"every": 1 + (self.tuning == "full")},
        }
        if self.recipe == "grpo-process":
            rewards = self.folder / "rewards.py"
            rewards.write_text(REWARDS)
            changes["rewards"] = {"functions": [f"{rewards}:steps"]}
        settings = build(merge(merge(BASE, RECIPES[self.recipe]), changes))
        file = self.folder / "run.yaml"
        file.write_text(write_yaml(settings))
        return file


@dataclass(frozen=True, slots=True)
class Moment:
    """When a process dies: after some seconds, or some time into its n-th checkpoint."""

    seconds: float
    save: int = 0

    def __str__(self) -> str:
        if self.save:
            return f"{1e3 * self.seconds:.0f} ms into its checkpoint {self.save}"
        return f"{self.seconds:.2f} s after its start"


@dataclass(frozen=True, slots=True)
class Truth:
    """What a run that was never killed did, and how long it took."""

    facts: Mapping[int, Any]
    weights: Mapping[str, str]
    stored: Mapping[int, Any]
    seconds: float


def load_everything() -> None:
    """Import what a run imports; nothing may be computed before the fork."""
    for name in LOADED:
        import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"


def call(home: Path, words: Sequence[str], out: Path, moment: Moment | None) -> int:
    """Run the command in a fork with its own process group; kill the group at the moment."""
    home.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _be(home, words, out, moment if moment and moment.save else None)
    if moment is not None and not moment.save:
        time.sleep(moment.seconds)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be(home: Path, words: Sequence[str], out: Path, in_save: Moment | None) -> None:
    """The child: the command line in a new session. Does not return."""
    status = 70
    try:
        os.setsid()
        with out.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ |= {"GRPO_TUI_DB": str(home / "store.db"), "HOME": str(home)}
        if in_save:
            _die_in_save(in_save)
        from grpo_tui.app.cli.main import main

        status = main(words)
        sys.stdout.flush()
    finally:
        os._exit(status)


def _die_in_save(moment: Moment) -> None:
    from grpo_engine.run import checkpoint

    save: Callable[..., Any] = checkpoint.save
    left = moment.save

    def noted(*args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            threading.Timer(moment.seconds, os.killpg, (0, signal.SIGKILL)).start()
        return save(*args, **options)

    checkpoint.save = noted


def weights_of(folder: Path) -> dict[str, str]:
    """A digest of each tensor in the last checkpoint; a file's order of tensors may differ."""
    found = {}
    for file in sorted((folder / f"checkpoints/step-{STEPS:06d}").glob("*.safetensors")):
        data = file.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, facts in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = facts.pop("data_offsets")
                digest = hashlib.sha256(data[start + begin : start + end]).hexdigest()
                found[f"{file.name}:{name}"] = f"{facts} {digest}"
    return found


def stored_in(home: Path, name: str) -> tuple[str, dict[int, Any]]:
    """The run's status, and the metrics of each step in the store."""
    with closing(StoreReader(home / "store.db")) as reader:
        run = reader.resolve(name)
        return run.status, {
            view.step: {
                key: value
                for key, value in metrics_at(reader, run.key, view.step).items()
                if not key.startswith(TIMED)
            }
            for view in reader.steps(run.key)
        }


def run_folder(home: Path) -> Path:
    """The folder of the only run in a home."""
    (folder,) = (home / "runs").iterdir()
    return folder


def truth_of(case: Case) -> Truth:
    """Run the case to its end; its process starts alone, not as a fork that was killed before."""
    home, out = case.folder / "whole", case.folder / "whole.jsonl"
    begun = time.monotonic()
    status = call(home, ["train", str(case.write()), "--json", "--name", "cut"], out, None)
    assert status == 0, f"{case.name}: {out.read_text()[-3000:]}"
    return Truth(
        facts_by_step(events_in(out.read_text())),
        weights_of(run_folder(home)),
        stored_in(home, "cut")[1],
        time.monotonic() - begun,
    )


def drawn(dice: random.Random, seconds: float) -> Moment:
    """Draw a moment of death."""
    if dice.random() < IN_SAVE:
        return Moment(dice.uniform(0, SAVE_S), dice.randint(1, STEPS // 2))
    return Moment(dice.uniform(0, seconds))


def try_kill(case: Case, truth: Truth, number: int, seed: int) -> dict[str, Any]:
    """Kill a run, resume it, perhaps kill it again, and compare what it did in the end."""
    dice = random.Random(f"{seed} {case.name} {number}")
    home = case.folder / f"cut{number}"
    start = ["train", str(case.write()), "--json", "--name", "cut"]
    words, kills, wrong = start, list[str](), list[str]()
    found: dict[int, Any] = {}
    early = 0  # killed before the run was in the store
    while True:
        wanted = not kills or dice.random() < AGAIN
        moment = drawn(dice, truth.seconds) if wanted else None
        out = case.folder / f"cut{number}-{len(kills) + early}.jsonl"
        status = call(home, words, out, moment)
        text = out.read_text(errors="replace")
        for step, facts in facts_by_step(events_in(text)).items():
            found[step] = facts
            # a kill may leave out an evaluation after the step
            if facts != truth.facts[step][: len(facts)]:
                wrong.append(f"step {step} differs")
        if status == 0:
            break
        if status != -signal.SIGKILL:
            wrong.append(f"status {status}: {text[-500:]}")
            break
        stored = _status(home)
        if stored == "completed":
            break  # it was killed after its end
        if stored:
            kills.append(str(moment))
            words = ["resume", "cut", "--json"]
        else:
            early += 1
    if kills and not wrong:
        wrong += _differences(home, truth, found)
    return {
        "case": case.name,
        "number": number,
        "seed": seed,
        "kills": kills,
        "early": early,
        "wrong": wrong,
    }


def _status(home: Path) -> str:
    if not (home / "store.db").exists():
        return ""
    try:
        with closing(StoreReader(home / "store.db")) as reader:
            runs = reader.runs()
            return str(runs[0].status) if runs else ""
    except Exception:  # a store that was being made
        return ""


def _differences(home: Path, truth: Truth, found: Mapping[int, Any]) -> list[str]:
    wrong = []
    status, stored = stored_in(home, "cut")
    if status != "completed":
        wrong.append(f"the run is {status}")
    if found.get(STEPS, truth.facts[STEPS]) != truth.facts[STEPS]:
        wrong.append("the last step differs")
    if weights_of(run_folder(home)) != truth.weights:
        wrong.append("the last checkpoint differs")
    if stored != truth.stored:
        wrong.append(f"the store differs: steps {sorted(stored)}")
    if len(list((home / "runs").iterdir())) != 1:
        wrong.append("files beside the run's folder are left")
    with closing(sqlite3.connect(home / "store.db")) as conn:
        checked = conn.execute("PRAGMA integrity_check").fetchall()
    if checked != [("ok",)]:
        wrong.append(f"the store is damaged: {checked}")
    return wrong


def main(args: Sequence[str] | None = None) -> int:
    """Kill as often as asked, and print what was found; the status is 1 if anything differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="continue these results")
    parser.add_argument("--folder", type=Path, help="where the runs of failures are kept")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    chosen = parser.parse_args(args)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1"}
    load_everything()
    root = Path(tempfile.mkdtemp(prefix="kills-", dir=chosen.folder))
    results = chosen.results or root / "results.jsonl"
    done = _read(results)
    cases = [
        Case(*words, root)
        for words in product(RECIPES, ("lora", "full"), ("float32", "bfloat16"))
        if chosen.only in "/".join(words)
    ]
    each = -(-chosen.kills // len(cases))
    for case in cases:
        _try_case(case, each, chosen.seed, done, results)
    return summary(done, chosen.seed)


def _read(results: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )


def _try_case(case: Case, each: int, seed: int, done: list[dict[str, Any]], results: Path) -> None:
    mine = [one for one in done if one["case"] == case.name and one["seed"] == seed]
    kills, number, truth = sum(len(one["kills"]) for one in mine), len(mine), None
    while kills < each:
        truth = truth or truth_of(case)
        found = try_kill(case, truth, number, seed)
        done.append(found)
        with results.open("a") as file:
            file.write(json.dumps(found) + "\n")
        kills, number = kills + len(found["kills"]), number + 1
        for text in found["wrong"]:
            print(f"FAILED {case.name}, kill {number - 1} of seed {seed}: {text}", flush=True)
    print(f"{case.name}: {kills} kills", flush=True)


def summary(done: Sequence[Mapping[str, Any]], seed: int) -> int:
    """Print how many kills there were and how they ended."""
    mine = [one for one in done if one["seed"] == seed]
    kills = [kill for one in mine for kill in one["kills"]]
    failed = [one for one in mine if one["wrong"]]
    count: Counter[str] = Counter("in a checkpoint" if "into" in kill else "any" for kill in kills)
    print(
        f"{len(kills)} kills of {len(mine)} runs in {len({one['case'] for one in mine})} cases: "
        f"{count['any']} at any moment, {count['in a checkpoint']} at a checkpoint; "
        f"{sum(one['early'] for one in mine)} more before the run was in the store; "
        f"{len(failed)} runs differ"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
