"""The same settings trained by this program and by TRL, three seeds each, and Compare's picture.

    python -m tests.tools.trl_compared ENV/bin/python FOLDER docs/images/two-trainers.svg

ENV is the environment of `tests.tools.trl_environment`. FOLDER gets the store, the settings and
the scripts that `grpo-tui config export` writes of them; what is in its store already is kept.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from docs.screens import Shot, shoot
from grpo_tui.app.tui.looks.colours import DARK
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.reader import StoreReader

SEEDS = (1, 2, 3)
SIZE = (120, 36)
SETTINGS = """\
steps: 40
rewards: {functions: [numeric_answer, format_all], weights: [1.0, 2.0]}
rollout: {prompts: 8, max_new_tokens: 48}
algorithm: {recipe: grpo}
optimizer: {learning_rate: 7.0e-4, micro_rows: 32}
evaluation: {problems: 128, every: 20, greedy: false}
checkpoint: {every: 0}
"""


def has(store: Path, name: str) -> bool:
    try:
        with StoreReader(store) as reader:
            return reader.resolve(name).status == "completed"
    except StoreError:
        return False


def main(python: Path, folder: Path, picture: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings, store = folder / "settings.yaml", folder / "s.db"
    settings.write_text(SETTINGS)
    env = os.environ | {"GRPO_TUI_DB": str(store), "PYTHONPATH": str(Path.cwd())}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

    def run(*words: object) -> None:
        subprocess.run([*map(str, words)], cwd=folder, env=env, check=True)

    program = (sys.executable, "-m", "grpo_tui")
    for seed in SEEDS:
        for trainer in ("grpo-tui", "trl"):
            name = f"{trainer}-{seed}"
            if has(store, name):
                continue
            of_run = ("--set", f"seed={seed}", "--set", f"name={name}")
            if trainer == "trl":
                run(*program, "config", "export", settings, f"{name}.py", *of_run, "--force")
                run(python, f"{name}.py")
            else:
                run(*program, "train", settings, *of_run)
    run(*program, "compare", *(f"{t}-{s}" for t in ("grpo-tui", "trl") for s in SEEDS))
    marked = ("home", *("space", "down") * (2 * len(SEEDS)), "d")
    shot = Shot("runs", "several", marked, ("TRL (3 seeds)", "points"))
    picture.write_text(asyncio.run(shoot(shot, store, SIZE, DARK))[0], encoding="utf-8")


if __name__ == "__main__":
    main(*(Path(word).absolute() for word in sys.argv[1:]))
