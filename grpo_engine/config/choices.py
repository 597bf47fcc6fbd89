"""What the values of two choices, signal and trust, do; the maths is in `grpo_engine.maths`.

Code that depends on a choice asks its declaration here and not for its name, so that a new value
is declared once. Words and formulas are in `app/text/recipe_meanings.toml`.
"""

from collections.abc import Mapping
from typing import Literal

from grpo_engine.frozen import frozen


@frozen
class SignalRule:
    """Where an advantage comes from."""

    reads_rewards: bool = True
    compares: Literal["", "completions", "steps"] = ""  # within a group
    per_token: bool = False
    has_critic: bool = False
    demonstrates: bool = False  # completions are the data's, neither sampled nor scored


@frozen
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


_OF_GROUP = SignalRule(compares="completions")
SIGNALS: Mapping[str, SignalRule] = {
    "return": SignalRule(),
    "minus_batch_mean": SignalRule(),
    "group_mean": _OF_GROUP,
    "group_standard": _OF_GROUP,
    "leave_one_out": _OF_GROUP,
    "batch_standard": _OF_GROUP,
    "group_sign": _OF_GROUP,
    "process": SignalRule(compares="steps", per_token=True),
    "gae": SignalRule(per_token=True, has_critic=True),
    "none": SignalRule(reads_rewards=False),
    "demonstration": SignalRule(reads_rewards=False, demonstrates=True),
}
CUSTOM_SIGNAL = _OF_GROUP  # a function of the user

TRUSTS: Mapping[str, TrustRule] = {
    "none": TrustRule(),
    "clip": TrustRule(stops_at="bounds"),
    "cispo": TrustRule(caps=True, per_token=True),
    "sapo": TrustRule(fades=True),
    "vespo": TrustRule(fades=True, per_token=True, weighs_completions=True),
    "target": TrustRule(stops_at="targets", per_token=True),
}
CUSTOM_TRUST = TrustRule(fades=True, per_token=True)  # a function of the user
