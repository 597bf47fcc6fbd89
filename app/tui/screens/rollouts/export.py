"""The answer under the cursor of Rollouts as a text and as JSON."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.inspector.stored import RolloutTokens, RunInfo
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.safe_text import safe
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.export.rows import rollout_row
from grpo_tui.experiments.values import GroupView, RolloutView


def write_text(run: RunInfo, group: GroupView, rollout: RolloutView, out: Path) -> None:
    """Write prompt, answer and rewards as they read on screen."""
    name = f"{group.index + 1}, answer {letter(rollout.index)}"
    rewards = [
        f"{item.name} {short(item.value)} × {short(item.weight)}  {item.reason}".rstrip()
        for item in rollout.rewards
    ]
    scores = [f"{key} {short(getattr(rollout, key))}" for key in ("reward", "advantage")]
    parts = [
        f"{run.name}: step {group.step}, {group.origin} prompt {name}\n{', '.join(scores)}",
        f"--- prompt\n{group.prompt_text}",
        f"--- answer\n{rollout.text}",
        *([f"--- target\n{group.target}"] if group.target else []),
        "--- rewards\n" + "\n".join(rewards),
    ]
    out.write_text(safe("\n\n".join(parts), "\n") + "\n", encoding="utf-8")


def write_json(run: RunInfo, group: GroupView, completion: RolloutTokens, out: Path) -> None:
    """Write all that is stored of the answer."""
    rollout = completion.rollout
    content = {
        **rollout_row(run.id, group, rollout),
        "name": run.name,
        "rewards": [asdict(reward) for reward in rollout.rewards],
        "turns": [asdict(span) for span in rollout.spans],
        "token_numbers": _tokens(completion),
    }
    out.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")


def _tokens(completion: RolloutTokens) -> list[dict[str, Any]]:
    """Text, id and log-probabilities of each token, as far as they are recorded."""
    row = completion.row
    if row is None or not completion.by_token:
        return []
    return [
        {
            "text": text,
            "id": row.ids[index],
            **{name: values[index] for name, values in completion.stages.items()},
        }
        for index, text in enumerate(completion.texts)
    ]
