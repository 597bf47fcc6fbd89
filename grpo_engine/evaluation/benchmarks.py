"""Standard benchmarks by lm-eval, with mlx-lm's model for it: `[lm-eval]` installs the program.

The model is the policy as a run loads it, with its adapter.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Any, Literal

from grpo_engine.config.settings import RunConfig, TaskConfig
from grpo_engine.errors import ConfigError, MissingPackageError
from grpo_engine.events import BenchmarkScore
from grpo_engine.frozen import frozen
from grpo_engine.rollouts.prompts import CHATML, has_chat_template, read_template

CODE = "!function"  # how a task file names a function
REMOTE_CODE = "trust_remote_code"
Moment = Literal["before", "after"]
BATCH = 8  # sequences that are processed at once, as mlx-lm's command does


@frozen
class Benchmarks:
    """Tasks of lm-eval by name, from a folder of further task files if there is one.

    `limit` is the number of problems of each task, 0 for all.
    """

    tasks: tuple[str, ...]
    folder: Path | None = None
    limit: int = 0

    @property
    def code(self) -> tuple[Path, ...]:
        """The task files that name functions, which lm-eval imports and calls in this process."""
        return tuple(file for file, text in self._files() if CODE in text)

    def check(self) -> None:
        """Refuse what is missing, before a model is loaded."""
        if find_spec("lm_eval") is None:
            raise MissingPackageError(
                "standard benchmarks need the package lm-eval; `pip install 'grpo-tui[lm-eval]'`"
            )
        if self.folder is not None and not self.folder.is_dir():
            raise ConfigError(f"--lm-eval-tasks {self.folder} is not a folder of task files")
        for file, text in self._files():
            if REMOTE_CODE in text:
                raise ConfigError(
                    f"{file} sets {REMOTE_CODE}, by which a data set runs code of its own; remove "
                    "the line, or get the data as a file"
                )

    def _files(self) -> Iterator[tuple[Path, str]]:
        for file in sorted(self.folder.rglob("*.y*ml")) if self.folder else ():
            yield file, file.read_text(encoding="utf-8", errors="replace")


def measure(models: Mapping[Moment, RunConfig], benchmarks: Benchmarks) -> list[BenchmarkScore]:
    """Measure the models of these settings, greedily and on the same problems.

    What lm-eval and mlx-lm print goes to stderr.
    """
    import lm_eval

    scores: list[BenchmarkScore] = []
    with redirect_stdout(sys.stderr):
        manager = _task_manager(benchmarks)
        for moment, config in models.items():
            model = _model(config)
            results = lm_eval.simple_evaluate(
                model=model,
                tasks=list(benchmarks.tasks),
                task_manager=manager,
                limit=benchmarks.limit or None,
                apply_chat_template=model.use_chat_template,
                log_samples=False,
            )
            scores += _scores(results, moment)
    return scores


def _task_manager(benchmarks: Benchmarks) -> Any:
    """The tasks of the folder, if all are there: it takes long to list lm-eval's thousands."""
    from lm_eval.tasks import TaskManager

    folder = str(benchmarks.folder) if benchmarks.folder else None
    if folder:
        manager = TaskManager(include_path=folder, include_defaults=False)
        if set(benchmarks.tasks).issubset(manager.all_tasks):
            return manager
    manager = TaskManager(include_path=folder)
    if missing := [task for task in benchmarks.tasks if task not in manager.all_tasks]:
        raise ConfigError(
            f"lm-eval has no task {missing[0]!r}; `python -m lm_eval ls tasks` lists them, and "
            "--lm-eval-tasks DIR adds those of a folder"
        )
    return manager


def program() -> str:
    """The program that measures, with its version."""
    return f"lm-eval {version('lm_eval')}"


def _model(config: RunConfig) -> Any:
    """mlx-lm's model for lm-eval, with the policy of these settings."""
    from lm_eval.api.model import LM
    from mlx_lm.evaluate import MLXLM, chat_template_fn

    from grpo_engine.policy.load import load_policy

    policy = load_policy(config.model, seed=config.seed, frozen=True)

    class PolicyModel(MLXLM):
        apply_chat_template = chat_template_fn(**_template(config.task))

        def __init__(self) -> None:
            LM.__init__(self)  # its own would load a model without an adapter
            self._model, self.tokenizer = policy.model, policy.tokenizer
            self._max_tokens, self._batch_size, self._sampler = None, BATCH, None
            has_template = bool(config.task.chat_template) or has_chat_template(self.tokenizer)
            self.use_chat_template = has_template and config.task.chat_template != "plain"

    return PolicyModel()


def _template(task: TaskConfig) -> dict[str, Any]:
    """What the run's settings give to the chat template."""
    options: dict[str, Any] = dict(task.chat_template_kwargs)
    if task.chat_template == "chatml":
        options["chat_template"] = CHATML
    elif task.chat_template not in ("", "plain"):
        options["chat_template"] = read_template(task.chat_template)
    return options


def _scores(results: Mapping[str, Any], moment: Moment) -> Iterator[BenchmarkScore]:
    """Each metric of each task; lm-eval names them `METRIC,FILTER` and `METRIC_stderr,FILTER`."""
    better = results.get("higher_is_better", {})
    for task, values in results["results"].items():
        samples = results.get("n-samples", {}).get(task, {}).get("effective", 0)
        for name, value in values.items():
            metric, _, chosen = name.partition(",")
            if not chosen or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{chosen}")
            is_known = isinstance(error, int | float) and not isnan(error)
            yield BenchmarkScore(
                task=task,
                metric=metric if chosen == "none" else f"{metric} ({chosen})",
                moment=moment,
                value=float(value),
                stderr=float(error) if is_known else None,
                samples=int(samples),
                higher_is_better=(better.get(task) or {}).get(metric) is not False,
            )
