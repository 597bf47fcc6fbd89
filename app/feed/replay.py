"""Replay: play a stored run again, at its own pace or faster; progress is rebuilt from tokens.

Within a step, sampling takes its recorded share of the time, and answers grow token by token at an
even pace, which is why the screen says "recorded speed".
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING

from grpo_engine import events as ev
from grpo_engine.metrics import PHASES, time_of
from grpo_tui.app.feed.feed import NOTHING_MUTED, TimedEvent
from grpo_tui.app.feed.snapshot import Asked, Head, Status
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import BoardView

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MARK = "recorded speed"
SLICES = 24
LONGEST_STEP, SHORTEST_STEP, START_S = 30.0, 0.05, 0.5
PAGE, AHEAD = 200, 4000
SLOWEST, FASTEST = 0.125, 1024.0


@dataclass(frozen=True, slots=True)
class Timed:
    """An event and its time in the replay, in seconds; progress events only change the board."""

    due: float
    at: float | None
    event: ev.Event
    progress: bool = False


def timed(facts: Iterator[tuple[float | None, ev.Event]], skip: int = 0) -> Iterator[Timed]:
    """Yield recorded facts with times, and between them the rebuilt progress.

    Everything up to the end of step `skip` comes at once, without its progress.
    """
    now = 0.0
    before: float | None = None
    pending: list[tuple[float | None, ev.Event]] = []
    for at, event in facts:
        if isinstance(event, ev.StepFinished) and event.step <= skip:
            yield from (Timed(now, *item) for item in (*pending, (at, event)))
            before, pending = at, []
        elif isinstance(event, ev.StepFinished):
            length = _length(before, at, event)
            yield from _step(now, length, event, pending, at)
            now += length
            before = at
            pending = []
        elif isinstance(event, ev.GroupScored | ev.PassFinished | ev.StepSkipped | ev.AlertRaised):
            pending.append((at, event))
        else:
            if isinstance(event, ev.RunStarted | ev.ModelLoaded) and not skip:
                now += START_S
            before = at if at is not None else before
            yield Timed(now, at, event)
    for at, event in pending:
        yield Timed(now, at, event)


def _length(before: float | None, at: float | None, event: ev.StepFinished) -> float:
    seconds = event.metrics.get("step_time")
    if seconds is None or seconds != seconds:
        seconds = at - before if at is not None and before is not None else 1.0
    return max(SHORTEST_STEP, min(LONGEST_STEP, seconds))


def _step(
    start: float, length: float, last: ev.StepFinished,
    pending: list[tuple[float | None, ev.Event]], at: float | None,
) -> Iterator[Timed]:  # fmt: skip
    spans = _spans(length, last)
    scored = [(wall, e) for wall, e in pending if isinstance(e, ev.GroupScored)]
    trained = [(wall, e) for wall, e in scored if e.group.origin == "train"]
    held_out = [(wall, e) for wall, e in scored if e.group.origin != "train"]
    yield from (Timed(start, *item) for item in held_out if item[1].step < last.step)
    yield from _sampling(start, spans[0], last.step, [e.group for _, e in trained])
    due = start + spans[0]
    yield Timed(due, at, ev.PhaseStarted(step=last.step, phase="score"), True)
    due += spans[1]
    yield from (Timed(due, *item) for item in trained)
    if spans[2]:
        yield Timed(due, at, ev.PhaseStarted(step=last.step, phase="logprobs"), True)
        due += spans[2]
    passes = [(m, e) for m, e in pending if isinstance(e, ev.PassFinished)]
    total = len(passes)
    yield Timed(due, at, ev.PhaseStarted(step=last.step, phase="update", total=total), True)
    for done, (wall, event) in enumerate(passes, 1):
        moved = ev.PhaseAdvanced(step=last.step, phase="update", done=done, total=total)
        due += spans[3] / total
        yield Timed(due, at, moved, True)
        yield Timed(due, wall, event)
    end = start + length
    late = [item for item in held_out if item[1].step == last.step]
    if late:
        yield Timed(end, at, ev.PhaseStarted(step=last.step, phase="evaluate"), True)
        yield from (Timed(end, *item) for item in late)
    remaining = (
        item for item in pending if not isinstance(item[1], ev.GroupScored | ev.PassFinished)
    )
    yield from (Timed(end, *item) for item in remaining)
    yield Timed(end, at, last)


def _spans(length: float, last: ev.StepFinished) -> list[float]:
    parts = [last.metrics.get(time_of(phase), 0.0) for phase in PHASES]
    parts = [part if part == part and part > 0 else 0.0 for part in parts]
    total = sum(parts)
    if total <= 0:
        return [0.6 * length, 0.05 * length, 0.1 * length, 0.2 * length]
    return [part / max(total, 1e-9) * length * 0.98 for part in parts]


def _sampling(
    start: float, length: float, step: int, groups: list[ev.Group]
) -> Iterator[Timed]:  # fmt: skip
    rows = sum(len(group.rollouts) for group in groups)
    opening = ev.PhaseStarted(step=step, phase="generate", total=rows)
    yield Timed(start, None, opening, True)
    prompts = tuple(
        ev.PromptStarted(group=g.index, origin=g.origin, prompt_text=g.prompt_text,
                         target=g.target, rows=len(g.rollouts))
        for g in groups
    )  # fmt: skip
    yield Timed(start, None, ev.PromptsStarted(step=step, prompts=prompts), True)
    longest = max((_tokens(c) for g in groups for c in g.rollouts), default=0)
    if not longest:
        return
    slices = min(SLICES, longest)
    edges = [round(longest * i / slices) for i in range(slices + 1)]
    sampled = ended = 0
    for index, (low, high) in enumerate(itertools.pairwise(edges), 1):
        deltas = []
        for group in groups:
            for completion in group.rollouts:
                delta = _delta(group.index, completion, low, high)
                if delta is not None:
                    deltas.append(delta)
                    sampled += delta.tokens
                    ended += delta.finish is not None
        due = start + length * index / slices
        speed = sampled / max(1e-9, length * index / slices)
        yield Timed(due, None, ev.RolloutsAdvanced(
            step=step, rows=tuple(deltas), tokens=sampled, finished=ended, total=rows,
            tokens_per_second=speed,
        ), True)  # fmt: skip


def _tokens(completion: ev.Completion) -> int:
    return len(completion.ids) or max(1, len(completion.text) // 3)


def _delta(group: int, completion: ev.Completion, low: int, high: int) -> ev.RowDelta | None:
    count = _tokens(completion)
    if low >= count:
        return None
    high = min(high, count)
    ends = completion.ends
    if len(ends) == count:
        start, end = (ends[low - 1] if low else 0), ends[high - 1]
    else:
        length = len(completion.text)
        start, end = low * length // count, high * length // count
    finish = completion.finish if high == count else None
    spans = tuple(
        ev.unscored(span) for span in completion.spans
        if low < span.start + span.length <= high
    )  # fmt: skip
    return ev.RowDelta(group=group, index=completion.index, text=completion.text[start:end],
                       tokens=high - low, finish=finish, spans=spans)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass of the reading thread over the stored facts."""

    queue: "Queue[Timed]"
    stop: threading.Event
    done: threading.Event
    skip: int

    def put(self, item: Timed) -> bool:
        """Wait for room; False once the replay has gone elsewhere."""
        while not self.stop.is_set():
            try:
                self.queue.put(item, timeout=0.2)
            except Full:
                continue
            return True
        return False


class ReplayFeed:
    """Plays a stored run; pause stops the replay's clock, and no request reaches the run itself."""

    def __init__(
        self, path: Path, ref: str, *, speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic, name_as: str = "",
    ) -> None:  # fmt: skip
        self.run = 0
        self.may_control = True
        self._path, self._ref, self._speed = path, ref, speed
        self._clock = clock
        self._head = Head(name=name_as or ref)
        self._muted = NOTHING_MUTED
        self._next: Timed | None = None
        self._started: float | None = None
        self._paused_at: float | None = None
        self._pause_event: ev.Event | None = None
        self.restarts = -1
        self._stop = self._read_all = threading.Event()
        self.seek(0)

    @property
    def mark(self) -> str:
        """What the top of the screen says: a replay, and how fast."""
        return MARK if self._speed == 1 else f"{MARK} ×{self._speed:g}"

    @property
    def catching_up(self) -> bool:
        """Whether what comes before the sought step is still being read."""
        read_all = self._read_all.is_set()  # asked first: the thread may end after a look
        head = self._peek()
        return head.due <= 0 if head is not None else not read_all

    def seek(self, step: int) -> None:
        """Go to the end of a step and play on from there; a held replay stays held."""
        self.sought = step = max(0, step)
        self._stop.set()
        self._stop, self._read_all = threading.Event(), threading.Event()
        self._queue: Queue[Timed] = Queue(maxsize=AHEAD)
        self._next = None
        self._board = Board()
        self._started = None
        self._pause_event = ev.RunPaused(step=step) if self._paused_at is not None else None
        self.restarts += 1
        work = Reading(self._queue, self._stop, self._read_all, step)
        threading.Thread(target=self._work, args=(work,), name="replay", daemon=True).start()

    def play_at(self, speed: float) -> None:
        """Play on at another speed, relative to the recording."""
        now, clock = self._now(), self._paused_at if self._paused_at is not None else self._clock()
        self._speed = max(SLOWEST, min(FASTEST, speed))
        self._started = clock - now / self._speed

    @property
    def speed(self) -> float:
        """The speed relative to the recording."""
        return self._speed

    def head(self) -> Head:
        return self._head

    def facts(self) -> list[TimedEvent]:
        """Return the facts up to the current replay time."""
        timed_events: list[TimedEvent] = []
        now = self._now()
        while (item := self._peek()) is not None and item.due <= now:
            self._next = None
            self._board.apply(item.event)
            if not item.progress:
                timed_events.append((item.at, item.event))
        if self._pause_event is not None and not self.catching_up:
            timed_events.append((time.time(), self._pause_event))
            self._pause_event = None
        return timed_events

    def board(self) -> BoardView | None:
        return self._board.snapshot()

    def status(self) -> Status | None:
        """Return None: the events tell the whole status."""
        return None

    def muted(self) -> frozenset[str]:
        """Return the rules that were muted when the replay began."""
        return self._muted

    def ask(self, verb: Asked) -> None:
        """Pause or continue the replay; other requests make no sense for a recorded run."""
        step = self._board.snapshot().step
        if verb == "pause" and self._paused_at is None:
            self._paused_at = self._clock()
            self._pause_event = ev.RunPaused(step=step)
        elif self._paused_at is not None and self._started is not None:
            self._started += self._clock() - self._paused_at
            self._paused_at = None
            self._pause_event = ev.RunResumed(step=step)

    def pin(self, example_key: str) -> None:
        """Do nothing: a recorded run takes no requests."""

    def close(self) -> None:
        """Stop the reading thread."""
        self._stop.set()

    def _now(self) -> float:
        clock = self._paused_at if self._paused_at is not None else self._clock()
        if self._started is None:
            self._started = clock
        return (clock - self._started) * self._speed

    def _peek(self) -> Timed | None:
        if self._next is None:
            try:
                self._next = self._queue.get_nowait()
            except Empty:
                return None
        return self._next

    # -- the thread -------------------------------------------------------------------------

    def _work(self, work: Reading) -> None:
        from grpo_tui.experiments.reader import StoreReader

        try:
            reader = StoreReader(self._path)
        except (StoreError, OSError) as error:
            failed = ev.RunFailed(step=0, error="StoreError", message=str(error))
            work.put(Timed(0.0, None, failed))
            work.done.set()
            return
        try:
            summary = reader.resolve(self._ref)
            self.run = summary.key
            self._muted = reader.muted_alerts(summary.key)
            self._head = Head(
                id=summary.id, name=summary.name, model=summary.model, task=summary.task,
                recipe=summary.recipe, total_steps=summary.total_steps, device=summary.device,
                config=reader.run(summary.key).config,
            )  # fmt: skip
            for item in timed(self._pages(reader), work.skip):
                if not work.put(item):
                    return
        except (StoreError, OSError) as error:
            work.put(Timed(0.0, None, ev.NoteWritten(step=0, text=str(error), severity="error")))
        finally:
            work.done.set()
            reader.close()

    def _pages(self, reader: "StoreReader") -> Iterator[tuple[float | None, ev.Event]]:
        from grpo_tui.experiments.recorded_events import events_after

        last = 0
        while True:
            page = events_after(reader, self.run, last, limit=PAGE)
            if not page:
                return
            for stored in page:
                last = stored.seq
                if not isinstance(stored.event, ev.TokensScored | ev.RunPaused | ev.RunResumed):
                    yield stored.at or None, stored.event
