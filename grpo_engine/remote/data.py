"""Rollouts as the rows of a server, and its numbers as arrays of the engine.

A row is the prompt and a completion; after a restart of the dialogue, a row begins with the new
prompt. Axes: B rows of the batch, T completion tokens, N sampled tokens.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from grpo_engine.frozen import frozen
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.remote.protocol import Row, Scale

Floats = npt.NDArray[np.float64]


@frozen
class TokenSequence:
    """The ids of a row, and which of its targets, the ids after the first, were sampled."""

    ids: tuple[int, ...]
    sampled: npt.NDArray[np.int64]


def sequences(batch: TokenBatch) -> list[TokenSequence]:
    """The rows of a batch that have sampled tokens; these are the batch's N, in order."""
    segments = batch.segments
    mask_BT = np.array(segments.mask_BT)
    rows = []
    for prompt, completion, mask_T in zip(
        segments.prompt_of, segments.completions, mask_BT, strict=True
    ):
        before = segments.prompts[prompt]
        sampled = len(before) - 1 + np.flatnonzero(mask_T[: len(completion)])
        if sampled.size:
            rows.append(TokenSequence(ids=before + completion, sampled=sampled))
    return rows


def logprobs_of(
    batch: TokenBatch, rows: Sequence[TokenSequence], answer: Sequence[Sequence[float]]
) -> mx.array:
    """The log-probabilities of the sampled tokens, from those of all targets. [B,T]"""
    values = [np.asarray(logprobs)[row.sampled] for row, logprobs in zip(rows, answer, strict=True)]
    return batch.spread(mx.array(np.concatenate(values).astype(np.float32)))


@frozen
class LogprobGradient:
    """dL/dlogp of a micro-batch's sampled tokens, and the log-probabilities it was taken at."""

    rows: list[TokenSequence]
    logprobs_N: Floats
    gradient_N: Floats

    @classmethod
    def of(
        cls,
        batch: TokenBatch,
        rows: list[TokenSequence],
        logprobs_BT: mx.array,
        gradient_BT: mx.array,
    ) -> "LogprobGradient":
        """Take the sampled tokens out of arrays [B,T]."""
        flat_N = np.array(batch.flat_N)
        logprobs, gradient = (
            np.array(array_BT, dtype=np.float64).reshape(-1)[flat_N]
            for array_BT in (logprobs_BT, gradient_BT)
        )
        return cls(rows=rows, logprobs_N=logprobs, gradient_N=gradient)


def rows_to_train(gradients: Sequence[LogprobGradient], scale: Scale) -> list[Row]:
    """Rows whose server's loss has the gradient of ours.

    The server minimises -Σ exp(logp - logprobs)·advantages. Where `logprobs` are the current ones,
    its gradient is -advantages·dlogp, so advantages = -dL/dlogp. A server that takes the mean over
    the tokens of a row, and then over the rows of the update, divides by both numbers.
    """
    count = sum(len(item.rows) for item in gradients)
    rows = []
    for item in gradients:
        start = 0
        for row in item.rows:
            end = start + len(row.sampled)
            factor = len(row.sampled) * count if scale == "mean per row" else 1
            rows.append(_row(row, item.logprobs_N[start:end], -item.gradient_N[start:end] * factor))
            start = end
    return rows


def _row(row: TokenSequence, logprobs_N: Floats, advantages_N: Floats) -> Row:
    weights, logprobs, advantages = np.zeros((3, len(row.ids) - 1))
    weights[row.sampled], logprobs[row.sampled], advantages[row.sampled] = (
        1.0,
        logprobs_N,
        advantages_N,
    )
    return Row(
        ids=row.ids[:-1],
        targets=row.ids[1:],
        weights=tuple(weights.tolist()),
        logprobs=tuple(logprobs.tolist()),
        advantages=tuple(advantages.tolist()),
    )
