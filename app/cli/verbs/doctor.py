"""`grpo-tui doctor`: report this machine's capabilities and speed, and remedies for problems."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, uses_colour, writes_unicode
from grpo_tui.app.cli.params import Db, Json
from grpo_tui.app.health.checks import Check, Level

# with and without Unicode, and the colour
MARKS: Final = {
    Level.FINE: ("✓", " ", "32"), Level.WARNING: ("!", "!", "33"), Level.STOPS: ("✗", "X", "31"),
}  # fmt: skip


def doctor(
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Say what this machine has and lacks, and measure how fast it multiplies.

    Exit status 1 where something would stop a run.

    Example: grpo-tui doctor --json
    """
    areas = collect(db, (lambda _: None) if as_json else narrate)
    if as_json:
        print_json(report(areas))
    else:
        narrate("")
        typer.echo(page(areas, colour=uses_colour(), ascii_only=not writes_unicode()))
    if any(check.stops for checks in areas.values() for check in checks):
        raise typer.Exit(exit_codes.FAILED)


def collect(db: Path | None, narrate: Callable[[str], None]) -> dict[str, list[Check]]:
    """Run every check, by area in the order of the report."""
    from grpo_tui.app.health import machine, mlx, packages, store, terminal

    result = {"Machine": machine.checks()}
    narrate("measuring how fast matrix products are")
    result["MLX"] = mlx.checks()
    narrate("looking at the terminal and the store")
    return result | {"Terminal": terminal.checks(), "Store": store.checks(db),
                     "Optional": packages.checks()}  # fmt: skip


def report(areas: Mapping[str, Sequence[Check]]) -> dict[str, Any]:
    """Return the checks for programs."""
    rows = [(area, check) for area, checks in areas.items() for check in checks]
    return {
        "ok": not any(check.stops for _, check in rows),
        "warnings": sum(check.level is Level.WARNING for _, check in rows),
        "facts": [
            {"area": area, "name": check.name, "found": check.result, "level": check.level,
             "remedy": check.remedy, "numbers": check.numbers} for area, check in rows
        ],
    }  # fmt: skip


def page(areas: Mapping[str, Sequence[Check]], *, colour: bool, ascii_only: bool) -> str:
    """Format the checks for people: one line each under its area, each remedy below its line."""
    every = [check for checks in areas.values() for check in checks]
    width = max(len(check.name) for check in every)
    lines: list[str] = []
    for area, checks in areas.items():
        lines += ["", paint(area, "1", colour)]
        for check in checks:
            sign, plain, code = MARKS[check.level]
            mark = paint(plain if ascii_only else sign, code, colour)
            lines.append(f"  {mark} {check.name.ljust(width)}  {check.result}")
            if check.remedy:
                lines.append(f"    {' ' * width}  {'->' if ascii_only else '→'} {check.remedy}")
    return "\n".join([*lines[1:], "", verdict(every)])


def verdict(checks: Sequence[Check]) -> str:
    """Return the last line: whether a run can start here."""
    stops = [check.name for check in checks if check.stops]
    warnings = sum(check.level is Level.WARNING for check in checks)
    if stops:
        return f"A run cannot start here: {', '.join(stops)}."
    noted = f", with {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    return f"Ready to train{noted}."


def paint(text: str, code: str, colour: bool) -> str:
    """Colour the text if colours are wanted."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def narrate(line: str) -> None:
    """Print on a terminal what is being measured, over the line before; `""` erases that."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}{' …' * bool(line)}")
        sys.stderr.flush()
