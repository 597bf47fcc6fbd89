"""The rows of one transaction, and the conversion of groups to rows."""

from collections import defaultdict
from dataclasses import dataclass, field

from grpo_engine import events as ev
from grpo_tui.experiments.db.numbers import dumps, known, nan_names
from grpo_tui.experiments.db.spans import spans_json
from grpo_tui.experiments.db.statements import Row
from grpo_tui.experiments.db.texts import escape

PROGRESS = (ev.PhaseStarted, ev.PhaseAdvanced, ev.PromptsStarted, ev.RolloutsAdvanced)


@dataclass(frozen=True, slots=True)
class Item:
    """An event with its sequence number and time."""

    seq: int
    at: float
    event: ev.Event


@dataclass(frozen=True, slots=True)
class RecordedParts:
    """Which parts of the rollouts are recorded, and by which trackers besides."""

    tokens: str = "all"
    rollouts: bool = True
    trackers: tuple[str, ...] = ()

    def tokens_of(self, step: int, origin: str) -> bool:
        if self.tokens == "none" or not self.rollouts:
            return False
        return (
            self.tokens == "all"
            or origin == "pinned"
            or (self.tokens == "every" and step % 10 == 0)
        )


@dataclass(frozen=True, slots=True)
class Scored:
    """A group of the current step, with its token numbers once they arrive."""

    seq: int
    group: ev.Group
    numbers: ev.TokensScored | None = None
    numbers_seq: int | None = None


@dataclass(slots=True)
class Rows:
    """Rows by their table, in the order in which they are inserted."""

    tables: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    sizes: int = 0


def recorded(run: int, attempt: int, step: int, seq: int) -> Row:
    """Return the columns of everything that is recorded in its order."""
    return {"run_id": run, "attempt": attempt, "step": step, "seq": seq, "hidden": 0}


@dataclass(frozen=True, slots=True)
class GroupRows:
    run: int
    attempt: int
    parts: RecordedParts

    def add(self, rows: Rows, step: int, pair: Scored, last_group: int, last_rollout: int) -> None:
        """Append a group with its completions; ids continue from the last stored ones."""
        group = pair.group
        key = last_group + len(rows.tables["rollout_group"]) + 1
        prompt, target = escape(group.prompt_text), escape(group.target)
        rows.tables["rollout_group"].append({
            "id": key, **recorded(self.run, self.attempt, step, pair.seq),
            "tokens_seq": pair.numbers_seq, "idx": group.index, "origin": group.origin,
            "example_key": escape(group.example_key), "prompt_hash": escape(group.prompt_hash),
            "prompt_text": prompt, "target": target, "sampling": dumps(group.sampling),
            "reward_mean": known(group.reward_mean), "reward_std": known(group.reward_std),
            "no_signal": escape(group.no_signal), "refill": group.refill,
            "has_tokens": int(self.parts.tokens_of(step, group.origin)),
            "nonfinite": nan_names(reward_mean=group.reward_mean, reward_std=group.reward_std),
        })  # fmt: skip
        rows.tables["prompt_words"].append({"rowid": key, "prompt_text": prompt})
        rows.sizes += 200 + 2 * len(prompt) + len(target)
        by_index = {row.index: row for row in pair.numbers.numbers} if pair.numbers else {}
        for completion in group.rollouts:
            number = last_rollout + len(rows.tables["rollout"]) + 1
            self._rollout(rows, number, key, completion, by_index.get(completion.index))

    def _rollout(
        self, rows: Rows, key: int, group: int, completion: ev.Completion,
        numbers: ev.TokenNumbers | None,
    ) -> None:  # fmt: skip
        text = escape(completion.text) if self.parts.rollouts else ""
        rows.tables["rollout"].append({
            "id": key, "group_id": group, "run_id": self.run, "idx": completion.index, "text": text,
            "reward": known(completion.reward), "advantage": known(completion.advantage),
            "tokens": ev.model_tokens(completion.ids, completion.spans),
            "finish": completion.finish, "spans": spans_json(completion.spans),
            **of_numbers(completion, numbers),
        })  # fmt: skip
        rows.tables["rollout_words"].append({"rowid": key, "text": text})
        rows.sizes += 120 + 2 * len(text)
        for position, reward in enumerate(completion.rewards):
            reason = escape(reward.reason)
            rows.tables["rollout_reward"].append({
                "rollout_id": key, "position": position, "function": escape(reward.name),
                "value": known(reward.value), "weight": known(reward.weight), "reason": reason,
                "nonfinite": nan_names(value=reward.value),
            })  # fmt: skip
            rows.sizes += 30 + len(reason)


def of_numbers(completion: ev.Completion, numbers: ev.TokenNumbers | None) -> Row:
    """Return the columns of a rollout that depend on its token numbers."""
    clip = numbers.clip_fraction if numbers else None
    kl = numbers.kl if numbers else None
    nonfinite = nan_names(
        reward=completion.reward, advantage=completion.advantage, clip_fraction=clip, kl=kl
    )
    return {"clip_fraction": known(clip), "kl": known(kl), "nonfinite": nonfinite}
