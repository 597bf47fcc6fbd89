"""Estimate the memory of a step from the model's shapes, without reading its weights."""

from typing import TYPE_CHECKING, Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import MemoryLimitError
from grpo_tui.app.trial.examples import Examples, Latest, model_folder

if TYPE_CHECKING:
    from grpo_engine.policy.policy import Policy


class Estimates:
    """Caches the shapes of the last model."""

    def __init__(self, examples: Examples) -> None:
        self._examples, self._latest = examples, Latest()

    def estimate(self, config: RunConfig) -> dict[str, Any]:
        """Return bytes by purpose, the limit, and how a step is split to fit in it."""
        from grpo_engine.setup import preflight

        policy = self.shapes(config)
        render, _ = self._examples.usable(config)
        longest = preflight.longest(config, render.task, policy.context_length, render)
        limit = preflight.memory_limit()
        plan = preflight.plan_memory(config, policy, longest, limit)
        try:
            estimate = preflight.check_memory(config, policy, longest, plan)
        except MemoryLimitError as error:
            return {"refused": str(error)}
        names = ("peak", "weights", "optimizer", "sampling", "update")
        return {
            "limit": limit, "dtype": policy.dtype, **plan._asdict(),
            **{name: getattr(estimate, name) for name in names}, "refused": "",
        }  # fmt: skip

    def shapes(self, config: RunConfig) -> "Policy":
        """Return the described policy of these settings."""
        return self._latest.get("policy", config.model, lambda: shapes(config))


def shapes(config: RunConfig) -> "Policy":
    """Return a policy with described but never computed weights; it cannot be run."""
    from grpo_engine.policy.load import end_tokens
    from grpo_engine.policy.shapes import without_weights
    from grpo_engine.policy.source import load_parts

    model_folder(config.model.path)  # raises its own error if there is none
    plain = config.model.model_copy(update={"trust_remote_code": False})
    model, tokenizer, settings, folder, notes = load_parts(plain, lazy=True)
    end_tokens(tokenizer, settings)  # raises if there is none
    return without_weights(
        model, plain, settings, folder, notes, seed=config.seed, vocabulary=len(tokenizer)
    )
