"""Which MLX is installed, which device it uses, and which extra the machine needs."""

import os
import resource
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from platform import machine
from typing import Final

from grpo_engine.errors import EngineError, MissingPackageError, quoted
from grpo_engine.platform import memory, threads

BACKENDS: Final = {
    "mlx-metal": "metal",
    "mlx-cpu": "cpu",
    "mlx-cuda-12": "cuda12",
    "mlx-cuda-13": "cuda13",
}
TEMPORARY: Final = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # in C++'s order
OPEN_FILES: Final = (2048, 4096)  # what mlx-lm sets, soft and hard
CUDA_13_DRIVER: Final = 580  # the oldest driver branch that runs CUDA 13
CUDA_12_DRIVER: Final = 525


@cache
def backends() -> dict[str, str]:
    """The installed MLX back ends and their versions; more than one overwrite each other."""
    versions = {}
    for package, name in BACKENDS.items():
        with suppress(PackageNotFoundError):
            versions[name] = version(package)
    return versions


@cache
def nvidia_driver() -> str | None:
    """The NVIDIA driver's version, if there is one."""
    try:
        output = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = output.split()
    return lines[0] if lines and lines[0][0].isdigit() else None


def suitable_extra() -> str | None:
    """The extra for this machine; None if MLX needs none."""
    if sys.platform == "darwin":
        return None
    driver = (nvidia_driver() or "0").split(".")[0]
    if int(driver) >= CUDA_13_DRIVER:
        return "cuda13"
    return "cuda12" if int(driver) >= CUDA_12_DRIVER else "cpu"


def uses_gpu() -> bool:
    """Whether the installed MLX uses a GPU by default; does not load MLX."""
    if "metal" in backends():
        return True
    has_cuda = any(name.startswith("cuda") for name in backends())
    return has_cuda and Path("/proc/driver/nvidia/version").exists()


def library() -> Path | None:
    """Path of MLX's library on Linux, from a wheel, conda or a build; loads nothing."""
    spec = find_spec("mlx")
    packages = (spec.submodule_search_locations or ()) if spec else ()
    files = (Path(folder) / "lib/libmlx.so" for folder in (*packages, sys.prefix))
    return next((file for file in files if file.exists()), None)


def require_mlx() -> None:
    """Import MLX, with an error distinct from that of a missing module of this project."""
    try:
        import mlx.core  # noqa: F401
    except ModuleNotFoundError as error:
        name = f"'grpo-tui[{suitable_extra()}]'" if sys.platform == "linux" else "grpo-tui"
        text = f"losses and models are computed with MLX ({error}): pip install {name}"
        raise MissingPackageError(text) from error
    except ImportError as error:
        raise MissingPackageError(str(error)) from error


def require_open_files() -> None:
    """Allow as many open files as mlx-lm asks for when it is imported; raise if that fails."""
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, OPEN_FILES)
    except (ValueError, OSError) as error:
        raise EngineError(
            f"mlx-lm asks for {OPEN_FILES[1]} open files, and {hard_limit} are allowed: raise the "
            f"limit before the start (`ulimit -n {OPEN_FILES[1]}`)"
        ) from error


def require_temporary_folder() -> None:
    """Raise if the temporary folder cannot be used: MLX compiles in it, and would end the run."""
    variable = next((name for name in TEMPORARY if os.environ.get(name)), "")
    folder = Path(os.environ.get(variable) or "/tmp")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        problem = "is no folder" if not folder.is_dir() else "cannot be written to"
        name = f"{variable} {quoted(str(folder))}" if variable else f"the folder {folder}"
        raise EngineError(
            f"{name} {problem}, and temporary files have no other place: set TMPDIR to a folder of "
            "your own"
        )


def require_backend() -> None:
    """Raise if `mlx` has no back end, no temporary folder or no room, and name the remedy."""
    if sys.platform == "darwin" and machine() != "arm64":
        raise MissingPackageError(
            f"MLX needs Apple silicon on macOS; this processor is {machine()}. "
            "Use a Mac with Apple silicon or Linux."
        )
    if sys.platform == "linux" and not backends() and library() is None:
        extra = suitable_extra()
        raise MissingPackageError(
            "MLX has no back end here, so models cannot be loaded. "
            f"Install the extra '{extra}': pip install 'grpo-tui[{extra}]' "
            "(others: cpu, cuda12, cuda13)."
        )
    require_temporary_folder()
    memory.require_address_space(threads.cores())
