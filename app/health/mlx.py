"""MLX: the installed build, its device, and its speed here."""

import shutil
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo_engine.cpu import blas
from grpo_engine.errors import MemoryLimitError, MissingPackageError
from grpo_engine.platform import device, formats, kernels, private, speed
from grpo_tui.app.health.facts import Fact, Level

SLOW = 20.0  # GFLOP/s; MLX's own BLAS reaches 2.5-6, an optimised one 40 and more per core
COLLAPSE = 5.0


def facts() -> list[Fact]:
    """Return facts on the installed MLX and, if it loads, its speed."""
    found = [package()]
    if found[0].level is Level.STOPS:
        return found
    return [
        *found,
        *builds(),
        default_device(),
        number_format(),
        compiler(),
        *kernel_folder(),
        *products(),
    ]


def package() -> Fact:
    """Report MLX and mlx-lm, after importing both to check that they load."""
    try:
        versions = f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
        device.require_backend()
        with warnings.catch_warnings():  # `products` reports it
            warnings.simplefilter("ignore", RuntimeWarning)
            blas.ensure(check=True)
        device.require_mlx()
    except MemoryLimitError as error:
        found, _, remedy = str(error).partition("; ")
        return Fact(area="MLX", name="package", found=found, level=Level.STOPS, remedy=remedy)
    except (MissingPackageError, OSError, PackageNotFoundError) as error:
        extra = device.suitable_extra()
        target = f"'grpo-tui[{extra}]'" if extra else "grpo-tui"
        return Fact(
            area="MLX",
            name="package",
            found=" ".join(str(error).split()).partition(". ")[0],
            level=Level.STOPS,
            remedy=f"pip install {target}",
        )
    return Fact(area="MLX", name="package", found=versions)


def builds() -> list[Fact]:
    """Report the installed back end, and whether it suits this machine."""
    found, wanted = device.backends(), device.suitable_extra()
    words = ", ".join(f"{name} {number}" for name, number in found.items()) or "unknown"
    level, remedy = Level.FINE, ""
    if len(found) > 1:
        level = Level.WARNING
        remedy = f"They overwrite each other's library; keep one: pip install 'grpo-tui[{wanted}]'"
        remedy += " in a fresh environment."
    elif wanted and wanted.startswith("cuda") and "cpu" in found:
        level = Level.WARNING
        remedy = (
            f"An NVIDIA GPU is available: pip install 'grpo-tui[{wanted}]' in a fresh environment."
        )
    numbers: dict[str, float | str | None] = {"wanted": wanted, **found}
    return [
        Fact(area="MLX", name="build", found=words, level=level, remedy=remedy, numbers=numbers)
    ]


def default_device() -> Fact:
    """Report the device that MLX computes on."""
    import mlx.core as mx

    kind = str(mx.default_device().type).rpartition(".")[2]
    words = kind
    if kind == "gpu":
        words = f"gpu, {mx.device_info().get('device_name', 'unnamed')}"
    return Fact(area="MLX", name="device", found=words, numbers={"device": kind})


def number_format() -> Fact:
    """Report what `model.dtype: auto` means here."""
    on_gpu = device.uses_gpu()
    return Fact(
        area="MLX",
        name="model.dtype",
        found=formats.auto_text(on_gpu=on_gpu),
        numbers={"auto": formats.auto_format(on_gpu=on_gpu)},
    )


def compiler() -> Fact:
    """Report the optional C++ compiler that MLX uses for element-wise chains on processors."""
    found = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    return Fact(
        area="MLX",
        name="compiler",
        found=found or "none; not required",
        numbers={"compiler": found},
    )


def kernel_folder() -> list[Fact]:
    """Report the folder that MLX loads its compiled kernels from, after compiling one."""
    import mlx.core as mx

    kernels.prepare()  # as before a run
    folder = kernels.folder()
    if folder is None:
        return []
    with mx.stream(mx.cpu):
        mx.eval(mx.compile(lambda x: x * x + 2 * x)(mx.array([1.0])))
    level, words, remedy = Level.FINE, f"{folder}, private", ""
    if others := kernels.loaded_elsewhere():
        level, words = Level.STOPS, f"loaded from {Path(others[0]).parent}"
        remedy = "Other users may have put them there: set TMPDIR to a folder of yours."
    elif not kernels.is_shared(folder):
        level = Level.WARNING
        words += "; kept for this process only"
        remedy = (
            f"{private.temporary_path()} belongs to another user or is no folder, so each start "
            "compiles for a second: remove it, or set TMPDIR to a folder of yours."
        )
    numbers: dict[str, float | str | None] = {"folder": str(folder)}
    return [
        Fact(area="MLX", name="kernels", found=words, level=level, remedy=remedy, numbers=numbers)
    ]


def products() -> list[Fact]:
    """Report the BLAS and its speed, alone and beside a busy process."""
    done = blas.ensure()
    library = done.library or done.reason
    if done.loaded:
        name = " ".join(done.config.split()[:2])
        count = f"{done.threads} thread{'s' * (done.threads != 1)}"
        library = f"{name}, kernel {done.kernels}, {count}, {done.library}"
    reasons = [*done.skipped, done.remedy]
    if done.compiled_problem:
        reasons.insert(0, f"Our own compiled code is not used: it {done.compiled_problem}.")
    remedy = " ".join(filter(None, reasons))
    level = Level.WARNING if done.problem or remedy else Level.FINE
    numbers: dict[str, float | str | None] = {
        "library": done.library,
        "config": done.config,
        "kernel": done.kernel,
        "products": float(done.compiled),
        "threads": done.threads,
    }
    first = Fact(
        area="MLX", name="BLAS", found=library, level=level, remedy=remedy, numbers=numbers
    )
    return [first, square(), skinny()]


def on_processor() -> bool:
    """Return whether products run on the processor of a Linux machine."""
    return sys.platform == "linux" and not device.uses_gpu()


def square() -> Fact:
    """Measure the rate of a large product, the main cost of training."""
    alone = speed.measure(speed.SQUARE)
    with speed.busy_neighbour():
        beside = speed.measure(speed.SQUARE)
    level, remedy = Level.FINE, ""
    if on_processor() and alone.gflops < SLOW:
        level = Level.WARNING
        remedy = "Runs will be 10 to 60 times slower than they need to be: see BLAS above."
        if blas.ensure().loaded:
            remedy = (
                f"Slow for kernel {blas.ensure().kernel}: stop other busy programs, or set "
                "GRPO_TUI_THREADS=1; OPENBLAS_CORETYPE names another kernel."
            )
    return Fact(
        area="MLX",
        name="1024x1024x1024",
        found=f"{alone.gflops:.0f} GFLOP/s ({alone.milliseconds:.1f} ms); "
        f"{beside.gflops:.0f} GFLOP/s beside one busy process",
        level=level,
        remedy=remedy,
        numbers={"gflops": alone.gflops, "gflops_beside_busy": beside.gflops},
    )


def skinny() -> Fact:
    """Measure the time of a small product, the main cost of decoding."""
    alone = speed.measure(speed.SKINNY)
    used = blas.ensure().threads
    with speed.busy_neighbour():
        beside = speed.measure(speed.SKINNY)
        fewer = beside
        if used > 1:
            blas.set_threads(used - 1)
            fewer = speed.measure(speed.SKINNY)
            blas.set_threads(used)
    words = f"{alone.milliseconds:.2f} ms ({alone.gflops:.0f} GFLOP/s); "
    words += f"{beside.milliseconds:.2f} ms beside one busy process"
    level, remedy = Level.FINE, ""
    if max(alone.milliseconds, beside.milliseconds) > COLLAPSE * fewer.milliseconds:
        level = Level.WARNING
        remedy = (
            f"Beside a busy program it takes {fewer.milliseconds:.2f} ms on {used - 1} "
            f"thread{'s' * (used > 2)}: set GRPO_TUI_THREADS={used - 1} where one runs."
        )
    return Fact(
        area="MLX",
        name="8x576x1536",
        found=words,
        level=level,
        remedy=remedy,
        numbers={
            "milliseconds": alone.milliseconds,
            "milliseconds_beside_busy": beside.milliseconds,
            "milliseconds_beside_busy_one_thread_less": fewer.milliseconds,
        },
    )
