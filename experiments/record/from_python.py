"""The store for runs that start from Python: entry point `store` of `grpo_tui.recorders`."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_engine import events as ev
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_tui.experiments.db.paths import run_folder, store_path
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import Recorder, resume_run, start_run
from grpo_tui.experiments.recorded_events import events_of_step


class PythonStore:
    """Records runs that are started from Python, and finds stored ones."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = store_path(path)

    def begin(self, config: RunConfig, control: Control, tags: tuple[str, ...]) -> "PythonRecord":
        run = start_run(self.path, config, name=config.name, control=control, tags=tags)
        return PythonRecord(run)

    def resumable(self, run: str) -> tuple[str, Mapping[str, Any]]:
        with StoreReader(self.path) as reader:
            detail = reader.resumable(run)
            return detail.summary.status, detail.config

    def settings(self, run: str) -> Mapping[str, Any]:
        with StoreReader(self.path) as reader:
            return reader.trained(run, "clone").config

    def resume(self, run: str, **options: Any) -> "PythonRecord":
        return PythonRecord(resume_run(self.path, run, **options))

    def folder(self, run: str) -> Path:
        with StoreReader(self.path) as reader:
            return run_folder(self.path, reader.resolve(run).id)


class PythonRecord:
    """The record of one run; reads see everything that was put before."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._key, self.put = recorder, recorder.key, recorder.put
        self.id, self.name, self.folder = recorder.id, recorder.name, recorder.folder
        if recorder.warning:
            warnings.warn(recorder.warning, stacklevel=4)  # names the line that calls train

    @property
    def store(self) -> Path:
        return self._recorder.path

    def close(self, cause: str = "") -> str:
        """End the record and describe what could not be stored yet; a second call does nothing."""
        self._recorder.close(cause)
        return self._recorder.left

    def metrics(self) -> dict[str, dict[int, float]]:
        with self._reader() as reader:
            series = (reader.metric_series(self._key, key) for key in reader.metric_keys(self._key))
            return {item.key: dict(zip(item.steps, item.values, strict=True)) for item in series}

    def rollouts(self, step: int) -> tuple[ev.Group, ...]:
        with self._reader() as reader:
            events = [record.event for record in events_of_step(reader, self._key, step)]
        groups = [event.group for event in events if isinstance(event, ev.GroupScored)]
        trained = (group for group in groups if group.origin == "train")
        return tuple(sorted(trained, key=lambda group: group.index))

    def _reader(self) -> StoreReader:
        self._recorder.flush()
        return StoreReader(self.store)
