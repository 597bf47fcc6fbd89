"""The peers' environments, made once and reused."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from grpo_engine.platform import threads

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "grpo-tui" / "peers"

PACKAGES = {
    "trl": ["torch", "trl==1.16.0", "peft", "datasets"],
    "mlx-lm-lora": [
        "mlx-lm-lora==5.10.2",
        "mlx[cpu]==0.32.4",
        "scipy-openblas32",
        "platformdirs",
        "psutil",
    ],
}
"""mlx-lm-lora's second BLAS is installed but used only on request."""


def cores() -> int:
    """Return the number of cores that every tool may use for products."""
    return threads.cores()


def python_of(name: str, folder: Path) -> Path:
    """Return the interpreter of a peer's environment, creating the environment on first use.

    `GRPO_TUI_BENCH_TRL` and `GRPO_TUI_BENCH_MLX_LM_LORA` name existing environments.
    """
    value = os.environ.get("GRPO_TUI_BENCH_" + name.upper().replace("-", "_"))
    home = Path(value) if value else folder / name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done = home / ".filled"
    if value or done.is_file():
        return python
    venv.create(home, with_pip=True, clear=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True, stdout=sys.stderr
    )
    done.touch()
    return python
