"""EnvironmentPool: runs the environments of all rows in a few processes, side by side.

An instance lives in one process. A call that hangs or crashes loses its process; then the other
episodes of that process are repeated in a new one from the answers so far, each before its next
call. If a process with several calls ends or does not respond at all, its calls are made again one
at a time, to find the one at fault. A rollout whose environment fails has an error, and the run
continues.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Self

from grpo_engine.control import StopNow
from grpo_engine.environments.local import LocalProcess
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.rewards.worker.process import (
    DiedError,
    ScoringInterruptedError,
    TimedOutError,
    UserProcess,
    wait_for_any,
)
from grpo_engine.rollouts.dialogue import EnvironmentReply, ToolCall
from grpo_engine.rollouts.prompts import Opening
from grpo_engine.rollouts.types import Outcome

CODE = "from grpo_engine.environments.worker.main import main; main()"
PROCESSES = 2
AT_A_TIME = 64  # calls that a process makes side by side
LEAST_LOAD_S = 30.0  # for a new interpreter and its imports, on a busy machine
LOAD_ELSEWHERE_S = 300.0  # for those of a package in its own interpreter
SLACK = 3.0  # seconds after the limit in which a process reports a late call itself
TICK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An environment as its process described it."""

    name: str
    tools: tuple[Mapping[str, Any], ...]  # their schemas
    has_reward: bool
    by_turn: bool  # in its replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One rollout's episode: which environment, its row of the data, its seed and its number."""

    environment: str
    row: Mapping[str, Any]
    seed: int
    index: int


@dataclass(slots=True, eq=False)
class _Episode:
    """An episode, the process that it lives in, and what it takes to repeat it."""

    slot: int
    job: Job
    home: UserProcess | LocalProcess | None = None
    past: list[tuple[str, Any]] = field(default_factory=list)  # answers and replies' messages
    opening: Opening = field(default_factory=Opening)
    calls: int = 0
    failures: int = 0
    failure: EnvironmentReply | None = None
    outcome: Outcome | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """A call that was asked for, and when it must have ended after it was sent."""

    number: int
    episode: _Episode
    frame: dict[str, Any]
    limit: float = 0.0
    deadline: float = 0.0


@dataclass(slots=True, eq=False)
class _Seat:
    """The place of a process: the process, if it runs, and its calls."""

    name: str
    process: UserProcess | LocalProcess | None = None
    queue: deque[_Request] = field(default_factory=deque)
    sent: dict[int, _Request] = field(default_factory=dict)
    suspects: set[int] = field(default_factory=set)  # calls of which one ended the process


class EnvironmentPool:
    """The processes of a run's environments; a context manager.

    With `objects`, which are tools and environments that only this process has, by name, all run in
    this process without a time limit. `interrupted` is polled while episodes begin and end; if it
    returns true, `StopNow` is raised.
    """

    def __init__(
        self,
        tools: Sequence[str],
        environments: Mapping[str, str],
        folder: Path,
        time_limit: float,
        interrupted: Callable[[], bool] = lambda: False,
        objects: Mapping[str, Any] | None = None,
        *,
        interpreter: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._objects = objects
        self._time_limit = time_limit
        self._interpreter = interpreter
        self._folder = folder
        self._interrupted = interrupted
        self._load = {
            "do": "load", "id": 0, "tools": list(tools), "environments": dict(environments),
            "options": dict(options or {}),
        }  # fmt: skip
        self._seats = [
            _Seat(f"environments-{place + 1}") for place in range(1 if objects else PROCESSES)
        ]
        self._numbers = 0
        self._episodes: list[_Episode] = []
        self._done: dict[int, EnvironmentReply] = {}  # replies by slot
        self.described: dict[str, Described] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        seat = self._seats[0]
        seat.process = self._start(seat)
        try:
            found = seat.process.ask({**self._load, "describes": True}, self._load_limit)
        except ScoringInterruptedError:
            self.close()
            raise StopNow("stopped while the environments were being loaded") from None
        except (TimedOutError, DiedError) as error:
            self.close()
            how = error.how if isinstance(error, DiedError) else "was not ready in time"
            raise BrokenEnvironmentError(
                f"the process that loads the environments {how}{at(error.where)}; see "
                f"{self._folder / seat.name}.log"
            ) from None
        if not found["ok"]:
            self.close()
            trace = f"\n{found['traceback']}" if found["traceback"] else ""
            raise BrokenEnvironmentError(f"{found['message']}{at(found['where'])}{trace}")
        self.described = {
            key: Described(
                name=one["name"],
                tools=tuple(one["tools"]),
                has_reward=one["rewards"],
                by_turn=one["by_turn"],
            )
            for key, one in found["environments"].items()
        }
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _load_limit(self) -> float:
        least = LOAD_ELSEWHERE_S if self._interpreter else LEAST_LOAD_S
        return max(least, self._time_limit)

    @property
    def rewards(self) -> tuple[str, ...]:
        found = (one.name for one in self.described.values() if one.has_reward)
        return tuple(dict.fromkeys(found))

    def close(self) -> None:
        """End the processes and all that they started."""
        for seat in self._seats:
            self._end(seat)

    def begin(self, jobs: Sequence[Job]) -> Sequence[Opening]:
        """Begin one episode per job; the openings of those that could not begin are empty."""
        for seat in self._seats:
            if seat.sent or seat.queue:  # a step was dropped
                self._end(seat)
                seat.queue.clear()
                seat.sent.clear()
                seat.suspects.clear()
        self._done.clear()
        self._episodes = [_Episode(slot, job) for slot, job in enumerate(jobs)]
        for episode in self._episodes:
            self._request(episode, "reset", **_beginning(episode.job))
        self._finish_calls("environments began")
        return [episode.opening for episode in self._episodes]

    def ask(self, place: int, answer: str) -> None:
        self._request(self._episodes[place], "step", answer=answer)
        self._pump(0)

    def replies(self, seconds: float) -> list[tuple[int, EnvironmentReply]]:
        """The replies that have come, after waiting for one at most this long."""
        if not self._done:
            self._pump(seconds)
        found = sorted(self._done.items())
        self._done.clear()
        return found

    def failure(self, place: int) -> EnvironmentReply | None:
        """Why an environment could not begin; None if it has begun."""
        return self._episodes[place].failure

    def tools(self, place: int) -> Sequence[Mapping[str, Any]]:
        return self.described[self._episodes[place].job.environment].tools

    def fail(self, place: int, error: str) -> None:
        """End a row's episode before its first answer."""
        episode = self._episodes[place]
        episode.failure = EnvironmentReply(name=self._title(episode), error=error)

    def finish(self, failed: Sequence[bool]) -> list[Outcome]:
        """What the environments say at the end; those of failed rollouts are not asked."""
        for episode, is_lost in zip(self._episodes, failed, strict=True):
            if not is_lost:
                self._request(episode, "finish")
        self._finish_calls("environments ended")
        return [
            episode.outcome or Outcome(name=self._title(episode), calls=episode.calls,
                                       failures=episode.failures)
            for episode in self._episodes
        ]  # fmt: skip

    def _title(self, episode: _Episode) -> str:
        return self.described[episode.job.environment].name

    def _finish_calls(self, what: str) -> None:
        while any(seat.sent or seat.queue for seat in self._seats):
            if self._interrupted():
                raise StopNow(f"stopped while {what}")
            self._pump(TICK)

    def _request(self, episode: _Episode, do: str, **given: Any) -> None:
        self._numbers += 1
        frame = {
            "do": do, "id": self._numbers, "slot": episode.slot, "name": episode.job.environment,
            "limit": self._time_limit, **given,
        }  # fmt: skip
        seat = self._seats[episode.slot % len(self._seats)]
        seat.queue.append(_Request(self._numbers, episode, frame))

    def _pump(self, seconds: float) -> None:
        """Send what waits, take what has come, and deal with processes that are late or lost."""
        for seat in self._seats:
            self._send(seat)
        running = [seat.process for seat in self._seats if seat.process and seat.sent]
        if running:
            wait_for_any(running, seconds)
        elif seconds:
            time.sleep(seconds)
        for seat in self._seats:
            self._take(seat)
            self._check_deadlines(seat)
            self._send(seat)

    def _send(self, seat: _Seat) -> None:
        while seat.queue and len(seat.sent) < (1 if seat.suspects else AT_A_TIME):
            request = seat.queue.popleft()
            extra = self._ready(seat)
            assert seat.process is not None
            episode, past = request.episode, 0
            frame = request.frame
            if frame["do"] != "reset" and episode.home is not seat.process:
                frame = {**frame, "begin": _beginning(episode.job), "past": episode.past}
                past = 1 + len(episode.past)
            else:
                frame = {**frame, "begin": None}
            episode.home = seat.process
            request.limit = inf if self._objects else self._time_limit * (1 + past) + SLACK
            request.deadline = time.monotonic() + request.limit + extra
            seat.sent[request.number] = request
            try:
                seat.process.post(frame)
            except DiedError as error:
                self._lost(seat, error)
                return

    def _ready(self, seat: _Seat) -> float:
        """Start the seat's process if it has none; return how much longer its calls may take."""
        if seat.process is not None:
            return 0.0
        seat.process = self._start(seat)
        seat.process.post({**self._load, "describes": False})
        return self._load_limit

    def _start(self, seat: _Seat) -> UserProcess | LocalProcess:
        if self._objects:
            return LocalProcess(self._objects)
        folder, interpreter = self._folder, self._interpreter
        return UserProcess(folder, self._interrupted, CODE, seat.name, interpreter)

    def _take(self, seat: _Seat) -> None:
        if seat.process is None:
            return
        try:
            frames = seat.process.collect(0)
        except DiedError as error:
            self._lost(seat, error)
            return
        for frame in frames:
            if frame["id"] == 0:
                if not frame["ok"]:  # it could be loaded before
                    self._cannot_load(seat, frame)
                    return
                for request in seat.sent.values():
                    request.deadline = time.monotonic() + request.limit
                continue
            if frame["id"] not in seat.sent:
                continue
            request = seat.sent.pop(frame["id"])
            seat.suspects.discard(request.number)
            self._heard(request, frame)
            if frame.get("hangs"):
                self._restart(seat)
                return

    def _cannot_load(self, seat: _Seat, frame: Mapping[str, Any]) -> None:
        self._end(seat)
        for request in seat.sent.values():
            self._heard(request, {"ok": False, "ms": 0.0, **frame})
        seat.sent.clear()
        seat.suspects.clear()

    def _check_deadlines(self, seat: _Seat) -> None:
        """End a process that does not even report a late call, because C code holds it."""
        now = time.monotonic()
        late = [one for one in seat.sent.values() if now > one.deadline]
        if not late or seat.process is None:
            return
        if len(seat.sent) == 1:
            request = seat.sent.popitem()[1]
            seat.suspects.discard(request.number)
            self._heard(request, {
                "ok": False, "ms": 1000 * self._time_limit, "where": seat.process.hung_at(),
                "message": f"took longer than task.environment_time_limit {self._time_limit:g} s",
            })  # fmt: skip
        seat.suspects |= set(seat.sent)
        self._restart(seat)

    def _lost(self, seat: _Seat, error: DiedError) -> None:
        """The process has ended: the only call did it; of several, each is tried alone."""
        if len(seat.sent) == 1:
            request = seat.sent.popitem()[1]
            seat.suspects.discard(request.number)
            message = f"ended its process, which {error.how}"
            told = {"ok": False, "ms": 0.0, "message": message, "where": error.where}
            self._heard(request, told)
        seat.suspects |= set(seat.sent)
        self._restart(seat)

    def _restart(self, seat: _Seat) -> None:
        """End the process; its calls are made again in a new one, before those that wait."""
        self._end(seat)
        again = [seat.sent.pop(number) for number in sorted(seat.sent)]
        seat.queue.extendleft(reversed(again))

    def _end(self, seat: _Seat) -> None:
        if seat.process is not None:
            process, seat.process = seat.process, None
            process.stop(grace=0)

    def _heard(self, request: _Request, frame: Mapping[str, Any]) -> None:
        """Take over the result of a call."""
        episode, do = request.episode, request.frame["do"]
        name = self._title(episode)
        if not frame["ok"]:
            error = f"{do}: {frame['message']}{at(frame.get('where', ''))}"
            failure = EnvironmentReply(name=name, ms=frame["ms"], error=error)
            if do == "step":
                self._done[episode.slot] = failure
            else:
                episode.failure = failure
            return
        if do == "reset":
            messages = tuple(frame["messages"])
            episode.opening = Opening(text=frame["text"], messages=messages)
        elif do == "step":
            calls = tuple(
                ToolCall(
                    name=one["name"], arguments=one["arguments"], result=one["result"],
                    failed=one["failed"], given=one["given"],
                )
                for one in frame["calls"]
            )  # fmt: skip
            episode.past.append((request.frame["answer"], frame["messages"]))
            episode.calls += len(calls)
            episode.failures += sum(call.failed for call in calls)
            self._done[episode.slot] = EnvironmentReply(
                messages=tuple(frame["messages"]), done=frame["done"], reward=frame.get("reward"),
                info=frame.get("info", {}), calls=calls, ms=frame["ms"],
                name=", ".join(call.name for call in calls) or name,
            )  # fmt: skip
        else:
            episode.outcome = Outcome(
                name=name, reward=frame["reward"],
                by_turn=self.described[episode.job.environment].by_turn, state=frame["state"],
                calls=episode.calls, failures=episode.failures,
            )  # fmt: skip


def _beginning(job: Job) -> dict[str, Any]:
    return {"row": dict(job.row), "seed": job.seed, "index": job.index}


def at(where: str) -> str:
    """Where it happened, for the end of a message."""
    return f" (at {where})" if where else ""
