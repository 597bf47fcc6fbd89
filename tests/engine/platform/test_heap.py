"""Memory of freed arrays stays in the process and is returned after a run."""

import os
import subprocess
import sys

import pytest

from grpo_engine.platform import heap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")

# Ten arrays of 16 MB at once, freed, and again: 4,096 pages of 4 kB each if they are returned.
ARRAYS = """
import resource
import grpo_engine
import mlx.core as mx

mx.set_default_device(mx.cpu)


def sums(times):
    for _ in range(times):
        mx.eval([mx.ones((4 << 20,)) + number for number in range(10)])


sums(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
sums(3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> int:
    """Page faults of thirty sums in a fresh process."""
    own = {name: value for name, value in os.environ.items() if name not in heap.VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", ARRAYS],
        env={**own, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


def test_an_array_takes_the_pages_of_the_one_before() -> None:
    assert faults() < 10_000


@pytest.mark.slow
def test_what_the_user_set_for_malloc_is_left_alone() -> None:
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") > 20_000


def test_free_memory_goes_back_when_it_is_asked_for() -> None:
    code = (
        ARRAYS
        + """
from grpo_engine.platform import heap, memory

held = memory.memory().process
heap.trim()
print(held - memory.memory().process)
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 16 << 20
