"""What is tried of settings before a run; its methods are called in the trial process.

Everything that happens before the first step is tried, except that no weights are read.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from typing import Any

from grpo_engine.config.declaration import as_text
from grpo_engine.config.parse import build, flatten
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import (
    EngineError,
    MemoryLimitError,
    MissingPackageError,
    NotFetchedError,
)
from grpo_engine.platform.priority import set_priority
from grpo_engine.rewards.form import received
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.sandbox.report import describe, plain
from grpo_engine.tasks.base import Example
from grpo_engine.tasks.offers import first_rows, options_of
from grpo_engine.tasks.rows import DataRow
from grpo_tui.app.text.server_text import server_calls, server_tokens
from grpo_tui.app.trial.client import MAY_FETCH, Reply
from grpo_tui.app.trial.loaded import Loaded
from grpo_tui.app.trial.scores import TrialRewards

MAX_CHARS = 20_000  # characters of a text on the screen
# Rows and columns of data that are shown, and characters of a cell.
ROWS, MAX_COLUMNS, MAX_CELL = 3, 200, 2_000
Settings = Mapping[str, Any]


class Trials:
    """Keeps what it loaded for the next call."""

    def __init__(self, server: object = None) -> None:
        if server is not None:
            set_priority("utility", 10)
        self._loaded = Loaded()
        self._rewards = TrialRewards(self._loaded)

    def close(self) -> None:
        self._rewards.close()

    def offers(self, config: Settings) -> Reply:
        """The task's options (default, help, whether it is a switch); its columns in a few rows."""
        task = _config(config).task
        options = {
            name: [as_text(plain(option.default)), option.help, bool in option.types]
            for name, option in options_of(task).items()
        }
        rows: Sequence[DataRow] = ()
        with suppress(Exception):  # of data or of a user's function; `examples` reports it
            rows = first_rows(task, ROWS)
        names = dict.fromkeys(name for row in rows for name in row.columns)
        columns = {
            name: [str(plain(row.columns.get(name, "")))[:MAX_CELL] for row in rows]
            for name in islice(names, MAX_COLUMNS)
        }
        return {"options": options, "columns": columns}

    def examples(self, config: Settings) -> Reply:
        """The task in numbers, and its first problems, exactly as the model would read them."""
        run = _config(config)
        render, skipped = self._loaded.renderer(run)
        task = render.task
        pairs = [(example, render.usable_prompt(example)) for example in self._loaded.first(run)]
        return {
            "about": task.description,
            "notes": [*task.notes, *skipped],
            "train": len(task.train),
            "held_out": len(task.held_out),
            "skipped": task.skipped,
            "gets": received(task, run.rewards.completions),
            "examples": [
                _page(example, prompt, render.tokenizer) for example, prompt in pairs if prompt
            ],
        }

    def memory(self, config: Settings) -> Reply:
        """Bytes by purpose, the limit, and how a step is split to fit in it; reads no weights.

        Of weights on a server, what a step asks of it.
        """
        from grpo_engine.setup import preflight
        from grpo_engine.setup.server_cost import ServerCost

        run = _config(config)
        policy = self._loaded.policy(run)
        policy.teacher = self._loaded.teacher(run)
        render, _ = self._loaded.renderer(run)
        longest = preflight.longest(run, render.task, policy.context_length, render)
        if run.remote.url:
            cost = ServerCost.of(run, longest)
            asked = {"calls": server_calls(cost), "its tokens": server_tokens(cost)}
            return {"server": asked, "refused": ""}
        limit = preflight.memory_limit()
        plan = preflight.plan_memory(run, policy, longest, limit)
        try:
            parts = preflight.check_memory(run, policy, longest, plan)
        except MemoryLimitError as error:
            return {"refused": str(error)}
        if not parts.known:
            return {"problem": str(parts), "refused": ""}
        names = ("peak", "weights", "teacher", "optimizer", "sampling", "update")
        teacher = 0 if policy.teacher is None else policy.teacher.parameters
        return {
            "teacher_share": teacher / policy.parameters,
            "limit": limit,
            "dtype": policy.dtype,
            **plan._asdict(),
            **{name: getattr(parts, name) for name in names},
            "refused": "",
        }

    def score(self, config: Settings, example: int, completion: str) -> Reply:
        return self._rewards.score(_config(config), example, completion)

    def ready(self, config: Settings) -> Reply:
        """What would fail as pairs (setting, text), and what a run would download.

        `now` is what fails on this machine at this moment: too little memory, or no MLX.
        """
        run, loaded = _config(config), self._loaded
        problems: list[tuple[str, str]] = []
        fetches: list[str] = []

        def passes(setting: str, call: Callable[[RunConfig], Any]) -> bool:
            try:
                call(run)
            except (
                Exception,
                SystemExit,
            ) as error:  # Data sets, templates and users' files raise anything.
                if isinstance(error, NotFetchedError) and os.environ.get(MAY_FETCH):
                    value = flatten(run)[setting]
                    fetches.append(f"{setting} {value} is not on this machine: a run downloads it.")
                else:
                    problems.append(explain(error, setting))
                return False
            return True

        has_task, now = passes("task.name", loaded.task), _without_mlx()
        passes("record.trackers", _trackers)
        passes("remote.url", _sdk)
        if now or not passes("model.path", _model_config):
            return {"problems": problems, "now": now, "fetches": fetches}
        if has_task:
            passes("rewards.functions", self._rewards.rehearse)
            if run.task.others or run.algorithm.choices or run.rewards.options:
                passes("task.others" if run.task.others else "algorithm.recipe", _tasks)
        if not run.model.trust_remote_code:  # A model's own code runs only in a run.
            passes("optimizer.name", _rule)
            has_model = passes("model.path", loaded.policy)
            if has_model and not problems:
                has_model = passes("teacher.path", loaded.teacher)
            if has_task and has_model and passes("task.name", loaded.renderer):
                now = str(self.memory(config)["refused"])
        return {"problems": problems, "now": now, "fetches": fetches}


def _page(example: Example, prompt: RenderedPrompt, tokenizer: Any) -> Reply:
    """One problem for the screen, with the special tokens that the tokenizer puts around it."""
    text, tokens = prompt.text, tokenizer.convert_ids_to_tokens(list(prompt.ids))
    special = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special} & {*tokens}
    if tokens and tokens[0] in special and not text.startswith(tokens[0]):
        text = tokens[0] + text
    columns = {name: value for name, value in example.columns.items() if name != "answer"}
    return {
        "key": example.key,
        "text": text[:MAX_CHARS],
        "special": sorted(special),
        "tokens": len(prompt.ids),
        "folded": prompt.folded_system,
        "target": example.target[:MAX_CHARS],
        "columns": json.dumps(columns, ensure_ascii=False, default=str)[:MAX_CHARS]
        if columns
        else "",
    }


def _config(settings: Settings) -> RunConfig:
    return build(settings, "these settings")


def explain(error: BaseException, part: str) -> tuple[str, str]:
    """The setting to change, and a text that names it."""
    setting = next(iter(error.settings), part) if isinstance(error, EngineError) else part
    failure = describe(error)
    text = " ".join(failure.message.partition("\n")[0].split())
    if failure.line:  # of the user's file
        text += f" (at {failure.line})"
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

    if config.remote.url:
        return  # Only files of the tokenizer are fetched, with those that loading it checks.
    try:
        folder = find_folder(config.model.path)
    except EngineError:
        return  # Loading the model reports it.
    if (folder / "config.json").is_file():
        check_config(folder)


def _tasks(config: RunConfig) -> None:
    from grpo_engine.run.user_objects import NO_OBJECTS
    from grpo_engine.setup.functions import check_functions
    from grpo_engine.setup.parts import check_reward_options, load_tasks

    tasks = load_tasks(config, NO_OBJECTS)
    check_reward_options(config, tasks)
    check_functions(config.algorithm.resolved(), tasks)


def _rule(config: RunConfig) -> None:
    from grpo_engine.policy import optimizer

    optimizer.build(config.optimizer)


def _sdk(config: RunConfig) -> None:
    if config.remote.url and find_spec("tinker") is None:
        raise MissingPackageError(
            "remote.url: the package tinker is not installed: pip install 'grpo-tui[remote]'"
        )


def _trackers(config: RunConfig) -> None:
    for name in config.record.trackers:
        if name != "tensorboard" and find_spec(name) is None:
            raise MissingPackageError(
                f"record.trackers: the package {name} is not installed: pip install {name}"
            )
