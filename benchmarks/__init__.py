"""Benchmarks of this project and its peers; not part of the package."""

import grpo_engine  # noqa: F401 (its import hook must be there before MLX is imported)
