"""Choice 6, reuse: when to stop passes over the same rollouts, by rules on (sum, count) pairs.

Beside it what is adjusted between steps: the entropy bonus.
"""

from collections.abc import Mapping

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe


def share_stopped(stopped: tuple[float, float], share: float) -> bool:
    """Σ stopped ≥ share·Σ pushed: (nearly) every pushed token is at its bound, or its target."""
    return stopped[0] >= share * stopped[1]


def objective_flat(objective: float, before: float, threshold: float) -> bool:
    """J - J_before ≤ threshold·max(|J|, |J_before|): the last pass hardly improved the objective.

    The maximum is used because the objective of a first pass is often 0.
    """
    return objective - before <= threshold * max(abs(objective), abs(before))


def kl_passed(kl_to_old: tuple[float, float], limit: float) -> bool:
    """Σ k3(π_old, π)/tokens > limit: the policy is too far from the one that sampled."""
    return kl_to_old[0] > limit * kl_to_old[1]


def stop_reason(
    recipe: str | Recipe,
    measured: Mapping[str, tuple[float, float]],
    objective: float,
    before: float | None = None,
) -> str | None:
    """Why the passes over these rollouts should stop, as text; None to continue.

    `measured`: merged metrics of the latest forward. `objective`: minus its loss. `before`: the
    previous pass's objective, None in the first.
    """
    recipe = recipes.recipe(recipe)
    share = f"{recipe.stop_share:.0%} of the pushed tokens"
    match recipe.stop:
        case "all_at_bound":
            if share_stopped(measured["at_bound"], recipe.stop_share):
                return f"{share} are at their bound"
        case "target":
            if share_stopped(measured["target/reached"], recipe.stop_share):
                return f"{share} are within {recipe.target_tolerance:.0%} of their target"
        case "kl":
            if kl_passed(measured["kl_to_old"], recipe.stop_kl):
                return f"KL to the sampling policy is above {recipe.stop_kl:g} nats per token"
        case "plateau":
            if before is not None and objective_flat(objective, before, recipe.stop_plateau):
                return f"the objective grew by less than {recipe.stop_plateau:g} of itself"
    return None


def entropy_control(
    bonus: float, entropy: float, target: float, step: float = 0.005, limit: float = 1.0
) -> tuple[float, float]:
    """The next bonus c = clip(c ± step, 0, limit), and the one to apply now.

    c grows while the mean entropy H (nats per token) is at most the target and shrinks above it.
    Above the target the applied bonus is 0 (Skywork-OR1, arXiv:2505.22312).
    """
    is_low = entropy <= target
    bonus = min(max(bonus + (step if is_low else -step), 0.0), limit)
    return bonus, bonus if is_low else 0.0
