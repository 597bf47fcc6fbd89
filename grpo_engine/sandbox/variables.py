"""Which variables of the environment a process of the sandbox gets.

The user's own functions, tools and environments keep theirs, for they may call services, but for
the keys of this program. Code of others gets a short list without secrets and a HOME of its own.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from grpo_engine.sandbox.descendants import MARK

# Keys of trackers, downloads and servers for training.
KEYS = frozenset(
    (
        *("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        *("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"),
        *("CLOUDFLARE_ACCESS_CLIENT_ID", "CLOUDFLARE_ACCESS_CLIENT_SECRET"),
    )
)
SHORT = re.compile(
    r"PATH|PYTHON\w+|LANG|LANGUAGE|LC_\w+|TZ|TERM|COLORTERM|NO_COLOR|TMPDIR|TEMP|TMP|SHELL|USER|"
    r"LOGNAME|(DY)?LD_LIBRARY_PATH|SSL_CERT_(FILE|DIR)|\w+_NUM_THREADS|(HF|TRANSFORMERS)_\w*OFFLINE|"
    rf"{MARK}"
)


def inherited(named: Collection[str], hidden: Collection[str]) -> dict[str, str]:
    """This process's variables, without keys and `hidden` ones that are not named."""
    without = {*KEYS, *hidden}.difference(named)
    return {name: value for name, value in os.environ.items() if name not in without}


def short(variables: Mapping[str, str], named: Collection[str], home: Path) -> dict[str, str]:
    """Those of the list, those that are named, and those that this process does not have itself.

    The caches of downloads stay where they are, without the token beside them.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - a home may be unknown
    hub = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    folders = {"HF_HUB_CACHE": f"{hub}/hub", "HF_DATASETS_CACHE": f"{hub}/datasets"}
    allowed = {
        name: value
        for name, value in variables.items()
        if name in {*named, *folders} or SHORT.fullmatch(name) or os.environ.get(name) != value
    }
    return {**folders, "UV_CACHE_DIR": f"{cache}/uv", "HOME": str(home), **allowed}
