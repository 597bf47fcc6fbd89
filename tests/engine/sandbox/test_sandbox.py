"""What is called in the sandbox cannot harm who calls it, nor what is called beside it."""

import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.control import StopNow
from grpo_engine.sandbox.client import LOADING, Sandbox, ServiceCall, finish
from tests.engine.sandbox.processes import kill, pids_of

SERVICE = "tests.engine.sandbox.service:Service"


def call(method: str, limit: float = 60.0, **arguments: Any) -> ServiceCall:
    return ServiceCall(method, arguments, limit)


def in_thread(method: str, limit: float = 60.0, **arguments: Any) -> ServiceCall:
    return ServiceCall(method, arguments, limit, in_thread=True)


@pytest.mark.slow
def test_a_hang_in_one_process_never_ends_the_calls_of_another(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "a") as first, Sandbox(SERVICE, tmp_path, "b") as second:
        before = [sandbox.call(call("pid")).value for sandbox in (first, second)]
        assert [*pids_of(first), *pids_of(second)] == before
        first.submit(call("hang", limit=0.5))
        second.submit(call("echo", text="a"))
        results = {done.method: done for done in finish([first, second])}
        assert results["echo"].value == ["a"]
        failure = results["hang"].failure
        assert failure is not None
        assert failure.cause == "timeout"
        assert failure.location.startswith(f"{Path(__file__).parent}/service.py:")
        assert second.call(call("pid")).value == before[1]
        assert first.call(call("pid")).value not in before


@pytest.mark.slow
def test_calls_that_hang_side_by_side_end_together(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one") as sandbox:
        for _ in range(6):
            sandbox.submit(in_thread("hang", limit=1.0))
        results = finish([sandbox])
        assert [result.failure and result.failure.cause for result in results] == ["timeout"] * 6
        assert sandbox._process_count < 6  # some may be reported a moment later than others


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "cause", "message"),
    [("the server ended", "crash", "the server ended"), ("", "timeout", "took longer than 60 s")],
)
def test_a_call_that_loses_its_process_fails_alone(
    tmp_path: Path, text: str, cause: str, message: str
) -> None:
    with Sandbox(SERVICE, tmp_path, "one") as sandbox:
        before = sandbox.call(call("pid")).value
        sandbox.submit(in_thread("nap"))
        sandbox.submit(in_thread("lose", text=text))
        results = {done.method: done for done in finish([sandbox])}
        failure = results["lose"].failure
        assert failure is not None
        assert (failure.cause, failure.message) == (cause, message)
        assert results["nap"].failure is None
        assert results["nap"].value != before


@pytest.mark.slow
def test_each_new_process_gets_the_setup_before_all_else(tmp_path: Path) -> None:
    setup = [call("load", text="a"), call("load", text="b")]
    with Sandbox(SERVICE, tmp_path, "one", setup=setup) as sandbox:
        assert [result.value for result in sandbox.start()] == ["a", "b"]
        assert sandbox.call(call("hang", limit=0.2)).failure
        assert sandbox.call(call("echo", text="c")).value == ["a", "b", "c"]


def test_calls_fail_with_the_setup_of_their_process(tmp_path: Path) -> None:
    setup = [call("load", text="a"), call("load", text="")]
    with Sandbox(SERVICE, tmp_path, "one", setup=setup) as sandbox:
        result = sandbox.call(call("echo", text="c"))
        assert result.failure is not None
        assert result.failure.message == "ValueError: nothing to load"
        assert pids_of(sandbox) == []


LIMIT = 300 << 20
NEEDS_MORE = ("memory", "needs more than 0.293 GB of memory")


def reason(result: ServiceCall) -> tuple[str, str] | None:
    return (result.failure.cause, result.failure.message) if result.failure else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "small", "large"),
    [
        ("fill", {"megabytes": 10}, {"megabytes": 400}),
        ("fill_slowly", {"megabytes": 10}, {"megabytes": 400}),
        ("fill_children", {"megabytes": 10, "children": 4}, {"megabytes": 100, "children": 4}),
    ],
)
def test_memory_is_bounded_with_that_of_children(
    tmp_path: Path, method: str, small: dict[str, int], large: dict[str, int]
) -> None:
    with Sandbox(SERVICE, tmp_path, "one", memory=LIMIT) as sandbox:
        assert reason(sandbox.call(call(method, **small))) is None
        before = pids_of(sandbox)
        result = sandbox.call(call(method, **large))
        assert reason(result) == NEEDS_MORE
        assert result.failure is not None
        assert result.failure.location.startswith(f"{Path(__file__).parent}/service.py:")
        assert sandbox.call(call("echo", text="a")).value == ["a"]
        assert pids_of(sandbox) != before


@pytest.mark.parametrize("objects", [None, {"a": 1}])
def test_without_a_limit_memory_may_still_run_out(
    tmp_path: Path, objects: dict[str, int] | None
) -> None:
    with Sandbox(
        SERVICE, tmp_path, "one", objects=objects, memory=inf if objects is None else LIMIT
    ) as sandbox:
        result = sandbox.call(call("fill", megabytes=1 << 40))
        assert reason(result) == ("memory", "needs more memory than there is")


def test_what_children_share_is_counted_once(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one", memory=LIMIT) as sandbox:
        assert reason(sandbox.call(call("fill_children", megabytes=1, children=30))) is None


def test_what_declares_that_it_needs_more_memory_gets_it(tmp_path: Path) -> None:
    setup = [call("declare", gigabytes=0.5)]
    with Sandbox(SERVICE, tmp_path, "one", memory=LIMIT, setup=setup) as sandbox:
        assert reason(sandbox.call(call("fill", megabytes=400))) is None
        assert reason(sandbox.call(call("fill", megabytes=600))) == (
            "memory",
            "needs more than 0.5 GB of memory",
        )
    with Sandbox(SERVICE, tmp_path, "one", setup=[call("declare", gigabytes="much")]) as sandbox:
        (result,) = sandbox.start()
        assert result.failure is not None
        assert "memory_gb of" in result.failure.message
        assert "must be a number of gigabytes, got 'much'" in result.failure.message


def test_what_loads_may_need_more_than_what_is_called_later(tmp_path: Path) -> None:
    setup = [call("fill", megabytes=400)]
    with Sandbox(SERVICE, tmp_path, "one", memory=LIMIT, setup=setup) as sandbox:
        assert [reason(result) for result in sandbox.start()] == [None]
        assert reason(sandbox.call(call("fill", megabytes=400))) == NEEDS_MORE


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is stopped once it holds it all")
def test_what_loads_may_not_need_all_of_the_memory(tmp_path: Path) -> None:
    setup = [call("fill", megabytes=2 * LOADING >> 20)]
    with Sandbox(SERVICE, tmp_path, "one", setup=setup) as sandbox:
        (result,) = sandbox.start()
        assert result.failure is not None
        assert result.failure.cause == "memory"


def test_calls_beside_one_that_needs_too_much_memory_are_made_again(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one", memory=LIMIT) as sandbox:
        calls = [
            in_thread("fill", megabytes=400),
            in_thread("echo", text="a"),
            in_thread("fill", megabytes=1),
        ]
        for each in calls:
            sandbox.submit(each)
        reasons = {done: reason(done) for done in finish([sandbox])}
        assert [reasons[each] for each in calls] == [NEEDS_MORE, None, None]


def test_a_process_that_died_while_nothing_was_called_costs_no_call(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one", setup=[call("load", text="a")]) as sandbox:
        sandbox.start()
        kill(sandbox)
        assert sandbox.call(call("echo", text="b")).value == ["a", "b"]


def test_what_is_registered_for_the_exit_is_done_unless_it_hangs(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one") as sandbox:
        sandbox.call(call("leave_at_exit", file=str(tmp_path / "left")))
        sandbox.close(60.0)
        assert (tmp_path / "left").exists()


def test_an_interpreter_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one", interpreter="/nowhere/python") as sandbox:
        failure = sandbox.call(call("echo", text="a")).failure
    assert failure is not None
    assert "could not be started" in failure.message
    assert "/nowhere/python" in failure.message


def test_a_stop_is_obeyed_while_a_call_hangs(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with (
        Sandbox(SERVICE, tmp_path, "one", interrupted=begun.exists) as sandbox,
        pytest.raises(StopNow, match="stopped while one were called"),
    ):
        sandbox.call(call("hang", file=str(begun)))


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_a_call_that_hangs_in_this_process_does_not_keep_it_from_ending(
    tmp_path: Path, side_by_side: int
) -> None:
    """One at a time the caller waits as well, so an interrupt has to end both."""
    make = "call" if side_by_side == 1 else "in_thread"
    code = f"""
import os, signal, threading, time
from pathlib import Path
from tests.engine.sandbox.test_sandbox import SERVICE, call, in_thread
from grpo_engine.sandbox.client import Sandbox, poll
folder, objects = Path({str(tmp_path)!r}), {{"a": 1}}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
def interrupt():
    while not os.path.exists({str(tmp_path / "begun")!r}): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
with Sandbox(SERVICE, folder, "x", objects=objects) as s:
    s.submit({make}("hang", file={str(tmp_path / "begun")!r}))
    if {side_by_side} == 1:
        threading.Thread(target=interrupt, daemon=True).start()
    try:
        poll([s], 0.1)
        while not os.path.exists({str(tmp_path / "begun")!r}): pass
    except KeyboardInterrupt:
        pass
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr
