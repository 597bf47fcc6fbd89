"""Settings for every test process: one BLAS thread, so that parallel tests do not oversubscribe."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from grpo_engine.platform import kernels, private
from grpo_tui.app.tui.garbage_collection import NEVER

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One BLAS check serves every program that a test starts in its own home folder.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))

settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Give parallel tests separate temporary folders, and hide the terminal's size."""
    # what a test allows is not kept in the developer's own folder
    kept = tempfile.TemporaryDirectory(prefix="grpo-tui-config-")
    config.add_cleanup(kept.cleanup)
    os.environ["XDG_CONFIG_HOME"] = kept.name
    if hasattr(config, "workerinput"):
        shared = private.temporary_folder()
        folder = Path(f"{config.option.basetemp}-other")  # engines count each other in it
        folder.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        own = private.temporary_folder()
        if shared and own:  # what MLX compiled once serves every test process
            cache = shared / kernels.CACHE
            cache.mkdir(exist_ok=True)
            (own / kernels.CACHE).symlink_to(cache)
        kernels.prepare()  # again, for MLX would follow TMPDIR
        for name in ("COLUMNS", "LINES"):  # set by readline, which pytest loads
            os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _kernels_stay_in_their_folder() -> Iterator[None]:
    """Tell MLX its folder again: it follows TMPDIR, which a test may have set and put back."""
    yield
    if kernels.folder() is not None:
        kernels.prepare()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, problems and rewards, for the tests of a file."""
    from tests.engine.runs import write_world

    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_shared_between_modules() -> Iterator[None]:
    """Exchange what MLX compiled with the other test processes."""
    yield
    folder = kernels.folder()
    if folder is not None and kernels.is_shared(folder):
        cache = folder.parent / kernels.CACHE
        kernels._save(folder, cache)
        if len(list(cache.rglob("*.so"))) > len(list(folder.rglob("*.so"))):
            kernels._restore(cache, folder)


@pytest.fixture(scope="module", autouse=True)
def _full_collections_between_modules() -> Iterator[None]:
    """Collect between modules and freeze the survivors, such as the libraries' objects."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], NEVER)
    yield
    gc.set_threshold(*before)
