"""MLX: the installed build, its device, and its speed here."""

import shutil
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo_engine.cpu import blas
from grpo_engine.errors import MemoryLimitError, MissingPackageError
from grpo_engine.platform import device, formats, kernels, private, speed
from grpo_tui.app.health.checks import Check, Level

SLOW = 20.0  # GFLOP/s; MLX's own BLAS reaches 2.5-6, an optimised one 40 and more per core
COLLAPSE = 5.0


def checks() -> list[Check]:
    """Check the installed MLX and, if it loads, its speed."""
    result = [package()]
    if result[0].level is Level.STOPS:
        return result
    return [
        *result,
        *builds(),
        default_device(),
        number_format(),
        compiler(),
        *kernel_folder(),
        *products(),
    ]


def package() -> Check:
    """Report MLX and mlx-lm, after importing both to check that they load."""
    try:
        versions = f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
        device.require_backend()
        with warnings.catch_warnings():  # `products` reports it
            warnings.simplefilter("ignore", RuntimeWarning)
            blas.ensure(check=True)
        device.require_mlx()
    except MemoryLimitError as error:
        result, _, remedy = str(error).partition("; ")
        return Check(area="MLX", name="package", result=result, level=Level.STOPS, remedy=remedy)
    except (MissingPackageError, OSError, PackageNotFoundError) as error:
        extra = device.suitable_extra()
        target = f"'grpo-tui[{extra}]'" if extra else "grpo-tui"
        return Check(
            area="MLX",
            name="package",
            result=" ".join(str(error).split()).partition(". ")[0],
            level=Level.STOPS,
            remedy=f"pip install {target}",
        )
    return Check(area="MLX", name="package", result=versions)


def builds() -> list[Check]:
    """Report the installed back end, and whether it suits this machine."""
    installed, extra = device.backends(), device.suitable_extra()
    text = ", ".join(f"{name} {number}" for name, number in installed.items()) or "unknown"
    level, remedy = Level.FINE, ""
    if len(installed) > 1:
        level = Level.WARNING
        remedy = f"They overwrite each other's library; keep one: pip install 'grpo-tui[{extra}]'"
        remedy += " in a fresh environment."
    elif extra and extra.startswith("cuda") and "cpu" in installed:
        level = Level.WARNING
        remedy = (
            f"An NVIDIA GPU is available: pip install 'grpo-tui[{extra}]' in a fresh environment."
        )
    numbers: dict[str, float | str | None] = {"wanted": extra, **installed}
    return [
        Check(area="MLX", name="build", result=text, level=level, remedy=remedy, numbers=numbers)
    ]


def default_device() -> Check:
    """Report the device that MLX computes on."""
    import mlx.core as mx

    device_type = str(mx.default_device().type).rpartition(".")[2]
    text = device_type
    if device_type == "gpu":
        text = f"gpu, {mx.device_info().get('device_name', 'unnamed')}"
    return Check(area="MLX", name="device", result=text, numbers={"device": device_type})


def number_format() -> Check:
    """Report what `model.dtype: auto` means here."""
    on_gpu = device.uses_gpu()
    return Check(
        area="MLX",
        name="model.dtype",
        result=formats.auto_text(on_gpu=on_gpu),
        numbers={"auto": formats.auto_format(on_gpu=on_gpu)},
    )


def compiler() -> Check:
    """Report the optional C++ compiler that MLX uses for element-wise chains on processors."""
    result = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    return Check(
        area="MLX",
        name="compiler",
        result=result or "none; not required",
        numbers={"compiler": result},
    )


def kernel_folder() -> list[Check]:
    """Report the folder that MLX loads its compiled kernels from, after compiling one."""
    import mlx.core as mx

    kernels.prepare()  # as before a run
    folder = kernels.folder()
    if folder is None:
        return []
    with mx.stream(mx.cpu):
        mx.eval(mx.compile(lambda x: x * x + 2 * x)(mx.array([1.0])))
    level, text, remedy = Level.FINE, f"{folder}, private", ""
    if others := kernels.loaded_elsewhere():
        level, text = Level.STOPS, f"loaded from {Path(others[0]).parent}"
        remedy = "Other users may have put them there: set TMPDIR to a folder of yours."
    elif not kernels.is_shared(folder):
        level = Level.WARNING
        text += "; kept for this process only"
        remedy = (
            f"{private.temporary_path()} belongs to another user or is no folder, so each start "
            "compiles for a second: remove it, or set TMPDIR to a folder of yours."
        )
    numbers: dict[str, float | str | None] = {"folder": str(folder)}
    return [
        Check(area="MLX", name="kernels", result=text, level=level, remedy=remedy, numbers=numbers)
    ]


def products() -> list[Check]:
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
    first = Check(
        area="MLX", name="BLAS", result=library, level=level, remedy=remedy, numbers=numbers
    )
    return [first, square(), skinny()]


def on_processor() -> bool:
    """Return whether products run on the processor of a Linux machine."""
    return sys.platform == "linux" and not device.uses_gpu()


def square() -> Check:
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
    return Check(
        area="MLX",
        name="1024x1024x1024",
        result=f"{alone.gflops:.0f} GFLOP/s ({alone.milliseconds:.1f} ms); "
        f"{beside.gflops:.0f} GFLOP/s beside one busy process",
        level=level,
        remedy=remedy,
        numbers={"gflops": alone.gflops, "gflops_beside_busy": beside.gflops},
    )


def skinny() -> Check:
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
    text = f"{alone.milliseconds:.2f} ms ({alone.gflops:.0f} GFLOP/s); "
    text += f"{beside.milliseconds:.2f} ms beside one busy process"
    level, remedy = Level.FINE, ""
    if max(alone.milliseconds, beside.milliseconds) > COLLAPSE * fewer.milliseconds:
        level = Level.WARNING
        remedy = (
            f"Beside a busy program it takes {fewer.milliseconds:.2f} ms on {used - 1} "
            f"thread{'s' * (used > 2)}: set GRPO_TUI_THREADS={used - 1} where one runs."
        )
    return Check(
        area="MLX",
        name="8x576x1536",
        result=text,
        level=level,
        remedy=remedy,
        numbers={
            "milliseconds": alone.milliseconds,
            "milliseconds_beside_busy": beside.milliseconds,
            "milliseconds_beside_busy_one_thread_less": fewer.milliseconds,
        },
    )
