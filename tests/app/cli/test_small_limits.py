"""A process that may have little memory is told so in a line, before native code fails in it."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS does not hold to ulimit")


@pytest.mark.parametrize("flag", ["v", "d"])
def test_too_small_an_address_space_is_refused_with_its_remedy(flag: str, tmp_path: Path) -> None:
    command = f'ulimit -{flag} 300000; exec "$0" -P -m grpo_tui --db "$1" train --preset starter'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, str(tmp_path / "s.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    # 300,000 KiB
    assert "this process may have 292 MB; raise the limit with" in line
    assert f"`ulimit -{flag} unlimited`" in line
    assert not (tmp_path / "s.db").exists()


def test_a_step_may_take_only_what_the_limit_leaves() -> None:
    """300 MB above what is mapped, less the two pieces of 64 MB that memory is taken in."""
    script = (
        "import psutil, resource\n"
        "from grpo_engine.platform.memory import memory\n"
        "mapped = psutil.Process().memory_info().vms\n"
        f"resource.setrlimit({resource.RLIMIT_AS}, (mapped + (300 << 20),) * 2)\n"
        "print(memory().available >> 20)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert 150 <= int(done.stdout) <= 300 - 128
