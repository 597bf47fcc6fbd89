"""Made-up tokens, rollouts and groups."""

from typing import Any

from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.losses import TokenLoss
from grpo_tui.experiments.values import GroupView, RolloutView

TOTALS = UpdateTotals(rows=8, tokens=200, batch_tokens=50, micro_batches=4)
SIZES = {"length": 24, "max_length": 64}


def term(**changes: Any) -> TokenLoss:
    """A token that is clipped at 1.2 unless the changes say otherwise; pushed where it is free."""
    fields: dict[str, Any] = {
        "advantage": 1.21,
        "ratio": 1.35,
        "low": 0.8,
        "high": 1.2,
        "side": "high",
        "in_loss": True,
        "updated": True,
        "importance": 1.0,
        "on_policy": True,
        "objective": 1.2 * 1.21,
        "anchor": 0.0,
        "kl": 0.1,
        "value_loss": 0.0,
        "bonus": 0.0,
        "contribution": 1.2 * 1.21 / 24 / 8,
        "pull": 0.0,
        **changes,
    }
    free = all(fields[name] for name in ("in_loss", "updated", "on_policy"))
    pushed = free and fields["side"] == "free"
    fields.setdefault("push", fields["advantage"] if pushed else 0.0)
    return TokenLoss(**fields)


def rollout(index: int, **changes: Any) -> RolloutView:
    base: dict[str, Any] = {
        "key": index,
        "group": 1,
        "index": index,
        "text": f"answer {index}",
        "reward": 1.0,
        "advantage": 0.5,
        "tokens": 4,
        "finish": "stop",
        "clip_fraction": 0.1,
        "kl": 0.2,
    }
    return RolloutView(**(base | changes))


def group(index: int, *rollouts: RolloutView, **changes: Any) -> GroupView:
    base: dict[str, Any] = {
        "key": index,
        "run": 1,
        "attempt": 1,
        "step": 1,
        "index": index,
        "origin": "train",
        "example_key": "",
        "prompt_hash": "",
        "prompt_text": "",
        "target": "",
        "reward_mean": 0.5,
        "reward_std": 0.1,
        "has_tokens": True,
        "rollouts": rollouts,
    }
    return GroupView(**(base | changes))
