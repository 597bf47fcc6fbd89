"""How much memory there is: the machine's, or a lower limit of a container or a shell."""

import sys
from collections.abc import Mapping
from pathlib import Path

from grpo_engine.errors import MemoryLimitError
from grpo_engine.frozen import frozen
from grpo_engine.platform.cgroup import limits
from grpo_engine.platform.footprint import USABLE, footprint, pressure

UNLIMITED = 1 << 60  # version 1 writes "no limit" as a huge number

# What MLX, its BLAS and a tokenizer map before a model is loaded (510 MB on two cores), and what
# each further thread adds: a buffer of the BLAS and a stack.
LOADED, PER_THREAD = 640 << 20, 48 << 20
# Memory is taken in pieces of 64 MB, by MLX and by the BLAS.
PIECES = 128 << 20


@frozen
class Memory:
    """Bytes in total, available, and held by this process."""

    total: int
    available: int
    process: int
    limit: int | None
    """A control group's limit, if it is lower than the machine's memory."""


@frozen
class ShellLimit:
    """A limit on the address space of a process, and how to raise it."""

    limit: int
    mapped: int
    remedy: str


def shell_limit() -> ShellLimit | None:
    """The limit that leaves this process the least; None without one.

    Beyond it allocations fail in native code, which ends the process by a signal.
    """
    if sys.platform != "linux":  # macOS has these limits and does not hold to them
        return None
    import resource

    import psutil

    used = psutil.Process().memory_info()
    limits = [
        ShellLimit(limit=limit, mapped=mapped, remedy=remedy)
        for resource_type, mapped, remedy in (
            (resource.RLIMIT_AS, used.vms, "ulimit -v unlimited"),
            (resource.RLIMIT_DATA, used.data, "ulimit -d unlimited"),
        )
        if (limit := resource.getrlimit(resource_type)[0]) != resource.RLIM_INFINITY
    ]
    return min(limits, key=lambda limit: limit.limit - limit.mapped, default=None)


def require_address_space(threads: int) -> None:
    """Raise if the address space has no room for MLX, before it is loaded."""
    shell = shell_limit()
    needed = LOADED + PER_THREAD * (threads - 1)
    if shell is not None and shell.limit < needed:
        raise MemoryLimitError(
            f"MLX needs about {needed >> 20} MB of address space and this process may have "
            f"{shell.limit >> 20} MB; raise the limit with `{shell.remedy}`"
        )


def memory(root: Path = Path("/")) -> Memory:
    import psutil

    machine = psutil.virtual_memory()
    total = int(machine.total)
    available = int(machine.available * USABLE.get(pressure(), 0.0))
    limit, used = cgroup_memory(root)
    if limit is None or limit >= total:
        limit = None
    else:
        total, available = limit, max(0, min(available, limit - used))
    shell = shell_limit()
    if shell is not None:
        available = max(0, min(available, shell.limit - shell.mapped - PIECES))
    process = footprint() or int(psutil.Process().memory_info().rss)
    return Memory(total=total, available=available, process=process, limit=limit)


def on_device(info: Mapping[str, str | int], machine: int, allocated: int) -> int:
    """Bytes that arrays may take on a device, from its `mx.device_info`.

    CUDA reports how much of its own memory is free beside what MLX holds. Metal shares the
    machine's memory and reports how much it may use. A CPU reports nothing.
    """
    if "free_memory" in info:
        return int(info["free_memory"]) + allocated
    return min(machine, int(info.get("max_recommended_working_set_size", machine)))


def cgroup_memory(root: Path = Path("/")) -> tuple[int | None, int]:
    """The lowest limit that applies to this process, and the bytes in use under it."""
    groups: list[tuple[int, int]] = []
    for group in limits("memory", root):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = number(group / limit_file), number(group / used_file)
            if limit is not None and limit < UNLIMITED:
                groups.append((limit, used or 0))
    return min(groups, default=(None, 0))


def number(file: Path) -> int | None:
    """The integer in a control file; None for `max` or a missing file."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
