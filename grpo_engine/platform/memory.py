"""How much memory there is: the machine's, or a container's lower limit."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_engine.platform.cgroup import limits

UNLIMITED = 1 << 60  # version 1 writes "no limit" as a huge number


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes in total, available, and held by this process."""

    total: int
    available: int
    process: int
    limit: int | None
    """A control group's limit, if it is lower than the machine's memory."""


def memory(root: Path = Path("/")) -> Memory:
    """The memory available to this process."""
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
    """Bytes that arrays may take on a device, from its `mx.device_info`.

    CUDA reports how much of its own memory is free beside what MLX holds. Metal shares the
    machine's memory and reports how much it may use. A CPU reports nothing.
    """
    if "free_memory" in info:
        return int(info["free_memory"]) + held
    return min(machine, int(info.get("max_recommended_working_set_size", machine)))


def cgroup_memory(root: Path = Path("/")) -> tuple[int | None, int]:
    """The lowest limit that applies to this process, and the bytes in use under it."""
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
    """The integer in a control file; None for `max` or a missing file."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
