"""Replay: play a stored run again, at its own pace or faster; progress is rebuilt from tokens.

Within a step, sampling takes its recorded share of the time, and completions grow token by token at
an even pace: the screen says "recorded speed".
"""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_engine import events as ev
from grpo_engine.metrics import PHASES, time_of
from grpo_tui.app.feed.feed import Feed, head_of
from grpo_tui.app.feed.snapshot import Head, Request
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import BoardView, TimedEvent

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MARK = "recorded speed"
SLICES = 24
LONGEST_STEP, SHORTEST_STEP, START_S = 30.0, 0.05, 0.5
PAGE, AHEAD, PAUSE_S = 200, 4000, 0.05
SLOWEST, FASTEST = 0.125, 1024.0

Pending = tuple[ev.Event, float | None]  # an event and the time of its recording


@dataclass(frozen=True, slots=True)
class Timed:
    """An event and its time in the replay, in seconds; `at` is the time of its recording."""

    offset: float
    event: ev.Event
    at: float | None = None


END = Timed(math.inf, ev.RunResumed(step=0))  # never played


def timed(facts: Iterator[TimedEvent], skip: int = 0) -> Iterator[Timed]:
    """Yield recorded facts with times, and between them the rebuilt progress.

    Everything up to the end of step `skip` comes at once, without its progress.
    """
    now = 0.0
    pending: list[Pending] = []
    for at, event in facts:
        match event:
            case ev.StepFinished() if event.step > skip:
                # NaN, for a step without a recorded time, gives the shortest.
                length = min(LONGEST_STEP, max(SHORTEST_STEP, event.metrics.get("step_time", 1.0)))
                yield from _step(now, length, event, pending)
                now += length
                yield Timed(now, event, at)
                pending = []
            case (
                ev.GroupScored()
                | ev.PassFinished()
                | ev.StepSkipped()
                | ev.AlertRaised()
                | ev.AlertEnded()
            ):
                pending.append((event, at))
            case ev.StepFinished():
                yield from (Timed(now, *item) for item in (*pending, (event, at)))
                pending = []
            case _:
                if isinstance(event, ev.RunStarted | ev.ModelLoaded) and not skip:
                    now += START_S
                yield Timed(now, event, at)
    yield from (Timed(now, *item) for item in pending)


def _step(
    start: float, length: float, last: ev.StepFinished, pending: list[Pending]
) -> Iterator[Timed]:
    """A step's facts and its progress, in the order of their times."""
    generate, score, logprobs, update = _spans(length, last)
    scored, end = start + generate + score, start + length
    count = sum(isinstance(event, ev.PassFinished) for event, _ in pending)
    groups: list[ev.Group] = []
    early, trained, passes, late, final = (list[Timed]() for _ in range(5))
    offset = scored + logprobs
    for event, at in pending:
        match event:
            case ev.GroupScored(group=group) if group.origin == "train":
                groups.append(group)
                trained.append(Timed(scored, event, at))
            case ev.GroupScored() if event.step < last.step:
                early.append(Timed(start, event, at))
            case ev.GroupScored():
                late.append(Timed(end, event, at))
            case ev.PassFinished():
                offset += update / count
                done = len(passes) // 2 + 1
                progress = ev.PhaseAdvanced(step=last.step, phase="update", done=done, total=count)
                passes += [Timed(offset, progress), Timed(offset, event, at)]
            case _:
                final.append(Timed(end, event, at))

    def phase(offset: float, name: ev.Phase, total: int = 0) -> Timed:
        return Timed(offset, ev.PhaseStarted(step=last.step, phase=name, total=total))

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
    yield from (*late, *final)


def _spans(length: float, last: ev.StepFinished) -> list[float]:
    """The seconds of each phase; typical shares of the step where they were not recorded."""
    parts = [last.metrics.get(time_of(phase), 0.0) for phase in PHASES]
    parts = [part if part > 0 else 0.0 for part in parts]
    parts = parts if any(parts) else [0.6, 0.05, 0.1, 0.2]
    return [part / sum(parts) * length * 0.98 for part in parts]


def _sampling(start: float, length: float, step: int, groups: list[ev.Group]) -> Iterator[Timed]:
    rollouts = [(group.index, item, _ends(item)) for group in groups for item in group.rollouts]
    rows = len(rollouts)
    counted = all(item.model_tokens is not None for _, item, _ in rollouts)
    yield Timed(start, ev.PhaseStarted(step=step, phase="generate", total=rows))
    prompts = tuple(
        ev.PromptStarted(
            group=g.index,
            origin=g.origin,
            prompt_text=g.prompt_text,
            target=g.target,
            rows=len(g.rollouts),
        )
        for g in groups
    )
    yield Timed(start, ev.PromptsStarted(step=step, prompts=prompts))
    longest = max((len(ends) for *_, ends in rollouts), default=0)
    slices = min(SLICES, longest)
    edges = [round(longest * index / slices) for index in range(slices + 1)] if slices else []
    for index, (low, high) in enumerate(itertools.pairwise(edges), 1):
        deltas = tuple(
            _delta(group, item, ends, low, min(high, len(ends)))
            for group, item, ends in rollouts
            if low < len(ends)
        )
        sampled = sum(min(high, len(ends)) for *_, ends in rollouts)
        seconds = length * index / slices
        yield Timed(
            start + seconds,
            ev.RolloutsAdvanced(
                step=step,
                rows=deltas,
                tokens=sampled,
                total=rows,
                finished=sum(len(ends) <= high for *_, ends in rollouts),
                tokens_per_second=sampled / max(1e-9, seconds) if counted else 0.0,
            ),
        )


def _ends(rollout: ev.Rollout) -> Sequence[int]:
    """The characters up to the end of each token, evenly spread where they were not recorded."""
    count = len(rollout.ids) or max(1, len(rollout.text) // 3)
    if len(rollout.ends) == count:
        return rollout.ends
    return [index * len(rollout.text) // count for index in range(1, count + 1)]


def _delta(
    group: int, rollout: ev.Rollout, ends: Sequence[int], low: int, high: int
) -> ev.RowDelta:
    """The tokens of a rollout from `low` to `high`."""
    spans = tuple(
        ev.unscored(span) for span in rollout.spans if low < span.start + span.length <= high
    )
    return ev.RowDelta(
        group=group,
        index=rollout.index,
        tokens=None if rollout.model_tokens is None else high - low,
        spans=spans,
        text=rollout.text[ends[low - 1] if low else 0 : ends[high - 1]],
        finish=rollout.finish if high == len(ends) else None,
    )


class ReplayFeed(Feed):
    """Plays a stored run; pause stops the replay's clock, and no request reaches the run itself."""

    may_control = True

    def __init__(
        self,
        path: Path,
        ref: str,
        *,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(Head(name=ref))
        self._path, self._ref, self.speed = path, ref, speed
        self._clock = clock
        self._paused = False
        self._pause_event: ev.Event | None = None  # shows the replay's own pause or its end
        self.restarts = -1
        self._stop = threading.Event()
        self.seek(0)

    @property
    def mark(self) -> str:
        """The label and speed of the replay, for the top of the screen."""
        return MARK if self.speed == 1 else f"{MARK} ×{self.speed:g}"

    @property
    def catching_up(self) -> bool:
        """Whether events before the sought step are still being read."""
        return not self._events or self._events[0].offset <= 0

    def seek(self, step: int) -> None:
        """Go to the end of a step and play on from there; a paused replay stays paused."""
        self.sought = step = max(0, step)
        self._stop.set()
        self._stop = threading.Event()
        self._events: deque[Timed] = deque()
        self._board = Board()
        self._position, self._at = 0.0, self._clock()
        self._pause_event = ev.RunPaused(step=step) if self._paused else None
        self.restarts += 1
        threading.Thread(
            target=_read,
            args=(self.recorded(step), self._events, self._stop),
            name="replay",
            daemon=True,
        ).start()

    def play_at(self, speed: float) -> None:
        """Continue at another speed, relative to the recording."""
        self._now()
        self.speed = max(SLOWEST, min(FASTEST, speed))
        self.head = replace(self.head, speed=self.speed)

    def facts(self) -> list[TimedEvent]:
        """Return the events up to the current replay time; progress changes only the board."""
        timed_events: list[TimedEvent] = []
        now = self._now()
        while self._events and self._events[0].offset <= now:
            item = self._events.popleft()
            self._board.apply(item.event)
            timed_events.append((item.at, item.event))
        if self._pause_event is not None and not self.catching_up:
            timed_events.append((time.time(), self._pause_event))
            self._pause_event = None
        return timed_events

    def board(self) -> BoardView | None:
        return self._board.view

    def ask(self, verb: Request) -> None:
        """Pause or continue the replay; other requests do nothing."""
        if self._paused != (verb == "pause"):
            self._now()
            self._paused = not self._paused
            event = ev.RunPaused if self._paused else ev.RunResumed
            self._pause_event = event(step=self._board.view.step)

    def close(self) -> None:
        """Stop the reading thread."""
        self._stop.set()

    def _now(self) -> float:
        """The position in the replay, in seconds."""
        before, self._at = self._at, self._clock()
        if not self._paused:
            self._position += (self._at - before) * self.speed
        return self._position

    def recorded(self, step: int) -> Generator[Timed, None, None]:
        """Yield the events up to `step`, then those to play; runs on the reading thread."""
        from grpo_tui.experiments.reader import StoreReader

        try:
            with StoreReader(self._path) as reader:
                run = reader.resolve(self._ref)
                self.run = run.key
                self.head = replace(head_of(reader, run), recorded=run.elapsed, speed=self.speed)
                self.muted = reader.muted_alerts(run.key)
                yield from timed(_pages(reader, run.key), step)
        except (StoreError, OSError) as error:
            note = ev.NoteWritten(step=0, text=str(error), severity="error")
            failed = ev.RunFailed(step=0, error="StoreError", message=str(error))
            yield Timed(0.0, note if self.run else failed)


def _read(items: Generator[Timed, None, None], events: deque[Timed], stop: threading.Event) -> None:
    """Read ahead until the end, or until the replay goes to another step."""
    with closing(items):
        for item in itertools.chain(items, [END]):
            while len(events) >= AHEAD and not stop.wait(PAUSE_S):
                pass
            if stop.is_set():
                return
            events.append(item)


def _pages(reader: "StoreReader", run: int) -> Iterator[TimedEvent]:
    from grpo_tui.experiments.recorded_events import events_after

    last = 0
    while page := events_after(reader, run, last, limit=PAGE):
        for stored in page:
            last = stored.seq
            if not isinstance(stored.event, ev.TokensScored | ev.RunPaused | ev.RunResumed):
                yield stored.at or None, stored.event
