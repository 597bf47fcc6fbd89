"""Events as rows of the tables."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Table

from grpo_engine import events as ev
from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP, ROLLOUT_REWARD
from grpo_tui.experiments.db.tokens import encode
from grpo_tui.experiments.values import TokenRow

PROGRESS = (ev.PhaseStarted, ev.PhaseAdvanced, ev.PromptsStarted, ev.RolloutsAdvanced)

Row = dict[str, Any]
Rows = defaultdict[Table, list[Row]]  # in the order in which they are inserted


class RecordedParts:
    """Which parts of the rollouts a configuration records, and by which trackers besides."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        record = config.get("record") or {}
        self.tokens = str(record.get("tokens", "all"))
        self.trackers = [str(tracker) for tracker in record.get("trackers") or ()]

    def tokens_of(self, step: int, origin: str) -> bool:
        if self.tokens in ("none", "nothing"):
            return False
        return (
            self.tokens == "all"
            or origin == "pinned"
            or (self.tokens == "every" and step % 10 == 0)
        )


@dataclass(frozen=True, slots=True)
class Scored:
    """A group, with its token numbers once they arrive."""

    seq: int
    step: int
    group: ev.Group
    numbers: ev.TokensScored | None = None
    numbers_seq: int | None = None

    def by_index(self) -> dict[int, ev.TokenNumbers]:
        return {row.index: row for row in self.numbers.numbers} if self.numbers else {}


def add_group(
    rows: Rows, scored: Scored, common: Row, parts: RecordedParts, last: Mapping[Table, int]
) -> None:
    """Add a group and its rollouts; ids continue from the last stored ones."""
    group, numbers = scored.group, scored.by_index()
    key = last[ROLLOUT_GROUP] + len(rows[ROLLOUT_GROUP]) + 1
    rows[ROLLOUT_GROUP].append({
        "id": key, **common, **of_event(ROLLOUT_GROUP, group),
        "tokens_seq": scored.numbers_seq, "idx": group.index,
        "has_tokens": parts.tokens_of(scored.step, group.origin),
        "nonfinite": nan_names(reward_mean=group.reward_mean, reward_std=group.reward_std),
    })  # fmt: skip
    for item in group.rollouts:
        number = last[ROLLOUT] + len(rows[ROLLOUT]) + 1
        rows[ROLLOUT].append({
            "id": number, "group_id": key, "run_id": common["run_id"], "idx": item.index,
            "text": item.text if parts.tokens != "nothing" else "", "reward": item.reward,
            "advantage": item.advantage, "tokens": ev.model_tokens(item.ids, item.spans),
            "finish": item.finish, "spans": item.spans, **of_numbers(item, numbers.get(item.index)),
        })  # fmt: skip
        for position, reward in enumerate(item.rewards):
            rows[ROLLOUT_REWARD].append({
                "rollout_id": number, "position": position, "function": reward.name,
                "value": reward.value, "weight": reward.weight, "reason": reward.reason,
                "nonfinite": "" if reward.value == reward.value else "value",
            })  # fmt: skip


def of_numbers(item: ev.Completion, numbers: ev.TokenNumbers | None) -> Row:
    """Return the columns of a rollout that depend on its token numbers."""
    clip = numbers.clip_fraction if numbers else None
    kl = numbers.kl if numbers else None
    nonfinite = nan_names(reward=item.reward, advantage=item.advantage, clip_fraction=clip, kl=kl)
    return {"clip_fraction": clip, "kl": kl, "nonfinite": nonfinite}


def nan_names(**values: float | None) -> str:
    """Return the names of the numbers that are NaN, as opposed to missing."""
    return ",".join([name for name, value in values.items() if value != value])


def of_event(target: Table, event: Any) -> Row:
    """Return the columns of a table that are fields of the event, too."""
    return {name: getattr(event, name) for name in event.__dataclass_fields__ if name in target.c}


def token_blob(scored: Scored) -> bytes:
    numbers = scored.by_index()
    rows = []
    for rollout in scored.group.rollouts:
        row = numbers.get(rollout.index) or ev.TokenNumbers(index=rollout.index, old=())
        rows.append(
            TokenRow(
                **{field.name: getattr(row, field.name) for field in fields(row)},
                ids=rollout.ids, ends=rollout.ends, sampler=rollout.sampler_logprobs,
            )
        )  # fmt: skip
    return encode(scored.group.prompt_ids, rows)
