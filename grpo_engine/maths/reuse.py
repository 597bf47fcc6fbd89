"""Choice 6, reuse: when to stop passes over the same rollouts, by rules on (sum, count) pairs."""

from collections.abc import Mapping

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe


def all_at_bound(at_bound: tuple[float, float], share: float) -> bool:
    """Σ stopped ≥ share·Σ pushed: (nearly) every pushed token has reached its bound."""
    return at_bound[0] >= share * at_bound[1]


def objective_flat(objective: float, before: float, least: float) -> bool:
    """J - J_before ≤ least·max(|J|, |J_before|): the last pass hardly improved the objective.

    The maximum is used because the objective of a first pass is often 0.
    """
    return objective - before <= least * max(abs(objective), abs(before))


def kl_passed(kl_to_old: tuple[float, float], limit: float) -> bool:
    """Σ k3(π_old, π)/tokens > limit: the policy is too far from the one that sampled."""
    return kl_to_old[0] > limit * kl_to_old[1]


def targets_reached(reached: tuple[float, float], share: float) -> bool:
    """Σ reached ≥ share·Σ pushed: (nearly) every pushed token is within tolerance of its target."""
    return reached[0] >= share * reached[1]


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
    if recipe.stop == "all_at_bound" and all_at_bound(measured["at_bound"], recipe.stop_share):
        return f"{share} are at their bound"
    if recipe.stop == "kl" and kl_passed(measured["kl_to_old"], recipe.stop_kl):
        return f"KL to the sampling policy is above {recipe.stop_kl:g} nats per token"
    if recipe.stop == "target" and targets_reached(measured["target/reached"], recipe.stop_share):
        return f"{share} are within {recipe.target_tolerance:.0%} of their target"
    if recipe.stop == "plateau" and before is not None:
        flat = objective_flat(objective, before, recipe.stop_plateau)
        return (
            f"the objective grew by less than {recipe.stop_plateau:g} of itself" if flat else None
        )
    return None
