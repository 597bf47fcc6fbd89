"""Main module of the reward process: loads functions and answers requests, one at a time.

Standard output belongs to the functions; frames use separate pipes.
"""

import asyncio
import faulthandler
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpo_engine
from grpo_engine.errors import EngineError
from grpo_engine.rewards.load import ENVIRONMENTS, LoadedReward, load_reward
from grpo_engine.rewards.worker.descendants import MARK, adopt_orphans, end_all
from grpo_engine.rewards.worker.frames import read_frame, write_frame
from grpo_engine.rewards.worker.scores import Scores, read_scores

_OURS = Path(grpo_engine.__file__).parent
HERE = (str(_OURS / "rewards"), str(_OURS / "environments" / "worker"))
# Seconds after a call's limit until the process kills itself.
GRACE = 5.0


# Further fields of TRL's state; a run here has one process and no log history.
AS_TRL = {
    "epoch": 0.0, "global_step": 0, "max_steps": 0, "num_train_epochs": 1, "log_history": (),
    "best_metric": None, "is_local_process_zero": True, "is_world_process_zero": True,
}  # fmt: skip


class TrainerState:
    """Read-only progress of the run, with the attributes of TRL's `TrainerState`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update({**AS_TRL, **values})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer_state has no {name!r}; it has {', '.join(self.__dict__)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"trainer_state is read-only: cannot set {name!r}")


class EndedEnvironment:
    """The public attributes that a rollout's environment had at its end."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the environment had no public attribute {name!r} at its end; it had "
            f"{', '.join(self.__dict__) or 'none'} (methods cannot be called)"
        )


class Journal:
    """Values that one call logs through `log_extra` and `log_metric`."""

    def __init__(self) -> None:
        self.extras: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = {}

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log a column with one value per completion."""
        self.extras.setdefault(str(column), []).extend(plain(value) for value in values)

    def log_metric(self, name: str, value: float) -> None:
        """Log a value of a metric that is averaged over the step."""
        self.metrics.setdefault(str(name), []).append(float(value))


class Server:
    """The functions, the current batch, and the event loop for async functions."""

    passed_on: tuple[type[BaseException], ...] = ()  # not a function's failure

    def __init__(self) -> None:
        self.rewards: list[LoadedReward] = []
        self.weights: list[float] = []
        self.batch: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        self.loop: asyncio.AbstractEventLoop | None = None

    def answer(self, frame: Mapping[str, Any]) -> Any:
        match frame["do"]:
            case "load":
                return self.load(frame["name"], frame["options"], frame["weight"])
            case "batch":
                self.batch, self.state = frame["batch"], frame["state"]
                return {"ok": True}
            case "call":
                return self.call(frame["functions"], frame["limit"])
            case "each":
                return self.each(frame["function"], frame["limit"])
        raise ValueError(f"unknown request {frame['do']!r}")

    def find(self, name: str, options: Mapping[str, Any]) -> LoadedReward:
        return load_reward(name, options)

    def load(self, name: str, options: Mapping[str, Any], weight: float) -> Any:
        try:
            reward = self.find(name, options)
        except EngineError as error:
            return {"ok": False, "message": str(error), "where": "", "traceback": ""}
        except BaseException as error:
            found = described(error, "")
            found["message"] = f"reward {name} cannot be loaded: {found['message']}"
            return found
        self.rewards.append(reward)
        self.weights.append(weight)
        return {
            "ok": True,
            "name": reward.name,
            "file": reward.file,
            "async": reward.is_async,
            "requires": list(reward.requires),
            "given": list(reward.options),
        }

    def call(self, functions: Sequence[int], limit: float) -> list[Any]:
        """Call functions on the whole batch; a call that hangs ends the process."""
        faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=TRACE)
        try:
            return self.scores(functions, limit)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def scores(self, functions: Sequence[int], limit: float) -> list[Any]:
        """Call one function directly, several async ones concurrently."""
        if len(functions) == 1:
            return [self.guarded(functions[0], slice(None), limit)]
        found: list[Any] = self.run(self.together(functions, limit))
        return found

    def each(self, function: int, limit: float) -> list[Any]:
        """Call one function on each completion in turn, until the limit."""
        deadline = time.monotonic() + limit
        found = []
        for row in range(len(self.batch["completions"])):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            found.append(self.guarded(function, slice(row, row + 1), left))
        return found

    def guarded(self, function: int, rows: slice, limit: float) -> Any:
        """Call a function; on an exception return its description."""
        reward, journal, started = self.rewards[function], Journal(), time.monotonic()
        try:
            output = reward.function(**self.keywords(reward, journal, rows))
            if inspect.isawaitable(output):
                output = self.run(asyncio.wait_for(output, limit))
            return self.result(function, output, rows, journal, started)
        except self.passed_on:
            raise
        except BaseException as error:
            return failure(error, reward, limit, started)

    async def together(self, functions: Sequence[int], limit: float) -> list[Any]:
        """Call async functions concurrently, as TRL does."""

        async def one(function: int) -> Any:
            reward, journal, started = self.rewards[function], Journal(), time.monotonic()
            try:
                call = reward.function(**self.keywords(reward, journal, slice(None)))
                output = await asyncio.wait_for(call, limit)
                return self.result(function, output, slice(None), journal, started)
            except BaseException as error:
                return failure(error, reward, limit, started)

        return list(await asyncio.gather(*map(one, functions)))

    def run(self, awaitable: Any) -> Any:
        """Wait for an awaitable on the shared loop, so that connections outlive a call."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(awaitable)

    def keywords(self, reward: LoadedReward, journal: Journal, rows: slice) -> dict[str, Any]:
        """The keywords of one call, copied so that a function cannot change another's input."""
        batch = json.loads(json.dumps({k: values[rows] for k, values in self.batch.items()}))
        if ENVIRONMENTS in batch:
            batch[ENVIRONMENTS] = [EndedEnvironment(state) for state in batch[ENVIRONMENTS]]
        given = {
            **batch,
            "trainer_state": TrainerState(self.state),
            "log_extra": journal.log_extra,
            "log_metric": journal.log_metric,
        }
        return reward.keywords(given)

    def result(
        self, function: int, output: Any, rows: slice, journal: Journal, started: float
    ) -> Any:
        count = len(self.batch["completions"][rows])
        scores: Scores = read_scores(output, count, self.weights[function])
        return {
            "ok": True,
            "values": scores.values,
            "steps": scores.steps,
            "odd": scores.odd,
            "extras": journal.extras,
            "metrics": journal.metrics,
            "seconds": time.monotonic() - started,
        }


def failure(
    error: BaseException, reward: LoadedReward, limit: float, started: float
) -> dict[str, Any]:
    """The reply for a call that raised; a cancelled async call counts as a timeout."""
    seconds = time.monotonic() - started
    late = reward.is_async and isinstance(error, TimeoutError) and seconds >= limit
    return {**described(error, reward.file), "timeout": late, "seconds": seconds}


def described(error: BaseException, file: str) -> dict[str, Any]:
    """The error, the innermost line in the function's own file, and the traceback."""
    frames = [f for f in traceback.extract_tb(below(error.__traceback__)) if f.filename]
    theirs = [f for f in frames if file and f.filename == file] or [
        f for f in frames if "site-packages" not in f.filename and "/lib/python" not in f.filename
    ]
    last = theirs[-1] if theirs else frames[-1] if frames else None
    where = f"{last.filename}:{last.lineno}" if last else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    if isinstance(error, SystemExit):
        message = f"called sys.exit({error.code!r})"
    else:
        message = f"{type(error).__name__}: {error}".removesuffix(": ")
    lines = traceback.format_exception(type(error), error, below(error.__traceback__))
    return {
        "ok": False,
        "message": message[:4000],
        "where": where,
        "line": last.line or "" if last else "",
        "traceback": "".join(lines)[-20_000:],
    }


def below(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without this package's frames at its top."""
    while trace is not None and trace.tb_next is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(HERE) and "importlib" not in file and "asyncio" not in file:
            break
        trace = trace.tb_next
    return trace


def plain(value: Any) -> Any:
    """The value as JSON if possible, else as text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)[:10_000]
    return value


def end_with_the_engine(lifeline: int) -> None:
    """Fork a process that waits for the engine's end, then ends this one and all it started.

    It can act while C code in this process holds the interpreter, and has a session of its own.
    """
    worker = os.getpid()
    if os.fork():
        return
    os.setsid()
    os.closerange(0, lifeline)
    os.closerange(lifeline + 1, 256)  # the interpreter has just begun
    os.read(lifeline, 1)
    end_all(os.environ.get(MARK, ""), worker)
    os._exit(0)


TRACE = sys.stderr


def connect() -> tuple[int, int]:
    """Prepare this process; return the descriptors of requests and of replies."""
    global TRACE
    request, reply, lifeline, trace = map(int, sys.argv[1:5])
    for fd in (request, reply, lifeline, trace):
        os.set_inheritable(fd, False)
    sys.argv[1:] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    TRACE = os.fdopen(trace, "w")
    faulthandler.enable(TRACE, all_threads=False)
    faulthandler.register(signal.SIGUSR1, TRACE, all_threads=True, chain=False)
    adopt_orphans()
    end_with_the_engine(lifeline)
    sys.path.append(str(Path.cwd()))
    return request, reply


def leave() -> None:
    """End this process and all that it started."""
    sys.stdout.flush()
    end_all(os.environ.get(MARK, ""), os.getpid())
    os._exit(0)


def main() -> None:
    """Serve until the request pipe closes."""
    request, reply = connect()
    server = Server()
    while (frame := read_frame(request)) is not None:
        write_frame(reply, server.answer(frame))
    leave()
