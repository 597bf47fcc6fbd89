"""Converts trees of arrays to and from dictionaries with dotted names."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten


def flatten(tree: Any) -> dict[str, mx.array]:
    """Return the arrays of a tree by dotted name."""
    flat: dict[str, mx.array] = tree_flatten(tree, destination={})  # type: ignore[assignment]
    return flat


def nest(flat: Mapping[str, Any]) -> Any:
    """Rebuild the tree that `flatten` flattened."""
    return tree_unflatten(list(flat.items()))
