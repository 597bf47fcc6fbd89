"""Build a RunConfig from the command line: preset, then file, then single settings."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_engine.config.parse import merge, parse_sets
from grpo_engine.config.settings import RunConfig
from grpo_engine.extends import Layer, config_of, file_layers, preset_layer
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.db.paths import store_path

COMMAND_LINE = "the command line"


def assemble(
    file: Path | None,
    preset: str | None,
    sets: Iterable[str] | None,
    *,
    start: Mapping[str, Any] | None = None,
    **options: object,
) -> RunConfig:
    """Build the settings of `layers_of`, then `options` such as `steps` where they are not None."""
    layers = layers_of(file, preset, sets, start=start)
    overrides = {key: value for key, value in options.items() if value is not None}
    if overrides.keys() & layers[-1].tree.keys():
        config_of(layers)  # A value that an option replaces is checked as well.
    return config_of((*layers, Layer(source=COMMAND_LINE, tree=overrides)))


def layers_of(
    file: Path | None,
    preset: str | None,
    sets: Iterable[str] | None,
    *,
    start: Mapping[str, Any] | None = None,
) -> tuple[Layer, ...]:
    """The preset, then the file with what it extends, then single settings.

    `start` are the settings of a run to begin from, which take the preset's place.
    """
    layers = list[Layer]()
    if start is not None:
        layers.append(Layer(source="the run to begin from", tree=start))
    elif preset is not None:
        layers.append(preset_layer(preset))
    if file is not None:
        layers += file_layers(file, _settings_of_run)
    return (*layers, Layer(source=COMMAND_LINE, tree=parse_sets(sets)))


def _settings_of_run(name: str) -> Mapping[str, Any]:
    from grpo_tui.experiments.record.from_python import PythonStore

    return PythonStore(store_path()).settings(name)


def start_preset(file: Path | None, preset: str | None, sets: Iterable[str] | None) -> str | None:
    """The preset of a new run; where neither it nor a file is named, one is chosen and printed."""
    if preset is not None or file is not None:
        return preset
    from grpo_engine.presets import starting_preset

    chosen, sentence = starting_preset(parse_sets(sets))
    print_stderr(sentence)
    return chosen


def checkpoint_start(ref: str, store: Path, *, with_optimizer: bool) -> dict[str, Any]:
    """The settings of `RUN` or `RUN:STEP`, with the model of its checkpoint."""
    from grpo_engine.evaluation.target import of_run
    from grpo_engine.run import checkpoint
    from grpo_tui.app.jobs.start import folder_and_step

    folder, step = folder_and_step(ref, store)
    if step is None and (steps := checkpoint.steps(folder)):
        step = steps[-1]
    target = of_run(folder, {"name": ""}, step)
    tree = target.config.model_dump(mode="json")
    start = str(checkpoint.folder(folder, target.step)) if with_optimizer else None
    return merge(tree, {"optimizer": {"start": start}})
