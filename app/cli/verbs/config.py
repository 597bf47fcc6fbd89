"""`grpo-tui config`: write and check configuration files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grpo_engine.config.parse import (
    build,
    changed,
    flatten,
    merge,
    parse_sets,
    settings,
    write_yaml,
)
from grpo_engine.config.safe_yaml import dump_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.config.trl_config import read, translate
from grpo_engine.errors import ConfigError, quoted
from grpo_engine.extends import config_of, sources
from grpo_tui.app.cli.output import print_json, print_rows, print_text, write_out
from grpo_tui.app.cli.params import ConfigFile, Json, Preset, Sets, Trust, complete_runs
from grpo_tui.app.cli.run_config import assemble, layers_of, start_preset
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.text.stderr import print_stderr

app = typer.Typer(no_args_is_help=True, help="Write and check configuration files.")


@app.command("init")
def init(
    out: Annotated[Path | None, typer.Argument(help="File to write; default: stdout.")] = None,
    preset: Preset = None,
    from_trl: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translate TRL's GRPOConfig (YAML, JSON).")
    ] = None,
    sets: Sets = None,
    full: Annotated[
        bool, typer.Option("--full", help="Include every setting and its help.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a configuration file to start from.

    Example: grpo-tui config init mine.yaml --preset starter --full
    """
    if from_trl is not None and preset is not None:
        raise typer.BadParameter("--from-trl brings all settings: leave --preset out")
    if from_trl is not None:
        tree, notes = translate(read(from_trl))
        for note in notes:
            print_stderr(note)
        config = build(merge(tree, parse_sets(sets)), str(from_trl))
    else:
        config = assemble(None, start_preset(None, preset, sets), sets)
    _refuse_existing(out, force=force)
    write_out(explained(config) if full else write_yaml(config), out)


@app.command("export")
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run (id, prefix, name or @last), or a YAML file of settings.",
            autocompletion=complete_runs,
        ),
    ],
    out: Annotated[Path | None, typer.Argument(help="File to write; default: stdout.")] = None,
    to: Annotated[Literal["trl"], typer.Option(help="The other trainer.")] = "trl",
    sets: Sets = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a Python script that trains by another trainer with the same settings.

    Example: grpo-tui config export @last train.py --to trl
    """
    from grpo_tui.trl.script import script

    writers = {"trl": script}
    if Path(source).suffix in (".yaml", ".yml"):
        config = assemble(Path(source), None, sets)
    else:
        with reading() as reader:
            stored = reader.run(reader.resolve(source).key).config
        config = assemble(None, None, sets, start=_settings_of(source, stored))
    _refuse_existing(out, force=force)
    write_out(writers[to](config), out)


def _settings_of(run: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was trained with, by the names of this program."""
    if "trainer" in stored and "algorithm" not in stored:
        raise ConfigError(
            f"run {quoted(run)} is the record of another trainer, without settings of an "
            "algorithm; give a YAML file"
        )
    names = RunConfig.model_fields
    return {name: value for name, value in stored.items() if name in names}


def _refuse_existing(out: Path | None, *, force: bool) -> None:
    if out is not None and out.exists() and not force:
        raise ConfigError(f"{out} already exists; use --force to overwrite it")


def explained(config: Any) -> str:
    """Return every setting as YAML with its help as a comment."""
    specs, lines, section = settings(), [], ""
    for path, value in flatten(config).items():
        head, _, leaf = path.partition(".")
        if leaf and head != section:
            lines.append(f"\n{head}:")
            section = head
        indent = "  " if leaf else ""
        info = specs[path]
        choices = f" One of {', '.join(info.choices)}." if info.choices else ""
        dumped = dump_yaml({leaf or head: value}, default_flow_style=None, allow_unicode=True)
        lines.append(f"{indent}# {info.help}{choices}")
        lines += [indent + line for line in dumped.rstrip().splitlines()]
    return "\n".join(lines).lstrip() + "\n"


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="YAML file to check.")],
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Say whether a file is a valid configuration, and what differs from the defaults.

    Example: grpo-tui config check mine.yaml
    """
    config = assemble(file, None, sets)
    changes, from_recipe = changed(flatten(config)), config.algorithm.differences()
    if as_json:
        print_json({"valid": True, "changed": changes, "differs_from_recipe": from_recipe})
        return
    print_text(f"{file} is valid; recipe {config.algorithm.recipe}, {config.steps} steps")
    for path, value in changes.items():
        print(f"{path} = {json.dumps(value)}")


@app.command("show")
def show(
    file: ConfigFile = None,
    preset: Preset = None,
    sets: Sets = None,
    full: Annotated[bool, typer.Option("--full", help="List the defaults as well.")] = False,
    _trust: Trust = False,
    as_json: Json = False,
) -> None:
    """List the settings that a file, what it extends, and --set come to, and where each is from.

    Example: grpo-tui config show mine.yaml --set steps=40
    """
    layers = layers_of(file, start_preset(file, preset, sets), sets)
    config, origins = config_of(layers), sources(layers)
    rows = [
        {"setting": path, "value": value, "from": origins.get(path, "default")}
        for path, value in flatten(config).items()
        if full or path in origins
    ]
    table = [row | {"value": json.dumps(row["value"], ensure_ascii=False)} for row in rows]
    print_rows(rows, as_json=as_json, table=table)
