"""Refuses what a command would take in silence, before it does anything.

An empty value, a number that is none, formats that exclude each other. Values in messages are cut.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from grpo_engine.errors import quoted
from grpo_tui.app.exit_codes import brief

MAY_BE_EMPTY = ("completion", "prompt", "text")
FORMATS = {"as_json": "--json", "as_csv": "--csv", "as_md": "--md"}
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
        value, texts = context.params.get(param.name), _texts(typed.get(param.name))
        values = value if isinstance(value, list | tuple) else [value]
        for text in texts:
            if not text and param.name not in MAY_BE_EMPTY:
                raise typer.BadParameter(f"{_name(param)} is empty: give a value, or leave it out")
            if any(type(item) in (int, float) for item in values):
                _check_number(_name(param), text)
    formats = [flag for name, flag in FORMATS.items() if context.params.get(name)]
    if len(formats) > 1:
        raise typer.BadParameter(f"{' and '.join(formats)} exclude each other: give one of them")
    if context.params.get("raw") and context.params.get("as_csv") is False:
        raise typer.BadParameter("--raw goes with --csv")


def _texts(value: Any) -> list[str]:
    """What was typed for an option: nothing, once, or several times."""
    texts = value if isinstance(value, list | tuple) else [value]
    return [text for text in texts if isinstance(text, str)]


def _name(param: Any) -> str:
    is_option = param.opts[0].startswith("-")
    return str(param.opts[0] if is_option else param.metavar or param.name.upper())


def _check_number(name: str, text: str) -> None:
    from grpo_engine.config.safe_yaml import RefusedError, read_number

    try:
        if read_number(text) is None:
            raise typer.BadParameter(f"{name} {quoted(text)} is no number; give one such as 1")
    except RefusedError as error:
        raise typer.BadParameter(f"{name}: {error}") from None


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
