"""Every test process multiplies with one thread, so that parallel tests do not oversubscribe."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from app.tui.idle.garbage_collection import NEVER

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One check of the BLAS serves every program that a test starts in a home of its own.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))

settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.fixture(scope="module", autouse=True)
def _full_collections_between_modules() -> Iterator[None]:
    """Each looks through all that the libraries made, and there would be one for each few tests."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], NEVER)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
