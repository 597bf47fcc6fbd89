"""Every test of the app waits until its screen is idle, however busy the machine is."""

import os
from functools import cache
from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from tests.app import rest


@pytest.fixture(autouse=True)
def _screens_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rest.install(monkeypatch)
    monkeypatch.setattr(Stylesheet, "_parse_rules", _parsed_once)


parse_rules = Stylesheet._parse_rules


def _parsed_once(sheet: Stylesheet, *texts: Any, **words: Any) -> list[RuleSet]:
    """Parse each piece of CSS once for all workbenches of a process, which have the same."""
    return _parsed(texts, tuple(sheet._variables.items()), tuple(words.items()))


@cache
def _parsed(texts: Any, variables: Any, words: Any) -> list[RuleSet]:
    return parse_rules(Stylesheet(variables=dict(variables)), *texts, **dict(words))


@pytest.fixture(autouse=True)
def _no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep New run from starting a trial process, but where a test sets how long it waits."""
    monkeypatch.setattr("grpo_tui.app.tui.screens.new_run.screen.NewRunScreen.REHEARSE_S", 3600.0)


@pytest.fixture(autouse=True)
def _each_test_names_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget at the end what `--db` put into this process's environment."""
    monkeypatch.setenv("GRPO_TUI_DB", os.environ.get("GRPO_TUI_DB", ""))
