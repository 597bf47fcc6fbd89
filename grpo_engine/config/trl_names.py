"""The names of TRL's GRPOConfig, from `trl_names.toml`."""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

_TABLES = tomllib.loads(files(__package__).joinpath("trl_names.toml").read_text(encoding="utf-8"))
DEFAULTS: Final[Mapping[str, Any]] = {**_TABLES["defaults"], **dict.fromkeys(_TABLES["unset"])}
PLAIN, SCHEDULES, SAMPLING, REWARDS, UNLIKE = (
    dict[str, str](_TABLES[name])
    for name in ("plain", "schedules", "sampling", "rewards", "unlike")
)
# why a setting has no equivalent and needs none
UNNEEDED = {name: reason for reason, names in _TABLES["unneeded"].items() for name in names}
TRANSLATED: Final = frozenset({*DEFAULTS, *_TABLES["aliases"], *PLAIN})
NO_CAP: Final = 1e30  # larger than any possible weight; TRL's clip_max=None


def evaluated(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The means of an evaluation by TRL, by the names of this program."""
    names = {"eval_reward": "eval/reward", "eval_completions/mean_length": "eval/mean_length"}
    means = {names[name]: value for name, value in metrics.items() if name in names}
    functions = {
        f"eval/rewards/{match[1]}": value
        for name, value in metrics.items()
        if (match := re.fullmatch(r"eval_rewards/(.+)/mean", name))
    }
    return means | functions
