"""Draws tokens in NumPy, with noise only for those that may win.

The draw is the race of `grpo_engine.rollouts.noise`: its winner, argmax_i w_i / E_i, is a token
with an early event, or one whose weight is so large that its later time may still win.
Axes: B rows, K events, V tokens.
"""

from collections.abc import Sequence

import numpy as np

ROTATIONS = ((17, 29, 16, 24), (13, 15, 26, 6))  # of Threefry's rounds
MIN_WEIGHT = 2.0**-10  # of a token whose late time is tried first; the largest weight is 1


def draw(
    logits_BV: np.ndarray,
    temperature: float,
    keys: np.ndarray,
    times_BK: np.ndarray,
    tokens_BK: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """One token per row, and its log-probability, [B].

    `times_BK` and `tokens_BK` are those of the events, [B, K]; `keys` are those of all later times.
    """
    shifted, weights = [], []
    for row in logits_BV:  # one at a time, which stays in the cache
        scaled = row if temperature == 1 else row / np.float32(temperature)
        shifted.append(scaled - scaled.max())
        weights.append(np.exp(shifted[-1]))
    winners_B = _winners(weights, keys, times_BK, tokens_BK)
    logprobs_B = [
        row[token] - np.log(exponentials.sum())
        for row, exponentials, token in zip(shifted, weights, winners_B, strict=True)
    ]
    return winners_B, np.array(logprobs_B, np.float32)


def _winners(
    weights: Sequence[np.ndarray], keys: np.ndarray, times_BK: np.ndarray, tokens_BK: np.ndarray
) -> np.ndarray:
    """The winners for weights of which the largest is 1, [B].

    A token without an event cannot win if its weight is at most the best score so far times the
    time of the last event.
    """
    last_B = times_BK[:, -1]
    early = [
        row[events] / time for row, events, time in zip(weights, tokens_BK, times_BK, strict=True)
    ]
    winners_B = np.array(
        [events[score.argmax()] for events, score in zip(tokens_BK, early, strict=True)]
    )
    best_B = np.array([score.max() for score in early])
    bound_B = np.maximum(best_B * last_B, MIN_WEIGHT)
    rows = list(range(len(weights)))
    while rows:
        likely = [np.flatnonzero(weights[row] >= bound_B[row]) for row in rows]
        counts = [len(candidates) for candidates in likely]
        late = late_times(keys[np.repeat(rows, counts)], np.concatenate(likely), len(weights[0]))
        for row, candidates, time in zip(
            rows, likely, np.split(late, np.cumsum(counts)), strict=False
        ):
            score = weights[row][candidates] / (last_B[row] + time)
            if len(candidates) and score.max() > best_B[row]:
                best_B[row], winners_B[row] = score.max(), candidates[score.argmax()]
        rows = [row for row in rows if best_B[row] * last_B[row] < bound_B[row]]
        bound_B = best_B * last_B
    return winners_B


def late_times(keys: np.ndarray, tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """The time from the last event to each token's own, each with the key of its row, [m]."""
    half = (vocabulary + 1) // 2
    first, second = threefry(keys, tokens % half, half)
    bits = np.where(tokens < half, first, second)
    times: np.ndarray = -np.log(((bits >> 9).astype(np.float32) + 0.5) * 2.0**-23)
    return times


def threefry(keys: np.ndarray, count: np.ndarray, half: int) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 with 20 rounds of the counters (i, half + i), as MLX computes it.

    MLX's bits i and half + i of a row of 2 * half are the two results.
    """
    schedule = (keys[:, 0], keys[:, 1], keys[:, 0] ^ keys[:, 1] ^ np.uint32(0x1BD11BDA))
    a = count.astype(np.uint32) + schedule[0]
    b = (count + half).astype(np.uint32) + schedule[1]
    for block in range(1, 6):
        for rotation in ROTATIONS[block % 2]:
            a += b
            b = ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))) ^ a
        a += schedule[block % 3]
        b += schedule[(block + 1) % 3] + np.uint32(block)
    return a, b
