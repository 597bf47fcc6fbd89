"""One episode of an environment with a person in the model's place."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.dialogues import specs_of
from grpo_engine.environments.pool import EnvironmentPool, Job
from grpo_engine.errors import ConfigError, DataError
from grpo_engine.rollouts.dialogue import EnvironmentReply
from grpo_engine.rollouts.noise import group_seed
from grpo_engine.rollouts.prompts import reward_prompt
from grpo_engine.tasks.base import BUILT_IN, Message, Prompt, Task, draw, load_task

STEP = 1  # the episode is that of the first answer of a run's first step


def is_environment(name: str) -> bool:
    """Whether a name is that of an environment and not of a task."""
    family, colon, _ = name.partition(":")
    return bool(colon) and family not in BUILT_IN and not Path(name).expanduser().exists()


class Episode:
    """Begins an episode, gives it answers, and says what the environment told at its end."""

    def __init__(self, config: RunConfig, folder: Path, row: Mapping[str, Any] | None = None):
        """Without a row, the episode is that of the task's first problem."""
        task: Task | None = None if is_environment(config.task.name) else load_task(config.task)
        prompt: Prompt = ""
        key = "episode"
        if task is None:
            tools, names = config.task.tools, {"": config.task.name}
        else:
            tools, names = specs_of(config, task)
            example = draw(task, config.seed, 0, 1)[0]
            prompt, key = example.prompt, example.key
            row = {"prompt": reward_prompt(prompt), **example.columns} if row is None else row
        if not names:
            raise ConfigError(
                f"task {config.task.name} has no environment and no tools; set task.environment or "
                "task.tools",
                "task.environment",
                "task.tools",
            )
        self.row = dict(row or {})
        self._prompt = prompt
        self._system = "" if task is None else task.system_prompt
        self._name = str(self.row.get("environment", "")) if "" not in names else ""
        if self._name not in names:
            raise DataError(
                f"the row's `environment` is {self._name!r}, not one of {', '.join(names)}"
            )
        self._seed = group_seed(seed=config.seed, step=STEP, prompt=key, attempt=0)
        self.pool = EnvironmentPool(tools, names, folder, config.task.environment_time_limit)

    def begin(self) -> Sequence[Message]:
        """The prompt's messages, with what the environment adds; call it inside the pool."""
        job = Job(environment=self._name, row=self.row, seed=self._seed, index=0)
        (opening,) = self.pool.begin([job])
        prompt = opening.after(self._prompt)
        system = [{"role": "system", "content": self._system}] if self._system else []
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return [*system, *asked]

    @property
    def failure(self) -> str:
        """Why the episode could not begin; empty if it has."""
        failure = self.pool.failure(0)
        return "" if failure is None else failure.error

    @property
    def tools(self) -> list[str]:
        """The tools by name, with their parameters."""
        described = (tool["function"] for tool in self.pool.described[self._name].tools)
        return [
            f"{one['name']}({', '.join(one.get('parameters', {}).get('properties', {}))})"
            for one in described
        ]

    def answer(self, text: str) -> EnvironmentReply:
        """Give an answer and wait for the reply."""
        self.pool.ask(0, text)
        while not (found := self.pool.replies(0.1)):
            pass
        return found[0][1]

    def end(self) -> Iterator[str]:
        """What the environment says at its end."""
        (outcome,) = self.pool.finish([False])
        if outcome.reward is not None:
            yield f"reward at the end: {outcome.reward:g}"
        if outcome.state:
            yield f"attributes: {json.dumps(dict(outcome.state), ensure_ascii=False)}"


def told(reply: EnvironmentReply) -> Iterator[str]:
    """A reply for people: its text, its reward, what it told, and how long it took."""
    if reply.error:
        yield f"the environment failed: {reply.error}"
        return
    if reply.text:
        yield reply.text
    facts = [f"reward {reply.reward:g}"] if reply.reward is not None else []
    facts += [f"{name} {value}" for name, value in reply.info.items()]
    facts += ["the episode is over"] if reply.done else []
    yield f"({', '.join([*facts, f'{reply.ms:.0f} ms'])})"
