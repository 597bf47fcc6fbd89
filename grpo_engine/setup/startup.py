"""Prepares a process for MLX, and a thread for the engine."""

import os


def prepare_for_mlx() -> None:
    """Refuse an MLX without a back end, require full float32, load the fast BLAS."""
    from grpo_engine.cpu import blas
    from grpo_engine.platform import device, heap, kernels

    device.require_backend()
    kernels.prepare()
    # some GPUs multiply float32 with a 10-bit mantissa (TF32), in some shapes only
    os.environ.setdefault("MLX_ENABLE_TF32", "0")
    # MLX for CUDA ends a process that has met 800 new graphs, however long it took; a run of many
    # steps meets a few whenever answers have other lengths
    os.environ.setdefault("MLX_ENABLE_CACHE_THRASHING_CHECK", "0")
    # the system lets small work of the GPU that holds up the screen go on a little longer
    os.environ.setdefault("AGX_RELAX_CDM_CTXSTORE_TIMEOUT", "1")
    blas.ensure()
    if not device.uses_gpu():
        heap.retain_freed_memory()


def enter_engine(niceness: int = 5) -> None:
    """Make the calling thread the engine's; call it before anything loads MLX.

    The order matters: the threads of BLAS and MLX inherit this thread's priority.
    """
    from grpo_engine.cpu import blas
    from grpo_engine.platform import device, kernels, priority, threads

    device.require_backend()
    kernels.prepare()  # again: a script may have changed TMPDIR, or loaded MLX before this package
    priority.set_priority("engine", niceness)
    threads.claim_engine()
    if blas.ensure().loaded:
        blas.rebalance()
