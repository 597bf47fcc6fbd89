"""A run without a screen: the engine's thread, the recorder, the printer, and signals.

The main thread only waits for events and signals, so that it reacts to an interrupt at once while
MLX computes. Facts are shown after the recorder has committed them.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from grpo_engine import errors
from grpo_engine import events as ev
from grpo_tui.app import exit_codes
from grpo_tui.app.jobs.detach import READY
from grpo_tui.app.jobs.engine_thread import EngineThread
from grpo_tui.app.jobs.progress import Printer, printer
from grpo_tui.app.jobs.run_log import RunLog, fault_log
from grpo_tui.app.jobs.start import Job
from grpo_tui.app.streams import discard
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.record.writer import PROGRESS
from grpo_tui.experiments.values import TimedEvent

PATIENCE = 8.0  # seconds until an immediate stop ends the process by force
GRACE = 2.0  # seconds for the engine to notice a lost rank by itself
TICK = 0.1


def run_headless(start: Callable[[], Job], *, as_json: bool = False) -> int:
    """Start a job on the engine's thread, run it to its end, and return the exit status."""
    ready = os.environ.pop(READY, "")  # child processes must not inherit it
    engine = EngineThread()
    engine.start()
    stops: list[float] = []

    def stop(*_: object) -> None:
        stops.append(time.monotonic())
        with suppress(OSError):
            print_stderr("stopping before the first step")

    with signals(stop, hang_up=lambda *_: None):
        job = _started(engine, start, stops)
        job.folder.mkdir(parents=True, exist_ok=True)
        watcher = Watcher(job, as_json=as_json, ready=ready)
        with fault_log(job.folder), signals(watcher.stop, watcher.go_dark):
            if stops and not job.follows:
                watcher.stop_now()
            return watcher.watch(engine)


def _started(engine: EngineThread, start: Callable[[], Job], stops: Sequence[float]) -> Job:
    """Start a job; a stop waits for it, since only its watcher can end a recorded job."""
    starting = engine.begin(start)
    while not starting.done():
        wait([starting], TICK)
        if stops and time.monotonic() > stops[0] + PATIENCE:
            os._exit(exit_codes.INTERRUPTED)
    try:
        return starting.result()
    except BaseException:
        engine.finish()
        engine.join(PATIENCE)  # the interpreter must not exit before its threads
        raise


@contextmanager
def signals(stop: Callable[..., None], hang_up: Callable[..., None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM by `stop`, SIGHUP by `hang_up`."""
    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: hang_up}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watcher:
    """The main thread's part of a run."""

    def __init__(self, job: Job, *, as_json: bool, ready: str) -> None:
        self._job = job
        self._ready = ready
        # The recorder adds facts after their commits, the engine adds everything else.
        self._queue = job.recorder.facts if job.recorder else SimpleQueue[TimedEvent | None]()
        self._printer = Printer() if job.follows else printer(job.evaluations, as_json=as_json)
        self._log = RunLog(job.folder)
        self._interrupts = self._step = 0
        self._deadline = float("inf")
        self._rank_lost_at: float | None = None
        self._blocked = ""
        self._unprinted: OSError | None = None  # a full disk cut the output
        self._ended: ev.RunFinished | ev.RunFailed | None = None
        self._train_ended = False

    def watch(self, engine: EngineThread) -> int:
        """Train, show events until the engine ends, close everything."""
        job = self._job
        self._write(f"run {job.name} in {job.folder}")
        engine.submit(self._train)
        engine.finish()
        # After an interrupt this does not wait for disk space.
        while not self._train_ended or not (
            self._ended or job.recorder is None or job.recorder.flush(PATIENCE) or self._interrupts
        ):
            self._read()
        while not self._queue.empty():
            self._read()
        if self._rank_lost_at is None:
            engine.join(PATIENCE)
        self._close()
        if engine.is_alive() and self._rank_lost_at is not None:
            sys.stdout.flush()
            os._exit(self._status())  # the engine waits for a rank that is gone
        return self._status()

    def _train(self) -> None:
        """Train, on the engine's thread."""
        try:
            self._job.train(self._put)
        finally:
            self._queue.put(None)

    def _put(self, event: ev.Event) -> None:
        """Show events that the recorder does not pass on: progress, or all of an unstored run."""
        if self._job.recorder is None or isinstance(event, PROGRESS):
            self._queue.put((None, event))

    def _read(self) -> None:
        """Show the next event; while there is none, check for trouble."""
        try:
            fact = self._queue.get(timeout=TICK)
        except Empty:
            self._leave_if_stuck()
            self._report_trouble()
            self._end_without_rank()
            return
        if fact is None:
            self._train_ended = True
        else:
            self._show(fact[1])

    def _report_trouble(self) -> None:
        """Print why the recorder is blocked: it cannot record a note of it."""
        blocked = self._job.control.blocked
        if blocked and not self._blocked:
            self._write(blocked)
        self._blocked = blocked

    def _end_without_rank(self) -> None:
        """Fail the run if another rank is gone and the engine cannot notice it."""
        if not self._job.control.rank_failure:
            return
        if self._rank_lost_at is None:
            self._rank_lost_at = time.monotonic()
        elif time.monotonic() - self._rank_lost_at > GRACE and self._ended is None:
            error = errors.RankLostError(self._job.control.rank_failure)
            failed = ev.RunFailed(step=self._step, error=type(error).__name__, message=str(error))
            self._job.record(failed)
            self._put(failed)
            self._queue.put(None)
            self._rank_lost_at = float("inf")

    def _show(self, event: ev.Event) -> None:
        self._announce(event)
        self._step = max(self._step, event.step)
        if isinstance(event, ev.RunFinished | ev.RunFailed):
            self._ended = event
        self._log.write(event)
        self._print(lambda: self._printer.show(event))

    def _write(self, text: str) -> None:
        self._print(lambda: self._printer.write(text))

    def _print(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            if error.errno in exit_codes.FULL:
                self._printer, self._unprinted = Printer(), error
            else:
                self.go_dark()

    def go_dark(self, *_: object) -> None:
        """Stop printing when the output has no reader; the run, its log and its record continue."""
        self._printer = Printer()
        discard(sys.stdout, sys.stderr)

    def _announce(self, event: ev.Event) -> None:
        """Report the start or failure of a detached run to the process that started it."""
        is_first = isinstance(event, ev.PromptsStarted | ev.RunFailed | ev.RunFinished)
        if not (self._ready and is_first):
            return
        job, failed = self._job, event.message if isinstance(event, ev.RunFailed) else ""
        details = {"name": job.name, "folder": str(job.folder), "failed": failed}
        if job.recorder is not None:
            details["id"] = job.recorder.id
        partial = Path(self._ready).with_suffix(".partial")
        partial.write_text(json.dumps(details), encoding="utf-8")
        partial.replace(self._ready)
        self._ready = ""

    # -- signals --------------------------------------------------------------------------------

    def stop(self, *_: object) -> None:
        """Stop after the step at the first signal, and at once at the second."""
        self._interrupts += 1
        if self._interrupts > 1:
            self.stop_now()
            self._write("stopping now; the last checkpoint stays as it is")
        elif not self._job.follows:  # rank 0 gets the same signal and decides for all
            self._job.control.ask("stop_after_step")
            self._write(
                "stopping after this step, with a checkpoint; press Ctrl-C again to stop now"
            )

    def stop_now(self) -> None:
        """Drop the unfinished step, or end the process if that takes too long."""
        self._job.control.ask("stop_now")
        self._deadline = min(self._deadline, time.monotonic() + PATIENCE)

    def _leave_if_stuck(self) -> None:
        """End the process if the engine misses the deadline for its next safe point."""
        if time.monotonic() > self._deadline:
            self._job.close("stopped at once")
            os._exit(exit_codes.INTERRUPTED)

    # -- the end --------------------------------------------------------------------------------

    def _close(self) -> None:
        ended, cause, trace = self._ended, "", ""
        if isinstance(ended, ev.RunFailed):
            cause, trace = ended.message, ended.traceback.rstrip()
        self._job.close(cause)
        if trace:
            self._write(trace)
        self._log.close()
        if self._job.recorder is not None and self._job.recorder.left:
            self._write(f"not in the store yet: {self._job.recorder.left}")
        self._print(self._printer.close)  # last, since it may wait for a reader of the table

    def _status(self) -> int:
        match self._ended:
            case ev.RunFailed():
                return exit_codes.of_failure(self._ended.error)
            case ev.RunFinished(reason=reason):
                at_once = reason == "aborted" or (reason == "stopped" and self._interrupts > 1)
                if self._unprinted is not None and not at_once:
                    raise self._unprinted
                return exit_codes.INTERRUPTED if at_once else exit_codes.OK
        return exit_codes.FAILED
