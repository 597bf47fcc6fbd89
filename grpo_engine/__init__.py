"""GRPO on MLX as a generator of events, independent of any screen or database.

From Python: `train`, `iterate`, `resume` and `evaluate` runs, with `recipe`, `RunConfig`, `Task`,
`Environment`, `Reply`, `load_policy`, and the maths in `advantages` and `policy_loss`. Names are
loaded when first used.
"""

import sys

TYPE_CHECKING = False  # type checkers take it for true; typing would be loaded for nothing else

if TYPE_CHECKING:
    from grpo_engine import events as events
    from grpo_engine.api.calls import evaluate as evaluate
    from grpo_engine.api.calls import iterate as iterate
    from grpo_engine.api.calls import resume as resume
    from grpo_engine.api.calls import train as train
    from grpo_engine.api.policy import load_policy as load_policy
    from grpo_engine.config.recipes import recipe as recipe
    from grpo_engine.config.settings import RunConfig as RunConfig
    from grpo_engine.environments.protocol import Environment as Environment
    from grpo_engine.environments.protocol import Reply as Reply
    from grpo_engine.maths.advantage import advantages as advantages
    from grpo_engine.maths.loss import policy_loss as policy_loss
    from grpo_engine.tasks.base import Task as Task


class _BeforeMlx:
    """Import hook that prepares the process just before the first import of `mlx.core`.

    MLX resolves its matrix products when its library is loaded, so a fast BLAS must be loaded
    first. The hook ensures that order for every module, worker, rank and third-party package.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        if name == "mlx.core":
            from grpo_engine.setup.startup import prepare_for_mlx

            prepare_for_mlx()


if not any(isinstance(finder, type) and finder is _BeforeMlx for finder in sys.meta_path):
    sys.meta_path.insert(0, _BeforeMlx)
if "mlx.core" in sys.modules:  # too late for the BLAS, but not for what MLX compiles
    from grpo_engine.platform import kernels

    kernels.prepare()

PUBLIC = {
    "Environment": "grpo_engine.environments.protocol",
    "Reply": "grpo_engine.environments.protocol",
    "RunConfig": "grpo_engine.config.settings",
    "Task": "grpo_engine.tasks.base",
    "advantages": "grpo_engine.maths.advantage",
    "evaluate": "grpo_engine.api.calls",
    "iterate": "grpo_engine.api.calls",
    "load_policy": "grpo_engine.api.policy",
    "policy_loss": "grpo_engine.maths.loss",
    "recipe": "grpo_engine.config.recipes",
    "resume": "grpo_engine.api.calls",
    "train": "grpo_engine.api.calls",
}


if not TYPE_CHECKING:  # a misspelt name is an error of type checkers

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used, so that importing the package loads no MLX."""
        from importlib import import_module

        if name == "events":
            return import_module("grpo_engine.events")
        if name not in PUBLIC:
            raise AttributeError(f"module 'grpo_engine' has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(PUBLIC[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *PUBLIC, "events"})
