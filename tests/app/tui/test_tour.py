"""The tour: nine sentences, each of which asks for one key that is bound where it is asked for."""

from pathlib import Path

import pytest
from textual.keys import _character_to_key

from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.help.screen import HelpScreen
from grpo_tui.app.tui.tour import END, STOPS, TourLine, key_of
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tour") / "runs.db"
    record(path, run_events(steps=6), name="otter")
    return path


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_key_of_each_sentence_leads_to_the_next(
    size: tuple[int, int], store: Path
) -> None:
    feed = ReplayFeed(store, "otter", speed=1000)
    app = Workbench(store, feed=feed, mode="watch", tour=True)
    async with app.run_test(size=size) as pilot:
        await until(app, lambda: app.screen.snapshot.status == "completed")  # type: ignore[attr-defined]
        for place, stop in enumerate(STOPS):
            app.frame_now()
            assert app.tour is not None
            assert app.tour.index == place
            await pilot.pause()
            line = app.screen.query_one(TourLine)
            key = key_of(app.screen, stop.binding)
            assert f" {key} " in f" {line.sentence} ", stop
            shown = " ".join(frames.text(app).split())
            assert " ".join(line.sentence.split()[:6]) in shown
            frames.check(app)
            await pilot.press(key if len(key) > 1 else _character_to_key(key))
        tour = app.tour
        assert tour is not None
        assert tour.stop is None
        await until(app, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("escape")
        app.frame_now()
        assert app.screen.query_one(TourLine).sentence == END


async def test_on_another_screen_it_says_how_to_get_back(store: Path) -> None:
    app = Workbench(store, feed=ReplayFeed(store, "otter"), mode="watch", tour=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1")
        app.frame_now()
        await pilot.pause()
        assert "The tour continues on Watch: press 3." in frames.text(app)
        await pilot.press("n")
        assert app.tour is not None
        assert app.tour.index == 0
