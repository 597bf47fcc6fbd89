"""Presets: one YAML file each, whose first comment lines describe it."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from grpo_engine.config.parse import build
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import PresetNotFoundError, nearest, quoted
from grpo_engine.frozen import frozen

# in the order of lists
ORDER = (
    "starter",
    "guess",
    "smollm2-gsm",
    "mac-16gb",
    "mac-32gb",
    "countdown",
    "gsm8k-tutorial",
    "mlx-article",
)
STARTER = "starter"
# The starter's settings are not made for a run that sets one of these.
SUBJECTS = ("model.path", "task.name", "task.tools", "task.environment", "rewards.functions")


@frozen
class Preset:
    name: str
    description: str
    text: str

    @property
    def tree(self) -> dict[str, Any]:
        return dict(parse_yaml(self.text) or {})

    @property
    def config(self) -> RunConfig:
        """Return a complete configuration with the preset's settings."""
        return build(self.tree, f"preset {self.name}")


def names() -> tuple[str, ...]:
    available = {
        item.name.removesuffix(".yaml")
        for item in files(__package__).iterdir()
        if item.name.endswith(".yaml")
    }
    ordered = [name for name in ORDER if name in available]
    return (*ordered, *sorted(available - set(ordered)))


def preset(name: str) -> Preset:
    if name not in names():
        raise PresetNotFoundError(
            f"there is no preset {quoted(name)}{nearest(name, names())}; choose one of "
            f"{', '.join(names())}"
        )
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    comments = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# ").strip())
    return Preset(name=name, description=" ".join(comments), text=text)


def starting_preset(changes: Mapping[str, Any]) -> tuple[str | None, str]:
    """The preset that a run without one and without a file begins with, and a sentence on it."""
    for path in SUBJECTS:
        section, _, name = path.partition(".")
        if name in changes.get(section, ()):
            return None, f"settings: the defaults, as {path} is set and no preset is named"
    return STARTER, f"settings: preset {STARTER}, as no file, model, task or rewards are named"
