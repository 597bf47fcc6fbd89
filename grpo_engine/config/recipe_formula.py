"""The formula of a recipe in readable Unicode, put together from its choices."""

from grpo_engine.config.recipe_types import Recipe

LEVEL = {"none": "ᵢₜ", "token": "ᵢₜ", "sequence_mean": "ᵢ", "sequence_sum": "ᵢ"}
RATIO = {
    "token": "ρᵢₜ = π(oᵢₜ) / π_old(oᵢₜ)",
    "sequence_mean": "ρᵢ = exp( 1/|oᵢ| Σₜ log π(oᵢₜ)/π_old(oᵢₜ) )",
    "sequence_sum": "ρᵢ = exp( Σₜ log π(oᵢₜ)/π_old(oᵢₜ) )",
}
ESTIMATE = {"k1": "x", "k2": "x²/2", "k3": "e⁻ˣ + x − 1"}
WEIGHT = {
    "per_sequence": "1/B Σᵢ 1/|oᵢ| Σₜ",
    "per_completion": "1/B Σᵢ Σₜ",
    "per_token": "1/Σᵢ|oᵢ| Σᵢ Σₜ",
    "per_batch_token": "mean over micro-batches of 1/Σᵢ|oᵢ| Σᵢ Σₜ",
    "constant": "1/(B·max length) Σᵢ Σₜ",
    "sum": "Σᵢ Σₜ",
}


def formula(recipe: Recipe) -> tuple[str, ...]:
    """The lines of the formula: signal, ratio, objective, sampler, anchor, loss."""
    lines = [*signal_lines(recipe)]
    if recipe.ratio != "none":
        lines.append(RATIO[recipe.ratio])
    lines += [*trust_lines(recipe), *sampler_lines(recipe), *anchor_lines(recipe)]
    lines.append(loss_line(recipe))
    return tuple(lines)


def signal_lines(recipe: Recipe) -> tuple[str, ...]:
    """What a completion is worth."""
    score = "r" if recipe.anchor == "none" or recipe.anchor_place == "loss" else "s"
    eps, by = f"{recipe.signal_eps:g}", "G−1" if recipe.std == "sample" else "G"
    group = f"over the group, std by {by}"
    lines = {
        "return": (f"Aᵢ = {score}ᵢ",),
        "minus_batch_mean": (f"Aᵢ = {score}ᵢ − mean({score})   over the batch",),
        "group_mean": (f"Aᵢ = {score}ᵢ − mean({score})   over the group",),
        "group_standard": (f"Aᵢ = ({score}ᵢ − mean({score})) / (std({score}) + {eps})   {group}",),
        "leave_one_out": (f"Aᵢ = {score}ᵢ − mean of the other {score} of the group",),
        "batch_standard": (
            f"Aᵢ = ({score}ᵢ − mean({score})) / (std({score}) + {eps})   mean: group, std: batch",
        ),
        "group_sign": (f"Aᵢ = sign({score}ᵢ − mean({score}))   0 within 0.1·std of the group",),
        "process": (
            f"r̃ᵢⱼ = (rᵢⱼ − mean(r)) / (std(r) + {eps})   over all steps j of the group",
            "Aᵢₜ = Σⱼ r̃ᵢⱼ over the steps that end at or after t",
        ),
        "gae": (
            f"δᵢₜ = sᵢₜ + {recipe.gamma:g}·Vᵢₜ₊₁ − Vᵢₜ",
            f"Aᵢₜ = δᵢₜ + {recipe.gamma:g}·{recipe.lam:g}·Aᵢₜ₊₁"
            + ("   then whitened over the update" if recipe.whiten else ""),
        ),
    }[recipe.signal]
    return (*reward_lines(recipe), *lines)


def reward_lines(recipe: Recipe) -> tuple[str, ...]:
    """What is scored, where that is more than the reward."""
    taken = recipe.anchor != "none" and recipe.anchor_place == "reward"
    if recipe.signal == "gae":
        price = f" − {recipe.beta:g}·k(π_old/π_ref)ᵢₜ" if taken else ""
        return (f"sᵢₜ = [t is the last token]·rᵢ{price}",)
    if not taken:
        return ()
    total = "Σₜ k(π_old/π_ref)ᵢₜ" if recipe.anchor_level == "token" else "k(Σₜ log π_old/π_ref)ᵢ"
    return (f"sᵢ = rᵢ − {recipe.beta:g}·{total}",)


def trust_lines(recipe: Recipe) -> tuple[str, ...]:
    """What is maximised for one token."""
    worth = "Aᵢₜ" if recipe.signal in ("process", "gae") else "Aᵢ"
    rho = f"ρ{LEVEL[recipe.ratio]}"
    log = "log π(oᵢₜ)"
    if recipe.trust == "none":
        return (f"Jᵢₜ = {worth}·{log}" if recipe.ratio == "none" else f"Jᵢₜ = {rho}·{worth}",)
    if recipe.trust == "clip":
        bounds = f"clip({rho}, {1 - recipe.clip_low:g}, {1 + recipe.clip_high:g})"
        raw = rho if recipe.delta is None else f"min({rho}, {recipe.delta:g})"
        return (f"Jᵢₜ = min( {raw}·{worth}, {bounds}·{worth} )",)
    if recipe.trust == "cispo":
        return (f"Jᵢₜ = [min({rho}, {recipe.cispo_cap:g})]·{worth}·{log}   [.] held constant",)
    if recipe.trust == "sapo":
        up, down = recipe.sapo_tau_pos, recipe.sapo_tau_neg
        return (f"Jᵢₜ = 4/τ·σ(τ({rho} − 1))·{worth}   τ = {up:g} where {worth} > 0, else {down:g}",)
    return (
        "s = sign of the sum of A over completions with this prefix and token",
        "t = p² where s < 0, p + share of room·(√p − p) where s > 0   p = π_old",
        f"Jᵢₜ = min( {rho}·s, clip({rho}, p, t/p)·s )",
    )


def sampler_lines(recipe: Recipe) -> tuple[str, ...]:
    """The weight and the mask for what the sampler gave the tokens."""
    lines = []
    if recipe.importance_cap > 0:
        low, high = f"{recipe.importance_floor:g}", f"{recipe.importance_cap:g}"
        level, _, beyond = recipe.importance_mode.partition("_")
        name, ratio = "wᵢₜ", "π_old(oᵢₜ)/π_sampler(oᵢₜ)"
        if level == "sequence":
            name, ratio = "wᵢ", f"exp( Σₜ log {ratio} )"
        if beyond == "mask":
            lines.append(f"{name} = {ratio}   0 outside [{low}, {high}]")
        elif recipe.importance_floor == 0:
            lines.append(f"{name} = min( {ratio}, {high} )")
        else:
            lines.append(f"{name} = clip( {ratio}, {low}, {high} )")
    if recipe.off_policy_mask > 0:
        gap = "1/|oᵢ| Σₜ log π_sampler(oᵢₜ)/π(oᵢₜ)"
        lines.append(f"mᵢ = [Aᵢ ≥ 0 or {gap} ≤ {recipe.off_policy_mask:g}]")
    return tuple(lines)


def anchor_lines(recipe: Recipe) -> tuple[str, ...]:
    """The distance to the reference, in the loss or in the reward."""
    if recipe.anchor == "none":
        return ()
    policy = "π" if recipe.anchor_place == "loss" else "π_old"
    if recipe.anchor_level == "token":
        return (f"kᵢₜ = {ESTIMATE[recipe.anchor]}   x = log {policy}(oᵢₜ)/π_ref(oᵢₜ)",)
    return (f"kᵢ = {ESTIMATE[recipe.anchor]}   x = Σₜ log {policy}(oᵢₜ)/π_ref(oᵢₜ)",)


def loss_line(recipe: Recipe) -> str:
    """What is minimised."""
    terms = "Jᵢₜ"
    if recipe.importance_cap > 0:
        terms = ("wᵢ·" if recipe.importance_mode.startswith("sequence") else "wᵢₜ·") + terms
    if recipe.off_policy_mask > 0:
        terms = f"mᵢ·{terms}"
    if recipe.entropy_top_quantile < 1:
        terms = f"[Hᵢₜ in the top {recipe.entropy_top_quantile:.0%}]·{terms}"
    if recipe.anchor != "none" and recipe.anchor_place == "loss":
        terms += f" − {recipe.beta:g}·k{'ᵢₜ' if recipe.anchor_level == 'token' else 'ᵢ'}"
    if recipe.signal == "gae" and recipe.value_coefficient > 0:
        terms += f" − {recipe.value_coefficient:g}·½(Vᵢₜ − Rᵢₜ)²"
    line = f"L = −{WEIGHT[recipe.weight]} ( {terms} )"
    if recipe.entropy_bonus > 0:
        line += f" − {recipe.entropy_bonus:g}·mean(H)"
    return line
