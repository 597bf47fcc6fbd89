"""Recipes: an algorithm is one value for each of six choices, plus the settings they read.

The choices are signal, ratio, trust, anchor, weight and reuse. Each setting is declared once, as a
field of `Recipe`: what a paper fixes is an option, for `algorithm.options`. `RECIPES` holds the
algorithms that ship. `recipe` changes single settings and refuses those that exclude each other.
The computation is in `grpo_engine.maths`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import cache, partial
from typing import Any, Literal

from grpo_engine import names
from grpo_engine.config.choices import (
    CUSTOM_SIGNAL,
    CUSTOM_TRUST,
    SIGNALS,
    TRUSTS,
    SignalRule,
    TrustRule,
)
from grpo_engine.config.custom import Custom, is_name
from grpo_engine.config.declaration import Condition, Setting, above, equals, setting
from grpo_engine.errors import RecipeError, nearest, quoted
from grpo_engine.frozen import frozen

ANCHORED = Condition(
    lambda r: r.anchor != "none", "an anchor with beta above 0", ("anchor", "beta")
)
CRITIC = equals("signal", "gae")
SAMPLED = Condition(lambda r: not r.demonstrates, "answers that are sampled", ("signal",))
TEACHABLE = Condition(
    lambda r: not r.demonstrates and r.trust != "target",
    "answers that are sampled, and a trust that reads more than their sign",
    ("signal", "trust"),
)
NORMALISING = equals(
    "signal", "minus_batch_mean", "group_mean", "group_standard", "leave_one_out", "batch_standard"
)
CORRECTED = above("importance_cap", 0)
CLIP, SAPO, VESPO = (equals("trust", rule) for rule in ("clip", "sapo", "vespo"))
REWEIGHTABLE = Condition(
    lambda r: r.anchor_in_loss and r.ratio != "none",
    "an anchor in the loss and a ratio",
    ("anchor", "beta", "anchor_place", "ratio"),
)


option = partial(setting, option=True)


@frozen
class Recipe:
    """One value for each of the six choices and their settings; the defaults are `grpo`'s."""

    name: str

    # 1. Signal: what is a completion's advantage?
    signal: (
        Literal[
            "return",
            "minus_batch_mean",
            "group_mean",
            "group_standard",
            "leave_one_out",
            "batch_standard",
            "group_sign",
            "process",
            "gae",
            "none",
            "demonstration",
        ]
        | str
    ) = setting(
        "group_standard",
        "What an answer's advantage is, and relative to what.",
    )
    std: Literal["sample", "population"] = option(
        "sample",
        "Divide by n-1 or by n.",
        belongs="signal",
        condition=equals("signal", "group_standard", "batch_standard", "group_sign", "process"),
    )
    signal_eps: float = option(
        1e-4,
        "Added to the standard deviation.",
        belongs="signal",
        condition=equals("signal", "group_standard", "batch_standard", "process")
        | equals("combine", "normalize_then_sum"),
    )
    combine: Literal["sum_then_normalize", "normalize_then_sum"] = setting(
        "sum_then_normalize",
        "Several rewards: weigh then normalise, or the other way round.",
        belongs="signal",
        condition=NORMALISING,
    )

    teacher_weight: float = setting(
        0.0,
        "Weight of the teacher in a token's advantage; 0 is off.",
        off=0,
        belongs="signal",
        condition=TEACHABLE,
    )

    # 2. Ratio: how is old data re-weighted?
    ratio: Literal["none", "token", "sequence_mean", "sequence_sum"] = setting(
        "token",
        "How old data is re-weighted.",
    )

    # 3. Trust: when does the push stop?
    trust: Literal["none", "clip", "cispo", "sapo", "vespo", "target"] | str = setting(
        "clip",
        "When the push on a token stops.",
    )
    clip_low: float = setting(
        0.2,
        "Lower bound of the ratio is 1 - this.",
        le=1,
        belongs="trust",
        condition=CLIP,
    )
    clip_high: float = setting(
        0.2,
        "Upper bound of the ratio is 1 + this.",
        belongs="trust",
        condition=CLIP,
    )
    delta: float | None = setting(
        None,
        "Ceiling of the raw ratio for negative advantages.",
        gt=1,
        off=None,
        belongs="trust",
        condition=CLIP,
    )
    cispo_cap: float = option(
        5.0, "CISPO's cap on the ratio.", gt=0, belongs="trust", condition=equals("trust", "cispo")
    )
    sapo_tau_pos: float = option(
        1.0, "SAPO's gate temperature, advantage > 0.", gt=0, belongs="trust", condition=SAPO
    )
    sapo_tau_neg: float = option(
        1.05, "SAPO's gate temperature, advantage < 0.", gt=0, belongs="trust", condition=SAPO
    )
    vespo_k_pos: float = option(
        2.0, "VESPO's power of the ratio, advantage >= 0.", belongs="trust", condition=VESPO
    )
    vespo_lambda_pos: float = option(
        3.0, "VESPO's rate of decay, advantage >= 0.", ge=1e-4, belongs="trust", condition=VESPO
    )
    vespo_k_neg: float = option(
        3.0, "VESPO's power of the ratio, advantage < 0.", belongs="trust", condition=VESPO
    )
    vespo_lambda_neg: float = option(
        2.0, "VESPO's rate of decay, advantage < 0.", ge=1e-4, belongs="trust", condition=VESPO
    )
    target_tolerance: float = option(
        0.02,
        "Relative tolerance around the target.",
        gt=0,
        le=1,
        belongs="trust",
        condition=equals("trust", "target"),
    )

    # 4. Anchor: distance to the reference policy
    anchor: Literal["none", "k1", "k2", "k3"] | str = setting(
        "k3",
        "How the distance to the reference policy is estimated.",
    )
    beta: float = setting(
        0.04,
        "Weight of the KL penalty; 0 is off.",
        off=0,
        belongs="anchor",
        condition=ANCHORED,
    )
    anchor_level: Literal["token", "sequence"] = option(
        "token", "KL per token or per answer.", belongs="anchor", condition=ANCHORED
    )
    anchor_place: Literal["loss", "reward"] = setting(
        "loss", "Where the KL penalty enters.", belongs="anchor", condition=ANCHORED
    )
    anchor_reweighted: bool = option(
        False,
        "Multiply the KL by the ratio, so that it is unbiased on old samples.",
        belongs="anchor",
        condition=REWEIGHTABLE,
        off=False,
    )
    ref_refresh_every: int = setting(
        0,
        "Refresh the reference every N steps; 0 is never.",
        off=0,
        unit="steps",
        belongs="anchor",
        condition=ANCHORED,
    )
    ref_mix: float = option(
        1.0,
        "Share of the policy in a refresh.",
        gt=0,
        le=1,
        belongs="anchor",
        condition=above("ref_refresh_every", 0),
    )

    # 5. Weight: how are tokens averaged?
    weight: (
        Literal["per_sequence", "per_completion", "per_token", "per_batch_token", "constant", "sum"]
        | str
    ) = setting(
        "per_sequence",
        "How tokens are averaged.",
    )

    # 6. Reuse: how often are the same rollouts used?
    passes: int = setting(1, "Passes over the same rollouts (mu).", ge=1, belongs="reuse")
    minibatches: int = setting(
        1,
        "Updates per pass.",
        ge=1,
        off=1,
        belongs="reuse",
    )
    stop: Literal["never", "all_at_bound", "plateau", "kl", "target"] = setting(
        "never",
        "When to stop the passes early.",
        belongs="reuse",
        condition=above("passes", 1),
    )
    stop_share: float = option(
        0.99,
        "Share of tokens at their bound or target.",
        gt=0,
        le=1,
        belongs="reuse",
        condition=equals("stop", "all_at_bound", "target"),
    )
    stop_kl: float = option(
        0.05,
        "KL to the sampling policy that ends passes.",
        gt=0,
        belongs="reuse",
        condition=equals("stop", "kl"),
    )
    stop_plateau: float = option(
        1e-3,
        "Smallest relative improvement to continue.",
        belongs="reuse",
        condition=equals("stop", "plateau"),
    )

    # Beside the six choices
    sampler_sync_every: int = option(
        1,
        "Sample from a copy of the policy, updated every N steps.",
        ge=1,
        off=1,
        unit="steps",
        belongs="ratio",
        condition=SAMPLED,
    )
    refill_rounds: int = setting(
        0, "Rounds that replace groups without signal; 0 is off.", off=0, condition=SAMPLED
    )
    refill_on: str = option(
        "accuracy",
        "What answers of a group must differ in: accuracy, total or a reward function.",
        condition=above("refill_rounds", 0),
    )
    overlong_buffer: float = setting(
        0.0,
        "Share of the longest length with a soft penalty; 0 is off.",
        le=1,
        off=0,
        condition=SAMPLED,
    )
    mask_truncated: bool = setting(False, "Leave cut answers out of the loss.", condition=SAMPLED)
    entropy_bonus: float = setting(0.0, "Weight of the entropy bonus.", off=0)
    entropy_target: float | None = option(
        None, "Entropy that the bonus is adjusted to reach.", ge=0, off=None
    )
    entropy_top_quantile: float = setting(
        1.0,
        "Only this share of tokens, by entropy, is trained.",
        gt=0,
        le=1,
        off=1,
    )
    importance_cap: float = setting(
        0.0,
        "Cap on π_old/π_sampler; 0 is off, empty is on where the two cannot agree.",
        off=0,
        belongs="ratio",
        condition=SAMPLED,
    )
    importance_floor: float = option(
        0.0,
        "Lower cap on π_old/π_sampler.",
        le=1,
        belongs="ratio",
        condition=CORRECTED,
    )
    importance_mode: Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = option(
        "token_truncate",
        "Weights beyond a cap: held there or left out.",
        belongs="ratio",
        condition=CORRECTED,
    )
    off_policy_mask: float = option(
        0.0,
        "Leave out worse answers this far from the sampler; 0 is off.",
        unit="nats/token",
        off=0,
        belongs="ratio",
        condition=SAMPLED,
    )

    # For the critic of `gae`
    gamma: float = option(
        1.0, "Discount of later rewards.", le=1, belongs="signal", condition=CRITIC
    )
    lam: float = option(0.95, "GAE's lambda.", le=1, belongs="signal", condition=CRITIC)
    value_clip: float = option(
        0.2, "Largest move of a value in a step; 0 is off.", off=0, condition=CRITIC
    )
    value_coefficient: float = option(
        0.1,
        "Weight of the critic's loss.",
        off=0,
        condition=CRITIC,
    )
    whiten: bool = option(
        True, "Standardise advantages over the update.", belongs="signal", condition=CRITIC
    )

    @property
    def reads_sampler(self) -> bool:
        """Whether the loss reads the sampler's log-probabilities."""
        return self.importance_cap > 0 or self.off_policy_mask > 0

    @property
    def anchor_in_reward(self) -> bool:
        """Whether the distance to the reference is subtracted from the reward."""
        return self.anchor != "none" and self.anchor_place == "reward"

    @property
    def anchor_in_loss(self) -> bool:
        """Whether the distance to the reference is in the loss."""
        return self.anchor != "none" and self.anchor_place == "loss"

    @property
    def reweights_anchor(self) -> bool:
        """Whether the distance to the reference is multiplied by the ratio."""
        return self.anchor_reweighted and REWEIGHTABLE.applies(self)

    @property
    def has_sequence_ratio(self) -> bool:
        """Whether a completion has one ratio for all its tokens."""
        return self.ratio.startswith("sequence_")

    @property
    def has_sequence_importance(self) -> bool:
        """Whether a completion has one correction for the sampler for all its tokens."""
        return self.importance_mode.startswith("sequence_")

    @property
    def per_completion(self) -> bool:
        """Whether the objective is the same number for all tokens of a completion."""
        return self.has_sequence_ratio and not self.per_token and not self.trust_rule.per_token

    @property
    def signal_rule(self) -> SignalRule:
        return SIGNALS.get(self.signal, CUSTOM_SIGNAL)

    @property
    def trust_rule(self) -> TrustRule:
        return TRUSTS.get(self.trust, CUSTOM_TRUST)

    @property
    def compares(self) -> str:
        """What the signal compares within a group: completions, steps, or nothing."""
        return self.signal_rule.compares

    @property
    def demonstrates(self) -> bool:
        """Whether the completions are the data's; nothing is sampled or scored in training."""
        return self.signal_rule.demonstrates

    @property
    def reads_rewards(self) -> bool:
        """Whether rewards have a part in the advantages."""
        return self.signal_rule.reads_rewards

    @property
    def has_critic(self) -> bool:
        return self.signal_rule.has_critic

    @property
    def has_targets(self) -> bool:
        """Whether each token has a target probability, from whole groups before the update."""
        return self.trust_rule.stops_at == "targets"

    @property
    def per_token(self) -> bool:
        """Whether each token has its own advantage."""
        return self.teacher_weight > 0 or self.signal_rule.per_token

    @property
    def functions(self) -> dict[str, Custom]:
        """The choices that are functions of the user."""
        values = {name: getattr(self, name) for name in OPEN}
        return {name: value for name, value in values.items() if isinstance(value, Custom)}

    def reads(self, name: str) -> bool:
        """Whether a function of the user names this argument."""
        return any(name in function.parameters for function in self.functions.values())


SETTINGS: Mapping[str, Setting] = {
    field.name: replace(
        field.metadata["json_schema_extra"]["setting"], path=field.name, annotation=field.type
    )
    for field in fields(Recipe)
    if field.metadata
}
OPEN = tuple(name for name, item in SETTINGS.items() if item.open)  # a function may decide


def path_of(name: str) -> str:
    """Where a recipe's setting is among those of a run."""
    is_option = name in SETTINGS and SETTINGS[name].option
    return f"algorithm.options.{name}" if is_option else f"algorithm.{name}"


def changes(base: Recipe, changed: Recipe) -> dict[str, Any]:
    """The settings of a recipe that differ from another's."""
    return {
        name: value for name in SETTINGS if (value := getattr(changed, name)) != getattr(base, name)
    }


def settings_read(recipe: Recipe) -> tuple[str, ...]:
    """The settings that have an effect on a recipe, in the order of the declaration."""
    return tuple(name for name, setting in SETTINGS.items() if setting.is_read(recipe))


# Settings that exclude each other: their names, the condition, the reason and the remedy.
EXCLUSIONS: tuple[tuple[tuple[str, ...], Callable[[Recipe], bool], str], ...] = (
    (
        ("ratio", "trust"),
        lambda r: r.ratio == "none" and r.trust != "none",
        "trust={trust} bounds a ratio, but ratio=none has none: choose ratio=token, sequence_mean "
        "or sequence_sum, or trust=none",
    ),
    (
        ("ratio", "passes", "minibatches", "sampler_sync_every"),
        lambda r: (
            r.ratio == "none"
            and not r.demonstrates
            and max(r.passes, r.minibatches, r.sampler_sync_every) > 1
        ),
        "ratio=none is right for fresh samples only, but passes={passes}, "
        "minibatches={minibatches}, sampler_sync_every={sampler_sync_every} train on old ones: "
        "choose a ratio, or set all three to 1",
    ),
    (
        ("ratio", "signal"),
        lambda r: r.demonstrates and r.ratio != "none",
        "ratio={ratio} re-weights answers by the policy that sampled them, but no policy sampled "
        "those of signal={signal}: choose ratio=none",
    ),
    (
        ("trust", "ratio"),
        lambda r: r.trust == "target" and r.ratio != "token",
        "trust=target gives every token its own target, but ratio={ratio} is one number per "
        "answer: choose ratio=token",
    ),
    (
        ("trust", "signal"),
        lambda r: r.trust == "target" and r.signal != "group_sign",
        "trust=target reads only the sign of an answer, so the size that signal={signal} "
        "computes would be lost: choose signal=group_sign",
    ),
    (
        ("trust", "ratio", "anchor_reweighted"),
        lambda r: r.trust == "vespo" and r.ratio != "sequence_sum" and not r.reweights_anchor,
        "trust=vespo always takes the ratio of whole answers, so ratio={ratio} would have no "
        "effect: choose ratio=sequence_sum",
    ),
    (
        ("anchor_place", "signal", "anchor", "beta"),
        lambda r: r.anchor_in_reward and r.signal == "process",
        "anchor_place=reward subtracts the distance from the score of an answer, but "
        "signal=process has scores of steps: choose anchor_place=loss",
    ),
    (
        ("anchor_place", "combine", "anchor", "beta"),
        lambda r: r.anchor_in_reward and r.combine == "normalize_then_sum",
        "anchor_place=reward subtracts the distance from the sum of the rewards, but "
        "combine=normalize_then_sum normalises before it sums: choose sum_then_normalize, or "
        "anchor_place=loss",
    ),
    (
        ("anchor_level", "signal", "anchor_place"),
        lambda r: r.anchor_in_reward and r.signal == "gae" and r.anchor_level == "sequence",
        "signal=gae takes the distance token by token, but anchor_level=sequence has one for the "
        "answer: choose anchor_level=token",
    ),
    (
        ("signal", "teacher_weight"),
        lambda r: r.signal == "none" and r.teacher_weight == 0,
        "signal=none leaves the push to a teacher, but teacher_weight=0 has none: choose another "
        "signal, or teacher_weight=1",
    ),
    (
        ("anchor_place", "signal", "anchor", "beta"),
        lambda r: r.anchor_in_reward and not r.reads_rewards,
        "anchor_place=reward subtracts the distance from the reward, which signal={signal} does "
        "not read: choose anchor_place=loss",
    ),
    (
        ("stop", "trust"),
        lambda r: r.stop == "target" and r.trust != "target",
        "stop=target waits for tokens to reach their targets, but trust={trust} sets none: choose "
        "trust=target or another stop",
    ),
    (
        ("stop", "trust"),
        lambda r: r.stop == "all_at_bound" and not r.trust_rule.stops_at,
        "stop=all_at_bound waits for tokens to reach their bound, but trust={trust} has none that "
        "stops them: choose trust=clip or another stop",
    ),
    (
        ("refill_rounds", "signal"),
        lambda r: r.refill_rounds > 0 and not r.compares,
        "refill_rounds={refill_rounds} replaces groups without a signal, but signal={signal} does "
        "not compare within a group: choose a group signal, or refill_rounds=0",
    ),
    (
        ("importance_floor", "importance_cap"),
        lambda r: 0 < r.importance_cap <= r.importance_floor,
        "importance_floor={importance_floor:g} is not below importance_cap={importance_cap:g}, so "
        "every weight would be the same: lower the floor, or raise the cap",
    ),
    (
        ("importance_cap",),
        lambda r: 0 < r.importance_cap < 1,
        "importance_cap={importance_cap:g} would shrink every weight: choose at least 1, or 0 for "
        "none",
    ),
)


def recipe(base: str | Recipe, **changes: Any) -> Recipe:
    """Return a recipe with changes, or raise RecipeError if its settings exclude each other.

    `beta` above 0 on a recipe without an anchor means `anchor="k3"`, and `beta=0` means no anchor.
    """
    start = base if isinstance(base, Recipe) else by_name(base)
    return with_values(start, {name: _checked(name, value) for name, value in changes.items()})


def with_values(start: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """`recipe` for values that are legal by themselves."""
    changes = {
        name: Custom(value) if name in OPEN and type(value) is str and is_name(value) else value
        for name, value in changes.items()
    }
    if changes.get("beta", 0) > 0 and start.anchor == "none":
        changes.setdefault("anchor", "k3")
    if changes.get("anchor") == "none":
        changes.setdefault("beta", 0.0)
    elif changes.get("beta", start.beta) == 0 and changes.get("anchor", "k3") != "none":
        if "anchor" in changes and "beta" not in changes:
            raise RecipeError(
                f"anchor={changes['anchor']} has no effect with beta=0, as recipe {start.name} "
                "has it: set beta, for example beta=0.04",
                "anchor",
                "beta",
            )
        changes["anchor"] = "none"
    changed = replace(start, **changes)
    for settings, is_refused, reason in EXCLUSIONS:
        if is_refused(changed):
            raise RecipeError(f"recipe {start.name}: {reason.format(**asdict(changed))}", *settings)
    for name, value in changes.items():
        condition = SETTINGS[name].condition
        if (
            (name, value) != ("beta", 0)
            and value != getattr(start, name)
            and not condition.applies(changed)
        ):
            raise RecipeError(
                f"recipe {start.name}: {name}={value} has no effect: it is read only with "
                f"{condition.text}",
                name,
                *condition.settings,
            )
    return changed


def _checked(name: str, value: object) -> Any:
    """A setting's value in its own type; refuse an unknown name or an illegal value."""
    if name not in SETTINGS:
        hint = nearest(name, SETTINGS) or f"; choose one of {', '.join(SETTINGS)}"
        raise RecipeError(f"a recipe has no setting {quoted(name)}{hint}", name)
    try:
        if name in OPEN and callable(value):
            title = getattr(value, "__name__", type(value).__name__).strip("<>")
            return Custom(names.IN_PROCESS + title, value)
        return SETTINGS[name].checked(value)
    except ValueError as error:
        raise RecipeError(f"{name} {error}", name) from error


def by_name(name: str) -> Recipe:
    """A recipe that ships or that a package brings."""
    if name in RECIPES:
        return RECIPES[name]
    packaged = names.installed("recipes")
    if name in packaged:
        return _of_package(name)
    available = (*RECIPES, *packaged)
    hint = nearest(name, available) or f"; choose one of {', '.join(available)}"
    raise RecipeError(f"there is no recipe {quoted(name)}{hint}", "recipe")


@cache
def _of_package(name: str) -> Recipe:
    point = names.installed("recipes")[name]
    result = names.load(point, names.Purpose(f"recipe {quoted(name)}", RecipeError))
    if not isinstance(result, Recipe):
        raise RecipeError(
            f"recipe {quoted(name)} of the package {names.package_of(point)} is a "
            f"{type(result).__name__}; it must be a Recipe, such as recipe('grpo', clip_high=0.3)",
            "recipe",
        )
    return replace(result, name=name)


_NO_ANCHOR: dict[str, Any] = {"anchor": "none", "beta": 0.0}
_NO_TRUST: dict[str, Any] = {"trust": "none", "weight": "per_completion", **_NO_ANCHOR}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="reinforce", signal="return", ratio="none", **_NO_TRUST),
        Recipe(name="reinforce-baseline", signal="minus_batch_mean", ratio="none", **_NO_TRUST),
        Recipe(name="off-policy", signal="minus_batch_mean", passes=4, **_NO_TRUST),
        Recipe(name="grpo"),
        Recipe(name="grpo-iterative", ref_refresh_every=50),
        Recipe(name="grpo-process", signal="process"),
        Recipe(name="grpo-sequence", std="population", signal_eps=1e-8, ratio="sequence_sum",
               beta=0.01, anchor_level="sequence", sampler_sync_every=10),
        Recipe(name="dr-grpo", signal="group_mean", weight="constant", **_NO_ANCHOR),
        Recipe(name="dapo", clip_high=0.28, weight="per_token", minibatches=4, refill_rounds=4,
               overlong_buffer=0.2, **_NO_ANCHOR),
        Recipe(name="gspo", ratio="sequence_mean", clip_low=3e-4, clip_high=4e-4, minibatches=4,
               **_NO_ANCHOR),
        Recipe(name="luspo", ratio="sequence_mean", clip_low=2e-3, clip_high=2.5e-3,
               weight="per_completion", minibatches=4, **_NO_ANCHOR),
        Recipe(name="cispo", trust="cispo", weight="per_token", **_NO_ANCHOR),
        Recipe(name="sapo", trust="sapo", **_NO_ANCHOR),
        Recipe(name="vespo", ratio="sequence_sum", trust="vespo", weight="per_token", minibatches=4,
               **_NO_ANCHOR),
        Recipe(name="bnpo", weight="per_batch_token", **_NO_ANCHOR),
        Recipe(name="rloo", signal="leave_one_out", ratio="sequence_sum", anchor="k1", beta=0.05,
               anchor_place="reward"),
        Recipe(name="how-much", signal="group_sign", trust="target", weight="sum", passes=8,
               stop="target", **_NO_ANCHOR),
        Recipe(name="ppo", signal="gae", anchor="k1", beta=0.05, anchor_place="reward",
               weight="per_token", passes=4),
        Recipe(name="distill", signal="none", teacher_weight=1.0, clip_low=0.4, clip_high=0.4,
               weight="per_token", passes=4, minibatches=8, **_NO_ANCHOR),
        Recipe(name="sft", signal="demonstration", ratio="none",
               **{**_NO_TRUST, "weight": "per_token"}),
    )
}  # fmt: skip


@cache
def available() -> tuple[Mapping[str, Recipe], tuple[str, ...]]:
    """Every recipe by name, and what is wrong with those of packages that cannot be used."""
    recipes, problems = dict(RECIPES), []
    for name in names.installed("recipes"):
        try:
            recipes.setdefault(name, by_name(name))
        except RecipeError as error:
            problems.append(str(error))
    return recipes, tuple(problems)
