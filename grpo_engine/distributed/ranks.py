"""One run on several machines: ranks split the work and agree on every number.

Each rank samples, scores and differentiates its share. The results are summed or gathered, so that
every rank holds the same groups, denominators and gradients and makes the same decisions. Messages
use MLX's distributed back ends. A process that `mlx.launch` did not start is the only rank.

A collective operation whose peer has died may block forever inside MLX, where Python cannot
interrupt it. So each rank has a socket to rank 0, and a thread on each end that waits for it to
close and reports that in `control.rank_failure`.
"""

import itertools
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeVar

import mlx.core as mx
import numpy as np

from grpo_engine.control import Control
from grpo_engine.platform.threads import hosts, launched_rank
from grpo_engine.policy.trees import flatten, nest

PATIENCE: Final = 15.0  # seconds for every rank to connect
LOOPBACK: Final = "127.0.0.1"
BYE: Final = b"bye\n"

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's rank among those of the run; the only one if `group` is None."""

    group: Any = None

    @classmethod
    def join(cls) -> "Ranks":
        """Connect to the other ranks, if a launcher started this process as one of several."""
        if launched_rank() is None:
            return cls()
        group = mx.distributed.init()
        return cls(group) if group.size() > 1 else cls()

    @property
    def rank(self) -> int:
        return int(self.group.rank()) if self.group else 0

    @property
    def size(self) -> int:
        return int(self.group.size()) if self.group else 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which records the run and decides for all ranks."""
        return self.rank == 0

    def assigned(self, items: Sequence[Item]) -> list[tuple[int, Item]]:
        """This rank's items with their indices: every `size`-th, so that long ones are spread."""
        return list(enumerate(items))[self.rank :: self.size]

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in rank order."""
        if not self.group:
            return [value]
        data = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        sizes = self._all_gather(np.array([len(data)], dtype=np.int32))
        padded = np.zeros(int(sizes.max()), dtype=np.uint8)
        padded[: len(data)] = data
        rows = self._all_gather(padded).reshape(self.size, -1)
        return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value on every rank."""
        return self.gather(value if self.leads else None)[0] if self.group else value

    def gather_indexed(self, items: Iterable[tuple[int, Any]]) -> list[Any]:
        """JSON values in the order of their indices, each computed by one rank."""
        gathered = itertools.chain.from_iterable(self.gather(list(items)))
        return [value for _, value in sorted(gathered, key=itemgetter(0))]

    def sum(self, tree: Any) -> Any:
        """Sum every array of a tree over all ranks, in one message per number format."""
        if not self.group:
            return tree
        flat = flatten(tree)
        names_by_dtype: dict[Any, list[str]] = {}
        for name, array in flat.items():
            names_by_dtype.setdefault(array.dtype, []).append(name)
        for names in names_by_dtype.values():
            arrays = [flat[name] for name in names]
            ends = np.cumsum([array.size for array in arrays])[:-1].tolist()
            total = mx.distributed.all_sum(
                mx.concatenate([array.reshape(-1) for array in arrays]), **self._backend
            )
            for name, array, part in zip(names, arrays, mx.split(total, ends), strict=True):
                flat[name] = part.reshape(array.shape)
        mx.eval(flat)
        return nest(flat)

    def broadcast_arrays(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Rank 0's arrays on every rank, in one message for each."""
        formats = {n: [list(a.shape), str(a.dtype).rpartition(".")[2]] for n, a in arrays.items()}
        result: dict[str, mx.array] = {}
        for name, (shape, dtype) in self.broadcast(formats).items():
            array = arrays[name] if self.leads else mx.zeros(shape, getattr(mx, dtype))
            result[name] = self.sum(array) if array.size else array
        return result

    @property
    def _backend(self) -> dict[str, Any]:
        """Arguments of a collective: its stream is the CPU's for sockets and Thunderbolt."""
        return {"group": self.group, "stream": None if "NCCL_HOST_IP" in os.environ else mx.cpu}

    def _all_gather(self, values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        return np.array(mx.distributed.all_gather(mx.array(values), **self._backend))


class Lifeline:
    """This rank's connections to others; a context manager that says goodbye on exit."""

    def __init__(self, ranks: Ranks, control: Control) -> None:
        self._ranks, self._control = ranks, control
        self._sockets: list[socket.socket] = []
        self._closing = False

    def __enter__(self) -> "Lifeline":
        if self._ranks.size > 1:
            if self._ranks.leads:
                offered, token = addresses(), secrets.token_hex(16)
                server = socket.create_server(("" if offered != [LOOPBACK] else LOOPBACK, 0))
                port = server.getsockname()[1]
                self._ranks.broadcast({"port": port, "addresses": offered, "token": token})
                self._accept(server, token)
            else:
                self._connect(self._ranks.broadcast(None))
            self._ranks.gather(None)  # no rank starts before all are connected
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._closing, message = True, BYE
        if error is not None:
            message = json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode()
        for client in self._sockets:
            with suppress(OSError):
                client.sendall(message)
                client.close()

    def _accept(self, server: socket.socket, token: str) -> None:
        server.settimeout(PATIENCE)
        waiting = self._ranks.size - 1
        with server, suppress(OSError):
            while waiting:
                client, _ = server.accept()
                client.settimeout(PATIENCE)
                sent, _, rank = client.makefile("r").readline().rstrip().partition(" ")
                if secrets.compare_digest(sent, token):
                    self._watch(client, f"rank {rank}")
                    waiting -= 1
                else:
                    client.close()

    def _connect(self, offer: Mapping[str, Any]) -> None:
        for address in offer["addresses"]:
            with suppress(OSError):
                client = socket.create_connection((address, offer["port"]), PATIENCE / 3)
                client.sendall(f"{offer['token']} {self._ranks.rank}\n".encode())
                self._watch(client, "rank 0")
                return

    def _watch(self, client: socket.socket, peer: str) -> None:
        client.settimeout(None)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # a host that loses power never closes its socket
                client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sockets.append(client)
        threading.Thread(target=self._wait, args=(client, peer), daemon=True).start()

    def _wait(self, client: socket.socket, peer: str) -> None:
        message = b""
        with suppress(OSError):
            while part := client.recv(4096):
                message += part
        if self._closing or message == BYE:
            return
        reason = "it was killed, or its machine or network is gone"
        with suppress(ValueError, KeyError):
            reason = json.loads(message)["failed"]
        self._control.report_rank_failure(
            f"{peer} of the run has ended: {reason}. Start all ranks again with `grpo-tui resume`; "
            "the run continues from its last checkpoint"
        )


def addresses(env: Mapping[str, str] = os.environ) -> list[str]:
    """Where other ranks can reach this one: from the launcher's host file, else by host name."""
    with suppress(KeyError, ValueError, IndexError):
        return list(dict.fromkeys(hosts(env)[int(env["MLX_RANK"])])) or [LOOPBACK]
    for name in ("MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"):
        if host := env.get(name, ""):
            return [host.rpartition(":")[0] or host]
    with suppress(OSError):
        entries = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        return [*dict.fromkeys(str(entry[4][0]) for entry in entries), LOOPBACK]
    return [LOOPBACK]
