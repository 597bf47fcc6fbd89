"""The same run on other processors: the program and its children under emulation.

A child of an emulated Python would run on the real processor. The interpreter's name is therefore a
script that starts the emulator, and every child is started by that name. `GRPO_TUI_ARM64_PYTHON`
names such a script for aarch64, whose Python has the program's dependencies; qemu reads the
processor from `QEMU_CPU`.
"""

import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPUS = {
    "x86_64": ("Nehalem", "SandyBridge", "Haswell", "EPYC"),
    "aarch64": ("cortex-a72", "neoverse-n1"),
}
HERE = platform.machine()
EMULATOR = shutil.which(f"qemu-{HERE}")
ARM64 = os.environ.get("GRPO_TUI_ARM64_PYTHON", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="user-mode emulation is of Linux"),
]

REWARD = """
from pathlib import Path
from grpo_engine.cpu import processor

def where_it_runs(completions, **columns):
    Path(__file__).with_name("worker").write_text(processor.identity())
    return [0.1 * len(text) for text in completions]
"""

PROGRAM = """
import json, os, sys
from pathlib import Path
from grpo_engine.cpu import blas, blas_check, processor
from grpo_engine.platform import speed
import mlx.core as mx
used = blas.ensure()
Path(sys.argv[1]).write_text(json.dumps({
    "processor": processor.identity(),
    "extensions": processor.extensions(),
    "library": Path(used.library).name, "kernel": used.kernel, "skipped": used.skipped,
    "compiled": used.compiled,
    "wrong": list(blas_check.mistakes()),
    "gflops": speed.measure(speed.SKINNY, 0.01).gflops,
}))
from grpo_tui.app.cli.main import main
sys.exit(main(["train", "--preset", "starter", *sys.argv[2:], "--json"]))
"""


INHERITED = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
"""A kernel that was chosen for this processor may crash on the others."""
ATTEMPTS, LIMIT_S, KILLED = 3, 400, 128 + signal.SIGKILL
"""The emulator itself may hang where a process with threads forks: then it is tried again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The output of a run on one processor."""

    about: dict[str, Any]
    worker: str
    tokens: list[list[int]]
    metrics: list[dict[str, float]]


def run(python: str, folder: Path, cpu: str = "", **environment: str) -> Seen:
    """Matrix products and two steps of the starter, with an empty home folder."""
    folder.mkdir()
    (folder / "reward.py").write_text(REWARD)
    small = {
        "rollout.prompts": 2,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 24,
        "evaluation.before_and_after": "false",
        "evaluation.pinned": 0,
        "rewards.functions": f"numeric_answer,{folder / 'reward.py'}:where_it_runs",
    }
    settings = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **INHERITED,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONPATH": os.pathsep.join(paths),
        "GRPO_TUI_DB": str(folder / "store.db"),
        "OPENBLAS_NUM_THREADS": "1",
        **environment,
    }
    if cpu:
        environment["QEMU_CPU"] = cpu
    command = [python, "-P", "-c", PROGRAM, str(folder / "about"), "--steps", "2", *settings]
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            ["timeout", "-s", "KILL", str(LIMIT_S), *command],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if not cpu or done.returncode != KILLED:
            break
    assert done.returncode == 0, done.stderr[-3000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    scored = [event["group"] for event in events if event["event"] == "GroupScored"]
    return Seen(
        about=json.loads((folder / "about").read_text()),
        worker=(folder / "worker").read_text(),
        tokens=[answer["ids"] for group in scored for answer in group["completions"]],
        metrics=[event["metrics"] for event in events if event["event"] == "StepFinished"],
    )


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return run(sys.executable, tmp_path_factory.mktemp("real") / "home")


def emulated(folder: Path) -> str:
    """A copy of this environment whose interpreter is the emulated one."""
    place = folder / "python"
    (place / "bin").mkdir(parents=True)
    (place / "lib").symlink_to(Path(sys.prefix) / "lib")
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", place)
    script, python = place / "bin" / "python", Path(sys.executable).resolve()
    words = [str(EMULATOR), "-0", str(script), str(python)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
    return str(script)


def agrees(found: Seen, real: Seen) -> None:
    """Every process ran on the right processor, with a fast library, and gave the same numbers."""
    assert found.worker == found.about["processor"]
    assert found.about["processor"] != real.about["processor"] or HERE == "aarch64"
    assert found.about["library"].startswith("libscipy_openblas")
    assert (found.about["skipped"], found.about["wrong"]) == ([], [])
    same = [a == b for a, b in zip(found.tokens, real.tokens, strict=True)]
    # A probability that differs in its last digits may occasionally choose another token.
    assert sum(same) >= 0.75 * len(same)
    if all(same):
        for name in ("loss", "grad_norm", "kl", "entropy", "reward", "kl_to_old"):
            for ours, theirs in zip(found.metrics, real.metrics, strict=True):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    for metrics in found.metrics:
        assert metrics["sampling/sampling_logp_difference/max"] < 1e-4


@pytest.mark.skipif(EMULATOR is None, reason=f"qemu-{HERE} is missing: install qemu-user")
@pytest.mark.parametrize("cpu", CPUS.get(HERE, ()))
def test_a_run_on_another_processor_gives_the_same_numbers(
    cpu: str, real: Seen, tmp_path: Path
) -> None:
    found = run(emulated(tmp_path), tmp_path / "home", cpu)
    agrees(found, real)
    if cpu == "Nehalem":
        assert found.about["extensions"] == ["SSE4.2"]
    if HERE == "x86_64":  # this processor has AVX2, as those of Haswell and EPYC
        assert found.about["compiled"] == (real.about["compiled"] and cpu in ("Haswell", "EPYC"))


@pytest.mark.skipif(EMULATOR is None, reason=f"qemu-{HERE} is missing: install qemu-user")
@pytest.mark.parametrize("cpu", CPUS.get(HERE, ()))
def test_products_are_right_where_the_check_runs_on_the_real_processor(
    cpu: str, tmp_path: Path
) -> None:
    code = (
        "import grpo_engine, mlx.core\nfrom grpo_engine.cpu import blas, blas_check\n"
        "print(blas.ensure().loaded, *blas_check.mistakes())"
    )
    done = subprocess.run(
        [str(EMULATOR), "-0", sys.executable, str(Path(sys.executable).resolve()), "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**INHERITED, "QEMU_CPU": cpu, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-3000:]


@pytest.mark.skipif(not ARM64, reason="GRPO_TUI_ARM64_PYTHON names no emulated Python for aarch64")
@pytest.mark.parametrize("cpu", CPUS["aarch64"])
def test_a_run_on_aarch64_gives_the_same_numbers(cpu: str, real: Seen, tmp_path: Path) -> None:
    # MLX would ask this machine's compiler for code that runs on the other processor.
    found = run(ARM64, tmp_path / "home", cpu, PATH=str(tmp_path))
    agrees(found, real)
    assert found.about["processor"].startswith("aarch64-")
