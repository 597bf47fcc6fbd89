"""`grpo-tui explain`: what a metric, an alert, a setting or a key means."""

import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, print_text
from grpo_tui.app.cli.params import Json
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.tui.dialogs.help.topics import HelpPart, alert_parts, metric_parts, setting_parts

MAX_WIDTH, INDENT = 100, 2
KEYS = "keys: "


def key_parts() -> list[HelpPart]:
    """The keys of the workbench, by screen; what has none is in the palette."""
    from grpo_tui.app.tui.key_actions import described_keys

    return [HelpPart(KEYS + name, rows) for name, rows in described_keys()]


SECTIONS: Mapping[str, Callable[[], Sequence[HelpPart]]] = {
    "metrics": metric_parts,
    "alerts": alert_parts,
    "settings": setting_parts,
    "keys": key_parts,
}


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(SECTIONS)}, a name from one of these, or any words."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a metric, alert, setting or key.

    `grpo-tui recipes show` and `grpo-tui rewards show` explain those.

    Example: grpo-tui explain algorithm.beta
    """
    words = words or list(SECTIONS)
    parts = [part for name in words if name in SECTIONS for part in SECTIONS[name]()]
    if not set(words) <= set(SECTIONS):
        parts = select((part for section in SECTIONS.values() for part in section()), words)
    if not parts:
        print_stderr(
            f"nothing is called {' '.join(words)!r}, and no explanation has these words; "
            "grpo-tui explain lists all"
        )
        raise typer.Exit(exit_codes.NOT_FOUND)
    if as_json:
        print_json([{"heading": part.heading, "paragraphs": part.paragraphs} for part in parts])
    else:
        print_text("\n\n".join(map(text_of, parts)))


def select(parts: Iterable[HelpPart], words: Sequence[str]) -> list[HelpPart]:
    """The parts of this name, what a key does, or else the parts that have all the words."""
    key = " ".join(words)
    name, parts = key.casefold(), list(parts)
    exact = [
        part
        for part in parts
        if name in (part.heading.casefold(), part.heading.partition(" ")[2], part.stored_as)
    ]
    keys = [
        replace(part, paragraphs=rows)
        for part in parts
        if part.heading.startswith(KEYS)
        and (rows := tuple(row for row in part.paragraphs if key in row[0].split()))
    ]
    return (
        exact
        or keys
        or [part for part in parts if all(text in part.haystack for text in name.split())]
    )


def text_of(part: HelpPart) -> str:
    """A heading, and its paragraphs indented below it."""
    width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 0)).columns)
    column = max(len(name) for name, _ in part.paragraphs) + INDENT
    lines = [part.heading]
    for name, text in part.paragraphs:
        first = " " * INDENT + (name.ljust(column) if name else "")
        following = " " * (INDENT + column * bool(name))
        lines.append(textwrap.fill(text, width, initial_indent=first, subsequent_indent=following))
    return "\n".join(lines)
