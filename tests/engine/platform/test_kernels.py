"""What MLX compiles on Linux is loaded from a private folder, complete or compiled anew."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from grpo_engine.platform import private

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Metal's kernels are compiled in memory"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles with g++"),
]

MLX_ALONE = "import mlx.core as mx\n"
WITH_US = "import grpo_engine\n" + MLX_ALONE
COMPUTE = """
with mx.stream(mx.cpu):
    print(mx.compile(lambda x: x * x + 2 * x)(mx.array([1.0, 2.0])).tolist(), flush=True)
"""
RESULT = "[3.0, 8.0]"  # 1 + 2 and 4 + 4
PLANTED = """
#include <stdlib.h>
__attribute__((constructor)) static void load(void) { system("touch PLANTED"); }
"""


def python(
    code: str, temporary: Path, *, check: bool = True, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=check,
        env={**os.environ, "TMPDIR": str(temporary), **(variables or {})},
    )


def shared(temporary: Path) -> Path:
    return temporary / f"grpo-tui-{os.getuid()}"


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


def counting(folder: Path) -> tuple[dict[str, str], Path]:
    """A PATH whose g++ writes a line to a file for each library it makes."""
    compiler, log = folder / "bin" / "g++", folder / "compiled"
    compiler.parent.mkdir()
    log.touch()
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo >>{log};; esac\nexec {shutil.which("g++")} "$@"\n'
    )
    compiler.chmod(0o755)
    return {"PATH": f"{compiler.parent}:{os.environ['PATH']}"}, log


@pytest.fixture(scope="module")
def by_mlx_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder in which MLX by itself has compiled."""
    temporary = tmp_path_factory.mktemp("temporary")
    assert python(MLX_ALONE + COMPUTE, temporary).stdout.strip() == RESULT
    return temporary


@pytest.fixture
def predictable(by_mlx_alone: Path, tmp_path: Path) -> Path:
    """The library that MLX by itself compiles, in the temporary folder `tmp_path/temporary`."""
    (path,) = libraries(shutil.copytree(by_mlx_alone, tmp_path / "temporary") / "mlx")
    return path


def test_a_library_that_another_user_planted_is_not_loaded(
    predictable: Path, tmp_path: Path
) -> None:
    source, marker = tmp_path / "planted.c", tmp_path / "planted"
    source.write_text(PLANTED.replace("PLANTED", str(marker)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(predictable), str(source)], check=True)
    python(MLX_ALONE + COMPUTE, tmp_path / "temporary", check=False)
    assert marker.exists()  # MLX by itself runs it
    marker.unlink()
    assert python(WITH_US + COMPUTE, tmp_path / "temporary").stdout.strip() == RESULT
    assert not marker.exists()


def test_mlx_that_was_loaded_first_compiles_in_the_private_folder_too(
    predictable: Path, tmp_path: Path
) -> None:
    predictable.write_bytes(b"")
    done = python(MLX_ALONE + WITH_US + COMPUTE, tmp_path / "temporary")
    assert done.stdout.strip() == RESULT


@pytest.mark.slow
@pytest.mark.parametrize(
    "computes", ["grpo_engine.setup.startup.enter_engine(0)", "grpo_engine.load_policy()"]
)
def test_a_script_that_changes_the_temporary_folder_stays_private(
    tmp_path: Path, computes: str
) -> None:
    code = textwrap.dedent(f"""
        import os
        import grpo_engine
        from grpo_engine.platform import kernels
        import mlx.core as mx
        os.environ["TMPDIR"] = {str(tmp_path)!r}
        {computes}
    """)
    done = python(code + COMPUTE + "print(kernels.loaded_elsewhere())", tmp_path)
    assert done.stdout.splitlines() == [RESULT, "[]"]
    assert not (tmp_path / "mlx").exists()


@pytest.mark.slow
def test_a_library_that_is_cut_off_is_compiled_anew(predictable: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    os.truncate(predictable, 4096)
    broken = python(MLX_ALONE + COMPUTE, temporary, check=False)
    assert broken.returncode == -signal.SIGBUS  # MLX by itself loads it
    assert python(WITH_US + COMPUTE, temporary).stdout.strip() == RESULT
    (kept,) = libraries(shared(temporary))
    for size in (4096, 0, kept.stat().st_size - 1):
        os.truncate(kept, size)
        assert python(WITH_US + COMPUTE, temporary).stdout.strip() == RESULT
        assert private.is_intact(kept)


def test_a_kernel_is_compiled_once_for_all_later_processes(tmp_path: Path) -> None:
    path, log = counting(tmp_path)
    for _ in range(3):
        assert python(WITH_US + COMPUTE, tmp_path, variables=path).stdout.strip() == RESULT
    assert log.read_text() == "\n"
    assert [file.name for file in shared(tmp_path).iterdir()] == ["kernels"]


@pytest.mark.parametrize("squat", ["link", "file"])
def test_without_a_folder_of_ours_each_process_compiles_in_a_new_one(
    squat: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    if squat == "link":
        shared(tmp_path).symlink_to(other)
    else:
        shared(tmp_path).write_text("")
    (tmp_path / "mlx").write_text("")  # where MLX by itself can make no folder
    before = sorted(tmp_path.iterdir())
    assert python(WITH_US + COMPUTE, tmp_path).stdout.strip() == RESULT
    assert sorted(tmp_path.iterdir()) == before
    assert not list(other.iterdir())


@pytest.mark.slow
def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_running_one_stays(
    tmp_path: Path,
) -> None:
    code = WITH_US + COMPUTE + "input()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as killed,
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as running,
    ):
        for process in (killed, running):
            assert process.stdout is not None
            assert process.stdout.readline().decode().strip() == RESULT
        assert len(list(shared(tmp_path).glob("mlx-*"))) == 2
        killed.kill()
        killed.wait()
        assert python(WITH_US + COMPUTE, tmp_path).stdout.strip() == RESULT
        assert len(list(shared(tmp_path).glob("mlx-*"))) == 1
        running.communicate(b"\n")
    assert running.returncode == 0
    assert not list(shared(tmp_path).glob("mlx-*"))


def test_the_temporary_folder_of_python_and_of_programs_it_starts_is_the_users(
    tmp_path: Path,
) -> None:
    code = textwrap.dedent("""
        import os, subprocess, tempfile
        words = ["sh", "-c", "echo $TMPDIR"]
        child = subprocess.run(words, env=dict(os.environ), capture_output=True, text=True)
        print(os.environ["TMPDIR"], tempfile.gettempdir(), child.stdout.strip())
    """)
    done = python(WITH_US + COMPUTE + code, tmp_path)
    assert done.stdout.split()[-3:] == [str(tmp_path)] * 3


def test_a_private_folder_is_ours_and_nobody_else_enters_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o777)
    assert private.private_folder(folder) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert private.private_folder(link) is None


def test_a_folder_of_another_user_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "library"
    private.write(file, b"content")
    assert private.is_intact(file)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert not private.is_intact(file)
    assert private.private_folder(tmp_path) is None


CUDA_FOLDER = """
import ctypes
from grpo_engine.platform import device, kernels
device.uses_gpu = lambda: True
kernels.version = lambda package: {version!r}
kernels.prepare()
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"MLX_PTX_CACHE_DIR").decode())
"""


def test_kernels_for_cuda_are_kept_for_later_processes_with_the_same_mlx(tmp_path: Path) -> None:
    first, again, other = (
        python(CUDA_FOLDER.format(version=version), tmp_path).stdout.strip()
        for version in ("0.32.4", "0.32.4", "0.33.0")
    )
    assert first == again == str(shared(tmp_path) / "ptx" / "0.32.4")
    assert other == str(shared(tmp_path) / "ptx" / "0.33.0")
