"""Rows decoded by compiled kernels."""

from collections.abc import Sequence

import mlx.core as mx

from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.graph import PREFILL_TOKENS, Caches, GraphBatch, Prefilled


class KernelBatch(GraphBatch):
    """All rows as one batch, in the kernels' storage."""

    is_async = False

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        assert policy.kernels is not None
        self.rows = policy.kernels.rows()

    def empty(self) -> Caches:
        return self.rows.empty()

    def _run(self, rows: Sequence[Caches], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        extended = self.rows.new_batch()
        extended.add(rows)
        for start in range(0, max(map(len, pieces)), PREFILL_TOKENS):
            logits = extended.extend([piece[start : start + PREFILL_TOKENS] for piece in pieces])
        return [
            Prefilled(extended.take(index), 0, mx.array(logits[index]))
            for index in range(len(pieces))
        ]

    def add(self, rows: Sequence[Prefilled]) -> None:
        self.rows.add([row.caches for row in rows])

    def step(self, tokens: mx.array) -> mx.array:
        ids: list[int] = tokens.tolist()  # type: ignore[assignment]
        return mx.array(self.rows.step(ids))

    def select(self, indices: Sequence[int]) -> None:
        self.rows.keep(indices)

    def copies(self, indices: Sequence[int]) -> list[Caches]:
        return [self.rows.take(index) for index in indices]
