"""Import a run of another trainer, once or while it grows.

What was read is what the store has: an import goes on after the last step of the run, and reads
that step again if the store has a part of it.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from grpo_engine import events as ev
from grpo_engine.frozen import frozen
from grpo_tui import record
from grpo_tui.experiments.errors import ImportRefusedError, NoStoreError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_of_step
from grpo_tui.experiments.values import RunFiles
from grpo_tui.foreign.files import UnfinishedError
from grpo_tui.foreign.formats import recognised, unknown
from grpo_tui.foreign.reader import ASPECTS, Reader, Step, answers

POLL_S = 2.0
SHOWN = 5  # of different warnings
LONGEST_NAME = 80  # of a run that is named after its files

Progress = Callable[[str], None]


@frozen
class Options:
    """How a run is imported."""

    store: Path
    name: str = ""
    task: str = ""
    follow: bool = False
    progress: Progress = lambda _: None
    wait: Callable[[], None] = lambda: time.sleep(POLL_S)


@frozen
class Imported:
    """A run that an import began or went on with."""

    id: str
    name: str
    steps: int  # that were added


@frozen
class Earlier:
    """The run of an earlier import, and the step after which it goes on."""

    id: str
    name: str
    after: int


def import_run(path: Path, options: Options) -> Imported | None:
    """Import the run in a folder or file; None if all of it is in the store.

    With `follow` it goes on until it is interrupted. Raises ImportRefusedError at the first step
    that cannot be read; those before it stay.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", record.RecordWarning)
        return _import(path, options, caught)


def _import(path: Path, options: Options, caught: list[warnings.WarningMessage]) -> Imported | None:
    started: _Import | None = None
    try:
        reader = _opened(path, options)
        earlier = _earlier(reader, options.store)
        if earlier:
            options.progress(f"{earlier.name} has this run up to step {earlier.after}")
        for item in _new_steps(reader, earlier.after if earlier else 0, options):
            if item:
                started = started or _Import(reader, item[1], earlier, options)
                started.write(*item, [str(warning.message) for warning in caught])
                caught.clear()
            elif started:
                started.run.waiting()
    except KeyboardInterrupt:
        if not options.follow:
            raise
    finally:
        if started:
            started.run.close("imported")
    return started.result() if started else None


def _opened(path: Path, options: Options) -> Reader:
    """The run's files, as soon as there are any."""
    said = False
    while (reader := recognised(path)) is None:
        if not options.follow or not path.is_dir():
            raise unknown(path)
        if not said:
            options.progress(f"waiting for the first step in {path}; ctrl+c ends it")
        said = True
        options.wait()
    return reader


def _new_steps(reader: Reader, after: int, options: Options) -> Iterator[tuple[int, Step] | None]:
    """The finished steps after this one, as they appear, and None where nothing is new.

    The newest step may be growing: a follower waits until it stays as it is.
    """
    seen: dict[int, object] = {}
    while True:
        steps = reader.steps()
        newest = max(steps, default=0)
        for number in [number for number in steps if number > after]:
            growing = number == newest and options.follow and seen.get(number) != steps[number]
            if growing:
                break
            try:
                step = reader.read(number)
            except UnfinishedError as error:
                if number != newest:
                    raise ImportRefusedError(f"{error}; complete or delete that line") from error
                if not options.follow:
                    options.progress(f"step {number} is left out: {error}")
                break
            yield number, step
            after = number
        if not options.follow:
            return
        seen = dict(steps)
        yield None
        options.wait()


class _Import:
    """The run that an import writes."""

    def __init__(
        self, reader: Reader, first: Step, earlier: Earlier | None, options: Options
    ) -> None:
        recorded = [name for name, is_there in ASPECTS.items() if is_there(first)]
        files = RunFiles(
            format=reader.format,
            path=str(reader.path),
            recorded=tuple(recorded),
            missing={k: text for k, text in reader.remedies.items() if k not in recorded},
        )
        try:
            if earlier:
                self.run = record.resume(
                    earlier.id, after=earlier.after, files=files, store=options.store
                )
            else:
                self.run = record.run(
                    options.name or _usable(reader.name),
                    trainer=reader.trainer,
                    task=options.task,
                    files=files,
                    store=options.store,
                )
        except record.RecordError as error:
            raise ImportRefusedError(str(error)) from error
        options.progress(
            f"importing {self.run.name} from {reader.path}, written by {reader.trainer}"
        )
        self.steps, self._progress = 0, options.progress
        self._warned: set[str] = set()

    def write(self, number: int, step: Step, complaints: list[str]) -> None:
        """Record a step and wait until it is in the store."""
        for item in step.evaluations:
            self.run.evaluation(number, item.problems, metrics=item.metrics, greedy=item.greedy)
        for text in dict.fromkeys(complaints):
            if text not in self._warned and len(self._warned) < SHOWN:
                self.run.note(text, severity="warning")
                self._progress(text)
                self._warned.add(text)
        self.run.step(number, step.groups, metrics=step.metrics, updates=step.updates)
        if not self.run.stored():
            raise ImportRefusedError(
                f"step {number} is not in the store {self.run.path}: it is locked or full; "
                "import again when it can be written"
            )
        self.steps += 1

    def result(self) -> Imported:
        return Imported(id=self.run.id, name=self.run.name, steps=self.steps)


def _usable(name: str) -> str:
    """The name of a file as the name of a run."""
    return "".join(filter(str.isprintable, name)).lstrip("@ ")[:LONGEST_NAME]


# -- earlier imports ----------------------------------------------------------------------------


def _earlier(reader: Reader, store: Path) -> Earlier | None:
    """The run that an earlier import of these files made.

    It is one of the same path, or of a path that is gone, whose newest step has the same answers
    here. Files of the same path that begin after that step are its rest: older ones were removed.
    """
    steps = list(reader.steps())
    with suppress(NoStoreError), StoreReader(store) as stored:
        for key, files in stored.imports().items():
            same_path = files.path == str(reader.path)
            if files.format != reader.format or not (same_path or not Path(files.path).exists()):
                continue
            run = stored.runs(archived=True, keys=[key])[0]
            common = max((number for number in steps if number <= run.step), default=0)
            after = run.step if same_path and steps else None
            if common:
                after = _after(reader, common, _texts_of_store(stored, key, common), run.step)
            if after is None:
                continue
            if run.active:
                raise ImportRefusedError(
                    f"{reader.path} is being imported as {run.name} by another process; end that "
                    "first (ctrl+c)"
                )
            return Earlier(id=run.id, name=run.name, after=after)
    return None


def _after(reader: Reader, common: int, stored: Counter[str], newest: int) -> int | None:
    """The step after which to go on, from a step that files and store have; None if it differs."""
    texts = Counter(answer.text for answer in answers(reader.read(common)))
    if texts == stored:
        return newest
    return common - 1 if common == newest and stored < texts else None


def _texts_of_store(stored: StoreReader, run: int, step: int) -> Counter[str]:
    groups = (
        item.event.group
        for item in events_of_step(stored, run, step)
        if isinstance(item.event, ev.GroupScored)
    )
    return Counter(answer.text for group in groups for answer in group.rollouts)
