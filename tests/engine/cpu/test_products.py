"""Compiled products of few rows equal NumPy's; without our library the BLAS computes them."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_engine.cpu import blas_check, openblas, processor
from grpo_engine.cpu import library as kernels
from grpo_engine.platform import device

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or device.uses_gpu(), reason="only Linux without a GPU needs a BLAS"
    ),
    pytest.mark.skipif(not kernels.available().path, reason="nothing is compiled here"),
]

ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
BROKEN = "void set_blas(void *p) { (void)p; }\nvoid set_threads(int n) { (void)n; }\n"


@pytest.fixture(scope="module", params=kernels.VARIANTS)
def library(request: pytest.FixtureRequest) -> openblas.OpenBlas:
    """OpenBLAS beside the library for each instruction set that this processor has."""
    if not set(kernels.VARIANTS[request.param]) <= set(processor.extensions()):
        pytest.skip(f"this processor has no {request.param}")
    path = openblas.bundled()
    assert path
    ours = str(kernels.FOLDER / f"kernels-{request.param}.so")
    return openblas.OpenBlas(path, threads=1, kernels=ours)


def multiply(
    library: openblas.OpenBlas,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    alpha: float,
    beta: float,
    turned: tuple[bool, bool],
) -> None:
    """C = alpha A B + beta C; a transposed operand lies in memory as [k, m] or [n, k]."""
    number, place, real = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
    call = ctypes.CFUNCTYPE(
        None, *[number] * 6, real, place, number, place, number, real, place, number
    )(library.sgemm)
    m, k = a.shape[::-1] if turned[0] else a.shape
    n = b.shape[0] if turned[1] else b.shape[1]
    order = [TRANSPOSED if is_turned else PLAIN for is_turned in turned]
    call(
        ROW_MAJOR,
        *order,
        m,
        n,
        k,
        alpha,
        a.ctypes.data,
        a.strides[0] // 4,
        b.ctypes.data,
        b.strides[0] // 4,
        beta,
        c.ctypes.data,
        c.strides[0] // 4,
    )


def whole_numbers(draw: np.random.Generator, *shape: int) -> np.ndarray:
    """A part of a wider array of small whole numbers, whose products float32 holds exactly."""
    return draw.integers(-4, 5, (shape[0], shape[1] + 3)).astype(np.float32)[:, : shape[1]]


@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 80),
    n=st.integers(1, 120),
    k=st.integers(1, 90),
    left=st.booleans(),
    right=st.booleans(),
    alpha=st.sampled_from((1.0, -2.0)),
    beta=st.sampled_from((0.0, 1.0, 3.0)),
    threads=st.integers(1, 3),
    seed=st.integers(0, 9),
)
@example(m=8, n=1700, k=100, left=False, right=False, alpha=1.0, beta=0.0, threads=2, seed=0)
@example(m=65, n=577, k=70, left=True, right=False, alpha=1.0, beta=1.0, threads=3, seed=0)
@example(m=200, n=300, k=90, left=False, right=True, alpha=1.0, beta=0.0, threads=3, seed=1)
@example(m=300, n=200, k=90, left=True, right=True, alpha=-2.0, beta=3.0, threads=2, seed=2)
@example(m=300, n=120, k=90, left=False, right=False, alpha=1.0, beta=1.0, threads=3, seed=3)
@example(m=90, n=700, k=90, left=True, right=False, alpha=1.0, beta=0.0, threads=2, seed=4)
def test_products_are_exact_and_touch_nothing_else(
    library: openblas.OpenBlas,
    m: int,
    n: int,
    k: int,
    left: bool,
    right: bool,
    alpha: float,
    beta: float,
    threads: int,
    seed: int,
) -> None:
    library.set_threads(threads)
    draw = np.random.default_rng(seed)
    a = whole_numbers(draw, *((k, m) if left else (m, k)))
    b = whole_numbers(draw, *((n, k) if right else (k, n)))
    around = np.full((m + 2, n + 5), 7, np.float32)
    c = around[1:-1, 2:-3]
    c[:] = np.nan if beta == 0 else draw.integers(-4, 5, (m, n))
    before = np.zeros((m, n)) if beta == 0 else c.astype(float)
    exact = (
        alpha
        * np.einsum(
            "ik,kj->ij", (a.T if left else a).astype(float), (b.T if right else b).astype(float)
        )
        + beta * before
    )
    multiply(library, a, b, c, alpha, beta, (left, right))
    assert (c == exact).all()
    c[:] = 7
    assert (around == 7).all()


SHARED = """
import ctypes, os, sys, threading, time
import numpy as np
from grpo_engine.cpu.openblas import OpenBlas
library = OpenBlas(sys.argv[1], threads=2, kernels=sys.argv[2])
sgemm = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 6, ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
    ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int)(
    library.sgemm)
def right(seed):
    draw, at = np.random.default_rng(seed), lambda x: x.ctypes.data_as(ctypes.c_void_p)
    a, b = (draw.integers(-8, 9, shape).astype(np.float32) for shape in ((8, 700), (700, 900)))
    out = np.full((8, 900), np.nan, np.float32)
    sgemm(101, 111, 111, 8, 900, 700, 1.0, at(a), 700, at(b), 900, 0.0, at(out), 900)
    return bool((out == np.einsum("ik,kj->ij", a, b)).all())
found = []
def many(seed):
    for turn in range(40):
        found.append(right(seed))
        if turn % 10 == 0:
            time.sleep(.01)  # the others fall asleep
"""


def run_shared(library: openblas.OpenBlas, code: str) -> str:
    assert library.kernels
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            SHARED + code,
            library.path,
            library.kernels._name,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_several_callers_take_turns_with_the_threads(library: openblas.OpenBlas) -> None:
    said = run_shared(
        library,
        """
callers = [threading.Thread(target=many, args=[seed]) for seed in range(3)]
[caller.start() for caller in callers]
for count in (1, 3, 2) * 5:
    library.set_threads(count)
    time.sleep(.005)
[caller.join() for caller in callers]
print(len(found), all(found))
""",
    )
    assert said == "120 True\n"


def test_a_forked_child_makes_threads_of_its_own(library: openblas.OpenBlas) -> None:
    said = run_shared(
        library,
        """
many(0)
child = os.fork()
if not child:
    many(1)
    os._exit(0 if all(found) and len(os.listdir("/proc/self/task")) == 2 else 1)
print(all(found), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), right(2))
""",
    )
    assert said == "True 0 True\n"


def test_nothing_of_ours_is_used_if_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.CHOICE, "none")
    assert kernels.available() == kernels.Available()


@pytest.mark.parametrize(
    ("extensions", "name"),
    [
        ([], ""),
        (["SSE4.2", "AVX"], ""),
        (["AVX", "FMA", "AVX2"], "kernels-avx2.so"),
        (["AVX", "FMA", "AVX2", "AVX-512"], "kernels-avx512.so"),
        (["NEON", "SVE"], ""),
    ],
)
def test_the_library_suits_the_instruction_sets_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, extensions: list[str], name: str
) -> None:
    monkeypatch.setattr(processor, "extensions", lambda: extensions)
    assert Path(kernels.available().path).name == name


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder of the C files and their libraries, and an empty cache."""
    folder = tmp_path / "cpu"
    folder.mkdir()
    for path in [*kernels.FOLDER.glob("*.c"), *kernels.FOLDER.glob("*.so")]:
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(kernels, "FOLDER", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def bundled() -> str:
    path = openblas.bundled()
    assert path
    return path


def test_a_library_of_other_sources_is_refused_with_its_remedy(installed: Path) -> None:
    assert blas_check.verdict(bundled()).kernels.startswith(str(installed))
    with (installed / "layers.c").open("a") as file:
        file.write("/* a newer one */")
    verdict = blas_check.verdict(bundled())
    assert (verdict.works, verdict.kernels) == (True, "")
    assert verdict.kernels_problem.startswith("was compiled from other sources: install the")


def test_without_a_library_the_blas_computes_all_and_the_remedy_is_told(installed: Path) -> None:
    for path in installed.glob("*.so"):
        path.unlink()
    verdict = blas_check.verdict(bundled())
    assert (verdict.works, verdict.kernels) == (True, "")
    assert "get a C compiler" in verdict.kernels_problem


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    "mistake",
    ["", "__builtin_trap();", "((float *)c)[0] = 0.5f;"],
    ids=["writes nothing", "crashes", "wrong"],
)
def test_a_library_that_fails_its_check_is_left_out_and_the_blas_stays(
    installed: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    numbers = "int o, int ta, int tb, int m, int n, int k, float alpha, void *a, int lda, void *b, "
    source, path = installed.parent / "broken.c", installed / "broken.so"
    source.write_text(
        f"{BROKEN}void sgemm({numbers}int ldb, float beta, void *c, int ldc) {{ {mistake} }}"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    monkeypatch.setattr(kernels, "available", lambda: kernels.Available(path=str(path)))
    verdict = blas_check.verdict(bundled())
    assert (verdict.works, verdict.kernels) == (True, "")
    assert verdict.kernels_problem
