"""The processes of a sandbox, for tests."""

from grpo_engine.sandbox.client import Sandbox
from grpo_engine.sandbox.process import Process


def pids_of(sandbox: Sandbox) -> list[int]:
    """The ids of the processes that run."""
    processes = [worker.process for worker in sandbox._workers]
    return [process._process.pid for process in processes if isinstance(process, Process)]
