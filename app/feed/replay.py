"""Replay: play a stored run again, at its own pace or faster; progress is rebuilt from tokens.

Within a step, sampling takes its recorded share of the time, and answers grow token by token at an
even pace, which is why the screen says "recorded speed".
"""

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING

from grpo_engine import events as ev
from grpo_engine.metrics import PHASES, time_of
from grpo_tui.app.feed.feed import Feed, TimedEvent, head_of
from grpo_tui.app.feed.snapshot import Head, Request
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
        match event:
            case ev.StepFinished(step=step) if step <= skip:
                yield from (Timed(now, *item) for item in (*pending, (at, event)))
            case ev.StepFinished():
                length = _length(before, at, event)
                yield from _step(now, length, event, pending, at)
                now += length
            case ev.GroupScored() | ev.PassFinished() | ev.StepSkipped() | ev.AlertRaised():
                pending.append((at, event))
                continue
            case _:
                if isinstance(event, ev.RunStarted | ev.ModelLoaded) and not skip:
                    now += START_S
                before = at if at is not None else before
                yield Timed(now, at, event)
                continue
        before, pending = at, []
    yield from (Timed(now, *item) for item in pending)


def _length(before: float | None, at: float | None, event: ev.StepFinished) -> float:
    seconds = event.metrics.get("step_time")
    if seconds is None or seconds != seconds:
        seconds = at - before if at is not None and before is not None else 1.0
    return max(SHORTEST_STEP, min(LONGEST_STEP, seconds))


def _step(
    start: float, length: float, last: ev.StepFinished,
    pending: list[TimedEvent], at: float | None,
) -> Iterator[Timed]:  # fmt: skip
    """A step's facts and its progress, in the order of their times."""
    generate, score, logprobs, update = _spans(length, last)
    scored, end = start + generate + score, start + length
    count = sum(isinstance(event, ev.PassFinished) for _, event in pending)
    groups: list[ev.Group] = []
    early, trained, passes, late, others = (list[Timed]() for _ in range(5))
    due = scored + logprobs
    for wall, event in pending:
        match event:
            case ev.GroupScored(group=group) if group.origin == "train":
                groups.append(group)
                trained.append(Timed(scored, wall, event))
            case ev.GroupScored() if event.step < last.step:
                early.append(Timed(start, wall, event))
            case ev.GroupScored():
                late.append(Timed(end, wall, event))
            case ev.PassFinished():
                due += update / count
                done = len(passes) // 2 + 1
                progress = ev.PhaseAdvanced(step=last.step, phase="update", done=done, total=count)
                passes += [Timed(due, at, progress, True), Timed(due, wall, event)]
            case _:
                others.append(Timed(end, wall, event))

    def phase(due: float, name: ev.Phase, total: int = 0) -> Timed:
        return Timed(due, at, ev.PhaseStarted(step=last.step, phase=name, total=total), True)

    yield from early
    yield from _sampling(start, generate, last.step, groups)
    yield phase(start + generate, "score")
    yield from trained
    if logprobs:
        yield phase(scored, "logprobs")
    yield phase(scored + logprobs, "update", count)
    yield from passes
    if late:
        yield phase(end, "evaluate")
    yield from (*late, *others)
    yield Timed(end, at, last)


def _spans(length: float, last: ev.StepFinished) -> list[float]:
    """The seconds of each phase; some usual ones where they were not recorded."""
    parts = [last.metrics.get(time_of(phase), 0.0) for phase in PHASES]
    parts = [part if part == part and part > 0 else 0.0 for part in parts]
    parts = parts if any(parts) else [0.6, 0.05, 0.1, 0.2]
    return [part / sum(parts) * length * 0.98 for part in parts]


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
        self._paused = False
        self._pause_event: ev.Event | None = None  # that it is held or goes on
        self.restarts = -1
        self._stop = threading.Event()
        self.seek(0)

    @property
    def mark(self) -> str:
        """What the top of the screen says: a replay, and how fast."""
        return MARK if self.speed == 1 else f"{MARK} ×{self.speed:g}"

    @property
    def catching_up(self) -> bool:
        """Whether what comes before the sought step is still being read."""
        head = self._peek()
        return head.due <= 0 if head is not None else not self._read_all

    def seek(self, step: int) -> None:
        """Go to the end of a step and play on from there; a held replay stays held."""
        self.sought = step = max(0, step)
        self._stop.set()
        self._stop = threading.Event()
        self._queue: Queue[Timed | None] = Queue(maxsize=AHEAD)  # None at the end
        self._next: Timed | None = None
        self._read_all = False
        self._board = Board()
        self._position, self._at = 0.0, self._clock()
        self._pause_event = ev.RunPaused(step=step) if self._paused else None
        self.restarts += 1
        threading.Thread(
            target=_read, args=(self.recorded(step), self._queue, self._stop),
            name="replay", daemon=True,
        ).start()  # fmt: skip

    def play_at(self, speed: float) -> None:
        """Play on at another speed, relative to the recording."""
        self._now()
        self.speed = max(SLOWEST, min(FASTEST, speed))

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

    def ask(self, verb: Request) -> None:
        """Pause or continue the replay; other requests make no sense for a recorded run."""
        if self._paused != (verb == "pause"):
            self._now()
            self._paused = not self._paused
            event = ev.RunPaused if self._paused else ev.RunResumed
            self._pause_event = event(step=self._board.snapshot().step)

    def close(self) -> None:
        """Stop the reading thread."""
        self._stop.set()

    def _now(self) -> float:
        """The position in the replay, in seconds."""
        before, self._at = self._at, self._clock()
        if not self._paused:
            self._position += (self._at - before) * self.speed
        return self._position

    def _peek(self) -> Timed | None:
        if self._next is None and not self._read_all:
            with suppress(Empty):
                self._next = self._queue.get_nowait()
                self._read_all = self._next is None
        return self._next

    def recorded(self, step: int) -> Generator[Timed, None, None]:
        """What is played after `step`, and before it what led there; runs on the thread."""
        from grpo_tui.experiments.reader import StoreReader

        try:
            with closing(StoreReader(self._path)) as reader:
                run = reader.resolve(self._ref)
                self.run, self.head = run.key, head_of(reader, run)
                self.muted = reader.muted_alerts(run.key)
                yield from timed(_pages(reader, run.key), step)
        except (StoreError, OSError) as error:
            note = ev.NoteWritten(step=0, text=str(error), severity="error")
            failed = ev.RunFailed(step=0, error="StoreError", message=str(error))
            yield Timed(0.0, None, note if self.run else failed)


def _read(
    items: Generator[Timed, None, None], queue: "Queue[Timed | None]", stop: threading.Event
) -> None:
    """Fill the queue until the end, or until the replay has gone elsewhere."""
    with closing(items):
        for item in itertools.chain(items, [None]):
            while not stop.is_set():
                with suppress(Full):
                    queue.put(item, timeout=0.2)
                    break
            if stop.is_set():
                return


def _pages(reader: "StoreReader", run: int) -> Iterator[TimedEvent]:
    from grpo_tui.experiments.recorded_events import events_after

    last = 0
    while page := events_after(reader, run, last, limit=PAGE):
        for stored in page:
            last = stored.seq
            if not isinstance(stored.event, ev.TokensScored | ev.RunPaused | ev.RunResumed):
                yield stored.at or None, stored.event
