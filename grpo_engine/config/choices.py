"""What the values of two choices, signal and trust, do; the maths is in `grpo_engine.maths`.

Code that depends on a choice asks its declaration here and not for its name, so that a new value
is declared once, in `choices.toml`. Words and formulas are in `app/text/recipe_meanings.toml`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRule:
    """Where an advantage comes from."""

    reads_rewards: bool = True
    compares: Literal["", "completions", "steps"] = ""  # within a group
    per_token: bool = False
    has_critic: bool = False
    demonstrates: bool = False  # completions are the data's, neither sampled nor scored


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRule:
    """What limits the push on a token; by default nothing does, and the objective is r·A."""

    stops_at: Literal["", "bounds", "targets"] = ""
    caps: bool = False  # the ratio has a maximum, beyond which the push goes on
    fades: bool = False  # the push is a function of the ratio
    per_token: bool = False  # tokens of equal ratio and advantage differ in their objective
    # the push on a completion is weighed by its ratio and its correction for the sampler together
    weighs_completions: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether the objective is ratio times advantage until the push stops."""
        return not (self.caps or self.fades)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SIGNALS: Mapping[str, SignalRule] = {n: SignalRule(**row) for n, row in _TABLES["signal"].items()}
TRUSTS: Mapping[str, TrustRule] = {n: TrustRule(**row) for n, row in _TABLES["trust"].items()}
# Functions of the user
CUSTOM_SIGNAL = SignalRule(compares="completions")
CUSTOM_TRUST = TrustRule(fades=True, per_token=True)
