"""Replay: play a stored run again, at its own pace or faster; progress is rebuilt from tokens.

Within a step, sampling takes its recorded share of the time, and answers grow token by token at an
even pace, which is why the screen says "recorded speed".
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING

from grpo_engine import events as ev
from grpo_engine.metrics import PHASES, time_of
from grpo_tui.app.feed.feed import Feed, TimedEvent, head_of
from grpo_tui.app.feed.snapshot import Asked, Head
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


def timed(facts: Iterator[TimedEvent], skip: int = 0) -> Iterator[Timed]:
    """Yield recorded facts with times, and between them the rebuilt progress.

    Everything up to the end of step `skip` comes at once, without its progress.
    """
    now = 0.0
    before: float | None = None
    pending: list[TimedEvent] = []
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
    pending: list[TimedEvent], at: float | None,
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
    answers = [(group.index, item, _ends(item)) for group in groups for item in group.rollouts]
    longest = max((len(ends) for *_, ends in answers), default=0)
    slices = min(SLICES, longest)
    edges = [round(longest * index / slices) for index in range(slices + 1)] if slices else []
    sampled = ended = 0
    for index, (low, high) in enumerate(itertools.pairwise(edges), 1):
        deltas = tuple(
            _delta(group, item, ends, low, min(high, len(ends)))
            for group, item, ends in answers if low < len(ends)
        )  # fmt: skip
        sampled += sum(delta.tokens for delta in deltas)
        ended += sum(delta.finish is not None for delta in deltas)
        seconds = length * index / slices
        yield Timed(start + seconds, None, ev.RolloutsAdvanced(
            step=step, rows=deltas, tokens=sampled, finished=ended, total=rows,
            tokens_per_second=sampled / max(1e-9, seconds),
        ), True)  # fmt: skip


def _ends(completion: ev.Completion) -> Sequence[int]:
    """The characters up to each token, evenly spread where they were not recorded."""
    count = len(completion.ids) or max(1, len(completion.text) // 3)
    if len(completion.ends) == count:
        return completion.ends
    return [index * len(completion.text) // count for index in range(1, count + 1)]


def _delta(
    group: int, completion: ev.Completion, ends: Sequence[int], low: int, high: int
) -> ev.RowDelta:
    """An answer's tokens from `low` to `high`."""
    spans = tuple(
        ev.unscored(span) for span in completion.spans if low < span.start + span.length <= high
    )
    return ev.RowDelta(
        group=group, index=completion.index, tokens=high - low, spans=spans,
        text=completion.text[ends[low - 1] if low else 0 : ends[high - 1]],
        finish=completion.finish if high == len(ends) else None,
    )  # fmt: skip


class ReplayFeed(Feed):
    """Plays a stored run; pause stops the replay's clock, and no request reaches the run itself."""

    may_control = True

    def __init__(
        self, path: Path, ref: str, *, speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(Head(name=ref))
        self._path, self._ref, self.speed = path, ref, speed
        self._clock = clock
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
        return MARK if self.speed == 1 else f"{MARK} ×{self.speed:g}"

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
        threading.Thread(
            target=_read, args=(self, step, self._queue, self._stop, self._read_all),
            name="replay", daemon=True,
        ).start()  # fmt: skip

    def play_at(self, speed: float) -> None:
        """Play on at another speed, relative to the recording."""
        now, clock = self._now(), self._paused_at if self._paused_at is not None else self._clock()
        self.speed = max(SLOWEST, min(FASTEST, speed))
        self._started = clock - now / self.speed

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

    def close(self) -> None:
        """Stop the reading thread."""
        self._stop.set()

    def _now(self) -> float:
        clock = self._paused_at if self._paused_at is not None else self._clock()
        if self._started is None:
            self._started = clock
        return (clock - self._started) * self.speed

    def _peek(self) -> Timed | None:
        if self._next is None:
            with suppress(Empty):
                self._next = self._queue.get_nowait()
        return self._next

    def recorded(self, step: int) -> Iterator[Timed]:
        """What is played after `step`, and before it what led there; runs on the thread."""
        from grpo_tui.experiments.reader import StoreReader

        try:
            with closing(StoreReader(self._path)) as reader:
                run = reader.resolve(self._ref)
                self.run, self._head = run.key, head_of(reader, run)
                self._muted = reader.muted_alerts(run.key)
                yield from timed(_pages(reader, run.key), step)
        except (StoreError, OSError) as error:
            note = ev.NoteWritten(step=0, text=str(error), severity="error")
            failed = ev.RunFailed(step=0, error="StoreError", message=str(error))
            yield Timed(0.0, None, note if self.run else failed)


def _read(
    feed: ReplayFeed, step: int, queue: "Queue[Timed]", stop: threading.Event,
    read_all: threading.Event,
) -> None:  # fmt: skip
    """Fill the queue until the end, or until the replay has gone elsewhere."""
    for item in feed.recorded(step):
        while not stop.is_set():
            with suppress(Full):
                queue.put(item, timeout=0.2)
                break
        if stop.is_set():
            break
    read_all.set()


def _pages(reader: "StoreReader", run: int) -> Iterator[TimedEvent]:
    from grpo_tui.experiments.recorded_events import events_after

    last = 0
    while page := events_after(reader, run, last, limit=PAGE):
        for stored in page:
            last = stored.seq
            if not isinstance(stored.event, ev.TokensScored | ev.RunPaused | ev.RunResumed):
                yield stored.at or None, stored.event
