"""Every test of the app waits until its screen is at rest, however busy the machine."""

import pytest

from tests.app import rest


@pytest.fixture(autouse=True)
def _screens_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rest.install(monkeypatch)


@pytest.fixture
def no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """New run starts no trial process by itself."""
    monkeypatch.setattr("app.tui.screens.new_run.NewRunScreen.REHEARSE_S", 3600.0)
