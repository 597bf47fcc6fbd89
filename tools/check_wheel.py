"""Build the wheel and use it in new environments, outside the source tree.

`python tools/check_wheel.py [--wheels FOLDER] [PYTHON...]`; without arguments on the oldest and the
newest Python here. FOLDER has wheels that are built; the one for this machine is used. Needs only
the standard library and writes, except for pip's cache, only to a temporary folder.
"""

import os
import platform
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLASSIFIER = "Programming Language :: Python :: "
USABLE = "import ctypes, sqlite3, ssl, venv, sys; print('%d.%d.%d' % sys.version_info[:3])"
EXTRA = "[cpu]" if sys.platform == "linux" else ""  # Apple silicon needs no extra
TRAIN = ("train", "--preset", "starter", "--steps", "2", "--set", "evaluation.before_and_after=no")
THEIRS = ("app.py", "experiments.py", "tests/__init__.py")  # a user's own, where the commands run
SCRIPT = """
import grpo_engine
run = grpo_engine.train(preset="starter", steps=1, evaluation={"before_and_after": False})
assert run.status == "completed", run.status
"""
HIDDEN = ("PYTHON", "PIP_REQUIRE", "VIRTUAL_ENV", "GRPO_TUI_", "XDG_")
LIMIT_S = 600.0  # for one command on a busy machine
CTRL_Q = b"\x11"


class CheckError(Exception):
    """The wheel does not do what it should."""


def main(pythons: Sequence[str]) -> int:
    """Check every given Python, by default the oldest and the newest installed one."""
    wheel = None
    if pythons[:1] == ["--wheels"]:
        wheel, pythons = ours(Path(pythons[1])), pythons[2:]
    chosen = {name: version_of(name) for name in pythons} if pythons else ends(installed())
    unusable = [name for name, version in chosen.items() if not version]
    if unusable or not chosen:
        say(f"no usable Python: {', '.join(unusable) or 'none of ' + ', '.join(supported())}")
        return 1
    say("Pythons: " + ", ".join(f"{version} ({name})" for name, version in chosen.items()))
    try:
        with tempfile.TemporaryDirectory(prefix="grpo-tui-wheel-") as place:
            for name, version in chosen.items():
                folder = Path(place) / version
                python = new_environment(name, folder)
                wheel = wheel or built(name, Path(place) / "wheel")
                check(wheel, python, version, folder)
    except CheckError as error:
        say(f"FAILED: {error}")
        return 1
    say(f"the wheel works on {' and '.join(chosen.values())}")
    return 0


def supported() -> list[str]:
    """Return the Python versions that the project supports, oldest first."""
    lines = (line.removeprefix(CLASSIFIER) for line in PROJECT["project"]["classifiers"])
    return [line for line in lines if line[0] == "3"]


def installed() -> dict[str, str]:
    """Return a usable interpreter for each supported Python, with its version; oldest first."""
    places = [Path(sys.base_prefix) / "bin", *map(Path, os.environ["PATH"].split(os.pathsep))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places += sorted(pyenv.glob("3.*/bin"))  # pyenv's shims work for one version only
    found: dict[str, str] = {}
    for number in supported():
        for place in places:
            path = str(place / f"python{number}")
            if os.access(path, os.X_OK) and (version := version_of(path)):
                found[path] = version
                break
    return found


def ends(found: dict[str, str]) -> dict[str, str]:
    """Return the first and the last."""
    names = list(found)
    return {name: found[name] for name in [*names[:1], *names[-1:]]}


def version_of(python: str) -> str:
    """Return the interpreter's version; empty if a standard module is missing."""
    try:
        done = subprocess.run(
            [python, "-c", USABLE], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def new_environment(python: str, folder: Path) -> Path:
    """Create a virtual environment in the folder and return its interpreter."""
    run([python, "-m", "venv", str(folder / "venv")], ROOT, clean())
    return folder / "venv" / "bin" / "python"


def built(name: str, folder: Path) -> Path:
    """Build the wheel of this source tree, and compare it with the wheel of the source archive."""
    python = new_environment(name, folder)
    wheel = wheel_of(ROOT, python, folder / "tree")
    pip(python, "install", *PROJECT["build-system"]["requires"])
    run([str(python), "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], ROOT, clean())
    (archive,) = folder.glob("*.tar.gz")
    again = wheel_of(archive, python, folder / "archive")
    if wheel.read_bytes() != again.read_bytes():
        raise CheckError(f"the wheel of {archive.name} differs from that of the source tree")
    check_kernels(wheel)
    say(f"built {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, also from {archive.name}")
    return wheel


def ours(folder: Path) -> Path:
    """The wheel for this machine among those of a folder: with kernels, or for any machine."""
    kernels = sys.platform == "linux" and platform.machine() == "x86_64"
    (wheel,) = folder.glob("*-manylinux_*_x86_64.whl" if kernels else "*-none-any.whl")
    return wheel.resolve()


def check_kernels(wheel: Path) -> None:
    """Check that the tag and the content agree on whether the kernels are compiled."""
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".so")}
    here = (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and any(map(which, ("cc", "gcc", "clang")))
    )
    expected = {f"grpo_engine/cpu/kernels-{name}.so" for name in ("avx2", "avx512")}
    if names != (expected if here else set()):
        raise CheckError(f"{wheel.name} has {', '.join(sorted(names)) or 'no compiled kernels'}")
    tag = r"-py3-none-manylinux_2_\d+_x86_64\.whl$" if here else r"-py3-none-any\.whl$"
    if not re.search(tag, wheel.name):
        raise CheckError(f"{wheel.name} has not the tag of what is in it")


def wheel_of(source: Path, python: Path, folder: Path) -> Path:
    """Build a wheel from a source tree or archive."""
    pip(python, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(wheel: Path, python: Path, version: str, folder: Path) -> None:
    """Install the wheel, then run doctor, train and the demo."""
    begun = time.monotonic()
    pip(python, "install", "-c", str(ROOT / "constraints.txt"), f"{wheel}{EXTRA}")
    say(f"Python {version}: installed in {time.monotonic() - begun:.0f} s")
    work, command = folder / "work", str(python.parent / "grpo-tui")
    (work / "tests").mkdir(parents=True)
    for name in THEIRS:
        (work / name).write_text("raise SystemExit(f'{__name__} is not a module of the program')\n")
    env = clean() | home(folder / "home") | {"PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"}
    for title, words in {
        "doctor": [command, "doctor"],
        "train": [command, *TRAIN],
        "train from Python": [str(python), "-c", SCRIPT],
        "runs": [str(python), "-m", "grpo_tui", "runs"],
    }.items():
        begun = time.monotonic()
        run(words, work, env)
        say(f"Python {version}: {title}: {time.monotonic() - begun:.0f} s")
    begun = time.monotonic()
    play([command, "demo", "--speed", "1000"], work, env)
    say(f"Python {version}: demo, in a terminal: {time.monotonic() - begun:.0f} s")
    if left := sorted({path.name for path in work.iterdir()} - {"tests", *THEIRS}):
        raise CheckError(f"files were left where the commands ran: {', '.join(left)}")


def home(folder: Path) -> dict[str, str]:
    """Return environment variables of a new user whose files all go into the folder."""
    for name in ("tmp", "data", "config", "state", "cache"):
        (folder / name).mkdir(parents=True)
    return {
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        **{
            f"XDG_{name.upper()}_HOME": str(folder / name)
            for name in ("data", "config", "state", "cache")
        },
    }


def clean() -> dict[str, str]:
    """Return the environment without variables that lead to this tree or another environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}


def pip(python: Path, *words: str) -> None:
    """Run pip in an environment, with the user's settings and cache."""
    run(
        [str(python), "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]],
        ROOT,
        dict(os.environ) | {"PYTHONPATH": ""},
    )


def run(command: Sequence[str], folder: Path, env: dict[str, str]) -> None:
    """Run a command; show its output if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            check=False,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"{' '.join(command)}: no end after {LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        raise CheckError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")


def play(command: Sequence[str], folder: Path, env: dict[str, str]) -> None:
    """Play the recording to its end in a terminal, then quit by keyboard."""
    with in_terminal(command, folder, env | {"TERM": "xterm-256color"}) as (process, terminal):
        for sign, key in ((b"run completed at step", CTRL_Q), (b"Leave the workbench?", b"y")):
            shown = read_until(terminal, sign, process)
            if sign not in shown:
                said = shown.decode("utf-8", "replace")[-20_000:]
                raise CheckError(f"{' '.join(command)} does not show {sign.decode()!r}\n{said}")
            os.write(terminal, key)
        read_until(terminal, b"", process)
        if status := process.wait(LIMIT_S):
            raise CheckError(f"{' '.join(command)}: exit status {status}")


@contextmanager
def in_terminal(
    command: Sequence[str], folder: Path, env: dict[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Start the command in its own terminal and return the terminal's other end."""
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (40, 120))
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    try:
        yield process, terminal
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(terminal)


def read_until(terminal: int, sign: bytes, process: "subprocess.Popen[bytes]") -> bytes:
    """Return the output up to the mark; without one, or if it never appears, all of it."""
    shown, end = b"", time.monotonic() + LIMIT_S
    while not (sign and sign in shown) and time.monotonic() < end:
        if not select.select([terminal], [], [], 0.5)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:  # on Linux this means that the other end is closed
            break
        if not part:
            break
        shown += part
    return shown


def say(line: str) -> None:
    """Print one line of progress."""
    print(f"check_wheel: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
