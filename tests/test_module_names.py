"""Every target that a table names as text exists."""

from importlib.util import find_spec
from pkgutil import resolve_name

import pytest

from grpo_engine.rewards.builtins import BUILT_IN as REWARDS
from grpo_engine.tasks.base import BUILT_IN as TASKS
from grpo_tui.app.cli.verb_table import VERBS
from grpo_tui.app.tui.app import PRELOADED, SCREENS

TABLES = {
    "verbs": [verb.target for verb in VERBS],
    "screens": list(SCREENS.values()),
    "rewards": [row.target for row in REWARDS.values()],
    "tasks": [target for target, _ in TASKS.values()],
}


@pytest.mark.parametrize("table", TABLES)
def test_every_target_of_a_table_is_there(table: str) -> None:
    assert TABLES[table]
    for target in TABLES[table]:
        assert callable(resolve_name(target)), target


def test_every_module_that_is_loaded_ahead_is_there() -> None:
    assert [name for name in PRELOADED if find_spec(name) is None] == []
