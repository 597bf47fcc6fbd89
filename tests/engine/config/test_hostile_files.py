"""Configuration files of any origin: one line of words for each, and never more work than it is."""

from pathlib import Path

import pytest

from grpo_engine.config.parse import build, parse_sets, read_yaml
from grpo_engine.config.safe_json import MOST_BYTES
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.config.trl_config import read
from grpo_engine.errors import ConfigError

BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: 3\nseed: 1\nsteps: 4\n", "'steps' is given twice, line 3, column 1"),
        ("rollout:\n  stop: [a]\n  stop: [b]\n", "'stop' is given twice, line 3, column 3"),
        (BOMB, "has more than 100000 values"),
        ("a: " + "[" * 100_000, "nested more than 30 levels deep"),
        ("a: " + "{b: " * 100_000, "nested more than 30 levels deep"),
        ("a: &a [*a]\n", "nested more than 30 levels deep"),
        ("a: " + "x" * MOST_BYTES, "is larger than 1 MB"),
        ("steps: [", "cannot be used as YAML"),
    ],
)
def test_a_hostile_file_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    with pytest.raises(ConfigError):
        read(file)


def test_a_device_is_no_file_of_settings() -> None:
    with pytest.raises(ConfigError, match="/dev/zero is not a file"):
        read_yaml(Path("/dev/zero"))


def test_brackets_in_other_formats_and_values_are_refused_too(tmp_path: Path) -> None:
    for name in ("c.json", "c.py"):
        file = tmp_path / name
        file.write_text("[" * 50_000)
        with pytest.raises(ConfigError):
            read(file)
    for path in ("steps", "rollout.stop"):  # the scanner of YAML would go over them for minutes
        with pytest.raises(ConfigError):
            build(parse_sets([f"{path}={'[' * 50_000}"]))


def test_anchors_within_bounds_are_ordinary_yaml() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\n") == {"a": {"b": 1}, "c": {"b": 1}}
    assert parse_yaml("") is None


def test_true_and_false_stay_values_of_settings_that_are_either() -> None:
    config = build({"task": {"shuffle": False}, "evaluation": {"before_and_after": True}})
    assert not config.task.shuffle
    assert config.evaluation.before_and_after
