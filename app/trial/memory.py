"""Estimate the memory of a step from the model's shapes, without reading its weights."""

from typing import TYPE_CHECKING, Any

from grpo_engine.config.settings import ModelConfig, RunConfig
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
        policy.teacher = self.teacher(config)
        render, _ = self._examples.usable(config)
        longest = preflight.longest(config, render.task, policy.context_length, render)
        limit = preflight.memory_limit()
        plan = preflight.plan_memory(config, policy, longest, limit)
        try:
            estimate = preflight.check_memory(config, policy, longest, plan)
        except MemoryLimitError as error:
            return {"refused": str(error)}
        names = ("peak", "weights", "teacher", "optimizer", "sampling", "update")
        teacher = 0 if policy.teacher is None else policy.teacher.parameters
        return {
            "teacher_share": teacher / policy.parameters,
            "limit": limit, "dtype": policy.dtype, **plan._asdict(),
            **{name: getattr(estimate, name) for name in names}, "refused": "",
        }  # fmt: skip

    def shapes(self, config: RunConfig) -> "Policy":
        """Return the described policy of these settings."""
        return self._latest.get("policy", config.model, lambda: shapes(config.model, config.seed))

    def teacher(self, config: RunConfig) -> "Policy | None":
        """Return the described teacher, which has the vocabulary of the described policy."""
        from grpo_engine.setup.teacher import check_teacher, check_vocabulary, named, settings_of

        check_teacher(config)
        policy = self.shapes(config)

        def described() -> "Policy":
            teacher = named(lambda: shapes(settings_of(config), config.seed))
            check_vocabulary(config, policy, teacher)
            return teacher

        if not config.teacher.path:
            return None
        return self._latest.get("teacher", (config.model, config.teacher), described)


def shapes(config: ModelConfig, seed: int) -> "Policy":
    """Return a policy with described but never computed weights; it cannot be run."""
    from grpo_engine.policy.load import end_tokens
    from grpo_engine.policy.shapes import without_weights
    from grpo_engine.policy.source import load_parts

    model_folder(config.path)  # raises its own error if there is none
    plain = config.model_copy(update={"trust_remote_code": False})
    model, tokenizer, settings, folder, notes = load_parts(plain, lazy=True)
    end_tokens(tokenizer, settings)  # raises if there is none
    policy = without_weights(
        model, plain, settings, folder, notes, seed=seed, vocabulary=len(tokenizer)
    )
    policy.tokenizer = tokenizer
    return policy
