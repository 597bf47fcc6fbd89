"""Refuse an empty value, which a command would accept, before the command does anything."""

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from grpo_tui.app.cli.verb_table import NEEDS_ENGINE, TRAINING

MAY_BE_EMPTY = ("completion", "prompt", "text")


def check(command: Any, context: Any, args: Sequence[str]) -> None:
    """Refuse an empty value."""
    if context.resilient_parsing:  # The shell completes a word.
        return
    typed, *_ = command.make_parser(context).parse_args(list(args))
    for param in command.get_params(context):
        value = typed.get(param.name)
        is_empty = "" in value if isinstance(value, list | tuple) else value == ""
        if is_empty and param.name not in MAY_BE_EMPTY:
            remedy = "give one" if param.required else "give one, or leave it out"
            raise typer.BadParameter(f"it is empty: {remedy}", context, param)


class StrictCommand(TyperCommand):
    """A command whose values are checked before it runs; it takes options of the root as well."""

    def get_params(self, ctx: Any) -> list[Any]:
        *params, help_ = super().get_params(ctx)
        names = ("_db", "_allow_sleep") if self.name in TRAINING else ("_db",)
        shared = [param for param in ctx.find_root().command.params if param.name in names]
        return [*params, *shared, help_]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        check(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        if self.name in NEEDS_ENGINE:  # Without MLX it fails before it writes anything.
            from grpo_engine.platform.device import require_backend

            require_backend()
        return super().invoke(ctx)


class StrictGroup(TyperGroup):
    """A command with sub-commands, which do not read its options; `list` need not be named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        unnamed = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if unnamed and "list" in self.commands:
            args = ["list", *args]
        check(self, ctx, args)
        return super().parse_args(ctx, args)
