"""Rows of data sets on the Hugging Face hub or in its local cache."""

import os
import socket
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, MissingPackageError, NotFetchedError
from grpo_engine.tasks.rows import HELD_OUT, DataRow


def hub_splits(config: TaskConfig, name: str, count: int | None = None) -> dict[str, list[DataRow]]:
    """The rows, or the first ones, of the splits that are used; `org/name:subset` is a subset."""
    repository, _, subset = name.partition(":")
    setting = "task.name" if config.name == name else "task.options.path"
    remedy = (
        f"fetch it where there is a network (`hf download --repo-type dataset {repository} "
        f"--local-dir FOLDER`) and set {setting} to FOLDER, or use a task that needs none: "
        "arithmetic, countdown, reasoning-gym:gsm_symbolic"
    )
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            f"there is no file or folder {name!r}, and data sets of the hub need the package "
            f"datasets; `pip install 'grpo-tui[hub]'`, or {remedy}"
        ) from error
    _use_cache_without_network()
    try:
        loaded: Any = datasets.load_dataset(repository, subset or None)
    except Exception as error:  # The package's errors have no common base class.
        reason = " ".join(str(error).split())[:300]
        if "config name is missing" in str(error).lower() or "pick one among" in str(error).lower():
            raise DataError(
                f"data set {repository} has subsets: {reason}; set task.name to {repository}:SUBSET"
            ) from error
        raise NotFetchedError(
            f"data set {name} is neither on the hub nor in the cache ({reason}); {remedy}"
        ) from error
    used = {config.option("train"), config.option("held_out"), *HELD_OUT}
    return {
        split: [
            DataRow(row, f"{name}: {split} row {number}")
            for number, row in enumerate(islice(part, count), 1)
        ]
        for split, part in loaded.items()
        if split in used
    }


def _use_cache_without_network() -> None:
    """Use only the cache if the hub is unreachable, to avoid half a minute of retries.

    Behind a proxy there is no check, because the hub's name may not resolve here.
    """
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return
    try:
        from datasets import config
        from huggingface_hub import constants
    except ImportError:
        return
    address = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), 5).close()
    except OSError:
        config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
