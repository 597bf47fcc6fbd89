"""`grpo-tui doctor`: report this machine's capabilities and speed, and remedies for problems."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import wants_colour
from grpo_tui.app.cli.params import Json
from grpo_tui.app.health import Fact, Level

MARKS: Final = {Level.FINE: "✓", Level.WARNING: "!", Level.STOPS: "✗"}
ASCII_MARKS: Final = {Level.FINE: " ", Level.WARNING: "!", Level.STOPS: "X"}
COLOURS: Final = {Level.FINE: "32", Level.WARNING: "33", Level.STOPS: "31"}


def doctor(
    as_json: Json = False,
    db: Annotated[str | None, typer.Option(help="The database to check.")] = None,
) -> None:
    """Say what this machine has and lacks, and measure how fast it multiplies.

    Exit status 1 where something would stop a run.

    Example: grpo-tui doctor --json
    """
    facts = collect(db, narrate=None if as_json else narrate)
    if as_json:
        typer.echo(json.dumps(report(facts), indent=2))
    else:
        erase()
        typer.echo(page(facts, colour=wants_colour(), ascii_only=not writes_unicode()))
    if any(fact.level is Level.STOPS for fact in facts):
        raise typer.Exit(exit_codes.FAILED)


def collect(db: str | None, narrate: Callable[[str], None] | None = None) -> list[Fact]:
    """Collect every fact, in the order of the report."""
    from grpo_tui.app.health import machine, mlx, packages, store, terminal

    say = narrate or (lambda _: None)
    found = machine.facts() + machine.environment()
    say("measuring how fast matrix products are")
    found += mlx.facts()
    say("looking at the terminal and the store")
    return found + terminal.facts() + store.facts(db) + packages.facts()


def report(facts: Sequence[Fact]) -> dict[str, object]:
    """Return the facts for programs."""
    return {
        "ok": all(fact.level is not Level.STOPS for fact in facts),
        "warnings": sum(fact.level is Level.WARNING for fact in facts),
        "facts": [fact.as_json() for fact in facts],
    }


def page(facts: Sequence[Fact], *, colour: bool, ascii_only: bool) -> str:
    """Format the facts for people: one line each under its area, each remedy below its line."""
    marks = ASCII_MARKS if ascii_only else MARKS
    width = max(len(fact.name) for fact in facts)
    lines: list[str] = []
    area = ""
    for fact in facts:
        if fact.area != area:
            area = fact.area
            lines += ["", paint(area, "1", colour)]
        mark = paint(marks[fact.level], COLOURS[fact.level], colour)
        lines.append(f"  {mark} {fact.name.ljust(width)}  {fact.found}")
        if fact.remedy:
            lines.append(f"    {''.ljust(width)}  {'->' if ascii_only else '→'} {fact.remedy}")
    return "\n".join([*lines[1:], "", verdict(facts)])


def verdict(facts: Sequence[Fact]) -> str:
    """Return the last line: whether a run can start here."""
    stops = [fact.name for fact in facts if fact.level is Level.STOPS]
    warnings = sum(fact.level is Level.WARNING for fact in facts)
    if stops:
        return f"A run cannot start here: {', '.join(stops)}."
    noted = f", with {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    return f"Ready to train{noted}."


def paint(text: str, code: str, colour: bool) -> str:
    """Colour the text if colours are wanted."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def writes_unicode() -> bool:
    """Return whether stdout can encode the marks."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def narrate(line: str) -> None:
    """Print on a terminal what is being measured, in a line that the next one overwrites."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line} …")
        sys.stderr.flush()


def erase() -> None:
    """Erase the narrated line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
