"""Create `.venv`: the right MLX for this machine, this project editable, and tools for tests.

Needs only the standard library. `tools/setup` finds a Python to run it with, and skips it if
nothing has changed.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TEST_EXTRAS = ("tasks", "parquet", "mcp", "remote")
GIB = 1 << 30
NEEDED = {"cuda12": 7 * GIB, "cuda13": 7 * GIB}
NEEDED_OTHERWISE = 3 * GIB // 2
MACOS = 14
GLIBC = (2, 35)  # MLX's wheels need at least this
OFTEN_LOADED = (
    "grpo_tui.app",
    "grpo_tui.experiments",
    "grpo_engine",
    "textual",
    "rich",
    "typer",
    "pydantic",
    "sqlalchemy",
    "sqlmodel",
    "mlx_lm",
)
COMPILE = """
import compileall, sys
from importlib.util import find_spec
for spec in filter(None, map(find_spec, sys.argv[1:])):
    for folder in spec.submodule_search_locations or ():
        compileall.compile_dir(folder, quiet=2, workers=0)
"""
NO_SPACE = ("no space left", "disk quota exceeded")
NO_NETWORK = (
    "name or service not known",
    "temporary failure in name resolution",
    "nodename nor servname",
    "dns error",
    "failed to establish a new connection",
    "network is unreachable",
    "connection refused",
    "connection reset",
    "timed out",
    "error sending request",
    "proxyerror",
)


def say(line: str) -> None:
    """Print one line for people to stderr."""
    print(f"grpo-tui: {line}", file=sys.stderr, flush=True)


def fail(line: str) -> NoReturn:
    """Print what is missing and exit."""
    say(line)
    raise SystemExit(1)


def backend() -> str | None:
    """Return the extra whose MLX fits this machine; None on Apple silicon, which needs none."""
    if chosen := os.environ.get("GRPO_TUI_EXTRA"):
        return chosen
    if sys.platform == "darwin":
        if platform.machine() != "arm64":
            fail(f"MLX needs Apple silicon on macOS; this Python runs on {platform.machine()}")
        if int(platform.mac_ver()[0].split(".")[0]) < MACOS:
            fail(f"MLX needs macOS {MACOS} or later; this is {platform.mac_ver()[0]}")
        return None
    if sys.platform != "linux":
        fail(f"MLX runs on macOS and Linux; this is {sys.platform}")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < GLIBC:
        fail(f"MLX needs glibc 2.35 or later; this system has {libc or 'another libc'} {version}")
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout.split()
        driver = int(asked[0].split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return "cpu"
    # The oldest driver branches for CUDA 13 and CUDA 12.
    return "cuda13" if driver >= 580 else "cuda12" if driver >= 525 else "cpu"


def check_space(extra: str | None) -> None:
    """Fail before a download for which the disk has no room."""
    needed = NEEDED.get(extra or "", NEEDED_OTHERWISE)
    free = shutil.disk_usage(ROOT).free
    if free < needed and not PYTHON.exists():
        fail(
            f"{needed / GIB:.1f} GiB of disk space are needed under {ROOT}, "
            f"{free / GIB:.1f} are free; free some"
        )


def requirements(kind: str, extra: str | None) -> list[str]:
    """Return what to install: the project with its extras and, for tests, the dev group."""
    extras = [extra] if extra else []
    tools: list[str] = []
    if kind == "dev":
        extras += TEST_EXTRAS
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        tools = project["dependency-groups"]["dev"]
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    return ["-c", str(ROOT / "constraints.txt"), *tools, "-e", target]


def environment_exists() -> bool:
    """Return whether `.venv` works and has a Python that this project supports."""
    check = "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", check], check=False).returncode == 0


def make_environment(uv: str | None) -> None:
    """Create `.venv`, with uv if it is installed."""
    if environment_exists():
        return
    shutil.rmtree(VENV, ignore_errors=True)
    if uv:
        command = [uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(VENV)]
    else:
        command = [sys.executable, "-m", "venv", str(VENV)]
    run(command, f"{sys.executable} could not make .venv (Debian: apt install python3-venv)")


def install(uv: str | None, wanted: list[str]) -> None:
    """Install, with uv if it is installed; fall back to pip if uv fails."""
    quiet = [] if sys.stderr.isatty() else ["--no-progress"]
    if uv:
        command = [uv, "pip", "install", *quiet, "--python", str(PYTHON)]
        command += ["--reinstall-package", "grpo-tui", *wanted]  # its C may be stale
        if subprocess.run(command, stdout=sys.stderr, env=clean(), check=False).returncode == 0:
            return
        say("uv did not manage it; trying pip")
    has_pip = subprocess.run([PYTHON, "-c", "import pip"], capture_output=True, check=False)
    if has_pip.returncode:
        run([str(PYTHON), "-m", "ensurepip"], "pip is missing (Debian: apt install python3-venv)")
    command = [str(PYTHON), "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
    command += wanted
    run(command, "the packages could not be installed")


def compile_ahead() -> None:
    """Compile what a start imports, on all cores; some environments forbid it at run time."""
    command = [str(PYTHON), "-P", "-c", COMPILE, *OFTEN_LOADED]
    subprocess.run(command, stdout=subprocess.DEVNULL, env=clean(), check=False)


def clean() -> dict[str, str]:
    """Return the environment without variables that point to another environment."""
    hidden = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "PIP_REQUIRE_VIRTUALENV"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def run(command: list[str], failure: str) -> None:
    """Run with visible progress; repeat a failed command once to capture its error."""
    if subprocess.run(command, stdout=sys.stderr, env=clean(), check=False).returncode == 0:
        return
    env = clean() | {"PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "15"}
    again = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if again.returncode == 0:
        return
    words = (again.stdout + again.stderr).lower()
    if any(sign in words for sign in NO_SPACE):
        fail(f"the disk is full under {ROOT}; free some space and start again")
    if any(sign in words for sign in NO_NETWORK):
        fail("the package index cannot be reached; check the network and start again")
    lines = [line for line in again.stderr.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else f"exit status {again.returncode}"
    fail(f"{failure}: {last}")


def set_up(kind: str) -> None:
    """Make `.venv` suit `kind` and record that it does."""
    key = os.environ.get("GRPO_TUI_KEY", "")
    stamp = VENV / f"ready-{kind}"
    if stamp.is_file() and stamp.read_text().splitlines()[:1] == [key]:
        return  # another process did it in the meantime
    extra = backend()
    check_space(extra)
    uv = shutil.which("uv")
    if uv and subprocess.run([uv, "--version"], capture_output=True, check=False).returncode:
        uv = None  # a shim without a program behind it
    tool = "uv" if uv else "pip"
    say(
        f"setting up .venv, once, in minutes: Python {platform.python_version()}, "
        f"MLX for {extra or 'Apple silicon'}, with {tool}"
    )
    make_environment(uv)
    for old in VENV.glob("ready-*"):
        old.unlink()
    install(uv, requirements(kind, extra))
    compile_ahead()
    stamp.write_text(f"{key}\n{extra or 'metal'}\n")
    say("set up")


def main() -> None:
    """Set up under a lock: a second start waits for the first."""
    kind = sys.argv[1]
    if kind not in {"run", "dev"}:
        fail(f"tools/setup takes run or dev, got {kind!r}")
    try:
        with (ROOT / ".venv.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("another set-up is at work here; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            set_up(kind)
    except PermissionError as error:
        fail(f"{error.filename} cannot be written; put the working tree where you may write")
    except OSError as error:
        fail(f"{error.strerror}: {error.filename or ROOT}")
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
