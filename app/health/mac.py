"""A Mac's chip, the memory that its GPU may use, its power and its display."""

import re
import subprocess
import sys

from rich.filesize import decimal

from grpo_tui.app.health.checks import Check

LIMIT_S = 5.0
LOW_BATTERY = 20  # percent


def output_of(*command: str) -> str:
    """What a program of the system prints; empty if it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def chip() -> str:
    """The chip's name, such as Apple M4 Pro."""
    return output_of("sysctl", "-n", "machdep.cpu.brand_string")


def checks() -> list[Check]:
    """Power and display of a Mac; nothing elsewhere."""
    return [power(), display()] if sys.platform == "darwin" else []


def gpu_memory() -> list[Check]:
    """How much of a Mac's memory Metal may use, and what a user has set as its limit."""
    if sys.platform != "darwin":
        return []
    import mlx.core as mx

    usable = int(mx.device_info().get("max_recommended_working_set_size", 0))
    text = f"{decimal(usable)} may be used" if usable else "MLX does not say how much may be used"
    limit = output_of("sysctl", "-n", "iogpu.wired_limit_mb")
    if limit.isdigit() and int(limit):
        text += f", iogpu.wired_limit_mb is set to {limit}"
    return [Check("GPU memory", text)]


def power() -> Check:
    """Whether it runs on its battery."""
    import psutil

    battery = psutil.sensors_battery()
    if battery is None:
        return Check("power", "mains")
    text = f"{'mains' if battery.power_plugged else 'battery'}, {battery.percent:.0f}% charged"
    is_low = not battery.power_plugged and battery.percent < LOW_BATTERY
    return Check("power", text, "Connect the charger before a long run." * is_low)


def display() -> Check:
    """When the display sleeps: macOS ends long work of the GPU almost only while it is on."""
    minutes = re.search(r"^\s*displaysleep\s+(\d+)", output_of("pmset", "-g"), re.MULTILINE)
    if minutes is None:
        return Check("display", "unknown when it sleeps")
    if int(minutes[1]):
        return Check("display", f"sleeps after {minutes[1]} min")
    remedy = (
        "macOS may end long work of the GPU while the display is on; let it sleep during a run: "
        "pmset displaysleepnow"
    )
    return Check("display", "never sleeps", remedy)
