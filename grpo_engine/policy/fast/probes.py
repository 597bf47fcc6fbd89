"""Small forwards at load time that test whether a fast path equals the plain path."""

import mlx.core as mx

from grpo_engine.policy.fast.caches import Layout, PrefixCache
from grpo_engine.policy.structure import Structure, agrees, plain_windows


def prefix_windows(parts: Structure, probe: mx.array, tolerance: float) -> list[int | None] | None:
    """The attention window of each layer if rows can share a prompt's cache; else None.

    The probe's two rows are run as prompts of different length with two completions each, to test
    padding, offsets and masks.
    """
    try:
        windows = plain_windows(parts.model)
        if windows is None:
            return None
        caches = [PrefixCache(window) for window in windows]
        cut = probe.shape[1] // 2
        parts.hidden(probe[:, :cut], caches)
        rows, lengths = (0, 0, 1, 1), (cut, cut, cut - 1, cut - 1)
        spread = [cache.spread(Layout(lengths, cut, rows)) for cache in caches]
        pairs = list(zip(rows, lengths, strict=True))
        fresh = mx.stack([probe[row, length : length + 2] for row, length in pairs])
        given = parts.hidden(fresh, spread)
        whole = parts.hidden(probe)
        expected = mx.stack([whole[row, length : length + 2] for row, length in pairs])
        return windows if agrees(given, expected, tolerance) else None
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError):
        return None  # an unknown kind of model: it uses the plain path
