"""`grpo-tui presets`: ready-made settings."""

from typing import Annotated

import typer

from grpo_engine.presets import names, preset
from grpo_tui.app.cli.output import print_fields, print_json
from grpo_tui.app.cli.params import Json, complete_presets

app = typer.Typer(help="List the presets; show one. Example: grpo-tui presets show starter")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the presets, the first one first.

    Example: grpo-tui presets
    """
    items = [preset(name) for name in names()]
    if as_json:
        return print_json(
            [
                {"name": item.name, "about": item.description, "settings": item.tree}
                for item in items
            ]
        )
    return print_fields({item.name: item.description for item in items})


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="Name of the preset.", autocompletion=complete_presets)
    ],
    as_json: Json = False,
) -> None:
    """Print a preset's settings, as a YAML file that `train` takes.

    With all settings: grpo-tui config init --preset NAME --full

    Example: grpo-tui presets show starter > mine.yaml
    """
    item = preset(name)
    print_json(item.tree) if as_json else print(item.text, end="")
