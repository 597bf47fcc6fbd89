"""What the hooks on TRL took, as JSON and back."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_tui.trl.steps import Batch, MicroBatch, Trainer


def packed(
    steps: Sequence[tuple[int, Sequence[Batch], Trainer]],
    settings: Mapping[str, Any],
    vocabulary: Mapping[int, str],
) -> dict[str, Any]:
    facts = dataclasses.asdict(
        dataclasses.replace(steps[0][2], decode=str)
    )  # functions do not copy
    return {
        "trainer": {k: v for k, v in facts.items() if k != "decode"} | {"ends": [*facts["ends"]]},
        "settings": settings,
        "vocabulary": list(vocabulary.items()),
        "steps": [(step, [_plain(batch) for batch in batches]) for step, batches, _ in steps],
    }


def _plain(batch: Batch) -> Any:
    def encode(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"dtype": str(value.dtype), "values": value.tolist()}
        if isinstance(value, dict):
            return {name: encode(item) for name, item in value.items()}
        return [encode(item) for item in value] if isinstance(value, list) else value

    return encode(dataclasses.asdict(batch))


def unpacked(content: Any) -> tuple[list[tuple[int, list[Batch]]], Trainer]:
    """The steps' batches and their trainer, with a decoder of the words that occur."""
    words = dict(content["vocabulary"])
    facts = content["trainer"] | {"ends": frozenset(content["trainer"]["ends"])}
    trainer = Trainer(**facts, decode=lambda ids: "".join(words[i] for i in ids))
    return [(step, [_batch(batch) for batch in of]) for step, of in content["steps"]], trainer


def _batch(plain: Any) -> Batch:
    def decode(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"dtype", "values"}:
                return np.array(value["values"], value["dtype"])
            return {name: decode(item) for name, item in value.items()}
        return [decode(item) for item in value] if isinstance(value, list) else value

    values = decode(plain)
    values["micro_batches"] = [MicroBatch(**micro) for micro in values["micro_batches"]]
    return Batch(**values)
