"""Import runs of another trainer, once or while one grows.

What was read is what the store has: an import goes on after the last step of the run, and reads
that step again if the store has a part of it.
"""

import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from grpo_engine import events as ev
from grpo_engine.frozen import frozen
from grpo_tui import record
from grpo_tui.experiments.errors import ImportRefusedError, NoStoreError, StoreError, check_choice
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_of_step
from grpo_tui.experiments.values import RunFiles
from grpo_tui.foreign.files import UnfinishedError
from grpo_tui.foreign.formats import recognised, unknown
from grpo_tui.foreign.reader import ASPECTS, Evaluation, Reader, Step, answers

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
    run: str = ""  # the name of one in a file of several
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
    recorded: tuple[str, ...]  # of what may be


def import_runs(path: Path, options: Options) -> list[Imported]:
    """Import the runs in a folder or file; none if all of it is in the store.

    With `follow` it goes on until it is interrupted. Raises ImportRefusedError for the first step
    of a run that cannot be read; those before it stay, and other runs are imported.
    """
    imported: list[Imported] = []
    refused: list[ImportRefusedError] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", record.RecordWarning)
        for reader in _chosen(path, options):
            try:
                imported += _import(reader, options, caught)
            except ImportRefusedError as error:
                refused.append(error)
    if refused and imported:
        raise ImportRefusedError(f"{refused[0]}; other runs were imported") from refused[0]
    if refused:
        raise refused[0]
    return imported


def _chosen(path: Path, options: Options) -> Sequence[Reader]:
    """The runs to import, as soon as there are any."""
    try:
        readers = _opened(path, options)
    except KeyboardInterrupt:
        if options.follow:
            return ()
        raise
    names = [reader.name for reader in readers]
    if options.run:
        check_choice("run", options.run, names)
        readers = [reader for reader in readers if reader.name == options.run]
    elif len(readers) > 1 and (options.follow or options.name):
        raise ImportRefusedError(
            f"{path} has {len(readers)} runs; with --follow or --name choose one by --run: "
            f"{', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"
        )
    return readers


def _import(
    reader: Reader, options: Options, caught: list[warnings.WarningMessage]
) -> list[Imported]:
    started: _Import | None = None
    try:
        earlier = _earlier(reader, options.store)
        if earlier:
            options.progress(f"{earlier.name} has this run up to step {earlier.after}")
        for item in _new_steps(reader, earlier.after if earlier else -1, options):
            if item:
                started = started or _Import(reader, item[1], earlier, options)
                complaints = [str(warning.message) for warning in caught]
                started.take(*item, complaints)
                caught.clear()
            elif started:
                started.run.waiting()
    except KeyboardInterrupt:
        if not options.follow:
            raise
    finally:
        if started:
            started.close()
    if started is None:
        return []
    return [Imported(id=started.run.id, name=started.run.name, steps=started.steps)]


def _opened(path: Path, options: Options) -> Sequence[Reader]:
    """The files of the runs, as soon as there are any."""
    is_announced = False
    while not (readers := recognised(path)):
        if not options.follow or not path.is_dir():
            raise unknown(path)
        if not is_announced:
            options.progress(f"waiting for the first step in {path}; ctrl+c ends it")
        is_announced = True
        options.wait()
    return readers


def _new_steps(reader: Reader, after: int, options: Options) -> Iterator[tuple[int, Step] | None]:
    """The finished steps after this one, as they appear, and None where nothing is new.

    The newest step may be growing: a follower waits until it stays as it is. It gets a step again
    that changed later, as by an evaluation that ends after the steps that follow it.
    """
    seen: dict[int, object] = {}
    taken: dict[int, object] = {}
    while True:
        steps = reader.steps()
        newest = max(steps, default=0)
        for number, value in taken.items():
            if value != steps.get(number) == seen.get(number):
                yield number, reader.read(number)
                taken[number] = steps[number]
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
            after, taken[number] = number, steps[number]
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
        self._reader, self._recorded = reader, {*(earlier.recorded if earlier else ())}
        self._files = self._files_now = self._files_after(first)
        self._store = options.store
        try:
            self.run = (
                record.resume(
                    earlier.id, after=earlier.after, files=self._files, store=options.store
                )
                if earlier
                else _begun(reader, self._files, options)
            )
        except record.RecordError as error:
            raise ImportRefusedError(str(error)) from error
        options.progress(
            f"importing {self.run.name} from {reader.path}, written by {reader.trainer}"
        )
        self.steps, self._progress = 0, options.progress
        self._evaluated: dict[int, Sequence[Evaluation]] = {}  # by step
        self._warned: set[str] = set()

    def take(self, number: int, step: Step, complaints: list[str]) -> None:
        """Record a step, or what it has now that it had not; wait until it is in the store."""
        self._files_now = self._files_after(step)
        earlier = self._evaluated.get(number)
        if earlier != step.evaluations:
            if earlier:
                record.hide_evaluations(self.run.id, number, self._store)
            for item in step.evaluations:
                self.run.evaluation(number, item.problems, metrics=item.metrics, greedy=item.greedy)
            if earlier is not None:
                self.run.groups(number, [g for g in step.groups if g.group.origin == "eval"])
        self._evaluated[number] = step.evaluations
        if earlier is None:
            self._write(number, step, complaints)
        if not self.run.stored():
            raise ImportRefusedError(
                f"step {number} is not in the store {self.run.path}: it is locked or full; "
                "import again when it can be written"
            )

    def _write(self, number: int, step: Step, complaints: list[str]) -> None:
        for text in dict.fromkeys(complaints):
            if text not in self._warned and len(self._warned) < SHOWN:
                self.run.note(text, severity="warning")
                self._progress(text)
                self._warned.add(text)
        if number:
            self.run.step(number, step.groups, metrics=step.metrics, updates=step.updates)
        else:  # before the first step
            self.run.groups(number, step.groups)
        self.steps += 1

    def _files_after(self, step: Step) -> RunFiles:
        """The files, with what they have in this step and those before it, and what they lack."""
        self._recorded |= {name for name, is_there in ASPECTS.items() if is_there(step)}
        remedies = self._reader.remedies.items()
        return RunFiles(
            format=self._reader.format,
            path=str(self._reader.path),
            recorded=tuple(name for name in ASPECTS if name in self._recorded),
            missing={name: text for name, text in remedies if name not in self._recorded},
        )

    def close(self) -> None:
        """End the run, which then says of all its steps what was recorded."""
        self.run.close("imported")
        if self._files_now != self._files:
            with suppress(StoreError, OSError):  # a full store keeps what was said at the beginning
                record.set_files(self.run.id, self._files_now, self._store)


def _begun(reader: Reader, files: RunFiles, options: Options) -> record.Run:
    """Begin a run with its trainer's settings, or without them if they are not valid here."""
    begin = functools.partial(
        record.run,
        options.name or _usable(reader.name),
        trainer=reader.trainer,
        task=options.task,
        files=files,
        store=options.store,
    )
    try:
        return begin(settings=reader.settings)
    except record.RecordError as error:
        run = begin()
        run.note(f"its settings are left out: {error}", severity="warning")
        return run


def _usable(name: str) -> str:
    """The name of a file as the name of a run."""
    return "".join(filter(str.isprintable, name)).lstrip("@ ")[:LONGEST_NAME]


# -- earlier imports ----------------------------------------------------------------------------


def _earlier(reader: Reader, store: Path) -> Earlier | None:
    """The run that an earlier import of these files made.

    It is one of the same path, or of a path that is gone, whose newest step has the same answers
    here. Files of the same path that begin after that step are its rest: older ones were removed.
    """
    steps = [*reader.steps()]
    with suppress(NoStoreError), StoreReader(store) as stored:
        for key, files in stored.imports().items():
            same_path = files.path == str(reader.path)
            if files.format != reader.format or not (same_path or not Path(files.path).exists()):
                continue
            run = stored.runs(archived=True, keys=[key])[0]
            common = max((number for number in steps if number <= run.step), default=-1)
            after = run.step if same_path and steps else None
            if common >= 0:
                after = _after(reader, common, _texts_of_store(stored, key, common), run.step)
            if after is None:
                continue
            if run.active:
                raise ImportRefusedError(
                    f"{reader.path} is being imported as {run.name} by another process; end that "
                    "first (ctrl+c)"
                )
            return Earlier(id=run.id, name=run.name, after=after, recorded=files.recorded)
    return None


def _after(reader: Reader, common: int, stored: Counter[str], newest: int) -> int | None:
    """The step after which to go on, from a step that files and store have; None if it differs."""
    texts = Counter(answer.text for answer in answers(reader.read(common)))
    if texts == stored:
        return newest
    return common - 1 if 0 < common == newest and stored < texts else None


def _texts_of_store(stored: StoreReader, run: int, step: int) -> Counter[str]:
    groups = (
        item.event.group
        for item in events_of_step(stored, run, step)
        if isinstance(item.event, ev.GroupScored)
    )
    return Counter(answer.text for group in groups for answer in group.rollouts)
