"""The palette finds metrics, settings, runs and help by their names."""

from pathlib import Path

import pytest
from textual.keys import _character_to_key
from textual.pilot import Pilot

from app.feed.stored import StoreFeed
from app.tui.app import Workbench
from app.tui.dialogs.help import HelpScreen
from experiments.store import ExperimentStore
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("no_trials")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finding") / "runs.db"
    for name in ("quick-otter", "[b]heron"):
        record(path, run_events(steps=2), name=name)
    made = ExperimentStore(path)
    made.set_note(2, "[/b] slow")
    made.close()
    return path


def workbench(store: Path) -> Workbench:
    feed = StoreFeed(store, "@last")
    assert feed.caught_up.wait(PATIENCE)
    return Workbench(store, feed=feed, mode="watch")


async def take(app: Workbench, pilot: Pilot[int], text: str, name: str) -> None:
    """Type into the palette and take what is found."""
    await pilot.press("ctrl+p", *(_character_to_key(char) for char in text))
    await until(app, lambda: name in frames.text(app))
    frames.check(app)
    await pilot.press("enter")
    await pilot.pause()


async def test_a_run_is_opened(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await take(app, pilot, "run: quick", "Run: quick-otter")
        await until(app, lambda: "quick-otter" in frames.frame(app)[0])


async def test_a_name_is_shown_as_it_is(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("ctrl+p", *"heron")
        await until(app, lambda: "Run: [b]heron" in frames.text(app))
        assert "[/b] slow" in frames.text(app)


async def test_a_setting_is_gone_to_on_new_run(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await take(app, pilot, "max_new_tok", "Setting: rollout.max_new_tokens")
        await until(app, lambda: getattr(app.screen, "mode", "") == "new_run")
        assert app.screen.view.row.id == "rollout.max_new_tokens"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("cispo_clip_ratio", "Metric:", "stored as"),
        ("help: alert entropy", "Help: alert entropy_collapse", "entropy collapse"),
        ("help: groups", "Help: groups", "A row for each prompt"),
    ],
)
async def test_help_is_found(store: Path, text: str, name: str, words: str) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await take(app, pilot, text, name)
        await until(app, lambda: isinstance(app.screen, HelpScreen))
        await until(app, lambda: words in frames.text(app))
