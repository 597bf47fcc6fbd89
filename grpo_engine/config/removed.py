"""Settings of earlier versions, and how files, stores and checkpoints with them are read."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple


class Removed(NamedTuple):
    """A setting that is no more: the values that every run has now, the first was the default.

    Another value becomes settings with the same effect, or has none, for this reason.
    `unless_set` keeps a value of the other setting that is neither this nor the default.
    """

    usual: tuple[Any, ...]
    reason: str = ""
    becomes: Callable[[Any], dict[str, Any]] | None = None
    unless_set: bool = False


def _moved(path: str, default: Any) -> Removed:
    return Removed((default,), becomes=lambda value: {path: value})


# settings that are entries of another one, with their defaults
MOVED: Final[Mapping[str, Mapping[str, Any]]] = {
    "rollout.options": {"min_p": 0.0, "repetition_penalty": 1.0, "ignore_end": False},
    "algorithm.options": dict.fromkeys((
        "std", "signal_eps", "cispo_cap", "sapo_tau_pos", "sapo_tau_neg", "vespo_k_pos",
        "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "target_tolerance", "anchor_level",
        "ref_mix", "stop_share", "stop_kl", "stop_plateau", "sampler_sync_every", "refill_on",
        "entropy_target", "gamma", "lam", "value_clip", "value_coefficient", "whiten",
        "anchor_reweighted", "importance_floor", "importance_mode", "off_policy_mask",
    )),
    "optimizer.options": {
        "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "final_share": 0.0,
        "warmup_from_zero": False, "critic_learning_rate": 1e-4,
    },
    "evaluation.sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0},
}  # fmt: skip
# of alerts, which can be muted
THRESHOLDS = {
    "kl_jump": 10.0, "entropy": 0.1, "length": 1.25, "length_least": 0.5, "clip": 0.3,
    "clip_least": 1e-4, "grad_norm": 10.0, "reward_time": 0.5, "memory": 0.9, "step_time": 2.0,
}  # fmt: skip
REMOVED: Final[Mapping[str, Removed]] = {
    "run.workers": Removed((0, "auto"), "one process computes, with all the cores it may use"),
    "algorithm.drop_at_bound": Removed((None, False), "the KL penalty of tokens stays"),
    "checkpoint.best": Removed((True,), becomes=lambda _: {"checkpoint.best_by": "none"}),
    "model.shared_prefix": Removed((True,), becomes=lambda _: {"model.compute": "rows"}),
    "task.prompt_column": _moved("task.columns.prompt", "prompt"),
    "task.target_column": _moved("task.columns.answer", "answer"),
    "task.split": _moved("task.splits.train", "train"),
    "task.held_out_split": _moved("task.splits.held_out", ""),
    "task.lowest_pass_rate": _moved("task.pass_rate_range.lowest", 0.0),
    "task.highest_pass_rate": _moved("task.pass_rate_range.highest", 1.0),
    "task.environment_time_limit": Removed(
        (30.0,), "rewards.time_limit is set and bounds all calls",
        becomes=lambda value: {"rewards.time_limit": value}, unless_set=True,
    ),
    "record.rollouts": Removed((True,), becomes=lambda _: {"record.tokens": "nothing"}),
    "record.tokens_every": Removed((10,), "`every` records the tokens of every 10th step"),
    "record.after_groups": Removed(
        (1,), "one group is scored again after the update, and none if record.tokens is none"
    ),
    **{
        f"{path.partition('.')[0]}.{name}": _moved(f"{path}.{name}", default)
        for path, entries in MOVED.items() for name, default in entries.items()
    },
    **{
        f"alerts.{name}": Removed((usual,), f"it is {usual:g} in every run")
        for name, usual in THRESHOLDS.items()
    },
}  # fmt: skip


def without_removed(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree in today's settings, and by path a note on each that was set and has no effect."""
    current, notes = dict(tree), dict[str, str]()
    for section in dict.fromkeys(path.partition(".")[0] for path in REMOVED):
        if isinstance(inner := current.get(section), Mapping):
            gone = {key: value for key, value in inner.items() if f"{section}.{key}" in REMOVED}
            current[section] = {key: value for key, value in inner.items() if key not in gone}
            if gone and not current[section]:
                del current[section]
            for key, value in gone.items():
                _take(current, f"{section}.{key}", value, notes)
    return current, notes


def _take(current: dict[str, Any], path: str, value: Any, notes: dict[str, str]) -> None:
    """Add what a removed setting becomes, or a note."""
    usual, reason, becomes, unless_set = REMOVED[path]
    if value in usual or value is None:
        return
    targets = becomes(value) if becomes else {}
    if unless_set and any(_at(current, target) not in (None, *usual, value) for target in targets):
        targets = {}
    if not targets:
        notes[path] = f"{path} {value} has no effect: {reason}; leave it out"
    for target, item in targets.items():
        section, name, *entry = target.split(".")
        inner = current.get(section) or {}
        value = {**inner.get(name, {}), entry[0]: item} if entry else item
        current[section] = {**inner, name: value}


def _at(tree: Mapping[str, Any], path: str) -> Any:
    section, _, name = path.partition(".")
    return (tree.get(section) or {}).get(name)
