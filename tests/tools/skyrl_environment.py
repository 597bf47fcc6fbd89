"""Makes the environment of SkyRL's server: python -m tests.tools.skyrl_environment

It is made in ~/.cache/grpo-tui/skyrl, or in the folder that is given; its interpreter is printed.
It takes 7 GB, most of it PyTorch for NVIDIA GPUs, which SkyRL imports and its JAX back end does not
use. SkyRL needs Python 3.12 or later, so a `python3.12` or a later one must be on the path.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path.home() / ".cache" / "grpo-tui" / "skyrl"
# `uv` is what SkyRL starts its second process with, and aiohttp what it forgets to ask for.
PACKAGES = ["skyrl[tinker,jax]==0.4.0", "aiohttp", "uv"]
PYTHONS = ["python3.12", "python3.13", "python3.14"]


def make(home: Path) -> Path:
    """The interpreter of the environment, which is made where it is not complete."""
    python, done = home / "bin" / "python", home / ".filled"
    if not done.is_file():
        base = next((path for name in PYTHONS if (path := _runs(name))), None)
        if base is None:
            raise SystemExit(f"SkyRL needs one of {', '.join(PYTHONS)} on the path.")
        subprocess.run([base, "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        done.touch()
    return python


def _runs(name: str) -> str | None:
    """The path of an interpreter that starts: the name may be a shim of a version manager."""
    path = shutil.which(name)
    works = path and subprocess.run([path, "-c", ""], capture_output=True, check=False)
    return path if works and works.returncode == 0 else None


if __name__ == "__main__":
    print(make(Path(sys.argv[1]) if sys.argv[1:] else HOME))
