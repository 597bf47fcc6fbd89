"""Draws tokens in NumPy, with noise only for those that may win.

The draw is the race of `grpo_engine.rollouts.noise`: its winner, argmax_i w_i / E_i, is a token
with an early event, or one whose weight is so large that its later time may still win.
Axes: n rows, K events, V tokens.
"""

from collections.abc import Sequence

import numpy as np

ROTATIONS = ((17, 29, 16, 24), (13, 15, 26, 6))  # of Threefry's rounds
LEAST = 2.0**-10  # weights, beside a largest of 1, down to which late times are tried first


def draw(
    logits: np.ndarray, temperature: float, keys: np.ndarray, times: np.ndarray, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One token per row, and its log-probability, [n].

    `times` and `tokens` are those of the events, [n, K]; `keys` are those of all later times.
    """
    shifted, weights = [], []
    for row in logits:  # a row at a time stays in the cache
        scaled = row if temperature == 1 else row / np.float32(temperature)
        shifted.append(scaled - scaled.max())
        weights.append(np.exp(shifted[-1]))
    winners = _winners(weights, keys, times, tokens)
    logprobs = [
        row[token] - np.log(exponentials.sum())
        for row, exponentials, token in zip(shifted, weights, winners, strict=True)
    ]
    return winners, np.array(logprobs, np.float32)


def _winners(
    weights: Sequence[np.ndarray], keys: np.ndarray, times: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """The winners for weights of which the largest is 1, [n].

    A token without an event cannot win if its weight is at most the best score so far times the
    time of the last event.
    """
    last = times[:, -1]
    early = [row[events] / time for row, events, time in zip(weights, tokens, times, strict=True)]
    winners = np.array(
        [events[score.argmax()] for events, score in zip(tokens, early, strict=True)]
    )
    best = np.array([score.max() for score in early])
    bound = np.maximum(best * last, LEAST)
    rows = list(range(len(weights)))
    while rows:
        likely = [np.flatnonzero(weights[row] >= bound[row]) for row in rows]
        counts = [len(candidates) for candidates in likely]
        late = late_times(keys[np.repeat(rows, counts)], np.concatenate(likely), len(weights[0]))
        for row, candidates, time in zip(
            rows, likely, np.split(late, np.cumsum(counts)), strict=False
        ):
            score = weights[row][candidates] / (last[row] + time)
            if len(candidates) and score.max() > best[row]:
                best[row], winners[row] = score.max(), candidates[score.argmax()]
        rows = [row for row in rows if best[row] * last[row] < bound[row]]
        bound = best * last
    return winners


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
    for turn in range(1, 6):
        for by in ROTATIONS[turn % 2]:
            a += b
            b = ((b << np.uint32(by)) | (b >> np.uint32(32 - by))) ^ a
        a += schedule[turn % 3]
        b += schedule[(turn + 1) % 3] + np.uint32(turn)
    return a, b
