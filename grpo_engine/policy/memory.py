"""How much memory a step will need, before it is taken."""

from dataclasses import dataclass

from grpo_engine.policy.load import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes by purpose; the peak is the larger of sampling and updating."""

    weights: int
    optimizer: int  # gradients and moments
    sampling: int  # key-value cache and logits of all rows
    update: int  # activations of one micro-batch

    @property
    def peak(self) -> int:
        """The most that is held at any time."""
        return self.weights + self.optimizer + max(self.sampling, self.update)


def estimate_memory(
    policy: Policy,
    *,
    rows: int,
    micro_rows: int,
    prompt_tokens: int,
    new_tokens: int,
    moments: int = 2,
    prompts: int = 1,
) -> MemoryEstimate:
    """Estimate a step that decodes `rows` and updates on `micro_rows` at a time."""
    raise NotImplementedError


def choose_micro_rows(
    policy: Policy, *, rows: int, prompt_tokens: int, new_tokens: int, budget: int
) -> int:
    """The most rows per forward and backward that fit in `budget` bytes, at least 1."""
    raise NotImplementedError
