"""The machine, Python and memory."""

import os
import platform
import sys
from pathlib import Path

from grpo_engine.cpu import processor
from grpo_engine.platform import memory, threads
from grpo_tui.app.health.facts import Fact, Level, gib

SMALLEST = 512 << 20
COMFORTABLE = 2 << 30


def facts() -> list[Fact]:
    """Processor, cores, system, Python, memory."""
    return [system(), cores(), python(), memory_fact()]


def system() -> Fact:
    """Report the processor or chip and the operating system."""
    name = f"{platform.system()} {platform.release()}"
    if sys.platform == "darwin":
        name = f"macOS {platform.mac_ver()[0]}"
    words = [name, platform.machine(), processor_name()]
    if extensions := processor.extensions():
        words.append(" ".join(extensions))
    return Fact(area="Machine", name="system", found=", ".join(words))


def processor_name() -> str:
    """Return the processor's marketing name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def cores() -> Fact:
    """Report the cores available to this process, and other engines that share them."""
    processors = threads.usable_processors()
    physical, quota = threads.physical_cores(processors), threads.quota()
    usable, engines = threads.cores(), threads.local_engines()
    words = f"{usable} usable of {physical} physical ({len(processors)} logical)"
    if quota < physical:
        words += f", limited to {quota:g} by a control group"
    if engines > 1:
        words += f", shared by {engines - 1} running engine{'s' * (engines > 2)}"
    numbers = {"usable": usable, "physical": physical, "logical": len(processors)}
    return Fact(
        area="Machine",
        name="cores",
        found=words,
        numbers={**numbers, "other_engines": engines - 1},
    )


def python() -> Fact:
    """Report the Python interpreter and its location."""
    where = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    return Fact(
        area="Machine",
        name="Python",
        found=f"{platform.python_version()} ({where}), {sys.executable}",
        numbers={"version": platform.python_version(), "executable": sys.executable},
    )


def memory_fact() -> Fact:
    """Report how much memory is available for training."""
    found = memory.memory()
    words = f"{gib(found.available)} free of {gib(found.total)}"
    if found.limit is not None:
        words += ", a control group's limit"
    level, remedy = Level.FINE, ""
    if found.available < COMFORTABLE:
        level = Level.STOPS if found.available < SMALLEST else Level.WARNING
        remedy = "Close other programs, or choose a smaller model, group or completion length."
    numbers = {"total": found.total, "available": found.available, "limit": found.limit}
    return Fact(
        area="Machine", name="memory", found=words, level=level, remedy=remedy, numbers=numbers
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


def environment() -> list[Fact]:
    """Report which of these variables are set, if any are."""
    found = environment_names()
    if not found:
        return []
    words = ", ".join(f"{name}={os.environ[name]}" for name in found)
    return [Fact(area="Machine", name="environment", found=words)]
