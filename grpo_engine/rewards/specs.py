"""The reward functions of a run, by its settings and its task; reading them needs no MLX."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError
from grpo_engine.tasks.base import RewardSpec, Task


def specs_of(config: RunConfig, task: Task) -> tuple[RewardSpec, ...]:
    """The reward functions of a run: from the settings, else the task's defaults."""
    settings, specs = config.rewards, task.default_rewards
    if settings.functions:
        defaults = {spec.name: spec.options for spec in specs}
        weights = settings.weights or (1.0,) * len(settings.functions)
        specs = tuple(
            RewardSpec(name=name, weight=weight, options=defaults.get(name, {}))
            for name, weight in zip(settings.functions, weights, strict=True)
        )
    names = [spec.name for spec in specs]
    options = {
        name: values for key, values in settings.options.items() for name in _meant(key, names)
    }
    return tuple(
        replace(spec, options={**spec.options, **options.get(spec.name, {})}) for spec in specs
    )


def check_options(config: RunConfig, names: Collection[str]) -> None:
    """Refuse options that are not of one of a run's functions, which have these names."""
    for key in config.rewards.options:
        if len(_meant(key, names)) != 1:
            raise ConfigError(
                f"rewards.options: {key!r} is not the name of one reward function of the run; its "
                f"functions are {', '.join(names) or 'none'}",
                "rewards.options",
                "rewards.functions",
            )


def _meant(key: str, names: Collection[str]) -> list[str]:
    """The functions that have this name, else those that have it after the colon."""
    return [key] if key in names else [n for n in names if n.rpartition(":")[2] == key]


def measured_specs(config: RunConfig, task: Task, specs: Sequence[RewardSpec]) -> list[RewardSpec]:
    """The task's accuracy function, to measure held-out answers, if it is none of the rewards."""
    name = task.accuracy
    if not name or config.evaluation.accuracy or name in [spec.name for spec in specs]:
        return []
    defaults = {spec.name: spec for spec in task.default_rewards}
    return [replace(defaults.get(name, RewardSpec(name=name)), weight=0.0)]
