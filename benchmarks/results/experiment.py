"""What an experiment declares: settings to compare, their seeds and the tables made of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results.measured import Measured
from grpo_engine.config.parse import assign, build
from grpo_engine.config.settings import RunConfig

FIRST_SEED = 1
Changes = Mapping[str, Any]  # values by the paths of settings


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Settings that are trained with the same seeds; the first is the baseline of tests.

    `page` gives the Markdown below the title, without command, date and machine, which the page's
    writer adds. With `in_trl` the settings that it names are trained by TRL as well. `model` gives
    the folder of the model, of which `starts` are trained on: from the weights that the first run
    of another setting, which comes before, ended with.
    """

    title: str
    settings: Mapping[str, Changes]
    page: Callable[[Measured], Iterator[str]]
    shared: Changes = field(default_factory=dict)  # by all settings
    seeds: int = 3
    in_trl: tuple[str, ...] = ()
    model: Callable[[], Path] | None = None
    starts: Mapping[str, str] = field(default_factory=dict)

    def config(self, setting: str, start: Path | None = None) -> RunConfig:
        """All settings of the first seed's run, from the weights in the folder `start`."""
        tree: dict[str, Any] = {}
        for path, value in {**self.shared, **self.settings[setting]}.items():
            assign(tree, path, value)
        if folder := start or (self.model and self.model()):
            assign(tree, "model.path", str(folder))
        return build({**tree, "seed": FIRST_SEED})
