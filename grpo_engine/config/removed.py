"""Settings of earlier versions, and how files, stores and checkpoints with them are read."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Removed(NamedTuple):
    """A removed setting: the values that every run has now, its default first.

    Another value has no effect, for `reason`, or becomes the setting `becomes`, with `value` there
    if it differs.
    """

    usual: tuple[Any, ...]
    reason: str = ""
    becomes: str = ""
    value: Any = None


# The entries that were settings of a section, with their defaults.
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
# The limits of alert rules that are the same in every run.
THRESHOLDS = {
    "kl_jump": 10.0,
    "entropy": 0.1,
    "length": 1.25,
    "length_least": 0.5,
    "clip": 0.3,
    "clip_least": 1e-4,
    "grad_norm": 10.0,
    "reward_time": 0.5,
    "memory": 0.9,
    "step_time": 2.0,
}
REMOVED: Final[Mapping[str, Removed]] = {
    "run.workers": Removed((0, "auto"), "one process computes, with all the cores it may use"),
    "algorithm.drop_at_bound": Removed((None, False), "the KL penalty of tokens stays"),
    "checkpoint.best": Removed((True,), becomes="checkpoint.best_by", value="none"),
    "model.shared_prefix": Removed((True,), becomes="model.compute", value="rows"),
    "task.prompt_column": Removed(("prompt",), becomes="task.columns.prompt"),
    "task.target_column": Removed(("answer",), becomes="task.columns.answer"),
    "task.split": Removed(("train",), becomes="task.splits.train"),
    "task.held_out_split": Removed(("",), becomes="task.splits.held_out"),
    "task.lowest_pass_rate": Removed((0.0,), becomes="task.pass_rate_range.lowest"),
    "task.highest_pass_rate": Removed((1.0,), becomes="task.pass_rate_range.highest"),
    "task.environment_time_limit": Removed((30.0,), "rewards.time_limit bounds all calls"),
    "record.rollouts": Removed((True,), becomes="record.tokens", value="nothing"),
    "record.tokens_every": Removed((10,), "`every` records the tokens of every 10th step"),
    "record.after_groups": Removed(
        (1,), "one group is scored again after the update, and none if record.tokens is none"
    ),
    **{
        f"{path.partition('.')[0]}.{name}": Removed((default,), becomes=f"{path}.{name}")
        for path, entries in MOVED.items()
        for name, default in entries.items()
    },
    **{
        f"alerts.{name}": Removed((usual,), f"it is {usual:g} in every run")
        for name, usual in THRESHOLDS.items()
    },
}


def without_removed(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree in today's settings, and by path a note on each that was set and has no effect."""
    current, notes = dict(tree), dict[str, str]()
    for section in dict.fromkeys(path.partition(".")[0] for path in REMOVED):
        if isinstance(inner := current.get(section), Mapping):
            removed = {key: value for key, value in inner.items() if f"{section}.{key}" in REMOVED}
            current[section] = {key: value for key, value in inner.items() if key not in removed}
            if removed and not current[section]:
                del current[section]
            for key, value in removed.items():
                _replace(current, f"{section}.{key}", value, notes)
    return current, notes


def _replace(current: dict[str, Any], path: str, value: Any, notes: dict[str, str]) -> None:
    """Add what a removed setting becomes, or a note."""
    removed = REMOVED[path]
    if value in removed.usual or value is None:
        return
    if not removed.becomes:
        notes[path] = f"{path} {value} has no effect: {removed.reason}; leave it out"
        return
    section, name, *entry = removed.becomes.split(".")
    inner = current.get(section) or {}
    item = value if removed.value is None else removed.value
    current[section] = {**inner, name: {**inner.get(name, {}), entry[0]: item} if entry else item}
