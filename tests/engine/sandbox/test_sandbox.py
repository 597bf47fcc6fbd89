"""What is called in the sandbox cannot harm who calls it, nor what is called beside it."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.control import StopNow
from grpo_engine.sandbox.client import Call, Sandbox
from tests.engine.sandbox.processes import pids_of

SERVICE = "tests.engine.sandbox.service:Service"


def call(method: str, worker: int = 0, limit: float = 60.0, **arguments: Any) -> Call:
    return Call(method, lambda _: (arguments, limit), worker)


def test_a_hang_in_one_process_never_ends_the_calls_of_another(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "two", processes=2) as sandbox:
        before = {sandbox.ask(call("pid", worker)).value for worker in (0, 1)}
        assert set(pids_of(sandbox)) == before
        sandbox.submit(call("hang", 0, limit=0.5))
        other = call("echo", 1, text="a")
        sandbox.submit(other)
        results = {result.call.method: result for result in sandbox.finish()}
        assert results["echo"].value == ["a"]
        failure = results["hang"].failure
        assert failure is not None
        assert failure.cause == "timeout"
        assert failure.location.startswith(f"{Path(__file__).parent}/service.py:")
        assert sandbox.ask(call("pid", 1)).value in before
        assert sandbox.ask(call("pid", 0)).value not in before


def test_each_new_process_gets_the_setup_before_all_else(tmp_path: Path) -> None:
    setup = [call("load", text="a"), call("load", text="b")]
    with Sandbox(SERVICE, tmp_path, "one", setup=setup) as sandbox:
        assert [result.value for result in sandbox.start()] == ["a", "b"]
        assert sandbox.ask(call("hang", limit=0.2)).failure
        assert sandbox.ask(call("echo", text="c")).value == ["a", "b", "c"]


def test_calls_fail_with_the_setup_of_their_process(tmp_path: Path) -> None:
    setup = [call("load", text="a"), call("load", text="")]
    with Sandbox(SERVICE, tmp_path, "one", setup=setup) as sandbox:
        result = sandbox.ask(call("echo", text="c"))
        assert result.setup is setup[1]
        assert result.failure is not None
        assert result.failure.message == "ValueError: nothing to load"
        assert pids_of(sandbox) == []


@pytest.mark.parametrize("in_child", [False, True])
def test_memory_is_bounded_with_that_of_children(tmp_path: Path, in_child: bool) -> None:
    with Sandbox(SERVICE, tmp_path, "one", memory=300 << 20) as sandbox:
        assert sandbox.ask(call("fill", megabytes=10, in_child=in_child)).failure is None
        failure = sandbox.ask(call("fill", megabytes=400, in_child=in_child)).failure
        assert failure is not None
        assert (failure.cause, failure.message) == ("memory", "needs more than 300 MB of memory")
        assert sandbox.ask(call("echo", text="a")).value == ["a"]


def test_an_interpreter_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one", interpreter="/nowhere/python") as sandbox:
        failure = sandbox.ask(call("echo", text="a")).failure
    assert failure is not None
    assert "could not be started" in failure.message
    assert "/nowhere/python" in failure.message


def test_a_stop_is_obeyed_while_a_call_hangs(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with (
        Sandbox(SERVICE, tmp_path, "one", interrupted=begun.exists) as sandbox,
        pytest.raises(StopNow, match="stopped while one were called"),
    ):
        sandbox.ask(call("hang", file=str(begun)))


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_a_call_that_hangs_in_this_process_does_not_keep_it_from_ending(
    tmp_path: Path, side_by_side: int
) -> None:
    """One at a time the caller waits as well, so an interrupt has to end both."""
    code = f"""
import os, signal, threading, time
from pathlib import Path
from tests.engine.sandbox.test_sandbox import SERVICE, call
from grpo_engine.sandbox.client import Sandbox
folder, objects = Path({str(tmp_path)!r}), {{"a": 1}}
def interrupt():
    while not os.path.exists({str(tmp_path / "begun")!r}): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
with Sandbox(SERVICE, folder, "x", at_a_time={side_by_side}, objects=objects) as s:
    s.submit(call("hang", file={str(tmp_path / "begun")!r}))
    if {side_by_side} == 1:
        threading.Thread(target=interrupt, daemon=True).start()
    try:
        s.poll(0.1)
        while not os.path.exists({str(tmp_path / "begun")!r}): pass
    except KeyboardInterrupt:
        pass
print("ended")
"""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr
    assert time.monotonic() - begun < 100
