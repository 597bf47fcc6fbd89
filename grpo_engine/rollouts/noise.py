"""Random numbers per token, independent of the order of computation.

The noise of a token is a pure function of (run seed, step, prompt, occurrence of that prompt in the
step, attempt, completion index, position), so that any batching, refills, ranks and a resumed run
draw the same tokens, and no two completions of a step share theirs.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

NOISE = 2  # its version: 1 did not distinguish the occurrences of a prompt


def occurrences(prompts: Sequence[str]) -> list[int]:
    """How often each prompt occurs before its place: 0 for the first time."""
    seen: Counter[str] = Counter()
    found = []
    for prompt in prompts:
        found.append(seen[prompt])
        seen[prompt] += 1
    return found


def row_key(
    *, seed: int, step: int, prompt: str, attempt: int, index: int, occurrence: int = 0
) -> int:
    """A 64-bit key that identifies one completion.

    The first occurrence of a prompt has the key of noise version 1.
    """
    again = f"/{occurrence}" if occurrence else ""
    name = f"{seed}\0{step}\0{attempt}\0{index}{again}\0{prompt}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def group_seed(*, seed: int, step: int, prompt: str, attempt: int, occurrence: int = 0) -> int:
    """The seed of an environment: the same for all answers of a group, in every run like this."""
    key = row_key(
        seed=seed, step=step, prompt=f"{prompt}\0environment", attempt=attempt, index=-1,
        occurrence=occurrence,
    )  # fmt: skip
    return key >> 32  # as NumPy takes it


def token_keys(rows: Sequence[int], positions: Sequence[int]) -> mx.array:
    """One random key per row for the token at its position, [n, 2] uint32."""
    high = np.array([row >> 32 for row in rows], dtype=np.uint32)
    low = np.array(
        [(row + position) & 0xFFFFFFFF for row, position in zip(rows, positions, strict=True)],
        dtype=np.uint32,
    )
    return mx.array(np.stack([high, low], axis=1))


def uniforms(keys: mx.array, width: int) -> mx.array:
    """A row of uniform numbers in [0, 1) per key, [n, width]."""
    drawn: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(width,), key=key))(keys)
    return drawn
