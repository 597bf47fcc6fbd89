"""Every test of the app waits until its screen is at rest, however busy the machine."""

import pytest

from tests.app import rest


@pytest.fixture(autouse=True)
def _screens_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rest.install(monkeypatch)
