"""Processes that may run a model, started as on macOS and as elsewhere."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_engine.platform import spawn
from grpo_engine.platform.spawn import NULL, Spawned, start
from grpo_engine.sandbox.client import Sandbox, ServiceCall

SERVICE = "tests.engine.sandbox.service:Service"


@pytest.fixture(params=["darwin", "linux"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start processes as on this system."""
    name = str(request.param)
    monkeypatch.setattr(spawn, "sys", SimpleNamespace(platform=name))
    return name


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", "import os, sys, time\n" + code]


def test_only_macos_spawns_and_forks_nothing(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "darwin":
        monkeypatch.setattr(subprocess, "Popen", None)
        monkeypatch.setattr(os, "fork", None)
    child = start(python("sys.exit(3)"), os.environ, (NULL, NULL, NULL), scope="session")
    assert child.wait() == 3
    assert isinstance(child, Spawned) == (system == "darwin")


def test_streams_variables_and_descriptors_are_the_childs(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    unseen, other = os.pipe()
    code = (
        f"os.write({writing}, os.environ['WORD'].encode())\n"
        "print(repr(sys.stdin.read()))\nprint('error', file=sys.stderr)\n"
        f"os.fstat({unseen})"
    )
    with (tmp_path / "output").open("wb") as output:
        streams = (NULL, output.fileno(), output.fileno())
        child = start(python(code), {"WORD": "word"}, streams, pass_fds=(writing,))
        assert child.wait(60) == 1
    assert os.read(reading, 100) == b"word"
    text = (tmp_path / "output").read_text()
    assert text.startswith(("''\nerror\n", "error\n"))
    assert "Bad file descriptor" in text  # what is not passed is closed
    for fd in (reading, writing, unseen, other):
        os.close(fd)


@pytest.mark.parametrize("scope", ["", "group", "session"])
def test_a_group_or_a_session_of_its_own(scope: spawn.Scope) -> None:
    child = start(python("time.sleep(600)"), os.environ, scope=scope)
    assert (os.getpgid(child.pid) == child.pid) == bool(scope)
    assert (os.getsid(child.pid) == child.pid) == (scope == "session")
    child.terminate()
    assert child.wait() == -signal.SIGTERM
    assert child.poll() == child.returncode == -signal.SIGTERM
    child.send_signal(signal.SIGKILL)  # nobody gets it


def test_a_wait_has_a_limit() -> None:
    child = start(python("time.sleep(600)"), os.environ)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    assert child.poll() is None
    child.terminate()
    child.wait()


def test_a_program_that_is_missing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        start(["no-such-program"], os.environ)


@pytest.mark.slow
def test_the_sandbox_serves_in_such_a_process(tmp_path: Path) -> None:
    with Sandbox(SERVICE, tmp_path, "one") as sandbox:
        first = sandbox.call(ServiceCall("pid", {}, 60.0)).value
        assert sandbox.call(ServiceCall("echo", {"text": "a"}, 60.0)).value == ["a"]
        failure = sandbox.call(ServiceCall("hang", {}, 0.3)).failure
        assert failure is not None
        assert failure.cause == "timeout"
        assert sandbox.call(ServiceCall("pid", {}, 60.0)).value != first
