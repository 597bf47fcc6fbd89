"""Detects that a rank of a run is gone, by a socket between rank 0 and each other rank.

A collective operation whose peer has died may block forever inside MLX, where Python cannot
interrupt it. So each rank has a socket to rank 0, and a thread on each end that waits for it to
close and reports that in `control.lost`.
"""

import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from grpo_engine.control import Control
from grpo_engine.distributed.ranks import Ranks

PATIENCE: Final = 15.0  # seconds for every rank to connect
LOOPBACK: Final = "127.0.0.1"
BYE: Final = b"bye\n"


class Lifeline:
    """The connections of this rank; a context manager that says goodbye on exit."""

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
