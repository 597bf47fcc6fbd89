"""Build a RunConfig from the command line: preset, then file, then single settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_engine.config.parse import build, merge, parse_sets, read_yaml
from grpo_engine.config.settings import RunConfig

DEFAULT_PRESET = "starter"


def assemble(
    file: Path | None,
    preset: str | None,
    sets: Sequence[str],
    *,
    steps: int | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> RunConfig:
    """Merge the settings in order; without a file and a preset, start from `starter`.

    The user's own settings come together first, so that a file that names no recipe changes
    whichever is chosen.
    """
    tree: dict[str, Any] = {}
    own = parse_sets(sets)
    where = "the command line"
    if preset is not None or file is None:
        from grpo_engine.presets import preset as read_preset

        chosen = preset or DEFAULT_PRESET
        tree, where = read_preset(chosen).tree, f"preset {chosen}"
    if file is not None:
        own, where = merge(read_yaml(file), own), str(file)
    tree = merge(tree, own)
    for key, value in (("steps", steps), ("seed", seed), ("name", name)):
        if value is not None:
            tree[key] = value
    return build(tree, where)
