"""What is tried of settings before a run; its methods are called in the trial process.

Everything that happens before the first step is tried, except that no weights are read.
"""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from grpo_engine.config.parse import build, flatten
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import (
    EngineError,
    MemoryLimitError,
    MissingPackageError,
    NotFetchedError,
)
from grpo_engine.platform.priority import lower_priority
from grpo_tui.app.trial.client import MAY_FETCH
from grpo_tui.app.trial.examples import describe
from grpo_tui.app.trial.loaded import Loaded
from grpo_tui.app.trial.memory import estimate
from grpo_tui.app.trial.scores import Rewards

Settings = Mapping[str, Any]


class Trials:
    """Keeps what it loaded for the next call."""

    def __init__(self, server: object = None) -> None:
        if server is not None:
            lower_priority(10)
        self._loaded = Loaded()
        self._rewards = Rewards(self._loaded)

    def close(self) -> None:
        self._rewards.close()

    def examples(self, config: Settings) -> dict[str, Any]:
        return describe(self._loaded, _config(config))

    def memory(self, config: Settings) -> dict[str, Any]:
        return estimate(self._loaded, _config(config))

    def score(self, config: Settings, example: int, completion: str) -> dict[str, Any]:
        return self._rewards.score(_config(config), example, completion)

    def ready(self, config: Settings) -> dict[str, Any]:
        """What would fail as pairs (setting, text), and what a run would download.

        `now` is what fails on this machine at this moment: too little memory, or no MLX.
        """
        run, loaded = _config(config), self._loaded
        problems: list[tuple[str, str]] = []
        fetches: list[str] = []

        def passes(setting: str, call: Callable[[RunConfig], Any]) -> bool:
            error = outcome(call, run)
            if isinstance(error, NotFetchedError) and os.environ.get(MAY_FETCH):
                value = flatten(run)[setting]
                fetches.append(f"{setting} {value} is not on this machine: a run downloads it.")
            elif error is not None:
                problems.append(explain(error, setting))
            return error is None

        has_task, now = passes("task.name", loaded.task), _without_mlx()
        passes("record.trackers", _trackers)
        if now or not passes("model.path", _model_config):
            return {"problems": problems, "now": now, "fetches": fetches}
        if has_task:
            passes("rewards.functions", self._rewards.rehearse)
            if run.task.others or run.algorithm.choices:
                passes("task.others", _tasks)
        if not run.model.trust_remote_code:  # custom code of a model runs only in a run
            passes("optimizer.name", _rule)
            has_model = passes("model.path", loaded.policy)
            if has_model and not problems:
                has_model = passes("teacher.path", loaded.teacher)
            if has_task and has_model and passes("task.name", loaded.renderer):
                now = str(estimate(loaded, run)["refused"])
        return {"problems": problems, "now": now, "fetches": fetches}


def _config(settings: Settings) -> RunConfig:
    return build(settings, "these settings")


def outcome(call: Callable[[RunConfig], Any], config: RunConfig) -> Exception | None:
    """The error of a call."""
    try:
        call(config)
    except SystemExit as left:
        return RuntimeError(f"it called sys.exit({left.code!r})")
    except Exception as error:  # errors of data sets, templates and users' files
        return error
    return None


def explain(error: Exception, part: str) -> tuple[str, str]:
    """The setting to change, and a text that names it."""
    text, setting = f"{type(error).__name__}: {error}", part
    if isinstance(error, EngineError):
        text, setting = str(error), next(iter(error.settings), part)
    text = " ".join(text.split("\n", 1)[0].split())
    return setting, text if setting in text else f"{setting}: {text}"


def _without_mlx() -> str:
    from grpo_engine.platform.device import require_backend, require_mlx

    try:
        require_backend()
        require_mlx()
    except (MissingPackageError, MemoryLimitError) as error:
        return str(error)
    return ""


def _model_config(config: RunConfig) -> None:
    """Look at the model's configuration first: what is wrong there breaks all the rest."""
    from grpo_engine.policy.source import check_config, find_folder

    try:
        folder = find_folder(config.model.path)
    except EngineError:
        return  # said when the model is loaded
    if (folder / "config.json").is_file():
        check_config(folder)


def _tasks(config: RunConfig) -> None:
    from grpo_engine.run.user_objects import NO_OBJECTS
    from grpo_engine.setup.functions import check_functions
    from grpo_engine.setup.parts import load_tasks

    check_functions(config.algorithm.resolved(), load_tasks(config, NO_OBJECTS))


def _rule(config: RunConfig) -> None:
    from grpo_engine.policy import optimizer

    optimizer.build(config.optimizer)


def _trackers(config: RunConfig) -> None:
    for name in config.record.trackers:
        if name != "tensorboard" and find_spec(name) is None:
            raise MissingPackageError(
                f"record.trackers: the package {name} is not installed: pip install {name}"
            )
