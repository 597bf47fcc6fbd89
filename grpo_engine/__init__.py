"""GRPO on MLX as a generator of events, independent of any screen or database."""

import sys


class _BeforeMlx:
    """Import hook that prepares the process just before the first import of `mlx.core`.

    MLX resolves its matrix products when its library is loaded, so a fast BLAS must be loaded
    first. The hook ensures that order for every module, worker, rank and third-party package.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        if name == "mlx.core":
            from grpo_engine.platform import prepare_for_mlx

            prepare_for_mlx()


if not any(isinstance(finder, type) and finder is _BeforeMlx for finder in sys.meta_path):
    sys.meta_path.insert(0, _BeforeMlx)
