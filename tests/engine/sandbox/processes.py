"""The processes of a sandbox, for tests."""

import os
import signal

import psutil

from grpo_engine.sandbox.client import Sandbox
from grpo_engine.sandbox.process import Process


def pids_of(sandbox: Sandbox) -> list[int]:
    """The ids of the processes that run."""
    process = sandbox._process
    return [process._process.pid] if isinstance(process, Process) else []


def kill(sandbox: Sandbox) -> None:
    """Kill the processes that run, and wait for their end without collecting their status."""
    for pid in pids_of(sandbox):
        os.kill(pid, signal.SIGKILL)
        if hasattr(os, "waitid"):  # all its threads have ended
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            pass
