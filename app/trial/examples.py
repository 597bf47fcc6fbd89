"""The first problems of a run, exactly as the model would read them."""

import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import EngineError, MissingPackageError, ModelError, NotFetchedError
from grpo_engine.platform.device import require_mlx
from grpo_engine.policy.embedded import local_folder
from grpo_engine.rewards.form import received
from grpo_engine.rollouts.prompts import PromptRenderer, RenderedPrompt, conversation
from grpo_engine.tasks.base import Example, Task, draw, load_task

CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
COUNT = 3
MOST = 20_000
NO_TEMPLATE = "shown without the model's chat template"


T = TypeVar("T")


class Latest:
    """Keeps the latest value of each name until its key changes."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[object, Any]] = {}

    def get(self, name: str, key: object, load: Callable[[], T]) -> T:
        """The value of this key, loaded unless it is the latest one."""
        if name not in self._values or self._values[name][0] != key:
            self._values[name] = key, load()
        value: T = self._values[name][1]
        return value


class Examples:
    """Loads tasks and tokenizers, and keeps the latest of each."""

    def __init__(self) -> None:
        self._latest = Latest()

    def task(self, config: RunConfig) -> Task:
        """Return the task of these settings; reload it if a file of it has changed."""
        return self._latest.get("task", self.task_key(config), lambda: load_task(config.task))

    def task_key(self, config: RunConfig) -> str:
        """Return a key of the task's settings and the time of its file."""
        file, _, _ = config.task.name.rpartition(":")
        path = Path(file if file.endswith(".py") else config.task.name).expanduser()
        changed = path.stat().st_mtime_ns if path.exists() else 0
        return f"{changed} {config.task.model_dump_json()}"

    def tokenizer(self, config: RunConfig) -> Any:
        """Return the model's tokenizer, without loading weights."""
        path = config.model.path
        return self._latest.get("tokenizer", path, lambda: load_tokenizer(model_folder(path)))

    def usable(self, config: RunConfig) -> tuple[PromptRenderer, tuple[str, ...]]:
        """Check every problem with the model's limits, as a run does; the renderer, and notes."""

        def load() -> tuple[PromptRenderer, tuple[str, ...]]:
            folder = model_folder(config.model.path)
            return PromptRenderer(
                tokenizer=self.tokenizer(config),
                task=self.task(config),
                config=config.task,
                model=config.model.path,
                context=number_of(folder, *CONTEXT),
                max_new_tokens=config.rollout.max_new_tokens,
                vocabulary=number_of(folder, "vocab_size"),
            ).usable()

        key = config.model.path, config.rollout.max_new_tokens, self.task_key(config)
        return self._latest.get("usable", key, load)

    def first(self, config: RunConfig) -> list[Example]:
        """Return the first problems of the run's first step."""
        try:
            task = self.usable(config)[0].task
        except EngineError:  # told by whoever asks whether the run can start
            task = self.task(config)
        return draw(task, config.seed, 0, COUNT)

    def describe(self, config: RunConfig) -> dict[str, Any]:
        """Return the task's statistics and its first problems."""
        task, examples = self.task(config), self.first(config)
        lacking, rendered, notes = "", [], task.notes
        try:
            render, skipped = self.usable(config)
            task, notes = render.task, (*notes, *skipped)
            pairs = [
                (example, prompt)
                for example in examples
                if (prompt := render.usable_prompt(example)) is not None
            ]
            examples, rendered = [example for example, _ in pairs], [prompt for _, prompt in pairs]
        except (ModelError, MissingPackageError) as error:
            # without the tokenizer only the messages can be shown
            lacking = f"{error} Until then they are {NO_TEMPLATE}."
        return {
            "name": task.name,
            "about": task.description,
            "train": len(task.train),
            "held_out": len(task.held_out),
            "skipped": task.skipped,
            "notes": list(notes),
            "gets": received(task, config.rewards.completions),
            "lacking": lacking,
            "examples": [
                as_page(task, example, rendered[index] if rendered else None)
                for index, example in enumerate(examples)
            ],
        }


def as_page(task: Task, example: Example, prompt: RenderedPrompt | None) -> dict[str, Any]:
    """Convert one problem for the screen."""
    columns = {name: value for name, value in example.columns.items() if name != "answer"}
    return {
        "key": example.key,
        "where": example.where,
        "text": (prompt.text if prompt is not None else bare(task, example))[:MOST],
        "tokens": len(prompt.ids) if prompt is not None else None,
        "folded": prompt is not None and prompt.folded_system,
        "target": example.target[:MOST],
        "columns": json.dumps(columns, ensure_ascii=False, default=str)[:MOST] if columns else "",
    }


def bare(task: Task, example: Example) -> str:
    """Return the messages of a problem, one below another."""
    prompt = conversation(task, example)
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt)


def is_online() -> bool:
    """Return whether this process may use the network."""
    return not os.environ.get("HF_HUB_OFFLINE")


def model_folder(path: str) -> Path:
    """Return the model's folder; offline only a local one."""
    if local := local_folder(path):
        return local
    folder = Path(path).expanduser()
    is_path = path.count("/") != 1 or path.startswith((".", "~", "/")) or folder.suffix == ".gguf"
    if is_path or is_online():
        require_mlx()
        from grpo_engine.policy.source import find_folder

        return find_folder(path)
    return cached(path)


def cached(repository: str) -> Path:
    """Return the folder of a hub model in the cache."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except (OSError, ValueError) as error:
        raise NotFetchedError(
            f"{repository} is not on this machine yet: a run fetches it when it starts, f fetches "
            "it now."
        ) from error


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer as the engine does; with transformers alone if MLX is missing."""
    if not folder.is_dir():
        raise ModelError(f"there is no model in {folder}; choose another model.path.")
    load: Any
    try:
        from mlx_lm.utils import load_tokenizer as load
    except ImportError:
        from transformers import AutoTokenizer as Plain

        load = Plain.from_pretrained
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return load(folder)
    # transformers raises nothing narrower; mlx-lm prints which package is missing, and exits
    except (Exception, SystemExit) as error:
        text = printed.getvalue() if isinstance(error, SystemExit) else str(error)
        first = text.splitlines()[0].strip() if text else type(error).__name__
        raise ModelError(f"the tokenizer in {folder} cannot be loaded: {first}.") from error


def number_of(folder: Path, *names: str) -> int:
    """Return the first of these numbers in a model's configuration; 0 if it has none."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    text = settings.get("text_config") or {}
    return next((int(v) for n in names if (v := settings.get(n) or text.get(n))), 0)
