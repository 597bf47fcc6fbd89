"""Data for the store's benchmark: many runs, long runs, many rollouts, a starter-like step."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from grpo_engine import events as ev
from grpo_engine.config.settings import RunConfig
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore

METRICS = 40
RARE, PHRASE, BURIED = "zyzzyva", "so the answer", "the of and"
_WORDS = (
    "the of and to is so we have plus minus times answer step first then add carry sum digit "
    "number check result equals left right both sides again because which gives total"
).split()


def metrics(step: int, chance: random.Random) -> dict[str, float]:
    """Return the forty metrics of a step: the trainer's names and some more."""
    names = ("reward", "kl", "clip_ratio/region_mean", "tokens_per_second", "entropy", "loss")
    values = {name: chance.random() for name in names}
    values["reward"] = min(1.0, step / 100_000 + 0.1 * chance.random())
    values.update({f"extra/{number}": chance.gauss(0, 1) for number in range(METRICS - len(names))})
    return values


def config(**changes: Any) -> dict[str, Any]:
    """Return a complete tree of settings."""
    return RunConfig().model_dump(mode="json") | changes


def started(recipe: str = "grpo") -> ev.RunStarted:
    """Return the first event of a run."""
    return ev.RunStarted(
        step=0,
        config={},
        total_steps=100_000,
        resumed=False,
        versions={"mlx": "0"},
        device="cpu",
        threads=1,
        dataset_fingerprint="data",
        recipe=recipe,
    )


def many_runs(path: Path, count: int) -> None:
    """Make a store of `count` runs: one recorded, the others copies of it with other settings."""
    handle = start_run(path, config(), name="run-0", tags=("first",))
    handle.put(started())
    chance = random.Random(0)
    for step in range(1, 4):
        handle.put(
            ev.StepFinished(step=step, metrics=metrics(step, chance), tokens=step, elapsed=step)
        )
    handle.put(ev.RunFinished(step=3, reason="completed", summary={}))
    handle.close()
    with closing(sqlite3.connect(path)) as conn, conn:
        names = [row[1] for row in conn.execute("PRAGMA table_info(run)")][1:]
        fields = {
            "uid": "'u' || :n",
            "short": "printf('%08x', :n)",
            "name": "'run-' || :n",
            "seed": ":n",
            "recipe": "CASE :n % 3 WHEN 0 THEN 'grpo' WHEN 1 THEN 'dapo' ELSE 'gspo' END",
            "status": "CASE :n % 10 WHEN 0 THEN 'failed' ELSE 'completed' END",
        }
        columns = ", ".join(fields.get(name, name) for name in names)
        conn.execute(
            "CREATE TEMP TABLE n AS WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL "
            f"SELECT n + 1 FROM c WHERE n < {count - 1}) SELECT n FROM c"
        )
        sql = columns.replace(":n", "n.n")
        conn.execute(f"INSERT INTO run ({', '.join(names)}) SELECT {sql} FROM run, n")
        other_runs = "(SELECT id, seed FROM run WHERE id > 1) r"
        conn.execute(
            "INSERT INTO run_param SELECT r.id, path, CASE path WHEN 'seed' THEN r.seed WHEN "
            f"'algorithm.beta' THEN r.seed / 1e5 ELSE value END FROM {other_runs}, run_param p "
            "WHERE p.run_id = 1 ORDER BY r.id, path"
        )
        line = "first, first_step, last, last_step, min, min_step, max + (r.seed % 997) / 1e3, "
        conn.execute(
            f"INSERT INTO metric_summary SELECT r.id, key_id, {line} max_step, mean, count, "
            f"nonfinite FROM {other_runs}, metric_summary s WHERE s.run_id = 1 "
            "ORDER BY r.id, key_id"
        )
        conn.execute(f"INSERT INTO run_tag SELECT r.id, 'tag-' || (r.seed % 7) FROM {other_runs}")
        attempt = [row[1] for row in conn.execute("PRAGMA table_info(attempt)")][2:]
        conn.execute(
            f"INSERT INTO attempt (run_id, {', '.join(attempt)}) "
            f"SELECT r.id, {', '.join(attempt)} FROM {other_runs}, attempt a WHERE a.run_id = 1"
        )


def copy_run(path: Path, copies: int) -> None:
    """Copy the first run of a store with its values, under other names and seeds."""
    store = ExperimentStore(path)
    rows = [store.create_run(config(seed=n), name=f"long-{n}") for n in range(1, copies + 1)]
    store.close()
    with closing(sqlite3.connect(path)) as conn:
        for row in rows:
            with conn:
                conn.execute(
                    "INSERT INTO metric SELECT ?, key_id, step, value + 0.001 FROM metric "
                    "WHERE run_id = 1",
                    (row.id,),
                )
                for table, first in (("metric_summary", 1), ("step", 2)):
                    columns = [item[1] for item in conn.execute(f"PRAGMA table_info({table})")][
                        first:
                    ]
                    names = ", ".join(name for name in columns if name != "run_id")
                    conn.execute(
                        f"INSERT INTO {table} (run_id, {names}) SELECT ?, {names} FROM {table} "
                        "WHERE run_id = 1",
                        (row.id,),
                    )
                conn.execute(
                    "UPDATE run SET (step, tokens, elapsed, status, dataset_fingerprint) = "
                    "(SELECT step, tokens, elapsed, status, dataset_fingerprint FROM run "
                    "WHERE id = 1) WHERE id = ?",
                    (row.id,),
                )
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def answer(chance: random.Random, number: int, total: int) -> str:
    """Return an answer of some 25 words; a few hold the rare word or the rare phrase."""
    parts = chance.choices(_WORDS, k=20) + [f"w{int(chance.paretovariate(0.7)) % 50_000}"] * 2
    if number % 10 == 0:
        parts[3:3] = [PHRASE]
    if number % max(1, total // 60) == 7:
        parts[5:5] = [RARE, BURIED]
    return " ".join(parts) + f" <answer>{number}</answer>"


def group(index: int, texts: list[str], chance: random.Random, tokens: int = 0) -> ev.Group:
    """Make a group whose answers have the given number of tokens each."""
    logprobs = tuple(-chance.expovariate(2.0) for _ in range(tokens))
    return ev.Group(
        index=index,
        origin="train",
        example_key=f"example-{index}",
        target="42",
        prompt_text="What is 17 + 25? Think, then answer.",
        prompt_ids=tuple(range(24)),
        prompt_hash=f"{index:016x}",
        reward_mean=0.5,
        reward_std=0.5,
        sampling={"temperature": 1.0, "top_p": 1.0},
        rollouts=tuple(
            ev.Rollout(
                index=position,
                ids=tuple(chance.randrange(100) for _ in range(tokens)),
                text=text,
                finish="stop",
                reward=float(chance.random() < 0.5),
                advantage=chance.gauss(0, 1),
                rewards=(
                    ev.RewardValue(name="accuracy", value=1.0, weight=1.0),
                    ev.RewardValue(name="format", value=0.0, weight=0.2),
                ),
                sampler_logprobs=logprobs,
                ends=tuple(range(1, tokens + 1)),
            )
            for position, text in enumerate(texts)
        ),
    )


def numbers(scored: ev.Group, step: int, chance: random.Random, passes: int = 2) -> ev.Event:
    """Make the token numbers of a group, like a trainer with a reference policy."""

    def near(row: tuple[float, ...], by: float) -> tuple[float, ...]:
        return tuple(value + chance.gauss(0, by) for value in row)

    return ev.TokensScored(
        step=step,
        group=scored.index,
        origin="train",
        numbers=tuple(
            ev.TokenNumbers(
                index=item.index,
                old=near(item.sampler_logprobs, 1e-6),
                reference=near(item.sampler_logprobs, 0.1),
                clip_fraction=0.1,
                kl=0.01,
                passes=tuple(near(item.sampler_logprobs, 0.01) for _ in range(passes)),
                after=near(item.sampler_logprobs, 0.02),
                entropy=tuple(chance.random() for _ in item.ids),
                advantages=(item.advantage or 0.0,) * len(item.ids),
                updates=(ev.UpdateTotals(rows=256, tokens=256 * len(item.ids)),) * passes,
            )
            for item in scored.rollouts
        ),
    )


def starter_step(
    step: int, chance: random.Random, groups: int = 32, size: int = 8, tokens: int = 16
) -> Iterator[ev.Event]:
    """Return all facts of one step: groups, token numbers, two passes, metrics."""
    for index in range(groups):
        texts = ["".join(chance.choices("0123456789 +-=", k=tokens)) for _ in range(size)]
        scored = group(index, texts, chance, tokens)
        yield ev.GroupScored(step=step, group=scored)
        yield numbers(scored, step, chance)
    for index in (1, 2):
        yield ev.PassFinished(
            step=step,
            index=index,
            minibatch=0,
            loss=0.1,
            clip_low=0.0,
            clip_high=0.0,
            kl_to_old=0.0,
            grad_norm=1.0,
            learning_rate=1e-5,
        )
    yield ev.StepFinished(
        step=step,
        metrics=metrics(step, chance),
        tokens=step * groups * size * tokens,
        elapsed=float(step),
    )
