"""The machine, Python and memory."""

import os
import platform
import sys
from pathlib import Path

from rich.filesize import decimal

from grpo_engine.cpu import processor
from grpo_engine.platform import memory, threads
from grpo_tui.app.health import mac, replaced
from grpo_tui.app.health.checks import Check

MIN_MEMORY = 512 << 20
LOW_MEMORY = 2 << 30
# environment variables that change how a run computes
VARIABLES = (
    *threads.VARIABLES,
    "GRPO_TUI_BLAS",
    "GRPO_TUI_PRODUCTS",
    "OPENBLAS_CORETYPE",
    "GRPO_TUI_DB",
    "MLX_DISABLE_COMPILE",
    "NO_COLOR",
)


def checks() -> list[Check]:
    """Processor, cores, system, Python, libraries, memory, power, variables."""
    return [
        system(),
        cores(),
        python(),
        replaced.check(),
        memory_check(),
        *mac.checks(),
        *environment(),
    ]


def system() -> Check:
    """The processor or chip and the operating system."""
    name = f"{platform.system()} {platform.release()}"
    if sys.platform == "darwin":
        name = f"macOS {platform.mac_ver()[0]}"
    text = [name, platform.machine(), processor_name()]
    if extensions := processor.extensions():
        text.append(" ".join(extensions))
    return Check("system", ", ".join(text))


def processor_name() -> str:
    """The processor's marketing name."""
    names = []
    if (file := Path("/proc/cpuinfo")).exists():
        lines = file.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if sys.platform == "darwin":
        names = [mac.chip()]
    return next(filter(None, [*names, platform.processor()]), "unknown processor")


def cores() -> Check:
    """The cores available to this process, and other engines that share them."""
    processors = threads.usable_processors()
    physical, quota = threads.physical_cores(processors), threads.quota()
    usable, neighbours = threads.cores(), threads.local_engines() - 1
    text = f"{usable} usable of {physical} physical ({len(processors)} logical)"
    if quota < physical:
        text += f", limited to {quota:g} by a control group"
    if neighbours > 0:
        text += f", shared by {neighbours} running engine{'s' * (neighbours > 1)}"
    return Check("cores", text)


def python() -> Check:
    """The Python interpreter and its location."""
    isolation = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    return Check("Python", f"{platform.python_version()} ({isolation}), {sys.executable}")


def memory_check() -> Check:
    """How much memory is available for training."""
    result = memory.memory()
    text = f"{decimal(result.available)} free of {decimal(result.total)}"
    if result.limit is not None:
        text += ", a control group's limit"
    remedy = "Close other programs, or choose a smaller model, group or completion length."
    free = result.available
    return Check("memory", text, remedy * (free < LOW_MEMORY), free < MIN_MEMORY)


def environment() -> list[Check]:
    """The variables that are set, if any are."""
    text = ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name))
    return [Check("environment", text)] if text else []
