"""`grpo-tui presets`: ready-made settings."""

import json
from typing import Annotated

import typer

from grpo_tui.app.cli.params import Json, complete_presets

app = typer.Typer(invoke_without_command=True, help="List the presets; show one.")


@app.callback()
def list_presets(
    context: typer.Context,
    as_json: Json = False,
) -> None:
    """List the presets, the first one first.

    Example: grpo-tui presets
    """
    if context.invoked_subcommand is not None:
        return
    from grpo_engine.presets import names, preset

    presets_ = [preset(name) for name in names()]
    if as_json:
        rows = [
            {"name": item.name, "about": item.about, "settings": item.tree} for item in presets_
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(item.name) for item in presets_)
    for item in presets_:
        typer.echo(f"{item.name.ljust(width)}  {item.about}")


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="Name of the preset.", autocompletion=complete_presets)
    ],
    full: Annotated[
        bool, typer.Option("--full", help="Include settings at their defaults.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print a preset's settings, as a YAML file that `train` takes.

    Example: grpo-tui presets show starter > mine.yaml
    """
    from grpo_engine.config.parse import write_yaml
    from grpo_engine.presets import preset

    presets_ = preset(name)
    if as_json:
        tree = presets_.config.model_dump(mode="json") if full else presets_.tree
        typer.echo(json.dumps(tree, indent=1))
    elif full:
        typer.echo(write_yaml(presets_.config, only_changed=False), nl=False)
    else:
        typer.echo(presets_.text, nl=False)
