"""Starts the processes that may run a model.

On macOS they are spawned: Metal's compiler was seen to fail even in a program that a forked process
loads, and `subprocess` forks for a session, a process group or passed descriptors.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

NULL = subprocess.DEVNULL
Scope = Literal["", "group", "session"]  # the new process leads a group, or a session
TICK = 0.01  # seconds between polls of a process that is awaited


class Spawned:
    """A process started without a fork, with what is used of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int],
        pass_fds: Sequence[int],
        scope: Scope,
    ) -> None:
        actions: list[tuple[Any, ...]] = []
        for number, fd in enumerate(streams):
            if fd == NULL:
                actions.append((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0))
            elif fd != number:
                actions.append((os.POSIX_SPAWN_DUP2, fd, number))
        spare = max([2, *streams, *pass_fds]) + 1
        for fd in pass_fds:  # a copy onto itself would still be closed
            actions += [
                (os.POSIX_SPAWN_DUP2, fd, spare),
                (os.POSIX_SPAWN_DUP2, spare, fd),
                (os.POSIX_SPAWN_CLOSE, spare),
            ]
        options: Mapping[str, dict[str, Any]] = {
            "": {},
            "group": {"setpgroup": 0},
            "session": {"setsid": True},
        }
        self._command = command
        self.pid = os.posix_spawnp(
            command[0], list(command), env, file_actions=actions, **options[scope]
        )
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how the process ended, as a Popen does, or None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise TimeoutExpired after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if timeout is not None and deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._command, timeout)
            time.sleep(TICK)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


Child = Spawned | subprocess.Popen[bytes]


def start(
    command: Sequence[str],
    env: Mapping[str, str],
    streams: Sequence[int] = (0, 1, 2),
    *,
    pass_fds: Sequence[int] = (),
    scope: Scope = "",
) -> Child:
    """Start a program with these descriptors, or NULL, as its standard streams."""
    if sys.platform == "darwin":
        return Spawned(command, env, streams, pass_fds, scope)
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        command,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        start_new_session=scope == "session",
        process_group=0 if scope == "group" else None,
    )
