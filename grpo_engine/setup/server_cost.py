"""What a step costs on a server, before a run: requests, and the tokens that they bring."""

from grpo_engine.config.settings import RunConfig
from grpo_engine.frozen import frozen
from grpo_engine.policy.memory import Lengths
from grpo_engine.training.advantages import needs_old_logprobs


@frozen
class ServerCost:
    """Requests of a step, and their tokens; at most, since groups without signal are left out.

    A prompt is read once for all of its answers, and once for each further turn of an answer.
    """

    samples: int
    scores: int
    updates: int  # each a gradient and an optimiser's step
    read: int  # tokens that answers are sampled after
    sampled: int
    scored: int
    trained: int

    @classmethod
    def of(cls, config: RunConfig, lengths: Lengths) -> "ServerCost":
        """The cost with prompts and answers, their environments' replies included, this long."""
        recipe, rollout, rows = config.algorithm.resolved(), config.training, config.training.rows
        turns = config.task.max_turns - 1 if config.task.environment or config.task.tools else 0
        samples, first = (0, 0) if recipe.demonstrates else (1, rollout.prompts)
        whole = rows * sum(lengths)
        reference = config.record.kl or recipe.anchor != "none" or recipe.reads("ref_logprobs_BT")
        beside = needs_old_logprobs(recipe) + bool(reference) + recipe.has_targets
        of_first = not recipe.has_targets and config.record.tokens not in ("none", "nothing")
        return cls(
            samples=samples * (rollout.prompts + rows * turns),
            # each update is measured by a forward before its gradient
            scores=recipe.passes * recipe.minibatches + beside + of_first,
            updates=recipe.passes * recipe.minibatches,
            read=first * lengths.prompt + samples * rows * turns * sum(lengths),
            sampled=samples * rows * rollout.max_new_tokens,
            scored=(recipe.passes + beside) * whole + of_first * whole // rollout.prompts,
            trained=recipe.passes * whole,
        )

    @property
    def calls(self) -> int:
        """All requests of the step; one of them brings new weights to the sampler."""
        return self.samples + self.scores + 2 * self.updates + (self.samples > 0)
