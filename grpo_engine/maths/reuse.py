"""Choice 6, reuse: when to stop passes over the same rollouts, by rules on (sum, count) pairs.

Beside it the control of the entropy bonus, which moves between steps.
"""

from collections.abc import Mapping

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe

BONUS_STEP, MAX_BONUS = 0.005, 1.0


def stop_reason(
    recipe: str | Recipe,
    measured: Mapping[str, tuple[float, float]],
    objective: float,
    before: float | None = None,
) -> str | None:
    """Why the passes over these rollouts should stop, as text; None to continue.

    all_at_bound  Σ at bound ≥ share·Σ pushed: (nearly) every pushed token is at its bound
    target        Σ reached ≥ share·Σ pushed: (nearly) every pushed token is at its target
    kl            Σ k3(π_old, π) > limit·tokens: the policy is too far from the one that sampled
    plateau       J - J_before ≤ threshold·max(|J|, |J_before|), as a first pass's J is often 0

    `measured`: merged metrics of the latest forward. `objective`: minus its loss. `before`: the
    previous pass's objective, None in the first.
    """
    recipe = recipes.recipe(recipe)
    share = f"{recipe.stop_share:.0%} of the pushed tokens"
    match recipe.stop:
        case "all_at_bound":
            stopped, pushed = measured["at_bound"]
            if stopped >= recipe.stop_share * pushed:
                return f"{share} are at their bound"
        case "target":
            reached, pushed = measured["target/reached"]
            if reached >= recipe.stop_share * pushed:
                return f"{share} are within {recipe.target_tolerance:.0%} of their target"
        case "kl":
            kl, tokens = measured["kl_to_old"]
            if kl > recipe.stop_kl * tokens:
                return f"KL to the sampling policy is above {recipe.stop_kl:g} nats per token"
        case "plateau" if before is not None:
            if objective - before <= recipe.stop_plateau * max(abs(objective), abs(before)):
                return f"the objective grew by less than {recipe.stop_plateau:g} of itself"
    return None


def entropy_control(bonus: float, entropy: float, target: float) -> tuple[float, float]:
    """The next bonus c = clip(c ± .005, 0, 1), and the one to apply now.

    c grows while the mean entropy H (nats per token) is at most the target and shrinks above it.
    Above the target the applied bonus is 0 (Skywork-OR1, arXiv:2505.22312).
    """
    is_low = entropy <= target
    bonus = min(max(bonus + (BONUS_STEP if is_low else -BONUS_STEP), 0.0), MAX_BONUS)
    return bonus, bonus if is_low else 0.0
