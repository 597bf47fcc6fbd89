"""Refuses what a command would take in silence, before it does anything.

An empty value, formats that exclude each other. Values in messages are cut.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from grpo_tui.app.exit_codes import brief

MAY_BE_EMPTY = ("completion", "prompt", "text")
FORMATS = {"as_json": "--json", "as_csv": "--csv"}
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # of click, which typer brings along


@contextmanager
def brief_errors() -> Iterator[None]:
    """Cut long values in the messages of wrong usage."""
    try:
        yield
    except USAGE_ERROR as error:
        error.message = brief(error.message)
        raise


def check(command: Any, context: Any, args: Sequence[str]) -> None:
    """Refuse values; typer.BadParameter names the option and the remedy."""
    typed, *_ = command.make_parser(context).parse_args(list(args))
    for param in command.params:
        is_option = param.opts[0].startswith("-")
        name = param.opts[0] if is_option else param.metavar or param.name.upper()
        value = typed.get(param.name)
        is_empty = "" in value if isinstance(value, list | tuple) else value == ""
        if is_empty and param.name not in MAY_BE_EMPTY:
            raise typer.BadParameter(f"{name} is empty: give a value, or leave it out")
    formats = [flag for name, flag in FORMATS.items() if context.params.get(name)]
    if len(formats) > 1:
        raise typer.BadParameter(f"{' and '.join(formats)} exclude each other: give one of them")
    if context.params.get("raw") and context.params.get("as_csv") is False:
        raise typer.BadParameter("--raw goes with --csv")


class StrictCommand(TyperCommand):
    """A command whose values are checked before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return _parsed(self, ctx, args, super().parse_args)


class StrictGroup(TyperGroup):
    """A command with sub-commands, which do not read its options; `list` need not be named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        unnamed = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if unnamed and "list" in self.commands:
            args = ["list", *args]
        return _parsed(self, ctx, args, super().parse_args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with brief_errors():
            return super().resolve_command(ctx, args)


def _parsed(command: Any, ctx: Any, args: list[str], parse: Any) -> list[str]:
    arguments = list(args)
    with brief_errors():
        remaining = list(parse(ctx, args))
        if not ctx.resilient_parsing:  # for completion
            check(command, ctx, arguments)
    return remaining
