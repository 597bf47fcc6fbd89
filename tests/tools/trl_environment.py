"""Makes the environment in which TRL trains for `trl_runs`: python -m tests.tools.trl_environment

It is made in ~/.cache/grpo-tui/trl, or in the folder that is given; its interpreter is printed.
"""

import subprocess
import sys
import venv
from pathlib import Path

HOME = Path.home() / ".cache" / "grpo-tui" / "trl"
TRAINS = ["torch==2.13.0", "trl==1.16.0", "peft", "datasets", "accelerate"]
TASKS = ["reasoning-gym"]  # whose text one of the tasks reads
# What recording needs of this program's dependencies; MLX is none of it.
RECORDS = ["sqlmodel", "platformdirs", "psutil", "pydantic", "pyyaml", "numpy"]


def make(home: Path) -> Path:
    """The interpreter of the environment, which is made where it is not complete."""
    python, done = home / "bin" / "python", home / ".filled"
    packages = [*TRAINS, *TASKS, *RECORDS]
    if not done.is_file() or done.read_text(encoding="utf-8").split() != packages:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.write_text("\n".join(packages), encoding="utf-8")
    return python


if __name__ == "__main__":
    print(make(Path(sys.argv[1]) if sys.argv[1:] else HOME))
