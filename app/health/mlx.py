"""MLX: the installed build, its device, and its speed here."""

import shutil
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo_engine.cpu import blas
from grpo_engine.errors import MemoryLimitError, MissingPackageError
from grpo_engine.platform import device, formats, kernels, private, speed
from grpo_tui.app.health import mac
from grpo_tui.app.health.checks import Check

SLOW = 20.0  # GFLOP/s; MLX's own BLAS reaches 2.5-6, an optimised one 40 and more per core


def checks() -> list[Check]:
    """Check the installed MLX and, if it loads, its speed."""
    installed = package()
    if installed.stops:
        return [installed]
    return [
        installed,
        build(),
        default_device(),
        *mac.gpu_memory(),
        number_format(),
        compiler(),
        *kernel_folder(),
        *products(),
    ]


def package() -> Check:
    """MLX and mlx-lm, after importing both to check that they load."""
    try:
        versions = f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
        device.require_backend()
        with warnings.catch_warnings():  # `products` reports it
            warnings.simplefilter("ignore", RuntimeWarning)
            blas.ensure(check=True)
        device.require_mlx()
    except MemoryLimitError as error:
        result, _, remedy = str(error).partition("; ")
        return Check("package", result, remedy, stops=True)
    except (MissingPackageError, OSError, PackageNotFoundError) as error:
        extra = device.suitable_extra()
        remedy = f"pip install 'grpo-tui[{extra}]'" if extra else "pip install grpo-tui"
        result = " ".join(str(error).split()).partition(". ")[0]
        return Check("package", result, remedy, stops=True)
    return Check("package", versions)


def build() -> Check:
    """The installed back end, and whether it suits this machine."""
    installed, extra = device.backends(), device.suitable_extra()
    text = ", ".join(f"{name} {number}" for name, number in installed.items()) or "unknown"
    install, remedy = f"pip install 'grpo-tui[{extra}]' in a fresh environment.", ""
    if len(installed) > 1:
        remedy = f"They overwrite each other's library; keep one: {install}"
    elif extra and extra.startswith("cuda") and "cpu" in installed:
        remedy = f"An NVIDIA GPU is available: {install}"
    return Check("build", text, remedy)


def default_device() -> Check:
    """The device that MLX computes on."""
    import mlx.core as mx

    text = str(mx.default_device().type).rpartition(".")[2]
    if text == "gpu":
        text = f"gpu, {mx.device_info().get('device_name', 'unnamed')}"
    return Check("device", text)


def number_format() -> Check:
    """What `model.dtype: auto` means here."""
    return Check("model.dtype", formats.auto_text(on_gpu=device.uses_gpu()))


def compiler() -> Check:
    """The optional C++ compiler that MLX uses for element-wise chains on processors."""
    result = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
    return Check("compiler", result or "none; not required")


def kernel_folder() -> list[Check]:
    """The folder that MLX loads its compiled kernels from, after compiling one."""
    import mlx.core as mx

    kernels.prepare()
    folder = kernels.folder()
    if folder is None:
        return []
    with mx.stream(mx.cpu):
        mx.eval(mx.compile(lambda x: x * x + 2 * x)(mx.array([1.0])))
    text, remedy, foreign = f"{folder}, private", "", kernels.loaded_elsewhere()
    if foreign:
        text = f"loaded from {Path(foreign[0]).parent}"
        remedy = "Other users may have put them there: set TMPDIR to a folder of yours."
    elif not kernels.is_shared(folder):
        text += "; kept for this process only"
        remedy = (
            f"{private.temporary_path()} belongs to another user or is no folder, so each start "
            "compiles for a second: remove it, or set TMPDIR to a folder of yours."
        )
    return [Check("kernels", text, remedy, bool(foreign))]


def products() -> list[Check]:
    """The BLAS and its speed."""
    state = blas.ensure()
    library = state.library or state.reason
    if state.loaded:
        name = " ".join(state.config.split()[:2])
        count = f"{state.threads} thread{'s' * (state.threads != 1)}"
        library = f"{name}, kernel {state.kernels}, {count}, {state.library}"
    reasons = [*state.skipped, state.remedy]
    if state.compiled_problem:
        reasons.insert(0, f"Our own compiled code is not used: it {state.compiled_problem}.")
    remedy = " ".join(filter(None, reasons)) or state.problem
    return [Check("BLAS", library, remedy), square(), skinny()]


def on_processor() -> bool:
    """Return whether products run on the processor of a Linux machine."""
    return sys.platform == "linux" and not device.uses_gpu()


def square() -> Check:
    """Measure the rate of a large product, the main cost of training."""
    rate = speed.measure(speed.SQUARE)
    remedy = ""
    if on_processor() and rate.gflops < SLOW:
        remedy = "Runs will be 10 to 60 times slower than they need to be: see BLAS above."
        if blas.ensure().loaded:
            remedy = (
                f"Slow for kernel {blas.ensure().kernel}: stop other busy programs, or set "
                "GRPO_TUI_THREADS=1; OPENBLAS_CORETYPE names another kernel."
            )
    text = f"{rate.gflops:.0f} GFLOP/s ({rate.milliseconds:.1f} ms)"
    return Check("1024x1024x1024", text, remedy)


def skinny() -> Check:
    """Measure the time of a small product, the main cost of decoding."""
    rate = speed.measure(speed.SKINNY)
    return Check("8x576x1536", f"{rate.milliseconds:.2f} ms ({rate.gflops:.0f} GFLOP/s)")
