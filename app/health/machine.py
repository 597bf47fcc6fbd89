"""The machine, Python and memory."""

import os
import platform
import sys
from pathlib import Path

from grpo_engine.cpu import processor
from grpo_engine.platform import memory, threads
from grpo_tui.app.health.checks import Check, Level, gib

SMALLEST = 512 << 20
COMFORTABLE = 2 << 30


def checks() -> list[Check]:
    """Processor, cores, system, Python, memory."""
    return [system(), cores(), python(), memory_check()]


def system() -> Check:
    """Report the processor or chip and the operating system."""
    name = f"{platform.system()} {platform.release()}"
    if sys.platform == "darwin":
        name = f"macOS {platform.mac_ver()[0]}"
    text = [name, platform.machine(), processor_name()]
    if extensions := processor.extensions():
        text.append(" ".join(extensions))
    return Check(area="Machine", name="system", result=", ".join(text))


def processor_name() -> str:
    """Return the processor's marketing name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def cores() -> Check:
    """Report the cores available to this process, and other engines that share them."""
    processors = threads.usable_processors()
    physical, quota = threads.physical_cores(processors), threads.quota()
    usable, engines = threads.cores(), threads.local_engines()
    text = f"{usable} usable of {physical} physical ({len(processors)} logical)"
    if quota < physical:
        text += f", limited to {quota:g} by a control group"
    if engines > 1:
        text += f", shared by {engines - 1} running engine{'s' * (engines > 2)}"
    numbers = {"usable": usable, "physical": physical, "logical": len(processors)}
    return Check(
        area="Machine",
        name="cores",
        result=text,
        numbers={**numbers, "other_engines": engines - 1},
    )


def python() -> Check:
    """Report the Python interpreter and its location."""
    where = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    return Check(
        area="Machine",
        name="Python",
        result=f"{platform.python_version()} ({where}), {sys.executable}",
        numbers={"version": platform.python_version(), "executable": sys.executable},
    )


def memory_check() -> Check:
    """Report how much memory is available for training."""
    result = memory.memory()
    text = f"{gib(result.available)} free of {gib(result.total)}"
    if result.limit is not None:
        text += ", a control group's limit"
    level, remedy = Level.FINE, ""
    if result.available < COMFORTABLE:
        level = Level.STOPS if result.available < SMALLEST else Level.WARNING
        remedy = "Close other programs, or choose a smaller model, group or completion length."
    numbers = {"total": result.total, "available": result.available, "limit": result.limit}
    return Check(
        area="Machine", name="memory", result=text, level=level, remedy=remedy, numbers=numbers
    )


def environment_names() -> list[str]:
    """Return the variables that change how a run computes."""
    names = (
        *threads.VARIABLES,
        "GRPO_TUI_BLAS",
        "GRPO_TUI_PRODUCTS",
        "OPENBLAS_CORETYPE",
        "GRPO_TUI_DB",
        "MLX_DISABLE_COMPILE",
        "NO_COLOR",
    )
    return [name for name in names if os.environ.get(name)]


def environment() -> list[Check]:
    """Report which of these variables are set, if any are."""
    result = environment_names()
    if not result:
        return []
    text = ", ".join(f"{name}={os.environ[name]}" for name in result)
    return [Check(area="Machine", name="environment", result=text)]
