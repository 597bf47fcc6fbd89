"""`grpo-tui doctor`: report what this machine or a server can, its speed, and remedies."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import (
    BOLD,
    GREEN,
    RED,
    YELLOW,
    print_json,
    styled,
    writes_unicode,
)
from grpo_tui.app.cli.params import Json
from grpo_tui.app.health.checks import Check
from grpo_tui.app.text.safe_text import safe

MARKS: Final = {
    "fine": ("✓", GREEN),
    "warning": ("!", YELLOW),
    "stops a run": ("✗", RED),
}
IN_ASCII: Final = str.maketrans("✓✗→", " X>")


def doctor(
    as_json: Json = False,
    remote: Annotated[
        str, typer.Option(help="A server of the Tinker API to look at, in place of this machine.")
    ] = "",
    model: Annotated[str, typer.Option(help="The server's name of the model.")] = "",
    key_env: Annotated[str, typer.Option(help="Name of the variable with its key.")] = "",
    insecure: Annotated[bool, typer.Option(help="Allow http:// to another machine.")] = False,
) -> None:
    """Say what this machine has and lacks, and measure how fast it multiplies.

    With --remote say what a server can that would train instead, and measure it with an adapter
    that is thrown away. Exit status 1 where something would stop a run.

    Example: grpo-tui doctor --remote http://localhost:8000
    """
    if remote:
        from grpo_tui.app.health import server

        areas = {"Server": server.checks(remote, model, key_env, insecure=insecure)}
    else:
        areas = _of_this_machine()
    results = [(area, check) for area, checks in areas.items() for check in checks]
    stops = [check.name for _, check in results if check.stops]
    warnings = sum(check.level == "warning" for _, check in results)
    if as_json:
        rows = [
            {
                "area": area,
                "name": check.name,
                "found": check.result,
                "level": check.level,
                "remedy": check.remedy,
            }
            for area, check in results
        ]
        print_json({"ok": not stops, "warnings": warnings, "facts": rows})
    else:
        width = max(len(check.name) for _, check in results)
        lines = [line for area, checks in areas.items() for line in block(area, checks, width)]
        text = "\n".join([*lines, verdict(stops, warnings)])
        print(text if writes_unicode() else text.translate(IN_ASCII))
    if stops:
        raise typer.Exit(exit_codes.FAILED)


def _of_this_machine() -> dict[str, list[Check]]:
    from grpo_tui.app.health import machine, mlx, packages, store, terminal

    return {
        "Machine": machine.checks(),
        "MLX": mlx.checks(),
        "Terminal": terminal.checks(),
        "Store": store.checks(),
        "Optional": packages.checks(),
    }


def block(area: str, checks: Sequence[Check], width: int) -> list[str]:
    """The checks of an area for people: a line each, and each remedy below its line."""
    lines = [styled(area, BOLD)]
    for check in checks:
        mark, colour = MARKS[check.level]
        lines.append(f"  {styled(mark, colour)} {check.name:{width}}  {safe(check.result)}")
        if check.remedy:
            lines.append(f"    {'':{width}}  → {safe(check.remedy)}")
    return [*lines, ""]


def verdict(stops: Sequence[str], warnings: int) -> str:
    """The last line: whether a run can start here."""
    if stops:
        return f"A run cannot start here: {', '.join(stops)}."
    noted = f", with {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    return f"Ready to train{noted}."
