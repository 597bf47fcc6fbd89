"""`grpo-tui doctor`: report this machine's capabilities and speed, and remedies for problems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, uses_colour, writes_unicode
from grpo_tui.app.cli.params import Db, Json
from grpo_tui.app.health.checks import Check, Level

MARKS: Final = {
    Level.FINE: ("✓", "green"), Level.WARNING: ("!", "yellow"), Level.STOPS: ("✗", "red"),
}  # fmt: skip
IN_ASCII: Final = str.maketrans("✓✗→", " X>")


def doctor(
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Say what this machine has and lacks, and measure how fast it multiplies.

    Exit status 1 where something would stop a run.

    Example: grpo-tui doctor --json
    """
    areas = collect(db)
    if as_json:
        print_json(report(areas))
    else:
        text = page(areas)
        typer.echo(text if writes_unicode() else text.translate(IN_ASCII), color=uses_colour())
    if any(check.stops for checks in areas.values() for check in checks):
        raise typer.Exit(exit_codes.FAILED)


def collect(db: Path | None) -> dict[str, list[Check]]:
    """Run every check, by area in the order of the report."""
    from grpo_tui.app.health import machine, mlx, packages, store, terminal

    return {"Machine": machine.checks(), "MLX": mlx.checks(), "Terminal": terminal.checks(),
            "Store": store.checks(db), "Optional": packages.checks()}  # fmt: skip


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


def page(areas: Mapping[str, Sequence[Check]]) -> str:
    """Format the checks for people: one line each under its area, each remedy below its line."""
    every = [check for checks in areas.values() for check in checks]
    width = max(len(check.name) for check in every)
    lines: list[str] = []
    for area, checks in areas.items():
        lines += ["", typer.style(area, bold=True)]
        for check in checks:
            mark, colour = MARKS[check.level]
            lines.append(f"  {typer.style(mark, colour)} {check.name:{width}}  {check.result}")
            if check.remedy:
                lines.append(f"    {'':{width}}  → {check.remedy}")
    return "\n".join([*lines[1:], "", verdict(every)])


def verdict(checks: Sequence[Check]) -> str:
    """Return the last line: whether a run can start here."""
    stops = [check.name for check in checks if check.stops]
    warnings = sum(check.level is Level.WARNING for check in checks)
    if stops:
        return f"A run cannot start here: {', '.join(stops)}."
    noted = f", with {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    return f"Ready to train{noted}."
