"""Estimate the memory of a step from the model's shapes, without reading its weights."""

from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import MemoryLimitError
from grpo_tui.app.trial.loaded import Loaded


def estimate(loaded: Loaded, config: RunConfig) -> dict[str, Any]:
    """Bytes by purpose, the limit, and how a step is split to fit in it."""
    from grpo_engine.setup import preflight

    policy = loaded.policy(config)
    policy.teacher = loaded.teacher(config)
    render, _ = loaded.renderer(config)
    longest = preflight.longest(config, render.task, policy.context_length, render)
    limit = preflight.memory_limit()
    plan = preflight.plan_memory(config, policy, longest, limit)
    try:
        parts = preflight.check_memory(config, policy, longest, plan)
    except MemoryLimitError as error:
        return {"refused": str(error)}
    names = ("peak", "weights", "teacher", "optimizer", "sampling", "update")
    teacher = 0 if policy.teacher is None else policy.teacher.parameters
    return {
        "teacher_share": teacher / policy.parameters,
        "limit": limit, "dtype": policy.dtype, **plan._asdict(),
        **{name: getattr(parts, name) for name in names}, "refused": "",
    }  # fmt: skip
