"""The number of threads for matrix products: never more than the available cores.

OpenBLAS threads spin while they wait. One thread more than cores makes a product 10 to 60 times
slower, so the engines on a machine share its cores.
"""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from grpo_engine.platform.cgroup import limits
from grpo_engine.platform.private import temporary_folder
from grpo_engine.platform.scratch import locked_count, locked_folder

VARIABLES: Final = ("GRPO_TUI_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")

LAUNCHED: Final = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

ENGINE: Final = "engine"
_claims: list[tuple[Path, int]] = []  # a locked folder


def usable_processors() -> frozenset[int]:
    """The logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(processors: frozenset[int], root: Path = Path("/")) -> int:
    """Number of physical cores behind these logical processors; hyper-threads share one."""
    cores = set()
    for processor in processors:
        topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        try:
            package = (topology / "physical_package_id").read_text().strip()
            core = (topology / "core_id").read_text().strip()
        except OSError:
            return max(1, len(processors))
        cores.add((package, core))
    return max(1, len(cores))


def quota(root: Path = Path("/")) -> float:
    """CPU quota of the control groups, in processors; infinite without one."""
    lowest = math.inf
    for group in limits("cpu", root):
        try:
            if (group / "cpu.max").is_file():
                text, period = (group / "cpu.max").read_text().split()
            else:
                text = (group / "cpu.cfs_quota_us").read_text().strip()
                period = (group / "cpu.cfs_period_us").read_text().strip()
        except (OSError, ValueError):
            continue
        if text.isdigit() and int(period) > 0:  # not "max" and not -1
            lowest = min(lowest, int(text) / int(period))
    return lowest


def cores(root: Path = Path("/")) -> int:
    """Number of physical cores that this process can use at once."""
    physical = physical_cores(usable_processors(), root)
    return max(1, min(physical, math.floor(min(quota(root), 4096))))


def launched_rank(env: Mapping[str, str] = os.environ) -> int | None:
    """The rank that a launcher gave this process; None without a launcher."""
    for name in LAUNCHED:
        if env.get(name, "").isdigit():
            return int(env[name])
    return None


def hosts(env: Mapping[str, str] = os.environ) -> list[list[str]]:
    """The addresses of each rank, without ports, by the launcher's host file; empty if unknown."""
    with suppress(KeyError, OSError, ValueError, TypeError, AttributeError):
        ranks = json.loads(Path(env["MLX_HOSTFILE"]).read_text(encoding="utf-8"))
        return [[address.rpartition(":")[0] for address in rank] for rank in ranks]
    return []


def local_ranks(env: Mapping[str, str] = os.environ) -> int:
    """Number of ranks of a distributed run on this host."""
    if env.get("OMPI_COMM_WORLD_LOCAL_SIZE", "").isdigit():
        return max(1, int(env["OMPI_COMM_WORLD_LOCAL_SIZE"]))
    with suppress(KeyError, ValueError, IndexError):
        firsts = [addresses[0] for addresses in hosts(env)]
        return firsts.count(firsts[int(env["MLX_RANK"])])
    return 1


def claim_engine() -> None:
    """Register this process as an engine until it exits; a second call does nothing."""
    if not _claims and temporary_folder() is not None:
        with suppress(OSError):  # an engine without a claim counts only itself
            _claims.append(locked_folder(ENGINE))


def local_engines() -> int:
    """Number of engines on this host, including this process."""
    parent = temporary_folder()  # another one than at the claim, if a script has changed TMPDIR
    return locked_count(ENGINE) + (not any(folder.parent == parent for folder, _ in _claims))


def requested() -> int | None:
    """The upper bound that the user set in the environment."""
    for name in VARIABLES:
        if (text := os.environ.get(name, "")).isdigit() and int(text) > 0:
            return int(text)
    return None


def share() -> int:
    """Threads for this engine's matrix products: cores / engines, at most what the user set."""
    share = max(1, cores() // max(local_ranks(), local_engines()))
    return min(share, requested() or share)
