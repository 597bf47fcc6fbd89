"""Settings of earlier versions are read and ignored, with a note where they were set."""

import warnings
from pathlib import Path

import pytest

from grpo_engine.config.parse import build, merge, parse_sets, read_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError


def test_a_removed_setting_in_a_file_or_on_the_command_line_is_ignored_with_a_note(
    tmp_path: Path,
) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("seed: 3\nrun:\n  workers: 4\n")
    note = "has no effect: one process computes, with all the cores that it may use; leave it out"
    with pytest.warns(UserWarning, match=f"^run.workers 4 {note}$"):
        assert build(read_yaml(file)) == build({"seed": 3})
    with pytest.warns(UserWarning, match=f"^run.workers 2 {note}$"):
        assert build(merge(read_yaml(file), parse_sets(["run.workers=2"]))) == build({"seed": 3})


@pytest.mark.parametrize("value", [0, "auto"])
def test_a_removed_setting_that_was_left_to_the_program_needs_no_note(value: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build({"run": {"workers": value}}) == RunConfig()


def test_a_stored_configuration_with_a_removed_setting_is_read() -> None:
    stored = {**RunConfig(seed=3).model_dump(mode="json"), "run": {"workers": 2}}
    assert RunConfig.model_validate(stored) == RunConfig(seed=3)


def test_other_settings_in_the_section_of_a_removed_one_are_still_refused() -> None:
    with pytest.raises(ConfigError, match="there is no setting 'run'"):
        build({"run": {"workers": 0, "threads": 2}})
    with pytest.raises(ConfigError, match=r"there is no setting 'run\.threads'"):
        parse_sets(["run.threads=2"])
