"""Whether a run with these settings would begin: asked by the form, the command line and the queue.

Everything that happens before the first step is tried, except that no weights are read.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import Any

from grpo_engine.config.parse import flatten
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import (
    ConfigError,
    EngineError,
    MemoryLimitError,
    MissingPackageError,
    NotFetchedError,
)
from grpo_tui.app.trial.client import MAY_FETCH, call, trial_process


class Readiness:
    """Tries settings; keeps the outcome of each part until what it depends on changes."""

    def __init__(self) -> None:
        from grpo_tui.app.trial.examples import Examples, Latest
        from grpo_tui.app.trial.memory import Estimates
        from grpo_tui.app.trial.scores import Scores

        self.examples = Examples()
        self.estimates, self.scores = Estimates(self.examples), Scores(self.examples)
        self._latest = Latest()

    def close(self) -> None:
        self.scores.close()

    def of(self, config: RunConfig) -> dict[str, Any]:
        """Return what would fail as pairs (setting, text), and what a run would download.

        `now` is what fails on this machine at this moment: too little memory, or no MLX.
        """
        problems: list[tuple[str, str]] = []
        fetches: list[str] = []

        def passes(setting: str, key: object, call: Callable[[RunConfig], Any]) -> bool:
            error = self._latest.get(setting, key, lambda: outcome(call, config))
            if isinstance(error, NotFetchedError) and os.environ.get(MAY_FETCH):
                value = flatten(config)[setting]
                fetches.append(f"{setting} {value} is not on this machine: a run downloads it.")
            elif error is not None:
                problems.append(explain(error, setting))
            return error is None

        task, model, always = self.examples.task_key(config), config.model, object()
        has_task = passes("task.name", always, self.examples.task)
        now = _without_mlx()
        passes("record.trackers", always, _trackers)
        has_config = bool(now) or passes("model.path", always, _model_config)
        if has_task and has_config and not now:
            scored = task, config.rewards, config.algorithm, self.scores.stamps(config)
            passes("rewards.functions", scored, self.scores.rehearse)
            if config.task.others or config.algorithm.choices:
                passes("task.others", always, _tasks)
        # custom code of a model runs only in a run
        if has_config and not now and not model.trust_remote_code:
            passes("optimizer.name", config.optimizer, _rule)
            has_model = passes("model.path", model, self.estimates.shapes)
            if has_model and not problems:
                has_model = passes("teacher.path", always, self.estimates.teacher)
            usable = task, model, config.rollout.max_new_tokens
            if has_task and has_model and passes("task.name", usable, self.examples.usable):
                now = str(self.estimates.estimate(config)["refused"])
        return {"problems": problems, "now": now, "fetches": fetches}


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
    from grpo_engine.policy.source import check_config
    from grpo_tui.app.trial.examples import model_folder

    try:
        folder = model_folder(config.model.path)
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


def refuse(result: Mapping[str, Any], *, later: bool = False) -> None:
    """Raise what a run would fail at; one that starts `later` may have more memory then."""
    if problem := result.get("problem"):
        raise ConfigError(problem)
    texts = [text for _, text in result["problems"]]
    if result["now"] and not later:
        texts.append(result["now"])
    if texts:
        raise ConfigError("; ".join(texts), *(setting for setting, _ in result["problems"]))


def require(config: RunConfig) -> None:
    """Raise if a run would fail at its first step; call it on the thread that uses MLX.

    What is missing here is downloaded, as the run would do.
    """
    with closing(Readiness()) as readiness:
        refuse(readiness.of(config))


def require_apart(configs: Sequence[RunConfig], *, later: bool) -> tuple[str, ...]:
    """Raise if one of these runs would fail; tried in another process, which downloads nothing.

    Return what the runs would download.
    """
    with trial_process() as process:
        replies = [call(process, "ready", config) for config in configs]
    for reply in replies:
        refuse(reply, later=later)
    return tuple(dict.fromkeys(text for reply in replies for text in reply["fetches"]))
