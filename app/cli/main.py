"""The command `grpo-tui`: load only the requested verb, and print errors as one line."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.startup import name_store, require_terminal
from grpo_tui.app.cli.strict import StrictCommand, StrictGroup
from grpo_tui.app.cli.verb_table import VERBS, Verb

# Plain help: loading the console of rich would double the time of `--help`.
STYLE: Any = {"rich_markup_mode": None, "add_completion": False, "pretty_exceptions_enable": False}

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's; typer does not export it


class VerbGroup(StrictGroup):
    """Lists every verb from the table and imports a verb's module only when it is called."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.verbs = {verb.name: verb for verb in VERBS}
        for verb in VERBS:
            self.add_command(TyperCommand(verb.name, help=verb.help, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verb = self.verbs.get(args[0])
        if verb is not None:
            self.add_command(load(verb))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # typer would end without a word
            raise typer.Exit(exit_codes.report(error, sys.stderr)) from error

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.verbs))
        for section, verbs in groupby(VERBS, attrgetter("section")):
            with formatter.section(section):
                formatter.write_dl([(verb.name.ljust(width), verb.help) for verb in verbs])


def load(verb: Verb) -> Any:
    """Return the command of a table row, ready to be invoked."""
    module, _, attribute = verb.target.partition(":")
    target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(**STYLE)
        target.command(verb.name)(function)
    target.info.cls = StrictGroup
    for registered in target.registered_commands:
        registered.cls = StrictCommand
    target.rich_markup_mode = None
    target._add_completion = False
    command: Any = typer.main.get_command(target)
    command.name = verb.name
    return command


root = typer.Typer(
    cls=VerbGroup,
    help="A terminal workbench for reinforcement learning of language models with GRPO on MLX.",
    context_settings={"help_option_names": ["-h", "--help"]},
    **(STYLE | {"add_completion": True}),
)


def show_version(show: bool) -> None:
    """Print the installed version and exit."""
    if show:
        from importlib.metadata import version

        print(f"grpo-tui {version('grpo-tui')}")
        raise typer.Exit


def allow_sleep(allow: bool) -> None:
    """Let the machine fall asleep, here and in what this process starts."""
    if allow:
        from grpo_tui.app.jobs.power import ALLOW_SLEEP

        os.environ[ALLOW_SLEEP] = "1"


@root.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    _db: Annotated[
        Path | None,
        typer.Option(
            "--db",
            metavar="FILE",
            callback=name_store,
            expose_value=False,
            help="The store, for every verb; else $GRPO_TUI_DB, else in the data folder.",
        ),
    ] = None,
    _allow_sleep: Annotated[
        bool,
        typer.Option(
            "--allow-sleep",
            callback=allow_sleep,
            expose_value=False,
            help="Let the machine fall asleep while a run trains.",
        ),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Without a verb: open the workbench."""
    if context.invoked_subcommand is None:
        require_terminal()
        from grpo_tui.app.tui.app import open_workbench

        raise typer.Exit(open_workbench())


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    command = typer.main.get_command(root)

    def run() -> int:
        try:
            status = command.main(args, prog_name="grpo-tui", standalone_mode=False)
        except USAGE_ERROR as error:
            error.message = exit_codes.brief(error.message)
            error.show()
            return exit_codes.USAGE
        except typer.Abort:
            return exit_codes.FAILED
        return status or exit_codes.OK

    return exit_codes.guarded(run)
