"""`grpo-tui doctor`: report this machine's capabilities and speed, and remedies for problems."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import uses_colour
from grpo_tui.app.cli.params import Json
from grpo_tui.app.health import Check, Level

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
    checks = collect(db, narrate=None if as_json else narrate)
    if as_json:
        typer.echo(json.dumps(report(checks), indent=2))
    else:
        erase()
        typer.echo(page(checks, colour=uses_colour(), ascii_only=not writes_unicode()))
    if any(check.level is Level.STOPS for check in checks):
        raise typer.Exit(exit_codes.FAILED)


def collect(db: str | None, narrate: Callable[[str], None] | None = None) -> list[Check]:
    """Run every check, in the order of the report."""
    from grpo_tui.app.health import machine, mlx, packages, store, terminal

    print_stderr = narrate or (lambda _: None)
    result = machine.checks() + machine.environment()
    print_stderr("measuring how fast matrix products are")
    result += mlx.checks()
    print_stderr("looking at the terminal and the store")
    return result + terminal.checks() + store.checks(db) + packages.checks()


def report(checks: Sequence[Check]) -> dict[str, object]:
    """Return the checks for programs."""
    return {
        "ok": all(check.level is not Level.STOPS for check in checks),
        "warnings": sum(check.level is Level.WARNING for check in checks),
        "facts": [check.as_json() for check in checks],
    }


def page(checks: Sequence[Check], *, colour: bool, ascii_only: bool) -> str:
    """Format the checks for people: one line each under its area, each remedy below its line."""
    marks = ASCII_MARKS if ascii_only else MARKS
    width = max(len(check.name) for check in checks)
    lines: list[str] = []
    area = ""
    for check in checks:
        if check.area != area:
            area = check.area
            lines += ["", paint(area, "1", colour)]
        mark = paint(marks[check.level], COLOURS[check.level], colour)
        lines.append(f"  {mark} {check.name.ljust(width)}  {check.result}")
        if check.remedy:
            lines.append(f"    {''.ljust(width)}  {'->' if ascii_only else '→'} {check.remedy}")
    return "\n".join([*lines[1:], "", verdict(checks)])


def verdict(checks: Sequence[Check]) -> str:
    """Return the last line: whether a run can start here."""
    stops = [check.name for check in checks if check.level is Level.STOPS]
    warnings = sum(check.level is Level.WARNING for check in checks)
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
