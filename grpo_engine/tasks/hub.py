"""Data sets of the Hugging Face hub, or of its cache on this machine, as rows."""

from typing import Any

from grpo_engine.config import TaskConfig
from grpo_engine.errors import DataError, MissingPackageError
from grpo_engine.tasks.rows import Row


def hub_splits(config: TaskConfig, name: str) -> dict[str, list[Row]]:
    """The rows of the splits that the task uses; `org/name:subset` names a subset."""
    repository, _, subset = name.partition(":")
    remedy = (
        f"fetch it where there is a network (`hf download --repo-type dataset {repository} "
        "--local-dir FOLDER`) and set task.name to FOLDER, or use a task that needs none: "
        "arithmetic, countdown, reasoning-gym:gsm_symbolic"
    )
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            f"there is no file or folder {name!r}, and data sets of the hub need the package "
            f"datasets; `pip install 'grpo-tui[hub]'`, or {remedy}"
        ) from error
    try:
        loaded: Any = datasets.load_dataset(repository, subset or None)
    except Exception as error:  # the package's errors have no common base
        said = " ".join(str(error).split())[:300]
        if "config name is missing" in str(error).lower() or "pick one among" in str(error).lower():
            raise DataError(
                f"data set {repository} has subsets: {said}; set task.name to {repository}:SUBSET"
            ) from error
        raise DataError(
            f"data set {name} is neither on the hub nor in the cache ({said}); {remedy}"
        ) from error
    wanted = {config.split, config.held_out_split}
    return {
        split: [Row(row, f"{name}: {split} row {number}") for number, row in enumerate(part, 1)]
        for split, part in loaded.items()
        if split in wanted or split in ("valid", "validation", "test", "dev", "eval")
    }
