"""Random numbers per token, independent of the order of computation.

The noise of a token is a pure function of (run seed, step, prompt, occurrence of that prompt in the
step, attempt, completion index, position), so that any batching, refills, ranks and a resumed run
draw the same tokens, and no two completions of a step share theirs.

A token drawn with chances proportional to w is the winner of a race, argmax_i w_i / E_i, where the
times E_i are independent and exponential with mean 1. Events at rate V, each at one of V tokens
that is drawn at random, give such times: E_i is the first event at token i. The noise of a draw is
the first K events; the time of any other token is that of the last event plus a time of its own,
exponential again, since such times have no memory.
Axes: B rows, K events, V tokens.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

NOISE = 3  # its version: 1 did not distinguish the occurrences of a prompt, 2 had no events
LATE = (0x9E3779B9, 0)  # changes a key to that of the times after the last event


def occurrences(prompts: Sequence[str]) -> list[int]:
    """How often each prompt occurs before its index: 0 for the first time."""
    seen: Counter[str] = Counter()
    counts = []
    for prompt in prompts:
        counts.append(seen[prompt])
        seen[prompt] += 1
    return counts


def row_key(
    *, seed: int, step: int, prompt: str, attempt: int, index: int, occurrence: int = 0
) -> int:
    """A 64-bit key that identifies one completion.

    The first occurrence of a prompt has the key of noise version 1.
    """
    suffix = f"/{occurrence}" if occurrence else ""
    name = f"{seed}\0{step}\0{attempt}\0{index}{suffix}\0{prompt}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def group_seed(*, seed: int, step: int, prompt: str, attempt: int, occurrence: int = 0) -> int:
    """The seed of an environment: the same for all rollouts of a group, in every run like this."""
    key = row_key(
        seed=seed,
        step=step,
        prompt=f"{prompt}\0environment",
        attempt=attempt,
        index=-1,
        occurrence=occurrence,
    )
    return key >> 32  # NumPy takes 32 bits


def token_keys(rows: Sequence[int], positions: Sequence[int]) -> mx.array:
    """One random key per row for the token at its position, [B, 2] uint32."""
    high = np.array([row >> 32 for row in rows], dtype=np.uint32)
    low = np.array(
        [(row + position) & 0xFFFFFFFF for row, position in zip(rows, positions, strict=True)],
        dtype=np.uint32,
    )
    return mx.array(np.stack([high, low], axis=1))


def uniforms(keys: mx.array, width: int) -> mx.array:
    """A row of uniform numbers in [0, 1) per key, [B, width]."""
    values: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(width,), key=key))(keys)
    return values


def events(keys: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """V times the times of the first events, and their tokens, [B, K] each."""
    count = min(512, 1 + width // 16)
    bits = _bits(keys, 2 * count)
    times_BK = mx.cumsum(-mx.log(_unit(bits[:, :count])), axis=1)
    tokens_BK = (bits[:, count:].astype(mx.uint64) * width) >> 32
    return times_BK, tokens_BK.astype(mx.uint32)


def late_keys(keys: mx.array) -> mx.array:
    """The keys of `late_times`."""
    return keys ^ mx.array(LATE, dtype=mx.uint32)


def late_times(keys: mx.array, width: int) -> mx.array:
    """The time from the last event to each token's own, [B, V]."""
    return -mx.log(_unit(_bits(late_keys(keys), width)))


def _bits(keys: mx.array, width: int) -> mx.array:
    """Random bits, [B, width] uint32; `cpu.draw.threefry` says which."""
    half = (width + 1) // 2  # `split` gives the bits themselves, two for each new key
    bits: mx.array = mx.vmap(lambda key: mx.random.split(key, half))(keys)
    return bits.reshape(len(keys), 2 * half)[:, :width]


def _unit(bits: mx.array) -> mx.array:
    """Numbers between 0 and 1, both excluded, as float32."""
    return ((bits >> 9).astype(mx.float32) + 0.5) * 2.0**-23
