"""Tasks, tokenizers and the shapes of models, each kept until what it depends on changes."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from grpo_engine.config.settings import ModelConfig, RunConfig
from grpo_engine.errors import EngineError, NotFetchedError
from grpo_engine.platform.device import require_mlx
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.tasks.base import Example, Task, draw, load_task
from grpo_tui.app.latest import Latest
from grpo_tui.app.trial.client import MAY_FETCH

if TYPE_CHECKING:
    from grpo_engine.policy.policy import Policy

EXAMPLES = 3  # example problems


class Loaded(Latest):
    """What was loaded last."""

    def task(self, config: RunConfig) -> Task:
        """The task of these settings, read again if its file has changed."""
        return self.latest("task", self.task_key(config), lambda: load_task(config.task))

    def task_key(self, config: RunConfig) -> str:
        """A key of the task's settings and the time of its file."""
        return f"{changed(config.task.name)} {config.task.model_dump_json()}"

    def policy(self, config: RunConfig) -> "Policy":
        """The policy as its model's files describe it, with its tokenizer; or that alone."""
        key = config.model, bool(config.remote.url)
        return self.latest("policy", key, lambda: self._described(config))

    def _described(self, config: RunConfig) -> "Policy":
        if not config.remote.url:
            return shapes(config.model)
        require_mlx()
        from grpo_engine.remote.policy import load_remote_policy

        with TemporaryDirectory() as folder:  # in the hub's cache it would be taken for the model
            return load_remote_policy(config.model, Path(folder))

    def teacher(self, config: RunConfig) -> "Policy | None":
        """The described teacher, which has the vocabulary of the described policy."""
        from grpo_engine.setup.teacher import check_teacher, load_teacher

        check_teacher(config)
        if not config.teacher.path:
            return None
        key, policy = (config.model, config.teacher), self.policy(config)
        return self.latest("teacher", key, lambda: load_teacher(config, policy, shapes))

    def renderer(self, config: RunConfig) -> tuple[PromptRenderer, tuple[str, ...]]:
        """Check every problem with the model's limits, as a run does; the renderer, and notes."""
        task, policy = self.task(config), self.policy(config)

        def load() -> tuple[PromptRenderer, tuple[str, ...]]:
            from grpo_engine.setup.opening import renderer

            return renderer(config, task, policy).usable()

        demonstrates = config.algorithm.resolved().demonstrates
        length = config.rollout.max_new_tokens
        key = config.model.path, length, demonstrates, self.task_key(config)
        return self.latest("renderer", key, load)

    def first(self, config: RunConfig) -> list[Example]:
        """The first problems of the run's first step."""
        try:
            task = self.renderer(config)[0].task
        except EngineError:  # `ready` reports it.
            task = self.task(config)
        return draw(task, config.seed, 0, EXAMPLES)


def changed(name: str) -> int:
    """When the file was changed that a name refers to; 0 if it refers to none."""
    file, _, _ = name.rpartition(":")
    path = Path(file if file.endswith(".py") else name).expanduser()
    return path.stat().st_mtime_ns if path.exists() else 0


def shapes(config: ModelConfig) -> "Policy":
    """A policy with described but never computed weights; it cannot be run."""
    require_mlx()
    from grpo_engine.policy.load import end_tokens
    from grpo_engine.policy.shapes import without_weights
    from grpo_engine.policy.source import load_parts

    plain = config.model_copy(update={"trust_remote_code": False})
    try:
        model, tokenizer, settings, folder, notes = load_parts(plain, lazy=True)
    except NotFetchedError:
        if not os.environ.get(MAY_FETCH):
            raise
        raise NotFetchedError(
            f"{config.path} is not on this machine yet: a run downloads it when it starts, D on "
            "New run now."
        ) from None
    end_tokens(tokenizer, settings)  # raises if there is none
    policy = without_weights(model, plain, settings, folder, notes, len(tokenizer))
    policy.tokenizer = tokenizer
    return policy
