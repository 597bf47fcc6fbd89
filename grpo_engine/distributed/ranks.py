"""One run on several machines: ranks split the work and agree on every number.

Each rank samples, scores and differentiates its share. The results are summed or gathered, so that
every rank holds the same groups, denominators and gradients and makes the same decisions. Messages
use MLX's distributed back ends. A process that `mlx.launch` did not start is the only rank.

A collective operation whose peer has died may block forever inside MLX, where Python cannot
interrupt it. So each rank has a socket to rank 0, and a thread on each end that waits for it to
close and reports that in `control.lost`.
"""

import json
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import mlx.core as mx
import numpy as np

from grpo_engine.control import Control
from grpo_engine.platform.threads import launched_rank
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
        """This rank's items with their places: every `size`-th, so that long ones are spread."""
        return list(enumerate(items))[self.rank :: self.size]

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in rank order."""
        if not self.group:
            return [value]
        data = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        sizes = self._all_gather(np.array([len(data)], dtype=np.int32))
        padded = np.zeros(int(sizes.max()), dtype=np.uint8)
        padded[: len(data)] = data
        whole = self._all_gather(padded).reshape(self.size, -1)
        return [json.loads(row[:size].tobytes()) for row, size in zip(whole, sizes, strict=True)]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value on every rank."""
        return self.gather(value if self.leads else None)[0] if self.group else value

    def gather_by_place(self, items: Iterable[tuple[int, Any]], count: int) -> list[Any]:
        """JSON values in the order of their places, each computed by one rank."""
        values: list[Any] = [None] * count
        for part in self.gather([[place, value] for place, value in items]):
            for place, value in part:
                values[place] = value
        return values

    def sum(self, tree: Any) -> Any:
        """Sum every array of a tree over all ranks, in one message per number format."""
        if not self.group:
            return tree
        flat = flatten(tree)
        kinds: dict[Any, list[str]] = {}
        for name, value in flat.items():
            kinds.setdefault(value.dtype, []).append(name)
        summed: dict[str, mx.array] = {}
        for names in kinds.values():
            ends = np.cumsum([flat[name].size for name in names])[:-1].tolist()
            whole = self._all_sum(mx.concatenate([flat[name].reshape(-1) for name in names]))
            for name, part in zip(names, mx.split(whole, ends), strict=True):
                summed[name] = part.reshape(flat[name].shape)
        mx.eval(summed)
        return nest(summed)

    def sum_array(self, value: mx.array) -> mx.array:
        if not self.group:
            return value
        total = self._all_sum(value)
        mx.eval(total)
        return total

    def broadcast_arrays(self, arrays: Mapping[str, mx.array] | None) -> dict[str, mx.array]:
        if not self.group:
            return dict(arrays or {})
        local = arrays or {}
        kinds = {n: [list(a.shape), str(a.dtype).rpartition(".")[2]] for n, a in local.items()}
        everywhere: dict[str, mx.array] = {}
        for name, (shape, dtype) in self.broadcast(kinds).items():
            value = local[name] if self.leads else mx.zeros(shape, getattr(mx, dtype))
            everywhere[name] = self.sum_array(value) if value.size else value
        return everywhere

    def _stream(self) -> Any:
        """The stream of the back end: the CPU's for sockets and Thunderbolt, the GPU's for NCCL."""
        return None if "NCCL_HOST_IP" in os.environ else mx.cpu

    def _all_sum(self, value: mx.array) -> mx.array:
        total: mx.array = mx.distributed.all_sum(value, group=self.group, stream=self._stream())
        return total

    def _all_gather(self, value: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        gathered = mx.distributed.all_gather(
            mx.array(value), group=self.group, stream=self._stream()
        )
        mx.eval(gathered)
        return np.array(gathered)


class Lifeline:
    """This rank's connections to others; a context manager that says goodbye on exit."""

    def __init__(self, ranks: Ranks, control: Control) -> None:
        self._ranks, self._control = ranks, control
        self._sockets: list[socket.socket] = []
        self._closing = False

    def __enter__(self) -> "Lifeline":
        if self._ranks.size > 1:
            server = _listen() if self._ranks.leads else None
            offer = None
            if server is not None:
                offer = {"port": server.getsockname()[1], "addresses": addresses(),
                         "token": secrets.token_hex(16)}  # fmt: skip
            offer = self._ranks.broadcast(offer)
            if server is not None:
                self._accept(server, offer["token"])
            else:
                self._connect(offer)
            self._ranks.gather(None)  # no rank starts before all are connected
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.say_goodbye("" if error is None else f"{type(error).__name__}: {error}")

    def say_goodbye(self, failed: str = "") -> None:
        """Tell the others that this rank leaves, with the reason if it failed."""
        self._closing = True
        for each in self._sockets:
            with suppress(OSError):
                each.sendall(json.dumps({"failed": failed}).encode() + b"\n" if failed else BYE)
                each.close()
        self._sockets.clear()

    def _accept(self, server: socket.socket, token: str) -> None:
        server.settimeout(PATIENCE)
        waiting = self._ranks.size - 1
        with server, suppress(OSError):
            while waiting:
                client, _ = server.accept()
                client.settimeout(PATIENCE)
                words = client.makefile("r").readline().split()
                if len(words) == 2 and secrets.compare_digest(words[0], token):
                    self._watch(client, f"rank {words[1]}")
                    waiting -= 1
                else:
                    client.close()

    def _connect(self, offer: Mapping[str, object]) -> None:
        for address in offer["addresses"]:  # type: ignore[attr-defined]
            with suppress(OSError):
                place = (str(address), int(str(offer["port"])))
                client = socket.create_connection(place, PATIENCE / 3)
                client.sendall(f"{offer['token']} {self._ranks.rank}\n".encode())
                self._watch(client, "rank 0")
                return

    def _watch(self, client: socket.socket, who: str) -> None:
        client.settimeout(None)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # a host that loses power never closes its socket
                client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sockets.append(client)
        threading.Thread(target=self._wait, args=(client, who), daemon=True).start()

    def _wait(self, client: socket.socket, who: str) -> None:
        message = b""
        with suppress(OSError):
            while part := client.recv(4096):
                message += part
        if self._closing or message == BYE:
            return
        why = "it was killed, or its machine or network is gone"
        with suppress(ValueError, KeyError):
            why = json.loads(message)["failed"]
        self._control.lose(
            f"{who} of the run has ended: {why}. Start all ranks again with `grpo-tui resume`; "
            "the run continues from its last checkpoint"
        )


def _listen() -> socket.socket:
    everywhere = "" if addresses() != [LOOPBACK] else LOOPBACK
    return socket.create_server((everywhere, 0))


def addresses(env: Mapping[str, str] = os.environ) -> list[str]:
    """Where other ranks can reach this one: from the launcher's host file, else by host name."""
    with suppress(KeyError, OSError, ValueError, TypeError, IndexError):
        hosts = json.loads(Path(env["MLX_HOSTFILE"]).read_text(encoding="utf-8"))
        local = [place.rpartition(":")[0] for place in hosts[int(env["MLX_RANK"])]]
        return list(dict.fromkeys(local)) or [LOOPBACK]
    for name in ("MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"):
        if host := env.get(name, ""):
            return [host.rpartition(":")[0] or host]
    with suppress(OSError):
        entries = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        return [*dict.fromkeys(str(entry[4][0]) for entry in entries), LOOPBACK]
    return [LOOPBACK]
