"""Matrix products use a BLAS that was checked on this machine, however MLX was loaded."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from grpo_engine.cpu import blas, blas_check, library, openblas, processor, relocations
from grpo_engine.cpu.blas_check import Verdict
from grpo_engine.platform import device

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or device.uses_gpu(), reason="only Linux without a GPU needs a BLAS"
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

SERVED_BY = """
import ctypes
from grpo_engine.cpu import openblas, relocations
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
def file_of(slot):
    info = Info()
    value = ctypes.c_size_t.from_address(slot).value
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(value), ctypes.byref(info))
    return (info.file or b"nothing").decode().rpartition("/")[2]
served = {file_of(at) for at in relocations.imports(openblas.mlx_library(), openblas.PRODUCT)}
print(*sorted(served))
"""

STUBS = """
#include <unistd.h>
const char *openblas_get_config(void) { return "OpenBLAS 0.3.34 MAX_THREADS=4"; }
const char *openblas_get_corename(void) { return "Stub"; }
void openblas_set_num_threads(int count) { (void)count; }
int openblas_get_num_threads(void) { return 1; }
__attribute__((constructor)) static void load(void) { LOADED }
"""


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | env,
    )


@pytest.fixture(autouse=True)
def _blas_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.CHOICE, "none")  # test_products.py has those


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bundled() -> str:
    found = openblas.bundled()
    assert found is not None
    return found


def built(folder: Path, *, called: str = "", loaded: str = "", flags: tuple[str, ...] = ()) -> str:
    """A library with the function that MLX imports, of this body."""
    source, path = folder / "stub.c", folder / "libstub.so"
    source.write_text(
        f"{STUBS.replace('LOADED', loaded)}void {openblas.PRODUCT}(void) {{ {called} }}\n"
    )
    command = ["cc", "-shared", "-fPIC", "-o", str(path), str(source), *flags]
    subprocess.run(command, check=True)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "import grpo_engine, mlx.core",
        "import grpo_engine.config.settings, mlx_lm.models.cache",
        "import grpo_engine.maths.loss\nfrom mlx import core, nn",
        "import multiprocessing as m, grpo_engine\n"
        "exec('import mlx.core')  # as code that a user brings",
        "import mlx.core as mx\nmx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))\n"
        "from grpo_engine.setup.startup import enter_engine\nenter_engine(0)",
        "import numpy, mlx.core, grpo_engine.cpu.blas as b\nb.ensure()",
    ],
)
def test_products_of_mlx_are_served_by_openblas(way: str) -> None:
    assert python(f"{way}\n{SERVED_BY}").stdout == "libscipy_openblas.so\n"


def test_importing_the_engines_leaves_loads_no_blas() -> None:
    code = "import grpo_engine.config.settings, grpo_engine.events"
    assert "openblas" not in python(f"{code}\nprint(open('/proc/self/maps').read())").stdout


def test_threads_follow_the_environment_and_can_be_changed() -> None:
    code = (
        "import grpo_engine, mlx.core\nfrom grpo_engine.cpu import blas\n"
        "print(blas.state().threads, blas.set_threads(2), blas.state().threads)"
    )
    assert python(code, OPENBLAS_NUM_THREADS="1").stdout == "1 2 2\n"


def test_a_library_starts_no_more_threads_than_it_is_told_and_the_environment_stays() -> None:
    code = f"""
import os
from grpo_engine.cpu.openblas import OpenBlas
OpenBlas({bundled()!r}, threads=1)
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""
    # the caller computes, with only one thread
    assert python(code, OPENBLAS_NUM_THREADS="7").stdout == "1 7\n"


def test_an_engine_takes_a_new_share_when_another_one_starts() -> None:
    code = (
        "import grpo_engine, mlx.core\nfrom grpo_engine.cpu import blas\n"
        "from grpo_engine.platform import threads\n"
        "threads.share = lambda: 2\nprint(blas.rebalance())\nprint(blas.rebalance())"
    )
    assert python(code, OPENBLAS_NUM_THREADS="1").stdout == "(1, 2)\nNone\n"


def test_products_are_right_in_a_forked_child() -> None:
    code = f"""
import ctypes, os
import numpy as np
from grpo_engine.cpu.openblas import OpenBlas
library = OpenBlas({bundled()!r}, threads=2)
sgemm = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 6, ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
    ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int)(
    library.sgemm)
def right(n=400):
    a = np.random.default_rng(0).integers(-8, 9, (n, n))
    f, out = a.astype(np.float32), np.zeros((n, n), np.float32)
    at = lambda x: x.ctypes.data_as(ctypes.c_void_p)
    sgemm(101, 111, 111, n, n, n, 1.0, at(f), n, at(f), n, 0.0, at(out), n)
    return bool((out == a @ a).all())
parent = right()
child = os.fork()
if not child:
    os._exit(0 if right() else 1)
print(parent, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), right())
"""
    done = python("import warnings\nwarnings.simplefilter('ignore')" + code)
    assert done.stdout == "True 0 True\n"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("called", "loaded", "why"),
    [
        ("__builtin_trap();", "", "crashes on this processor (SIG"),
        ("", "__builtin_trap();", "crashes on this processor (SIG"),
        ("*(volatile int *)8 = 1;", "", "crashes on this processor (SIGSEGV)"),
        ("", "", "computes wrong products (float32"),  # returns whatever was in memory
    ],
)
def test_a_faulty_library_is_skipped_in_one_sentence_and_the_next_one_serves(
    called: str, loaded: str, why: str, tmp_path: Path, cache: Path
) -> None:
    path = built(tmp_path, called=called, loaded=loaded)
    done = python(f"import grpo_engine, mlx.core\n{SERVED_BY}", GRPO_TUI_BLAS=path)
    assert done.stdout == "libscipy_openblas.so\n"
    assert f"GRPO_TUI_BLAS={path} is not used: it {why}" in done.stderr
    assert done.stderr.count("is not used") == 1
    assert len(list((cache / "grpo-tui" / "blas").iterdir())) == 2


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("cache")
def test_a_library_that_hangs_is_given_up_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built(tmp_path, called="for (;;) sleep(1);")
    monkeypatch.setattr(blas_check, "LIMIT_S", 3.0)
    expected = Verdict(works=False, reason="hangs in its check, for 3 s")
    assert blas_check.verdict(path) == expected
    monkeypatch.setattr(blas_check, "_try", None)
    assert blas_check.verdict(path) == expected


@pytest.mark.parametrize("choice", ["/none/libopenblas.so", __file__])
def test_a_choice_that_does_not_load_is_told_in_one_line_and_ignored(choice: str) -> None:
    done = python(f"import grpo_engine, mlx.core\n{SERVED_BY}", GRPO_TUI_BLAS=choice)
    assert done.stdout == "libscipy_openblas.so\n"
    assert f"GRPO_TUI_BLAS={choice} is not used: it cannot be loaded" in done.stderr


def test_a_library_of_another_kind_is_refused() -> None:
    with pytest.raises(relocations.BlasError, match="is not OpenBLAS"):
        openblas.OpenBlas("libc.so.6", threads=1)


def test_a_library_with_64_bit_integers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = "OpenBLAS 0.3.34 USE64BITINT DYNAMIC_ARCH"
    monkeypatch.setattr(openblas.OpenBlas, "_text", lambda _self, _name: config)
    with pytest.raises(relocations.BlasError, match="uses 64-bit integers"):
        openblas.OpenBlas(bundled(), threads=1)


def test_without_any_library_mlx_works_and_the_way_out_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(blas.CHOICE, raising=False)
    monkeypatch.setattr(openblas, "bundled", lambda: None)
    monkeypatch.setattr(openblas, "installed", lambda: None)
    found = blas._choose(check=False)
    assert not found.loaded
    assert "slow" in found.problem
    assert found.remedy == "Install one: pip install scipy-openblas32."


def test_what_a_check_found_is_kept_for_this_library_and_this_processor_alone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def check(path: str, _kernel: str) -> Verdict:
        tried.append(Path(path).name)
        return Verdict(works=True)

    monkeypatch.setattr(blas_check, "_try", check)
    one, other = tmp_path / "one.so", tmp_path / "other.so"
    one.write_text("1")
    other.write_text("2")
    for path in (one, one, other, one):
        assert blas_check.verdict(str(path)).works
    assert tried == ["one.so", "other.so"]
    one.write_text("a newer one")
    blas_check.verdict(str(one))
    monkeypatch.setattr(processor, "identity", lambda: "another")
    blas_check.verdict(str(one))
    blas_check.verdict(str(one), fresh=True)
    assert tried[2:] == ["one.so", "one.so", "one.so"]
    assert cache.is_dir()


def test_a_check_that_could_not_be_made_is_made_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/none/python")
    found = blas_check.verdict(bundled())
    assert (found.works, found.is_final) == (False, False)
    assert not list(cache.rglob("*.json"))


@pytest.mark.usefixtures("cache")
def test_a_kernel_that_fails_gives_way_to_a_safer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Verdict(works=False, reason="computes wrong products")
    outcomes = {"": bad, "A": bad, "B": Verdict(works=True, kernel="B"), "C": bad}
    monkeypatch.setattr(openblas, "KERNELS", {os.uname().machine: ("A", "B", "C")})
    monkeypatch.setattr(blas_check, "_try", lambda _path, kernel: outcomes[kernel])
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    assert blas_check.verdict(bundled()).kernel == "B"
    outcomes["B"] = bad
    assert blas_check.verdict(bundled(), fresh=True) == bad


def test_a_safer_kernel_is_asked_for_by_name() -> None:
    name = openblas.KERNELS[os.uname().machine][-1]
    code = f"""
from grpo_engine.cpu.openblas import OpenBlas
print(OpenBlas({bundled()!r}, threads=1, kernel={name!r}).kernel)
"""
    assert python(code).stdout.strip().casefold() == name.casefold()


@pytest.mark.usefixtures("cache")
def test_a_library_that_reports_an_error_computes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = """
from grpo_engine.cpu import blas_check
def mistakes():
    raise RuntimeError("a shape")
    yield
blas_check.mistakes = mistakes
blas_check.main()
"""
    monkeypatch.setattr(blas_check, "CODE", boot)
    found = blas_check.verdict(bundled())
    assert (found.works, found.reason) == (False, "fails in its check (a shape)")


def test_the_check_notices_a_product_that_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(blas_check.mistakes()) == []
    exact, shapes = mx.array.__matmul__, ((2, 3, 4), (3, 3, 3))
    monkeypatch.setattr(blas_check, "SHAPES", shapes)
    monkeypatch.setattr(mx.array, "__matmul__", lambda a, b: exact(a, b) + (a.shape == (2, 3)))
    assert list(blas_check.mistakes()) == ["computes wrong products (float32, 2x3x4)"]


def importer(folder: Path, *flags: str) -> ctypes.CDLL:
    """A library that imports an undefined name."""
    source, path = folder / "importer.c", folder / "libimporter.so"
    source.write_text(
        f"extern int {openblas.PRODUCT}(void) __attribute__((weak));\n"
        f"int call(void) {{ return {openblas.PRODUCT}(); }}\n"
    )
    command = ["cc", "-shared", "-fPIC", "-o", str(path), str(source), *flags]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path))


@needs_compiler
@pytest.mark.parametrize(
    "flags",
    [("-Wl,-z,lazy",), ("-Wl,-z,now,-z,relro",), ("-fno-plt", "-Wl,-z,now,-z,relro")],
)
def test_imports_of_every_kind_are_redirected(flags: tuple[str, ...], tmp_path: Path) -> None:
    library = importer(tmp_path, *flags)
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 42)
    address = ctypes.cast(answer, ctypes.c_void_p).value
    assert address
    relocations.redirect(library, openblas.PRODUCT, address)
    assert library.call() == 42
    with pytest.raises(relocations.BlasError, match="which imports no cblas_dgemm"):
        relocations.redirect(library, "cblas_dgemm", address)


@pytest.mark.slow
def test_ranks_of_one_host_share_its_cores_and_each_loads_the_fast_blas(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import grpo_engine\nimport mlx.core as mx\n"
        "from grpo_engine.cpu import blas\nfrom grpo_engine.platform import threads\n"
        "group = mx.distributed.init()\n"
        "print(group.size(), threads.local_ranks(), blas.state().loaded, blas.state().threads"
        " <= max(1, threads.cores() // 2), flush=True)\n"
    )
    launch = Path(sys.executable).with_name("mlx.launch")
    done = subprocess.run(
        [sys.executable, str(launch), "-n", "2", "--", sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert sorted(done.stdout.split("\n")) == ["", "2 2 True True", "2 2 True True"], done.stderr
