"""A run from Python: an iterator of its events, with its metrics, rollouts and policy."""

import inspect
import tempfile
import typing
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from grpo_engine import events as ev
from grpo_engine import trainer
from grpo_engine.api import policy
from grpo_engine.api.evaluation import evaluate_target, failure
from grpo_engine.api.policy import LoadedPolicy
from grpo_engine.api.records import Record
from grpo_engine.api.settings import tree_of
from grpo_engine.api.tables import Metrics, Rollouts
from grpo_engine.api.thread import Interrupts, enter
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.errors import EngineError
from grpo_engine.evaluation.target import of_run
from grpo_engine.paths import remove
from grpo_engine.run import checkpoint
from grpo_engine.run.user_objects import UserObjects

Callback = Callable[[Any], object]
Callbacks = Sequence[Callback]


@dataclass(slots=True, kw_only=True)
class _Summary:
    """The metrics and last groups of a run so far."""

    metrics: dict[str, dict[int, float]] = field(default_factory=dict)
    groups: list[ev.Group] = field(default_factory=list)  # training groups of step `groups_step`
    groups_step: int = 0
    step: int = 0
    ended: ev.RunFinished | ev.RunFailed | None = None

    def add(self, event: ev.Event) -> None:
        self.step = max(self.step, event.step)
        match event:
            case ev.StepFinished():
                self._add_metrics(event.step, event.metrics)
            case ev.EvaluationFinished():
                self._add_metrics(event.step, ev.evaluation_series(event))
            case ev.GroupScored() if event.group.origin == "train":
                if event.step != self.groups_step:
                    self.groups, self.groups_step = [], event.step
                self.groups.append(event.group)
            case ev.RunFinished() | ev.RunFailed():
                self.ended = event

    def _add_metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.metrics.setdefault(name, {})[step] = value


class Run(Iterator[ev.Event]):
    """A run: an iterator of its events, and its settings, metrics, rollouts and policy.

    Each event is recorded before it is returned. Results can be read at any time, also after the
    end.
    """

    def __init__(
        self,
        config: RunConfig,
        objects: UserObjects,
        *,
        record: Record | None,
        control: Control,
        folder: Path | None = None,
        resume: bool = False,
        callbacks: Callbacks = (),
    ) -> None:
        self.config, self.control, self.objects, self.record = config, control, objects, record
        self.write: Callable[[str], None] = print
        self.folder = folder or (record.folder if record else self._temporary())
        self.name = record.name if record else config.name or self.folder.name
        self._summary = _Summary()
        self._loaded: tuple[int, LoadedPolicy] | None = None
        self._interrupts = Interrupts(control, lambda text: self.write(text))
        # `self` is no part of it: the run would live as long as its events.
        play = partial(
            trainer.run, config, control, folder=self.folder, resume=resume, objects=objects
        )
        self._events = _events(play, self._summary, record, callbacks)
        if record is not None:
            weakref.finalize(self, record.close, "the run was dropped before its end")

    def __next__(self) -> ev.Event:
        with self._interrupts.handled():
            return next(self._events)

    def __repr__(self) -> str:
        step, total = self._summary.step, self.config.steps
        return f"<run {self.name}: {self.status}, step {step} of {total}, in {self.folder}>"

    @property
    def status(self) -> str:
        """`in progress`, `completed`, `stopped`, `aborted` or `failed`."""
        match self._summary.ended:
            case None:
                return "in progress"
            case ev.RunFinished(reason=reason):
                return reason
        return "failed"

    @property
    def metrics(self) -> Metrics:
        """All metrics by name and step, held-out ones as `eval/…`."""
        return Metrics(self.record.metrics() if self.record else self._summary.metrics)

    def rollouts(self, step: int | None = None) -> Rollouts:
        """The training groups of a step, by default the last; without a record only of that one."""
        last = self._summary.groups_step
        step = last if step is None else step
        if self.record is not None:
            groups = self.record.rollouts(step)
            if not groups and not 0 <= step <= self._summary.step:
                raise EngineError(
                    f"run {self.name} has no step {step}: its last one is {self._summary.step}"
                )
            return Rollouts(step, groups)
        if step != last:
            raise EngineError(
                f"run {self.name} is not recorded: only the rollouts of step {last} are here, not "
                f"those of {step}; leave out record=False to keep all"
            )
        return Rollouts(step, self._summary.groups)

    def evaluate(
        self,
        changes: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        **settings: Any,
    ) -> dict[str, ev.EvaluationFinished]:
        """Evaluate a checkpoint on the held-out problems, by default the best one.

        Returns the evaluation of each mode, `greedy` and `sampled`. Settings are changed by a
        mapping or keywords, as in `train`.
        """
        over = tree_of({**(changes or {}), **settings})
        return evaluate_target(of_run(self.folder, over, step), self.objects)

    @property
    def policy(self) -> LoadedPolicy:
        """The policy of the newest checkpoint."""
        newest = checkpoint.newest_step(self.folder)
        if self._loaded is None or self._loaded[0] != newest:
            config = of_run(self.folder, {}, newest).config
            task = self.objects.load_task(config.task)
            chat = not isinstance(task.train[0].prompt, str)
            self._loaded = newest, policy.of_config(config, task, chat=chat)
        return self._loaded[1]

    def stop(self, *, now: bool = False) -> None:
        """Ask the run to stop after this step with a checkpoint, or now without."""
        self.control.ask("stop_now" if now else "stop_after_step")

    def finish(self, show: Callable[[ev.Event], None] | None = None) -> None:
        """Train to the end; raise the run's error if it fails."""
        with self._interrupts.handled():
            for event in self:
                if show is not None:
                    show(event)
        if isinstance(failed := self._summary.ended, ev.RunFailed):
            raise failure(failed)

    def close(self) -> None:
        """End the run where it is; its last checkpoint stays, and `resume` continues from it."""
        self._events.close()

    def _temporary(self) -> Path:
        """A folder that is removed together with this object."""
        folder = Path(tempfile.mkdtemp(prefix="grpo-run-"))
        weakref.finalize(self, remove, folder.parent, folder.name, ignore_errors=True)
        return folder


def _events(
    play: Callable[[], Iterator[ev.Event]],
    summary: _Summary,
    record: Record | None,
    callbacks: Callbacks,
) -> Generator[ev.Event, None, None]:
    """Record each event, call the callbacks that want it, then yield it."""
    called = [(event_type(callback), callback) for callback in callbacks]

    def store(event: ev.Event) -> None:
        if record is not None:
            record.put(event)
        summary.add(event)

    try:
        enter()
        with closing(typing.cast(Generator[ev.Event, None, None], play())) as events:
            for event in events:
                store(event)
                for type_, callback in called:
                    if isinstance(event, type_):
                        callback(event)
                yield event
    except BaseException as error:
        if summary.ended is None:
            store(_ended_by(error, summary.step))
        raise
    finally:
        failed = summary.ended if isinstance(summary.ended, ev.RunFailed) else None
        if record is not None and (left := record.close(failed.message if failed else "")):
            warnings.warn(f"not in the store yet: {left}", stacklevel=1)


def _ended_by(error: BaseException, step: int) -> ev.Event:
    """The last event of a run that ended outside the engine."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return ev.RunFinished(step=step, reason="aborted", summary={})
    return ev.RunFailed(step=step, error=type(error).__name__, message=str(error))


def event_type(callback: Callback) -> Any:
    """The events that a callback gets: those of its parameter's type, or all if it has none."""
    is_function = isinstance(callback, type) or inspect.isroutine(callback)
    hints = typing.get_type_hints(callback if is_function else type(callback).__call__)
    hints.pop("return", None)
    type_ = next(iter(hints.values()), object)
    return object if type_ is Any else type_
