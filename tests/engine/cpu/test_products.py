"""Compiled products of few rows equal NumPy's; without a compiler the BLAS computes them."""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_engine.cpu import blas_check, openblas, processor
from grpo_engine.cpu import library as products
from grpo_engine.platform import device, private

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or device.uses_gpu(), reason="only Linux without a GPU needs a BLAS"
    ),
    pytest.mark.skipif(products.compiler() is None, reason="needs a C compiler"),
    pytest.mark.skipif(not products.instructions(), reason="nothing to compile for here"),
]

ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
BROKEN = "void set_blas(void *p) { (void)p; }\nvoid set_threads(int n) { (void)n; }\n"


@pytest.fixture(scope="module", params=range(len(products.KINDS)))
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> openblas.OpenBlas:
    """OpenBLAS beside products compiled for each instruction set that this processor has."""
    needed, flags = products.KINDS[request.param]
    if not set(needed) <= set(processor.extensions()):
        pytest.skip(f"this processor has no {needed[0]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "KINDS", ((needed, flags),))
        own = products.compiled(tmp_path_factory.mktemp("own"))
    path = openblas.bundled()
    assert own
    assert path
    return openblas.OpenBlas(path, threads=1, products=own)


def multiply(
    library: openblas.OpenBlas, a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float,
    beta: float, turned: tuple[bool, bool],
) -> None:  # fmt: skip
    """C = alpha A B + beta C; a transposed operand lies in memory as [k, m] or [n, k]."""
    number, place, real = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
    address = library.address("cblas_sgemm")
    assert address
    call = ctypes.CFUNCTYPE(None, *[number] * 6, real, place, number, place, number, real, place,
                            number)(address)  # fmt: skip
    m, k = a.shape[::-1] if turned[0] else a.shape
    n = b.shape[0] if turned[1] else b.shape[1]
    order = [TRANSPOSED if is_turned else PLAIN for is_turned in turned]
    call(ROW_MAJOR, *order, m, n, k, alpha, a.ctypes.data, a.strides[0] // 4, b.ctypes.data,
         b.strides[0] // 4, beta, c.ctypes.data, c.strides[0] // 4)  # fmt: skip


def whole_numbers(draw: np.random.Generator, *shape: int) -> np.ndarray:
    """A part of a wider array of small whole numbers, whose products float32 holds exactly."""
    return draw.integers(-4, 5, (shape[0], shape[1] + 3)).astype(np.float32)[:, : shape[1]]


@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 80), n=st.integers(1, 120), k=st.integers(1, 90),
    left=st.booleans(), right=st.booleans(), alpha=st.sampled_from((1.0, -2.0)),
    beta=st.sampled_from((0.0, 1.0, 3.0)), threads=st.integers(1, 3), seed=st.integers(0, 9),
)  # fmt: skip
@example(m=8, n=1700, k=100, left=False, right=False, alpha=1.0, beta=0.0, threads=2, seed=0)
@example(m=65, n=577, k=70, left=True, right=False, alpha=1.0, beta=1.0, threads=3, seed=0)
@example(m=200, n=300, k=90, left=False, right=True, alpha=1.0, beta=0.0, threads=3, seed=1)
@example(m=300, n=200, k=90, left=True, right=True, alpha=-2.0, beta=3.0, threads=2, seed=2)
@example(m=300, n=120, k=90, left=False, right=False, alpha=1.0, beta=1.0, threads=3, seed=3)
@example(m=90, n=700, k=90, left=True, right=False, alpha=1.0, beta=0.0, threads=2, seed=4)
def test_products_are_exact_and_touch_nothing_else(
    library: openblas.OpenBlas, m: int, n: int, k: int, left: bool, right: bool, alpha: float,
    beta: float, threads: int, seed: int,
) -> None:  # fmt: skip
    library.set_threads(threads)
    draw = np.random.default_rng(seed)
    a = whole_numbers(draw, *((k, m) if left else (m, k)))
    b = whole_numbers(draw, *((n, k) if right else (k, n)))
    around = np.full((m + 2, n + 5), 7, np.float32)
    c = around[1:-1, 2:-3]
    c[:] = np.nan if beta == 0 else draw.integers(-4, 5, (m, n))
    before = np.zeros((m, n)) if beta == 0 else c.astype(float)
    exact = alpha * np.einsum("ik,kj->ij", (a.T if left else a).astype(float),
                              (b.T if right else b).astype(float)) + beta * before  # fmt: skip
    multiply(library, a, b, c, alpha, beta, (left, right))
    assert (c == exact).all()
    c[:] = 7
    assert (around == 7).all()


def test_a_row_has_the_same_bits_beside_any_number_of_others(library: openblas.OpenBlas) -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=size).astype(np.float32) for size in ((16, 300), (300, 112)))
    found = []
    for rows, threads in ((16, 1), (1, 1), (3, 2), (8, 1), (13, 3)):
        library.set_threads(threads)
        c = np.zeros((rows, 112), np.float32)
        multiply(library, a[:rows], b, c, 1.0, 0.0, (False, False))
        found.append(c[0].tobytes())
    assert len(set(found)) == 1


SHARED = """
import ctypes, os, sys, threading, time
import numpy as np
from grpo_engine.cpu.openblas import OpenBlas
library = OpenBlas(sys.argv[1], threads=2, products=sys.argv[2])
sgemm = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 6, ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
    ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int)(
    library.address("cblas_sgemm"))
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
    assert library.products
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARED + code, library.path,
         library.products.library._name], capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip


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


@pytest.mark.parametrize("name", [products.CHOICE, "PATH"])
def test_without_a_compiler_the_blas_computes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(name, "none")
    assert products.compiled(tmp_path) == ""
    assert not list(tmp_path.iterdir())


def test_it_is_compiled_once_for_each_processor_and_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = products.compiled(tmp_path)
    run = mock.Mock(wraps=subprocess.run)
    monkeypatch.setattr(subprocess, "run", run)
    assert products.compiled(tmp_path) == made
    run.assert_not_called()
    monkeypatch.setattr(products, "KINDS", (((), ("-O1", "-mavx")),))
    assert products.compiled(tmp_path) != made
    run.assert_called_once()


@pytest.mark.parametrize(
    ("has", "flags"),
    [
        ([], ()), (["SSE4.2", "AVX"], ()), (["AVX", "FMA", "AVX2"], ("-mavx2", "-mfma")),
        (["AVX", "FMA", "AVX2", "AVX-512"], ("-mavx512f", "-mfma")), (["NEON", "SVE"], ()),
    ],
)  # fmt: skip
def test_it_is_compiled_for_the_instructions_that_the_processor_says_it_has(
    monkeypatch: pytest.MonkeyPatch, has: list[str], flags: tuple[str, ...]
) -> None:
    monkeypatch.setattr(processor, "extensions", lambda: has)
    assert products.instructions() == flags


def test_code_that_does_not_compile_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.c"
    source.write_text("this is not C")
    monkeypatch.setattr(products, "SOURCE", source)
    cache = tmp_path / "cache"
    cache.mkdir()
    assert products.compiled(cache) == ""
    assert not list(cache.iterdir())


@pytest.mark.parametrize("size", [0, 4096, -1], ids=["empty", "cut off", "without its last byte"])
def test_a_damaged_library_is_compiled_anew_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = openblas.bundled()
    assert path
    first = blas_check.verdict(path)
    library = Path(first.products)
    content = library.read_bytes()
    library.write_bytes(content[:size])
    second = blas_check.verdict(path)
    assert (second, second.products) == (first, str(library))
    assert private.is_intact(library)
    assert library.stat().st_size > 4096


def test_a_cache_folder_of_another_user_is_replaced_by_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "cache" / "grpo-tui").mkdir(parents=True)
    (tmp_path / "cache" / "grpo-tui" / "blas").symlink_to(other)
    path = openblas.bundled()
    assert path
    assert Path(blas_check.verdict(path).products).parent == private.temporary_folder()
    assert not list(other.iterdir())


@pytest.mark.parametrize(
    "mistake", ["", "__builtin_trap();", "((float *)c)[0] = 0.5f;"],
    ids=["writes nothing", "crashes", "wrong"],
)  # fmt: skip
def test_products_that_fail_their_check_are_left_out_and_the_blas_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    numbers = "int o, int ta, int tb, int m, int n, int k, float alpha, void *a, int lda, void *b, "
    source = tmp_path / "source.c"
    source.write_text(
        f"{BROKEN}void sgemm({numbers}int ldb, float beta, void *c, int ldc) {{ {mistake} }}"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(products, "SOURCE", source)
    path = openblas.bundled()
    assert path
    found = blas_check.verdict(path)
    assert (found.works, found.products) == (True, "")
    assert found.products_reason
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert blas_check.verdict(path).products
