"""The rows of one transaction: its statements, and groups turned into rows."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

from experiments.db.numbers import dumps, known, nan_names
from experiments.db.texts import escape
from grpo_engine import events as ev

PROGRESS = (ev.PhaseStarted, ev.PhaseAdvanced, ev.PromptsStarted, ev.RolloutsAdvanced)

GROUP_SQL = (
    "INSERT INTO rollout_group (id, run_id, attempt, step, seq, tokens_seq, idx, origin, "
    "example_key, prompt_hash, prompt_text, target, sampling, reward_mean, reward_std, no_signal, "
    "refill, has_tokens, nonfinite, hidden) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,0)"
)
ROLLOUT_SQL = (
    "INSERT INTO rollout (id, group_id, run_id, idx, text, reward, advantage, tokens, finish, "
    "clip_fraction, kl, nonfinite) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
)
REWARD_SQL = "INSERT INTO rollout_reward VALUES (?,?,?,?,?,?,?)"
METRIC_SQL = "INSERT OR REPLACE INTO metric VALUES (?,?,?,?)"
PASS_SQL = (
    "INSERT INTO update_pass (run_id, attempt, step, seq, pass, minibatch, loss, clip_low, "
    "clip_high, kl_to_old, grad_norm, learning_rate, stop_reason, hidden) "
    "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,0)"
)
EVENT_SQL = (
    "INSERT INTO event (run_id, attempt, seq, at, step, kind, payload, hidden) "
    "VALUES (?,?,?,?,?,?,?,0)"
)
STEP_SQL = (
    "INSERT OR REPLACE INTO step (run_id, attempt, step, seq, at, elapsed, tokens, key_set, "
    "skipped, hidden) VALUES (?,?,?,?,?,?,?,?,?,0)"
)


@dataclass(frozen=True, slots=True)
class Item:
    """An event with its place in the run's record."""

    seq: int
    at: float
    event: ev.Event


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the rollouts is recorded."""

    tokens: str = "all"
    every: int = 10
    rollouts: bool = True

    def tokens_of(self, step: int, origin: str) -> bool:
        """Whether the token numbers of a group are."""
        if self.tokens == "none" or not self.rollouts:
            return False
        return (
            self.tokens == "all"
            or origin == "pinned"
            or (self.tokens == "every" and step % max(1, self.every) == 0)
        )


@dataclass(frozen=True, slots=True)
class Scored:
    """A group of the step in hand, and its numbers once they are there."""

    seq: int
    group: ev.Group
    numbers: ev.TokensScored | None = None
    numbers_seq: int | None = None


@dataclass(slots=True)
class Rows:
    """The rows of one transaction, by statement."""

    groups: list[tuple[Any, ...]] = field(default_factory=list)
    rollouts: list[tuple[Any, ...]] = field(default_factory=list)
    rewards: list[tuple[Any, ...]] = field(default_factory=list)
    prompts: list[tuple[int, str]] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)
    passes: list[tuple[Any, ...]] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    metrics: list[tuple[Any, ...]] = field(default_factory=list)
    sizes: int = 0


def insert(conn: sqlite3.Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows in statements of up to 256: after each the interpreter may be another thread's.

    One statement a row held the lock for seconds where another thread was busy.
    """
    at = 0
    most = conn.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(rows[0]) if rows else 0
    for size in (256, 64, 16, 4, 1):
        while most >= size <= len(rows) - at:
            conn.execute(_many(sql, size), list(chain.from_iterable(rows[at : at + size])))
            at += size


@lru_cache(maxsize=128)
def _many(sql: str, rows: int) -> str:
    head, _, marks = sql.partition(" VALUES ")
    return f"{head} VALUES {','.join([marks] * rows)}"


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Turns the groups of one attempt into rows."""

    run: int
    attempt: int
    wanted: Wanted

    def add(self, rows: Rows, step: int, pair: Scored, last_group: int, last_rollout: int) -> None:
        """Append a group with its completions; ids count on from the last ones stored."""
        group = pair.group
        key = last_group + len(rows.groups) + 1
        has_tokens = self.wanted.tokens_of(step, group.origin)
        prompt, target = escape(group.prompt_text), escape(group.target)
        rows.groups.append(
            (
                key, self.run, self.attempt, step, pair.seq, pair.numbers_seq, group.index,
                group.origin, escape(group.example_key), escape(group.prompt_hash), prompt, target,
                dumps(group.sampling), known(group.reward_mean), known(group.reward_std),
                escape(group.no_signal), group.refill, int(has_tokens),
                nan_names(reward_mean=group.reward_mean, reward_std=group.reward_std),
            )
        )  # fmt: skip
        rows.prompts.append((key, prompt))
        rows.sizes += 200 + 2 * len(prompt) + len(target)
        by_index = {row.index: row for row in pair.numbers.numbers} if pair.numbers else {}
        for completion in group.rollouts:
            number = last_rollout + len(rows.rollouts) + 1
            self._rollout(rows, number, key, completion, by_index.get(completion.index))

    def _rollout(
        self, rows: Rows, key: int, group: int, completion: ev.Completion,
        numbers: ev.TokenNumbers | None,
    ) -> None:  # fmt: skip
        text = escape(completion.text) if self.wanted.rollouts else ""
        clip = numbers.clip_fraction if numbers else None
        kl = numbers.kl if numbers else None
        rows.rollouts.append(
            (
                key, group, self.run, completion.index, text, known(completion.reward),
                known(completion.advantage), len(completion.ids), completion.finish, known(clip),
                known(kl), nan_names(reward=completion.reward, advantage=completion.advantage,
                                     clip_fraction=clip, kl=kl),
            )
        )  # fmt: skip
        rows.texts.append((key, text))
        rows.sizes += 120 + 2 * len(text)
        for position, reward in enumerate(completion.rewards):
            reason = escape(reward.reason)
            rows.rewards.append(
                (
                    key, position, escape(reward.name), known(reward.value), known(reward.weight),
                    reason, nan_names(value=reward.value),
                )
            )  # fmt: skip
            rows.sizes += 30 + len(reason)
