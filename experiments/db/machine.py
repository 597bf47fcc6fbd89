"""Identify this host and process, and tell whether another process on it is still alive."""

import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def host_name() -> str:
    """Return the host name; on Linux with the pid namespace, since a pid is valid only in it."""
    try:
        space = os.readlink("/proc/self/ns/pid").strip("pid:[]")  # noqa: PTH115 - not a path
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{space}"


@cache
def boot_id() -> str:
    """Return an id that changes when the machine reboots; empty if it has none."""
    if sys.platform == "darwin":
        return subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """Return the process's start time as comparable text; empty if there is no such process."""
    if sys.platform.startswith("linux"):
        try:
            # Field 2 is a name that may contain spaces and brackets: count from its last bracket.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in ("Z", "X") else fields[19]
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return f"{process.create_time():.2f}"
    except psutil.Error:
        return ""


def may_live(host: str, pid: int, start: str) -> bool:
    """Return whether a process may be running; one on another host cannot be checked."""
    return host != host_name() or is_alive(pid, start)


def is_alive(pid: int, start: str) -> bool:
    """Return whether the process with this pid and start time is still running."""
    return process_start(pid) == start != ""


_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
)


def network_file_system(path: Path) -> str:
    """Return the kind of network file system that holds `path`; empty if local or unknown."""
    import psutil

    mounts = psutil.disk_partitions(all=True)
    parents = [mount for mount in mounts if path.resolve().is_relative_to(mount.mountpoint)]
    fstype = max(parents, key=lambda mount: len(mount.mountpoint)).fstype if parents else ""
    return fstype if fstype in _NETWORK else ""
