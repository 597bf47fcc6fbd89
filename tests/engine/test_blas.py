"""Matrix products run on a fast BLAS, however the process came to MLX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_engine.platform import device, libraries

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or device.uses_gpu(), reason="only Linux without a GPU needs a BLAS"
)

SERVED_BY = """
import ctypes
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
info = Info()
here = ctypes.CDLL(None)
found = getattr(here, "cblas_sgemm", None)
if found is not None:
    here.dladdr(ctypes.cast(found, ctypes.c_void_p), ctypes.byref(info))
print((info.file or b"nothing").decode().rpartition("/")[2])
"""


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | env,
    )


@pytest.mark.parametrize(
    "way",
    [
        "import grpo_engine, mlx.core",
        "import grpo_engine.config, mlx_lm.models.cache",
        "import grpo_engine.maths\nfrom mlx import core, nn",
        "import multiprocessing as m, grpo_engine\n"
        "exec('import mlx.core')  # as code that a user brings",
    ],
)
def test_products_are_served_by_openblas(way: str) -> None:
    assert python(f"{way}\n{SERVED_BY}").stdout.startswith("libopenblas")


def test_importing_the_engines_leaves_loads_no_blas() -> None:
    assert python(f"import grpo_engine.config, grpo_engine.events\n{SERVED_BY}").stdout == (
        "nothing\n"
    )


def test_products_are_at_least_three_times_faster_than_on_the_shipped_blas() -> None:
    code = (
        "import grpo_engine\nfrom grpo_engine.platform import speed\n"
        "print(max(speed.measure((512, 512, 512), 0.05).gflops for _ in range(5)))"
    )
    fast = float(python(code).stdout)
    slow = float(python(code, GRPO_TUI_BLAS="none").stdout)
    assert fast > 3 * slow


def test_threads_follow_the_environment_and_can_be_changed() -> None:
    code = (
        "import grpo_engine, mlx.core\nfrom grpo_engine.platform import blas\n"
        "print(blas.state().threads, blas.set_threads(2), blas.state().threads)"
    )
    assert python(code, OPENBLAS_NUM_THREADS="1").stdout == "1 2 2\n"


def test_an_engine_takes_a_new_share_when_another_one_starts() -> None:
    code = (
        "import grpo_engine, mlx.core\nfrom grpo_engine.platform import blas, threads\n"
        "threads.share = lambda: 2\nprint(blas.rebalance())\nprint(blas.rebalance())"
    )
    assert python(code, OPENBLAS_NUM_THREADS="1").stdout == "(1, 2)\nNone\n"


def test_mlx_imported_first_is_said_loudly() -> None:
    code = "import mlx.core, grpo_engine\nfrom grpo_engine.platform import blas\nblas.ensure()"
    done = python(code)
    assert "mlx.core was imported before grpo_engine" in done.stderr


def test_a_library_that_is_not_there_leaves_mlx_working_and_says_so() -> None:
    code = "import grpo_engine, mlx.core as mx\nprint((mx.ones((2, 2)) @ mx.ones((2, 2)))[0, 0])"
    done = python(code, GRPO_TUI_BLAS="/none/libopenblas.so")
    assert "array(2" in done.stdout
    assert "pip install cmeel-openblas" in done.stderr


@pytest.mark.parametrize("refused", [(), ("in_memory",), ("in_memory", "in_cache")])
def test_a_missing_fortran_runtime_is_taken_from_mlxs_wheel(
    refused: tuple[str, ...], tmp_path: Path
) -> None:
    # `provide_fortran` is called outright: the system may have its own runtime.
    code = f"""
from pathlib import Path
from grpo_engine.platform import libraries
def no(image):
    raise OSError("refused")
for name in {refused!r}:
    setattr(libraries, name, no)
libraries.provide_fortran()
names = [line.split("/", 1)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
print(any("libgfortran" in name and "deleted" in name for name in names))
libraries.load({str(bundled())!r}).openblas_get_config
"""
    done = python(code, XDG_CACHE_HOME=str(tmp_path / "cache"), TMPDIR=str(tmp_path / "tmp"))
    assert done.stdout == "True\n"
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def bundled() -> Path:
    from grpo_engine.platform import blas

    found = blas.bundled()
    assert found is not None
    return found


def test_a_library_that_does_not_carry_its_name_is_refused() -> None:
    with pytest.raises(OSError, match="exactly once"):
        libraries.renamed(b"\0other\0", b"libgfortran-1.so.5.0.0")
    image = b"\0libgfortran-1.so.5.0.0\0next\0"
    expected = b"\0libgfortran.so.5\0\0\0\0\0\0\0next\0"
    assert libraries.renamed(image, b"libgfortran-1.so.5.0.0") == expected


def test_ranks_of_one_host_share_its_cores_and_each_loads_the_fast_blas(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import grpo_engine\nimport mlx.core as mx\n"
        "from grpo_engine.platform import blas, threads\n"
        "group = mx.distributed.init()\n"
        "print(group.size(), threads.ranks_here(), blas.state().loaded, blas.state().threads"
        " <= max(1, threads.cores() // 2), flush=True)\n"
    )
    launch = Path(sys.executable).with_name("mlx.launch")
    done = subprocess.run(
        [sys.executable, str(launch), "-n", "2", "--", sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert sorted(done.stdout.split("\n")) == ["", "2 2 True True", "2 2 True True"], done.stderr
