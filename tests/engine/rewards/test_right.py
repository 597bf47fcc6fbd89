"""Which answers are right, by the setting `evaluation.accuracy`."""

import pytest

from grpo_engine.errors import ConfigError
from grpo_engine.rewards.right import Right


@pytest.mark.parametrize("source", ["r.py:", "./my-rewards/r.py:", "package.module:"])
def test_a_function_is_named_as_among_the_rewards_or_by_its_name_alone(source: str) -> None:
    names = ["right", "other"]
    for rule, expected in {
        "right": Right("right"),
        "right >= 1": Right("right", ">=", 1.0),
        "right<.5": Right("right", "<", 0.5),
    }.items():
        assert Right.of(rule, "", names) == Right.of(f"{source}{rule}", "", names) == expected


def test_a_source_does_not_say_which_of_two_functions_of_one_name_is_meant() -> None:
    names = ["right", "right_2"]
    assert Right.of("right_2 >= 1", "", names) == Right("right_2", ">=", 1.0)
    for rule in ("a.py:right", "a.py:wrong >= 1", "a.py: >= 1", "right:1"):
        with pytest.raises(ConfigError, match="its functions are right, right_2"):
            Right.of(rule, "", names)
