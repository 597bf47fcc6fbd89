"""How the store keeps the spans of a completion."""

import dataclasses
import json
from collections.abc import Sequence

from grpo_engine.events import Span


def spans_json(spans: Sequence[Span]) -> str:
    """The spans of a completion as JSON without fields that have their default."""
    if not spans:
        return ""
    usual = {f.name: f.default for f in dataclasses.fields(Span)} | {"info": {}}
    return json.dumps([
        {name: value for name, value in dataclasses.asdict(span).items() if value != usual[name]}
        for span in spans
    ])  # fmt: skip


def read_spans(text: str) -> tuple[Span, ...]:
    return tuple(Span(**span) for span in json.loads(text)) if text else ()
