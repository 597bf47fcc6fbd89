"""How much memory there is: the machine's, or less where a container sets a limit."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_engine.platform.cgroup import limits

UNLIMITED = 1 << 60  # version 1 writes "no limit" as a huge number


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that exist, that are free to take, and that this process has at present."""

    total: int
    available: int
    process: int
    limit: int | None
    """A control group's limit, where one is lower than the machine's memory."""


def memory(root: Path = Path("/")) -> Memory:
    """The memory that this process may count on."""
    import psutil

    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    limit, used = cgroup_memory(root)
    if limit is None or limit >= total:
        limit = None
    else:
        total, available = limit, max(0, min(available, limit - used))
    process = int(psutil.Process().memory_info().rss)
    return Memory(total=total, available=available, process=process, limit=limit)


def on_device(info: Mapping[str, str | int], machine: int, held: int) -> int:
    """Bytes that arrays may take on a device that `mx.device_info` describes.

    CUDA says how much of its own memory is free beside what MLX has; Metal shares the machine's and
    says how much it may use; a processor says nothing.
    """
    if "free_memory" in info:
        return int(info["free_memory"]) + held
    return min(machine, int(info.get("max_recommended_working_set_size", machine)))


def cgroup_memory(root: Path = Path("/")) -> tuple[int | None, int]:
    """The lowest limit above this process and the bytes in use under it."""
    found: list[tuple[int, int]] = []
    for group in limits("memory", root):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = number(group / limit_file), number(group / used_file)
            if limit is not None and limit < UNLIMITED:
                found.append((limit, used or 0))
    return min(found, default=(None, 0))


def number(file: Path) -> int | None:
    """The whole number in a control file; None for `max` and for no such file."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
