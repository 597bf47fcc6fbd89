"""Completes what is typed into a setting: names and paths."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from textual.suggester import Suggester

from grpo_engine.config.parse import settings
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rewards.builtins import BUILT_IN
from grpo_engine.tasks.base import BUILT_IN as TASKS

NAMES: Mapping[str, tuple[str, ...]] = {
    "model.path": tuple(EMBEDDED),
    "task.name": (*TASKS, "reasoning-gym:"),
    "task.chat_template": ("plain",),
    "rewards.functions": tuple(BUILT_IN),
    "record.trackers": settings()["record.trackers"].choices,
}
# The endings of the files that a setting reads; folders are always offered.
ENDINGS: Mapping[str, tuple[str, ...]] = {
    "model.path": (".gguf",),
    "task.name": (".jsonl", ".json", ".csv", ".parquet", ".py"),
    "task.chat_template": (".jinja", ".j2", ".txt"),
    "rewards.functions": (".py",),
}
LISTS = ("rewards.functions", "record.trackers")
MAX_ENTRIES = 2000


def completions(setting: str, text: str) -> tuple[str, ...]:
    """The texts that begin with what is typed; in a list, its last item is completed."""
    head, comma, last = text.rpartition(",") if setting in LISTS else ("", "", text)
    if not last.strip():
        return ()
    texts = [item for item in NAMES.get(setting, ()) if item.startswith(last)]
    texts += _paths(last, ENDINGS.get(setting, ()))
    return tuple(f"{head}{comma}{text}" for text in texts)


def _paths(text: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Folders and files that continue a path as typed."""
    folder, slash, start = text.rpartition("/")
    try:
        path = Path(f"{folder}{slash}" or ".").expanduser()
        entries = sorted(islice(path.iterdir(), MAX_ENTRIES), key=lambda entry: entry.name)
        for entry in entries:
            if not entry.name.startswith(start) or (entry.name[0] == "." and not start):
                continue
            if entry.is_dir():
                yield f"{folder}{slash}{entry.name}/"
            elif entry.suffix in endings:
                yield f"{folder}{slash}{entry.name}"
    except (OSError, ValueError, RuntimeError):  # no such folder, a null byte, no home
        return


class Completer(Suggester):
    """Offers the first text that continues what is typed; → takes it."""

    def __init__(self, setting: str) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._setting = setting

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first completion that adds something."""
        texts = completions(self._setting, value)
        return next((text for text in texts if len(text) > len(value)), None)
