"""Every test process multiplies with one thread, so that parallel tests do not oversubscribe."""

import gc
import os
import tempfile
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


def pytest_configure(config: pytest.Config) -> None:
    """Parallel tests share no temporary folder, and no program is told the size of a terminal."""
    if hasattr(config, "workerinput"):
        folder = Path(f"{config.option.basetemp}-other")  # engines count each other in it
        folder.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        for name in ("COLUMNS", "LINES"):  # readline, which pytest loads, set them for its children
            os.environ.pop(name, None)


@pytest.fixture(scope="module", autouse=True)
def _full_collections_between_modules() -> Iterator[None]:
    """Each looks at what came since the one before: what the libraries made stays frozen."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], NEVER)
    yield
    gc.set_threshold(*before)
