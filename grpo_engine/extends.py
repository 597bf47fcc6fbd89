"""Settings in layers: a file may build on other files, presets and runs with `extends`.

    extends: base.yaml               # or starter, run:NAME, or a list; later ones go first
    optimizer: {learning_rate: 3.0e-4}

A file is looked for beside the one that names it. What several files build on counts once, where it
comes first.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_engine import consent
from grpo_engine.config.parse import SECTIONS, build, merge, problems, read_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, nearest, quoted
from grpo_engine.frozen import frozen
from grpo_engine.presets import names, preset

EXTENDS = "extends"
RUN = "run:"
DEEPEST = 32  # files that build on each other

RunSettings = Callable[[str], Mapping[str, Any]]  # of a run by its name


@frozen
class Layer:
    """The settings of one source, which go before those of the layers before it."""

    source: str
    tree: Mapping[str, Any]
    chain: str = ""  # the files that lead to it, and itself


def preset_layer(name: str) -> Layer:
    return Layer(source=f"preset {name}", tree=preset(name).tree)


def file_layers(file: Path, run_settings: RunSettings) -> tuple[Layer, ...]:
    """The layers of a settings file: what it builds on, then the file."""
    layers = dict[str, Layer]()
    _add_layers(layers, file, (), run_settings)
    return tuple(layers.values())


def _add_layers(
    layers: dict[str, Layer], file: Path, chain: tuple[Path, ...], run_settings: RunSettings
) -> None:
    """Add the layers of a file that are not there yet; `chain` are the files that lead to it."""
    key, way = file.expanduser().resolve(), (*chain, file)
    if key in {earlier.expanduser().resolve() for earlier in chain}:
        raise ConfigError(f"{_names(way)}: a file cannot build on itself; remove one `extends`")
    if str(key) in layers:
        return
    if len(way) > DEEPEST:
        raise ConfigError(f"{_names(way)}: more than {DEEPEST} files build on each other")
    try:
        tree = read_yaml(file.expanduser())
    except ConfigError as error:
        raise ConfigError(f"{_names(chain)}: {error}") if chain else error from None
    for base in _bases(tree.pop(EXTENDS, None), way):
        if base in layers:
            continue
        if base.startswith(RUN):
            layers[base] = _run_layer(base.removeprefix(RUN).strip(), run_settings)
        elif base in names():
            layers[base] = preset_layer(base)
        elif (path := file.parent / Path(base).expanduser()).exists() or path.suffix:
            _add_layers(layers, path, way, run_settings)
        else:
            raise ConfigError(
                f"{_names(way)}: there is no file or preset {quoted(base)}"
                f"{nearest(base, names())}; write {RUN}NAME to build on a run"
            )
    layers[str(key)] = Layer(source=str(file), tree=tree, chain=_names(way))


def _run_layer(name: str, run_settings: RunSettings) -> Layer:
    """The settings of a run but its name, if what they load may be used."""
    source = f"run {name}"
    tree = consent.build(run_settings(name), source).model_dump(mode="json", exclude={"name"})
    return Layer(source=source, tree=tree)


def _bases(value: Any, chain: Sequence[Path]) -> list[str]:
    bases = value if isinstance(value, list) else [] if value is None else [value]
    for base in bases:
        if not isinstance(base, str) or not base.strip():
            raise ConfigError(
                f"{_names(chain)}: extends must be a file, a preset, {RUN}NAME, or a list of them; "
                f"got {quoted(base)}"
            )
    return bases


def _names(chain: Sequence[Path]) -> str:
    return " → ".join(map(str, chain))


def combined(layers: Sequence[Layer]) -> dict[str, Any]:
    """The settings of layers.

    They are merged from the last one, so that a file that names no recipe changes whichever a layer
    after it chooses.
    """
    tree = dict[str, Any]()
    for layer in reversed(layers):
        tree = merge(layer.tree, tree)
    return tree


def config_of(layers: Sequence[Layer]) -> RunConfig:
    """The configuration of layers; an error names the first one that has the problem."""
    tree = combined(layers)
    remaining = set(problems(tree))
    if not remaining:
        return build(tree)
    culprits = (
        layer.chain or layer.source
        for end, layer in enumerate(layers, start=1)
        if remaining.intersection(problems(combined(layers[:end])))
    )
    return build(tree, next(culprits))


def sources(layers: Sequence[Layer]) -> dict[str, str]:
    """Where the value of each setting comes from, by dotted path."""
    tree, origins = dict[str, Any](), dict[str, str]()
    for layer in reversed(layers):
        previous, tree = _values(tree), merge(layer.tree, tree)
        for path, value in _values(tree).items():
            if path not in previous:
                origins[path] = layer.source
            elif value != previous[path]:  # entries of a mapping were added
                origins[path] += f", {layer.source}"
    return origins


def _values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a tree by dotted path."""
    values = dict[str, Any]()
    for name, value in tree.items():
        if name in SECTIONS and isinstance(value, Mapping):
            values |= {f"{name}.{leaf}": item for leaf, item in value.items()}
        else:
            values[name] = value
    return values
