"""Which recipes are legal: ranges of settings, who reads them, and what excludes what."""

import difflib
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from grpo_engine.config.recipe_types import CHOICES, Recipe
from grpo_engine.errors import RecipeError


class Range(NamedTuple):
    """An interval of numbers; `above` excludes the lower end, `off` is one more legal value."""

    low: float
    high: float = math.inf
    above: bool = False
    off: float | None = None

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or not math.isfinite(value):
            return False
        inside = self.low < value if self.above else self.low <= value
        return (inside and value <= self.high) or value == self.off

    def __str__(self) -> str:
        words = f"{'above' if self.above else 'at least'} {self.low:g}"
        if self.high < math.inf:
            words += f" and at most {self.high:g}"
        return words if self.off is None else f"{self.off:g} (off) or {words}"


RANGES: dict[str, Range] = {
    "signal_eps": Range(0),
    "clip_low": Range(0, 1),
    "clip_high": Range(0),
    "delta": Range(1, above=True),
    "cispo_cap": Range(0, above=True),
    "sapo_tau_pos": Range(0, above=True),
    "sapo_tau_neg": Range(0, above=True),
    "target_tolerance": Range(0, 1, above=True),
    "beta": Range(0),
    "ref_refresh_every": Range(0),
    "ref_mix": Range(0, 1, above=True),
    "passes": Range(1),
    "minibatches": Range(1),
    "stop_share": Range(0, 1, above=True),
    "stop_kl": Range(0, above=True),
    "stop_plateau": Range(0, above=True),
    "sampler_sync_every": Range(1),
    "refill_rounds": Range(0),
    "overlong_buffer": Range(0, 1),
    "entropy_bonus": Range(0),
    "entropy_target": Range(0, above=True),
    "entropy_top_quantile": Range(0, 1, above=True),
    "importance_cap": Range(1, off=0),
    "importance_floor": Range(0, 1),
    "off_policy_mask": Range(0),
    "gamma": Range(0, 1),
    "lam": Range(0, 1),
    "value_clip": Range(0),
    "value_coefficient": Range(0),
}

TYPES: dict[str, Any] = {field.name: field.type for field in fields(Recipe)}
SWITCHES = tuple(name for name, kind in TYPES.items() if kind is bool)
WHOLE = tuple(name for name, kind in TYPES.items() if kind is int)
OPTIONAL = ("delta", "entropy_target")

GROUP_SIGNALS = (
    "group_mean",
    "group_standard",
    "leave_one_out",
    "batch_standard",
    "group_sign",
    "process",
)

# setting: (is it read?, the words for when it is)
READ_WHEN: dict[str, tuple[Callable[[Recipe], bool], str]] = {
    "std": (
        lambda r: r.signal in ("group_standard", "batch_standard", "group_sign", "process"),
        "signal=group_standard, batch_standard, group_sign or process",
    ),
    "signal_eps": (
        lambda r: (
            r.signal in ("group_standard", "batch_standard", "process")
            or r.combine == "normalize_then_sum"
        ),
        "signal=group_standard, batch_standard or process",
    ),
    "combine": (
        lambda r: r.signal not in ("return", "group_sign", "process", "gae"),
        "a signal that normalises: minus_batch_mean, group_mean, group_standard, leave_one_out or "
        "batch_standard",
    ),
    "clip_low": (lambda r: r.trust == "clip", "trust=clip"),
    "clip_high": (lambda r: r.trust == "clip", "trust=clip"),
    "delta": (lambda r: r.trust == "clip", "trust=clip"),
    "cispo_cap": (lambda r: r.trust == "cispo", "trust=cispo"),
    "sapo_tau_pos": (lambda r: r.trust == "sapo", "trust=sapo"),
    "sapo_tau_neg": (lambda r: r.trust == "sapo", "trust=sapo"),
    "target_tolerance": (lambda r: r.trust == "target", "trust=target"),
    "beta": (lambda r: r.anchor != "none", "an anchor (k1, k2 or k3)"),
    "anchor_level": (lambda r: r.anchor != "none", "an anchor with beta above 0"),
    "anchor_place": (lambda r: r.anchor != "none", "an anchor with beta above 0"),
    "ref_refresh_every": (lambda r: r.anchor != "none", "an anchor with beta above 0"),
    "ref_mix": (lambda r: r.ref_refresh_every > 0, "ref_refresh_every above 0"),
    "stop": (lambda r: r.passes > 1, "passes above 1"),
    "stop_share": (lambda r: r.stop in ("all_at_bound", "target"), "stop=all_at_bound or target"),
    "stop_kl": (lambda r: r.stop == "kl", "stop=kl"),
    "stop_plateau": (lambda r: r.stop == "plateau", "stop=plateau"),
    "drop_at_bound": (lambda r: r.trust in ("clip", "target"), "trust=clip or target"),
    "importance_floor": (lambda r: r.importance_cap > 0, "importance_cap above 0"),
    "importance_mode": (lambda r: r.importance_cap > 0, "importance_cap above 0"),
    "gamma": (lambda r: r.signal == "gae", "signal=gae"),
    "lam": (lambda r: r.signal == "gae", "signal=gae"),
    "value_clip": (lambda r: r.signal == "gae", "signal=gae"),
    "value_coefficient": (lambda r: r.signal == "gae", "signal=gae"),
    "whiten": (lambda r: r.signal == "gae", "signal=gae"),
}


def _in_reward(r: Recipe) -> bool:
    return r.anchor != "none" and r.anchor_place == "reward"


# (is it refused?, why and what to do)
EXCLUSIONS: tuple[tuple[Callable[[Recipe], bool], str], ...] = (
    (
        lambda r: r.ratio == "none" and r.trust != "none",
        "trust={trust} bounds a ratio, but ratio=none has none: choose ratio=token, sequence_mean "
        "or sequence_sum, or trust=none",
    ),
    (
        lambda r: r.ratio == "none" and max(r.passes, r.minibatches, r.sampler_sync_every) > 1,
        "ratio=none is right for fresh samples only, but passes={passes}, "
        "minibatches={minibatches}, sampler_sync_every={sampler_sync_every} train on old ones: "
        "choose a ratio, or set all three to 1",
    ),
    (
        lambda r: r.trust == "target" and r.ratio != "token",
        "trust=target gives every token its own target, but ratio={ratio} is one number per "
        "completion: choose ratio=token",
    ),
    (
        lambda r: r.trust == "target" and r.signal != "group_sign",
        "trust=target reads only the sign of a completion, so the size that signal={signal} "
        "computes would be lost: choose signal=group_sign",
    ),
    (
        lambda r: r.anchor == "none" and r.beta > 0,
        "beta={beta:g} weighs a distance to the reference, but anchor=none measures none: choose "
        "anchor=k1, k2 or k3, or beta=0",
    ),
    (
        lambda r: _in_reward(r) and r.signal == "process",
        "anchor_place=reward subtracts the distance from the score of a completion, but "
        "signal=process has scores of steps: choose anchor_place=loss",
    ),
    (
        lambda r: _in_reward(r) and r.combine == "normalize_then_sum",
        "anchor_place=reward subtracts the distance from the sum of the rewards, but "
        "combine=normalize_then_sum normalises before it sums: choose sum_then_normalize, or "
        "anchor_place=loss",
    ),
    (
        lambda r: _in_reward(r) and r.signal == "gae" and r.anchor_level == "sequence",
        "signal=gae takes the distance token by token, but anchor_level=sequence has one for the "
        "completion: choose anchor_level=token",
    ),
    (
        lambda r: (
            r.combine == "normalize_then_sum"
            and r.signal in ("return", "group_sign", "process", "gae")
        ),
        "combine=normalize_then_sum normalises each reward function by the signal, but "
        "signal={signal} gives nothing to sum: choose group_standard, group_mean, leave_one_out, "
        "batch_standard or minus_batch_mean, or combine=sum_then_normalize",
    ),
    (
        lambda r: r.stop == "target" and r.trust != "target",
        "stop=target waits for tokens to reach their targets, but trust={trust} sets none: choose "
        "trust=target or another stop",
    ),
    (
        lambda r: r.stop == "all_at_bound" and r.trust not in ("clip", "target"),
        "stop=all_at_bound waits for tokens to reach their bound, but trust={trust} has none that "
        "stops them: choose trust=clip or another stop",
    ),
    (
        lambda r: r.refill_rounds > 0 and r.signal not in GROUP_SIGNALS,
        "refill_rounds={refill_rounds} replaces groups without a signal, but signal={signal} does "
        "not compare within a group: choose a group signal, or refill_rounds=0",
    ),
    (
        lambda r: 0 < r.importance_cap <= r.importance_floor,
        "importance_floor={importance_floor:g} is not below importance_cap={importance_cap:g}, so "
        "every weight would be the same: lower the floor, or raise the cap",
    ),
)


def settings_read(recipe: Recipe) -> tuple[str, ...]:
    """The settings that have an effect on a recipe, in the order of the six questions."""
    names = [field.name for field in fields(Recipe) if field.name != "name"]
    return tuple(name for name in names if name not in READ_WHEN or READ_WHEN[name][0](recipe))


def refuse_exclusions(made: Recipe) -> None:
    """Refuse choices that exclude each other, and say why."""
    values = {field.name: getattr(made, field.name) for field in fields(Recipe)}
    for refused, why in EXCLUSIONS:
        if refused(made):
            raise RecipeError(f"recipe {made.name}: " + why.format(**values))


def check_value(name: str, value: object) -> None:
    """Refuse a name that is no setting, and a value outside its choices, type or range."""
    if name not in TYPES:
        near = difflib.get_close_matches(name, TYPES, n=1)
        hint = f": did you mean {near[0]!r}?" if near else f": choose one of {', '.join(TYPES)}"
        raise RecipeError(f"a recipe has no setting {name!r}{hint}")
    if name == "name":
        legal, words = isinstance(value, str) and value != "", "a name"
    elif name in CHOICES:
        legal, words = value in CHOICES[name], f"one of {', '.join(CHOICES[name])}"
    elif name in SWITCHES:
        legal, words = isinstance(value, bool), "true or false"
    else:
        legal = value in RANGES[name] and not isinstance(value, bool)
        words = str(RANGES[name])
        if name in WHOLE:
            legal, words = legal and isinstance(value, int), f"a whole number {words}"
        if name in OPTIONAL:
            legal, words = legal or value is None, f"none (off) or {words}"
    if not legal:
        raise RecipeError(f"{name} must be {words}, got {value!r}")


def refuse_unread(start: Recipe, made: Recipe, changes: dict[str, Any]) -> None:
    """Refuse a change that nothing reads: it would look like a setting and do nothing."""
    for name, value in changes.items():
        unread = name in READ_WHEN and not READ_WHEN[name][0](made)
        if unread and value != getattr(start, name) and name != "beta":
            raise RecipeError(
                f"recipe {made.name}: {name}={value} has no effect: it is read only with "
                f"{READ_WHEN[name][1]}"
            )
