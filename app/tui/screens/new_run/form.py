"""The New run form without a screen: settings as text, validated while typing, and their costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import yaml

from grpo_engine.config.declaration import Setting, as_text
from grpo_engine.config.parse import (
    OWNER,
    OWNERS,
    build,
    flatten,
    merge,
    parse_sets,
    problems,
    settings,
    write_yaml,
)
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, quoted
from grpo_tui.experiments.values import RunSummary

# Disk bytes per recorded token, compressed, with two passes and a reference.
BYTES_PER_TOKEN = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One row of the form."""

    info: Setting
    text: str
    changed: bool
    error: str


@dataclass(frozen=True, slots=True)
class RunForm:
    """A base config (preset or clone) and the edits to it, by dotted path."""

    base: RunConfig
    edits: Mapping[str, str] = field(default_factory=dict)
    title: str = ""

    @property
    def start(self) -> Mapping[str, Any]:
        """The base's values, without those that belonged to what was replaced here."""
        owners = [f"{path}={text}" for path, text in self.edits.items() if path in OWNERS]
        kept = merge(self.base.model_dump(), parse_sets(owners))
        start = flatten(self.base)
        for path, info in settings().items():
            section, _, leaf = path.partition(".")
            if leaf and leaf not in kept[section]:
                start[path] = info.default
        return start

    def type(self, path: str, text: str) -> "RunForm":
        """Return the form with one field edited; typing its value at the start removes the edit."""
        edits = {key: value for key, value in self.edits.items() if key != path}
        if text != as_text(self.start[path]):
            edits[path] = text
        return replace(self, edits=edits)

    def reset(self, path: str) -> "RunForm":
        """Return the form with one field reset to the base."""
        return replace(self, edits={k: v for k, v in self.edits.items() if k != path})

    def config(self) -> RunConfig:
        """Build the config, or raise one ConfigError that lists every problem."""
        return build(self._tree(self.edits), source="this run")

    def _tree(self, edits: Mapping[str, str]) -> dict[str, Any]:
        pairs = [f"{path}={text}" for path, text in edits.items()]
        return merge(self.base.model_dump(), parse_sets(pairs))

    def errors(self) -> dict[str, str]:
        """Problems, keyed by the setting to change.

        Conflicts between settings are only checked among settings that are valid on their own.
        """
        found: dict[str, str] = {}
        for _ in range(2):
            good = {path: text for path, text in self.edits.items() if path not in found}
            wrong = problems(self._tree(good))
            if not wrong:
                break
            for problem in wrong:
                found.setdefault(self._place(problem.settings), problem.text)
        return found

    def _place(self, settings: Sequence[str]) -> str:
        """The most recently edited of the settings that could be changed, otherwise the first."""
        places = [path for path in reversed(list(self.edits)) if path in settings]
        return (places or settings or [*self.edits, "steps"])[0]

    def fields(self, errors: Mapping[str, str]) -> dict[str, FormField]:
        """Every setting's row by its path."""
        base, start, rows = flatten(self.base), self.start, {}
        for path, info in settings().items():
            text = self.edits.get(path, as_text(start[path]))
            # weights and options that went with what they belonged to are a change, too
            changed = text != as_text((base if path in OWNER else start)[path])
            rows[path] = FormField(
                info=info, text=text, changed=changed, error=errors.get(path, "")
            )
        return rows

    def to_yaml(self) -> str:
        """The differences from the defaults, as YAML."""
        return write_yaml(self.config())

    def from_yaml(self, text: str) -> "RunForm":
        """Replace the settings by a YAML text; anything it omits gets the default."""
        try:
            tree = parse_yaml(text) or {}
        except yaml.YAMLError as error:
            words = str(error)
            if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
                words = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
            raise ConfigError(f"this is not YAML: {words}") from error
        if not isinstance(tree, dict):
            raise ConfigError(f"a config has sections like `rollout:`, got {quoted(text)}")
        wanted = {
            p: as_text(value) for p, value in flatten(build(tree, source="this YAML")).items()
        }
        made = replace(self, edits={})
        for path in OWNERS:
            made = made.type(path, wanted[path])
        start = made.start
        others = {p: text for p, text in wanted.items() if text != as_text(start[p])}
        return replace(made, edits={**made.edits, **others})


def matches(info: Setting, search: str) -> bool:
    """Whether every search word occurs in the setting's path or help."""
    text = f"{info.path} {info.help}".lower()
    return all(word in text for word in search.lower().split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a step and a run will cost; None if unknown."""

    rollouts_per_step: int
    tokens_per_step: int
    seconds_per_step: float | None
    seconds: float | None
    gigabytes: float
    source: str


def cost(config: RunConfig, runs: Sequence[RunSummary] = ()) -> Cost:
    """Estimate costs from the config and recent local runs of the same model, newest first."""
    rollouts = config.rollout.prompts * config.rollout.group_size
    alike = [run for run in runs if run.model == config.model.path and run.step > 0]
    known = next(iter(alike), None)
    length = float(config.rollout.max_new_tokens)
    seconds = None
    source = "no run of this model here yet: the longest answers are assumed"
    if known is not None:
        summary = known.metrics.get("completions/mean_length")
        if summary is not None and summary.mean is not None:
            length = min(length, summary.mean)
        seconds = _seconds(known, rollouts * length)
        source = f"as in {known.name or known.id}, by the number of tokens"
    tokens = round(rollouts * length)
    share = {"all": 1.0, "every": 0.1, "pinned": 0.0, "none": 0.0, "nothing": 0.0}
    recorded = tokens * BYTES_PER_TOKEN * share[config.record.tokens]
    return Cost(
        rollouts_per_step=rollouts,
        tokens_per_step=tokens,
        seconds_per_step=seconds,
        seconds=None if seconds is None else seconds * config.steps,
        gigabytes=recorded * config.steps / 1e9,
        source=source,
    )


def _seconds(known: RunSummary, tokens: float) -> float | None:
    time, num = known.metrics.get("step_time"), known.metrics.get("completions/mean_length")
    prompts = known.columns.get("rollout.prompts")
    size = known.columns.get("rollout.group_size")
    if not isinstance(prompts, int) or not isinstance(size, int):
        return None
    if time is None or time.mean is None or num is None or num.mean is None:
        return None
    found = time.mean * tokens / max(prompts * size * num.mean, 1.0)
    return found if isfinite(found) else None
