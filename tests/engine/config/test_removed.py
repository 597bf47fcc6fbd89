"""Settings of earlier versions are read: what they did stays, or a note says that it cannot."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build, changed, flatten, merge, parse_sets, read_yaml
from grpo_engine.config.recipes import recipe
from grpo_engine.config.removed import MOVED, REMOVED, without_removed
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError

# what is kept: a value that was not the default, and today's settings with the same effect
OTHER = {
    "std": "population",
    "anchor_level": "sequence",
    "whiten": False,
    "refill_on": "total",
    "sampler_sync_every": 2,
    "repetition_penalty": 2.0,
    "ignore_end": True,
    "top_k": 5,
    "warmup_from_zero": True,
    "anchor_reweighted": True,
    "importance_mode": "token_mask",
}
KEPT: dict[str, tuple[Any, dict[str, Any]]] = {
    "checkpoint.best": (False, {"checkpoint.best_by": "none"}),
    "model.shared_prefix": (False, {"model.compute": "rows"}),
    "task.prompt_column": ("question", {"task.columns": {"prompt": "question"}}),
    "task.target_column": ("gold", {"task.columns": {"answer": "gold"}}),
    "task.split": ("more", {"task.splits": {"train": "more"}}),
    "task.held_out_split": ("test", {"task.splits": {"held_out": "test"}}),
    "task.lowest_pass_rate": (0.1, {"task.pass_rate_range": {"lowest": 0.1}}),
    "task.highest_pass_rate": (0.9, {"task.pass_rate_range": {"highest": 0.9}}),
    "record.rollouts": (False, {"record.tokens": "nothing"}),
    **{
        f"{path.partition('.')[0]}.{name}": (value, {path: {name: value}})
        for path, entries in MOVED.items()
        for name in entries
        for value in [OTHER.get(name, 0.5)]
    },
}


def nested(path: str, value: Any) -> dict[str, Any]:
    section, _, name = path.partition(".")
    return {section: {name: value}}


def test_a_removed_setting_in_a_file_or_on_the_command_line_is_ignored_with_a_note(
    tmp_path: Path,
) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("seed: 3\nrun:\n  workers: 4\n")
    note = "has no effect: one process computes, with all the cores it may use; leave it out"
    with pytest.warns(UserWarning, match=f"^run.workers 4 {note}$"):
        assert build(read_yaml(file)) == build({"seed": 3})
    with pytest.warns(UserWarning, match=f"^run.workers 2 {note}$"):
        assert build(merge(read_yaml(file), parse_sets(["run.workers=2"]))) == build({"seed": 3})


def test_a_removed_setting_that_was_not_changed_needs_no_note() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path, removed in REMOVED.items():
            for value in (*removed.usual, None):
                assert build(nested(path, value)) == RunConfig(), path
                assert changed({path: value}) == {}


@pytest.mark.parametrize("path", [path for path in REMOVED if path not in KEPT])
def test_what_has_no_effect_any_more_is_said(path: str) -> None:
    with pytest.warns(UserWarning, match=rf"^{path} 77 has no effect: .+; leave it out$"):
        assert build(nested(path, 77)) == RunConfig()
    assert changed({path: 77}) == {path: 77}


def test_what_a_removed_setting_did_is_kept() -> None:
    # an old run has every setting of its time, those that are still there with their defaults
    defaults = RunConfig().model_dump(mode="json")
    for path, (value, today) in KEPT.items():
        for tree in (nested(path, value), merge(defaults, nested(path, value))):
            current, notes = without_removed(tree)
            assert notes == {}, path
            for target, kept in today.items():
                section, _, name = target.partition(".")
                assert current[section][name] == kept


def test_a_recipe_with_removed_settings_is_the_recipe_that_it_was() -> None:
    made = build({"algorithm": {"recipe": "ppo", "lam": 0.5, "whiten": False, "gamma": None}})
    assert made.algorithm.resolved() == recipe("ppo", lam=0.5, whiten=False)
    assert changed(flatten(made)) == {
        "algorithm.recipe": "ppo",
        "algorithm.options": {"lam": 0.5, "whiten": False},
    }


def test_a_stored_configuration_with_a_removed_setting_is_read() -> None:
    stored = {**RunConfig(seed=3).model_dump(mode="json"), "run": {"workers": 2}}
    assert RunConfig.model_validate(stored) == RunConfig(seed=3)


def test_other_settings_in_the_section_of_a_removed_one_are_still_refused() -> None:
    with pytest.raises(ConfigError, match="there is no setting 'run'"):
        build({"run": {"workers": 0, "threads": 2}})
    with pytest.raises(ConfigError, match=r"there is no setting 'run\.threads'"):
        parse_sets(["run.threads=2"])


def test_other_tasks_of_an_old_run_are_read() -> None:
    old = {
        "name": "gsm8k",
        "split": "train",
        "held_out_split": "test",
        "prompt_column": "prompt",
        "target_column": "gold",
        "environment_time_limit": 30.0,
    }
    made = build({"task": {"others": {"more": old}}}).task.others["more"]
    assert (made.splits, made.columns) == ({"held_out": "test"}, {"answer": "gold"})
