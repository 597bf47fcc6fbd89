"""A run that is launched in the background is in view before its process has begun."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_engine.events import RunStarted
from grpo_tui.app.jobs import launch
from grpo_tui.app.jobs.detach import LaunchError
from grpo_tui.app.text.prompt_text import last_question
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import LaunchRequested, RunOpened
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events


class Process:
    """A process that starts when it is told to."""

    def __init__(self) -> None:
        self.go, self.failure = threading.Event(), ""
        self.events = list(run_events(steps=2))

    def start(self, config: RunConfig, store: Path, parent: str = "") -> str:  # noqa: ARG002
        self.go.wait(60)
        if self.failure:
            raise LaunchError(self.failure, 1)
        record(store, iter(self.events), name=config.name)
        return config.name


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    made = Process()
    monkeypatch.setattr(launch, "detached", made.start)
    yield made
    made.go.set()


CONFIG = RunConfig(name="quick-hare", steps=2)


@pytest.mark.slow
async def test_it_is_told_while_its_process_starts_and_then_in_view_as_recorded(
    process: Process, tmp_path: Path
) -> None:
    app = Workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)):
        app.post_message(LaunchRequested(CONFIG, "detached"))
        await until(app, lambda: "starting checks its settings" in frames.text(app))
        assert "▌3 Watch▐" in frames.text(app)
        assert not process.go.is_set()
        process.go.set()
        await until(app, lambda: "run is complete after 2 steps" in frames.text(app))


async def test_where_one_went_after_a_launch_stays_on_screen_and_the_run_is_listed(
    process: Process, tmp_path: Path
) -> None:
    app = Workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)):
        app.post_message(LaunchRequested(CONFIG, "detached", tried=True))
        await until(app, lambda: "▌3 Watch▐" in frames.text(app))
        app.simulate_key("1")
        await until(app, lambda: "◌ quick-hare  starting" in frames.text(app))
        frames.check(app)
        process.go.set()
        text = "quick-hare is training now; 3 shows it."
        await until(app, lambda: text in [notice.text for notice in app.notices])
        assert "▌1 Runs▐" in frames.text(app)
        await until(app, lambda: "◌ quick-hare" not in frames.text(app))
        app.simulate_key("3")
        await until(app, lambda: "run is complete after 2 steps" in frames.text(app))


async def test_a_run_that_was_opened_after_a_launch_stays_on_screen(
    process: Process, tmp_path: Path
) -> None:
    record(tmp_path / "runs.db", run_events(steps=3), name="calm-otter")
    app = Workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)):
        app.post_message(LaunchRequested(CONFIG, "detached", tried=True))
        await until(app, lambda: "▌3 Watch▐" in frames.text(app))
        app.post_message(RunOpened("calm-otter"))
        await until(app, lambda: "run is complete after 3 steps" in frames.text(app))
        process.go.set()
        await until(app, lambda: app.starting is None)
        await app.workers.wait_for_complete()
        assert "run is complete after 3 steps" in frames.text(app)
        app.simulate_key("3")
        await until(app, lambda: "run is complete after 2 steps" in frames.text(app))


async def test_a_refused_one_says_why_and_leads_back(process: Process, tmp_path: Path) -> None:
    process.failure = "the disk is full"
    app = Workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)):
        app.post_message(LaunchRequested(CONFIG, "detached"))
        await until(app, lambda: "▌3 Watch▐" in frames.text(app))
        process.go.set()
        await until(
            app,
            lambda: app.notices and app.notices[-1].text == "not started: the disk is full",
        )
        await until(app, lambda: "▌1 Runs▐" in frames.text(app))
        assert app.session is None


@pytest.mark.slow
@pytest.mark.parametrize("view", ["watch", "frozen", "rollouts"])
async def test_at_step_0_it_does_not_show_the_groups_of_the_run_before(
    process: Process, tmp_path: Path, view: str
) -> None:
    store = tmp_path / "runs.db"
    record(store, run_events(steps=3), name="old-otter")
    process.events = [event for event in process.events if isinstance(event, RunStarted)]
    app = Workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(RunOpened("old-otter"))
        await until(app, lambda: "run is complete after 3 steps" in frames.text(app))
        assert app.session is not None
        prompt = last_question(app.session.state.snapshot().groups[0].prompt_text)
        if view == "rollouts":
            await pilot.press("4")
        elif view == "frozen":
            app.screen.frozen = True  # type: ignore[attr-defined]
        await until(app, lambda: prompt in frames.text(app))
        app.post_message(LaunchRequested(CONFIG, "detached"))
        process.go.set()
        await until(app, lambda: app.session is not None and app.session.run == 2)
        if view == "rollouts":
            await app.action_mode("rollouts")
        await until(app, lambda: prompt not in frames.text(app), app.frame_now)
