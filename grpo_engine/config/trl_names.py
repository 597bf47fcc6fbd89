"""The names of TRL's GRPOConfig, from `trl_names.toml`."""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

_TABLES = tomllib.loads(files(__package__).joinpath("trl_names.toml").read_text(encoding="utf-8"))
DEFAULTS: Final[Mapping[str, Any]] = {**_TABLES["defaults"], **dict.fromkeys(_TABLES["unset"])}
PLAIN, SCHEDULES, SAMPLING, REWARDS, UNLIKE, UNNEEDED = (
    dict[str, str](_TABLES[name])
    for name in ("plain", "schedules", "sampling", "rewards", "unlike", "unneeded")
)
TRANSLATED: Final = frozenset({*DEFAULTS, *_TABLES["aliases"], *PLAIN})
NO_CAP: Final = 1e30  # larger than any possible weight; TRL's clip_max=None


def unneeded(name: str) -> str:
    """Why a setting of TRL has no equivalent and needs none; empty for any other name."""
    if name in TRANSLATED or name in UNLIKE:
        return ""
    return next((reason for reason, form in UNNEEDED.items() if re.fullmatch(form, name)), "")
