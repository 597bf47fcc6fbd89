"""Stores edited by hand: texts with escapes, values of other types, and what cannot be read."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Column, Table

from grpo_tui.experiments.db.tables import RUN
from grpo_tui.experiments.db.types import EscapedText, Flag, Number, StoredInt
from tests.experiments.made import sql

# what says which row belongs to which, and which rows there are
KEYS = frozenset(
    {
        "short",
        "key_set",
        "path",
        "seq",
        "hidden",
        "origin",
        "kind",
        "prompt_hash",
        "deleted_at",
        "purging",
    }
)
RED = "CAST(x'1b5b33316d7265640762e280ae' AS TEXT)"  # an escape sequence, BEL, a right-to-left mark
DEEP = "replace(hex(zeroblob(50000)), '0', '[')"
Edit = tuple[str, ...]


def _columns(table: Table, *kinds: type) -> Iterator[Column[object]]:
    for column in table.columns:
        is_key = column.primary_key or column.foreign_keys or column.name in KEYS
        if isinstance(column.type, kinds) and not is_key:
            yield column


def _edit(table: Table, value: str, *kinds: type) -> Edit:
    """Set columns of these types, one after another: a unique one refuses."""
    return tuple(
        f'UPDATE OR IGNORE "{table.name}" SET "{column.name}" = {value}'
        for column in _columns(table, *kinds)
    )


TABLES = [table for table in RUN.metadata.tables.values() if table.name != "migration"]
EDITED: dict[str, Edit] = {
    **{f"numbers of {t.name}": _edit(t, RED, StoredInt, Flag, Number) for t in TABLES},
    "texts": tuple(edit for t in TABLES for edit in _edit(t, RED, EscapedText)),
    "infinite numbers": (
        "UPDATE OR IGNORE metric_key SET name = 'tokens_per_second' WHERE name = 'kl'",
        *(edit for t in TABLES for edit in _edit(t, "9e999", Number)),
    ),
    "infinity below zero": tuple(edit for t in TABLES for edit in _edit(t, "-9e999", Number)),
    "the largest numbers": tuple(
        edit for t in TABLES for edit in _edit(t, "9223372036854775807", StoredInt, Number)
    ),
    "the smallest numbers": tuple(
        edit for t in TABLES for edit in _edit(t, "-9223372036854775808", StoredInt, Number)
    ),
    "fractions": tuple(edit for t in TABLES for edit in _edit(t, "1.5", StoredInt, Flag)),
    "bytes": tuple(
        edit for t in TABLES for edit in _edit(t, "x'1b00ff'", EscapedText, StoredInt, Flag, Number)
    ),
}
EDITED = {name: edit for name, edit in EDITED.items() if edit}
# by the column that is named
DAMAGED: dict[str, tuple[str, str]] = {
    "a time with a letter": ("run.created_at", "created_at || 'x'"),
    "a year beyond all": ("attempt.heartbeat", "'99999-01-01T00:00:00Z'"),
    "a status of nobody": ("run.status", "'glowing'"),
    "settings that are no JSON": ("run.config", "'{bad'"),
    "versions in a list": ("run.versions", "'[1]'"),
    "metrics that are no JSON": ("evaluation.metrics", "'{'"),
    "rewards that are words": ("evaluation_sample.rewards", """'{"a": "much"}'"""),
    "spans without fields": ("rollout.spans", "'[{}]'"),
    "an event of no kind": ("event.payload", """'{"event": "Nope", "step": 1}'"""),
    "a nested setting": ("run_param.value", DEEP),
    "a number of letters": ("run.tokens", "'many'"),
    "a name that is not UTF-8": ("run.name", "CAST(x'6f74686572ff' AS TEXT)"),
}


def edited(store: Path, folder: Path, *statements: str) -> Path:
    """A copy of a store and its folder, changed behind our back."""
    copy = Path(shutil.copytree(store.parent, folder / "edited")) / store.name
    sql(copy, *statements)
    return copy


def damage(name: str) -> str:
    """The statement after which a column cannot be read."""
    column, value = DAMAGED[name]
    table, _, of = column.partition(".")
    return f"UPDATE {table} SET {of} = {value}"
