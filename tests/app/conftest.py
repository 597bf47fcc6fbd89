"""Every test of the app waits until its screen is idle, however busy the machine is."""

import pytest

from tests.app import rest


@pytest.fixture(autouse=True)
def _screens_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rest.install(monkeypatch)


@pytest.fixture
def no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep New run from starting a trial process."""
    monkeypatch.setattr("grpo_tui.app.tui.screens.new_run.NewRunScreen.REHEARSE_S", 3600.0)
