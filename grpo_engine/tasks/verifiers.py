"""`verifiers:<package>`: the data of an environment for verifiers 0.1, with that environment.

`task.options` are the arguments of its `load_environment`; `task.interpreter` is the Python that
has the package.
"""

import json
import subprocess
from dataclasses import replace
from typing import Any, Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.platform.interpreter import command
from grpo_engine.platform.scratch import scratch
from grpo_engine.tasks.base import Task
from grpo_engine.tasks.files import task_of_splits
from grpo_engine.tasks.rows import BadRows, Row

CODE: Final = (
    "import sys; from grpo_engine.environments.worker.verifiers import write_rows; "
    "write_rows(*sys.argv[1:])"
)
LIMIT_S: Final = 600.0  # a package may download its data


def build(config: TaskConfig) -> Task:
    """Build the task of a package; its own process loads it."""
    bad = BadRows(skip=config.bad_rows == "skip")
    splits = {
        split: [Row(row, f"{config.name} ({split}), row {at + 1}") for at, row in enumerate(rows)]
        for split, rows in _splits(config).items()
    }
    if "train" not in splits:
        splits = {"train": splits["eval"]}
    if "eval" in splits and not config.held_out_split:
        config = config.model_copy(update={"held_out_split": "eval"})
    task = task_of_splits(config, splits, config.name, bad)
    return replace(task, environment=config.name, default_rewards=(), accuracy="")


def _splits(config: TaskConfig) -> dict[str, list[dict[str, Any]]]:
    with scratch("verifiers") as folder:
        file = folder / "rows.json"
        words = [config.name, json.dumps(dict(config.options)), str(file)]
        wanted = command(CODE, *words, interpreter=config.interpreter)
        try:
            done = subprocess.run(
                wanted, check=False, capture_output=True, text=True, errors="replace",
                stdin=subprocess.DEVNULL, timeout=LIMIT_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"{config.name}: {error}", "task.interpreter") from error
        if not file.is_file():
            said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise DataError(
                f"{config.name}: {wanted[0]} ended with status {done.returncode}: {said}",
                "task.interpreter",
            )
        found = json.loads(file.read_text(encoding="utf-8"))
    if "error" in found:
        raise DataError(found["error"], "task.name", "task.interpreter")
    return dict(found["splits"])
