"""Converts trees of arrays to and from dictionaries with dotted names."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx.utils import tree_unflatten as nest

__all__ = ["flatten", "nest"]


def flatten(tree: Any) -> dict[str, mx.array]:
    """Return the arrays of a tree by dotted name; `nest` rebuilds the tree."""
    flat: dict[str, mx.array] = tree_flatten(tree, destination={})  # type: ignore[assignment]
    return flat
