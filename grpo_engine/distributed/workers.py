"""Local workers: processes on this machine that hold the model and compute for the engine.

On a CPU, MLX computes all but matrix products on one core of a process. The engine's thread stays
where it is: it decides what is computed, sends it, sums the gradients and steps the optimiser. It
waits on sockets; nothing spins. Weights and gradients are in shared memory that has no name.

`training/worker.py` is the other end. Its first process loads what workers have in common and forks
them, so that they share the memory of frozen weights. Each process is killed when its parent ends.
"""

import mmap
import os
import selectors
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np

from grpo_engine import errors
from grpo_engine.control import Control, StopNow
from grpo_engine.distributed.messages import Arrays, ClosedError, receive, send
from grpo_engine.errors import EngineError, WorkerLostError
from grpo_engine.platform.interpreter import command

BOOT: Final = (
    "from grpo_engine.distributed.parent import die_with; die_with(int(sys.argv[1])); "
    "from grpo_engine.training.worker import main; main()"
)
LOG: Final = "workers.log"
LEAST_SAMPLED: Final = 8  # rows that repay one more reading of the weights for every token
LEAST_SCORED: Final = 2
LEAST_ROWS: Final = 4  # rows of a step that repay one more worker, which may only score them
LEAST_SHARED: Final = 10_000_000  # parameters; smaller models are read by each worker
TICK: Final = 0.05
GRACE: Final = 2.0  # seconds to leave before a kill

Answer = tuple[int, dict[str, Any], dict[str, "np.ndarray[Any, Any]"]]
Request = tuple[Mapping[str, Any], Arrays]


class Workers:
    """The local workers of a run; a context manager that ends them."""

    def __init__(self, count: int, cores: int, folder: Path, control: Control) -> None:
        self.count, self.cores = count, cores
        self._control = control
        self._memory = [os.memfd_create("grpo-tui") for _ in range(count + 1)]
        self._maps: list[mmap.mmap] = []
        self._sent: dict[str, dict[str, mx.array]] = {}  # weights that the workers have, by slot
        self._tokens: object = None  # the rollouts whose tokens the workers have
        self.shared = 0  # bytes of weights that are in memory once for all workers
        self._threads = [0] * count
        self._peaks = [0] * count
        self._stale = set(range(count))  # workers whose peak memory is of an earlier step
        pairs = [socket.socketpair() for _ in range(count + 1)]
        self._parent, *self._sockets = [own for own, _ in pairs]
        theirs = [other.fileno() for _, other in pairs]
        folder.mkdir(parents=True, exist_ok=True)
        arguments = [str(os.getpid()), *map(str, (*theirs, *self._memory))]
        with (folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                command(BOOT, *arguments), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=(*theirs, *self._memory), process_group=0,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            )  # fmt: skip
        for _, other in pairs:
            other.close()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids: of the first process, then of the workers, if they run."""
        first = self._process.pid
        with suppress(OSError):
            listed = Path(f"/proc/{first}/task/{first}/children").read_text().split()
            return [first, *map(int, listed)]
        return [first]

    def held_memory(self) -> int:
        """Bytes that the workers hold, shared ones counted once."""
        held = 0
        for pid in self.pids:
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                held += 1024 * int(next(n for n in lines if n.startswith("Pss:")).split()[1])
        return held

    def load(self, **settings: Any) -> dict[str, Any]:
        """Fork the workers and load the model in each; return what was found out about it."""
        with self._named_loss():
            send(self._parent, {
                "workers": self.count, "least_shared": LEAST_SHARED, **settings
            })  # fmt: skip
        answers = [value for _, value, _ in self._answers(set(range(self.count)))]
        self.shared = int(answers[0]["shared"])
        return dict(answers[0]["probes"])

    def share(self, trained: Mapping[str, mx.array]) -> None:
        """Size the shared memory for these weights, which the workers have loaded as well."""
        size = max(1, sum(4 * array.size for array in trained.values()))
        for descriptor in self._memory:
            os.ftruncate(descriptor, size)
            self._maps.append(mmap.mmap(descriptor, size))
        self._sent["policy"] = dict(trained)

    def assume(self, slot: str, weights: Mapping[str, mx.array]) -> None:
        """Note that the workers have these weights of the model already."""
        self._sent[slot] = {f"model.{name}": array for name, array in weights.items()}

    def put(self, slot: str, weights: Mapping[str, mx.array]) -> None:
        """Give the workers these weights, if they have others."""
        sent = self._sent.get(slot, {})
        if sent.keys() == weights.keys() and all(sent[n] is array for n, array in weights.items()):
            return
        whole, place = np.frombuffer(self._maps[0], dtype=np.float32), 0
        for name in sorted(weights):
            part = np.array(weights[name].astype(mx.float32)).reshape(-1)
            whole[place : place + part.size] = part
            place += part.size
        self.everyone({"do": "weights", "slot": slot, "names": sorted(weights)})
        self._sent[slot] = dict(weights)

    def put_tokens(self, rollouts: Sequence[Any]) -> None:
        """Give the workers the tokens of these rollouts, if they have others."""
        if self._tokens is not rollouts:
            rows = [[each.prompt_ids, each.ids, each.forced] for each in rollouts]
            self.everyone({"do": "tokens", "rows": rows})
            self._tokens = rollouts

    def everyone(self, value: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Send a message to every worker and wait until all have answered."""
        for worker in range(self.count):
            self.ask(worker, value, arrays)
        for _ in self._answers(set(range(self.count))):
            pass

    def ask(
        self,
        worker: int,
        value: Mapping[str, Any],
        arrays: Arrays | None = None,
        *,
        sharing: int = 0,
    ) -> None:
        """Send a request to a worker that waits; `sharing` workers compute at the same time."""
        extra: dict[str, Any] = {}
        threads = max(1, self.cores // (sharing or self.count))
        if self._threads[worker] != threads:
            extra["threads"] = self._threads[worker] = threads
        if worker in self._stale:
            extra["fresh_peak"] = True
            self._stale.discard(worker)
        with self._named_loss(worker):
            send(self._sockets[worker], {**value, **extra}, arrays)

    def each(self, queues: Sequence[Sequence[Request]]) -> Iterator[Answer]:
        """The answers to the requests for each worker, as they come; in order for one worker."""
        waiting = [deque(queue) for queue in queues]
        busy = {worker for worker, queue in enumerate(waiting) if queue}
        for worker in busy:
            self.ask(worker, *waiting[worker].popleft(), sharing=len(busy))
        sharing = len(busy)
        while busy:
            for worker, value, arrays in self._answers(busy, one=True):
                if waiting[worker]:
                    self.ask(worker, *waiting[worker].popleft(), sharing=sharing)
                else:
                    busy.discard(worker)
                yield worker, value, arrays

    def _answers(self, busy: set[int], *, one: bool = False) -> Iterator[Answer]:
        """Each busy worker's next answer, or only the first one."""
        left = set(busy)
        while left:
            for worker in self.ready(left):
                left.discard(worker)
                yield (worker, *self.take(worker))
                if one:
                    return

    def ready(self, busy: set[int], seconds: float = TICK) -> list[int]:
        """Those of these workers that have sent something, after a short wait for the first."""
        if self._control.stop_now:
            raise StopNow("stopped while the workers computed")
        with selectors.DefaultSelector() as selector:
            for worker in sorted(busy):
                selector.register(self._sockets[worker], selectors.EVENT_READ, worker)
            return sorted(key.data for key, _ in selector.select(seconds))

    def take(self, worker: int) -> tuple[dict[str, Any], dict[str, "np.ndarray[Any, Any]"]]:
        """The message that a worker has sent; raises the error that it reports."""
        with self._named_loss(worker):
            value, arrays = receive(self._sockets[worker])
        if "error" in value:
            kind = getattr(errors, value["error"], None)
            if isinstance(kind, type) and issubclass(kind, EngineError):
                raise kind(value["message"])
            raise EngineError(f"worker {worker + 1} failed: {value['trace']}")
        self._peaks[worker] = int(value.pop("peak", self._peaks[worker]))
        return value, arrays

    def tell(self, worker: int, value: Mapping[str, Any]) -> None:
        """Send what a busy worker waits for, or that it must wait."""
        with self._named_loss(worker):
            send(self._sockets[worker], value)

    def gradients(self, workers: set[int], like: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The sum of the gradients that these workers have accumulated, always in one order."""
        for worker in workers:
            self.ask(worker, {"do": "give"})
        for _ in self._answers(workers):
            pass
        first, *others = sorted(workers)
        total = np.array(np.frombuffer(self._maps[1 + first], dtype=np.float32))
        for worker in others:
            total += np.frombuffer(self._maps[1 + worker], dtype=np.float32)
        parts, place = {}, 0
        for name in sorted(like):
            size = like[name].size
            parts[name] = mx.array(total[place : place + size].reshape(like[name].shape))
            place += size
        return parts

    def used_to_sample(self, rows: int) -> int:
        """How many workers sample this many rows; each reads all weights for every token."""
        return max(1, min(self.count, rows // LEAST_SAMPLED))

    def used_to_score(self, rows: int) -> int:
        """How many workers score or train this many rows."""
        return max(1, min(self.count, rows // LEAST_SCORED))

    @property
    def peak_memory(self) -> int:
        """Bytes that MLX held at most in this step, in all workers together."""
        return self.shared + sum(self._peaks)

    def forget_peak_memory(self) -> None:
        """Begin a step: the next request to each worker resets its peak."""
        self._stale = set(range(self.count))

    @contextmanager
    def _named_loss(self, worker: int | None = None) -> Iterator[None]:
        """Name the worker that has ended, and how."""
        try:
            yield
        except ClosedError:
            raise WorkerLostError(self._loss(worker)) from None

    def _loss(self, worker: int | None) -> str:
        who = "the workers' first process" if worker is None else f"worker {worker + 1}"
        how = "has ended"
        ended: dict[str, Any] = {}
        self._parent.settimeout(GRACE)
        with suppress(ClosedError):
            while ended.get("worker") != worker:
                ended, _ = receive(self._parent)
            how = _how(int(ended["status"]))
        return (
            f"{who} of {self.count} {how}. What is recorded stays, and `grpo-tui resume` continues "
            "from the last checkpoint"
        )

    def close(self) -> None:
        """Let the workers leave, kill those that do not, and free what they shared."""
        for each in (self._parent, *self._sockets):
            each.close()
        for patience in (0.2, GRACE):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
            for pid in self.pids[1:]:  # the first process waits for them and leaves
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            self._process.kill()
            self._process.wait()
        self._maps.clear()
        for descriptor in self._memory:
            os.close(descriptor)
        self._memory.clear()


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with status {code}"
    memory = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{memory}"
