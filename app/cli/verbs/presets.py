"""`grpo-tui presets`: ready-made settings."""

from typing import Annotated

import typer

from grpo_tui.app.cli.output import print_fields, print_json
from grpo_tui.app.cli.params import Json, complete_presets

app = typer.Typer(help="List the presets; show one. Example: grpo-tui presets show starter")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the presets, the first one first.

    Example: grpo-tui presets
    """
    from grpo_engine.presets import names, preset

    items = [preset(name) for name in names()]
    if as_json:
        return print_json(
            [{"name": item.name, "about": item.about, "settings": item.tree} for item in items]
        )
    return print_fields({item.name: item.about for item in items})


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

    item = preset(name)
    if as_json:
        print_json(item.config.model_dump(mode="json") if full else item.tree)
    else:
        text = write_yaml(item.config, only_changed=False) if full else item.text
        typer.echo(text, nl=False)
