"""A run that is launched in the background is in view before its process has begun."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_tui.app.jobs import launch
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import LaunchRequested
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events


class Process:
    """A process that starts when it is told to."""

    def __init__(self) -> None:
        self.go, self.failure = threading.Event(), ""

    def start(self, config: RunConfig, store: Path, parent: str = "") -> str:  # noqa: ARG002
        self.go.wait(60)
        if self.failure:
            raise launch.LaunchError(self.failure)
        record(store, run_events(steps=2), name=config.name)
        return config.name


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    made = Process()
    monkeypatch.setattr(launch, "detached", made.start)
    yield made
    made.go.set()


CONFIG = RunConfig(name="quick-hare", steps=2)


async def test_it_is_in_view_while_its_process_starts_and_then_as_recorded(
    process: Process, tmp_path: Path
) -> None:
    app = Workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(LaunchRequested(CONFIG, "detached"))
        await until(app, lambda: "quick-hare" in frames.frame(app)[0])
        assert "3 Watch" in frames.text(app)
        assert not process.go.is_set()
        await pilot.press("4")
        app.frame_now()
        frames.check(app)
        await pilot.press("3")
        process.go.set()
        await until(app, lambda: "run is complete after 2 steps" in frames.text(app))


async def test_a_refused_one_says_why_in_its_place(process: Process, tmp_path: Path) -> None:
    process.failure = "the disk is full"
    app = Workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)):
        app.post_message(LaunchRequested(CONFIG, "detached"))
        process.go.set()
        await until(app, lambda: app.session is not None and app.session.pull().status == "failed")
        app.frame_now()
        await until(app, lambda: "not started: the disk is full" in frames.text(app))
