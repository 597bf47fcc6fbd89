"""Settings of earlier versions, and how files, stores and checkpoints with them are read."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Tree = Mapping[str, Any]


class Removed(NamedTuple):
    """A setting that is no more: the values that every run has now, the first was the default.

    Another value becomes settings with the same effect, by path, or has none, for this reason.
    """

    usual: tuple[Any, ...]
    reason: str = ""
    becomes: Callable[[Any, Tree], dict[str, Any]] | None = None


def _moved(path: str, default: Any = None) -> Removed:
    return Removed((default,), becomes=lambda value, _: {path: value})


OPTIONS = (
    "std", "signal_eps", "cispo_cap", "sapo_tau_pos", "sapo_tau_neg", "vespo_k_pos",
    "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "target_tolerance", "anchor_level",
    "ref_mix", "stop_share", "stop_kl", "stop_plateau", "gamma", "lam", "value_clip",
    "value_coefficient", "whiten", "sampler_sync_every",
    "refill_on", "entropy_target",
)  # fmt: skip


def _threshold(default: float) -> Removed:
    return Removed((default,), f"the alert is raised from {default:g} on, and can be muted")


REMOVED: Final[Mapping[str, Removed]] = {
    "run.workers": Removed((0, "auto"), "one process computes, with all the cores it may use"),
    **{f"algorithm.{name}": _moved(f"algorithm.options.{name}") for name in OPTIONS},
    "algorithm.drop_at_bound": Removed((None, False), "the KL penalty of tokens stays"),
    "rollout.min_p": _moved("rollout.options.min_p", 0.0),
    "rollout.repetition_penalty": _moved("rollout.options.repetition_penalty", 1.0),
    "rollout.ignore_end": _moved("rollout.options.ignore_end", False),
    "optimizer.critic_learning_rate": _moved("optimizer.options.critic_learning_rate", 1e-4),
    "optimizer.beta1": _moved("optimizer.options.beta1", 0.9),
    "optimizer.beta2": _moved("optimizer.options.beta2", 0.999),
    "optimizer.epsilon": _moved("optimizer.options.epsilon", 1e-8),
    "optimizer.final_share": _moved("optimizer.options.final_share", 0.0),
    "optimizer.warmup_from_zero": _moved("optimizer.options.warmup_from_zero", False),
    "evaluation.temperature": _moved("evaluation.sampling.temperature", 1.0),
    "evaluation.top_p": _moved("evaluation.sampling.top_p", 1.0),
    "evaluation.top_k": _moved("evaluation.sampling.top_k", 0),
    "checkpoint.best": Removed((True,), becomes=lambda _, __: {"checkpoint.best_by": "none"}),
    "record.tokens_every": Removed((10,), "`every` records the tokens of every 10th step"),
    "record.after_groups": Removed(
        (1,), "one group is scored again after the update, and none if record.tokens is none"
    ),
    "alerts.kl_jump": _threshold(10.0),
    "alerts.entropy": _threshold(0.1),
    "alerts.length": _threshold(1.25),
    "alerts.length_least": _threshold(0.5),
    "alerts.clip": _threshold(0.3),
    "alerts.clip_least": _threshold(1e-4),
    "alerts.grad_norm": _threshold(10.0),
    "alerts.reward_time": _threshold(0.5),
    "alerts.memory": _threshold(0.9),
    "alerts.step_time": _threshold(2.0),
}


def without_removed(tree: Tree) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree in today's settings, and by path a note on each that was set and has no effect."""
    current, notes = dict(tree), dict[str, str]()
    for section in dict.fromkeys(path.partition(".")[0] for path in REMOVED):
        if isinstance(inner := current.get(section), Mapping):
            gone = {key: value for key, value in inner.items() if f"{section}.{key}" in REMOVED}
            current[section] = {key: value for key, value in inner.items() if key not in gone}
            if gone and not current[section]:
                del current[section]
            for key, value in gone.items():
                _take(current, f"{section}.{key}", value, gone, notes)
    return current, notes


def _take(
    current: dict[str, Any], path: str, value: Any, gone: Tree, notes: dict[str, str]
) -> None:
    """Add what a removed setting becomes, or a note."""
    usual, reason, becomes = REMOVED[path]
    if value in usual or value is None:
        return
    if becomes is None:
        notes[path] = f"{path} {value} has no effect: {reason}; leave it out"
        return
    for target, item in becomes(value, gone).items():
        section, name, *entry = target.split(".")
        inner = current.get(section) or {}
        value = {**inner.get(name, {}), entry[0]: item} if entry else item
        current[section] = {**inner, name: value}
