"""The tour: nine sentences, each of which asks for one key that is bound where it is asked for."""

from pathlib import Path

import pytest
from textual.keys import _character_to_key

from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.help.screen import HelpScreen
from grpo_tui.app.tui.tour import END, TourLine, key_of, stops
from tests.app import frames
from tests.app.walk import walk


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_key_of_each_sentence_leads_to_the_next(
    size: tuple[int, int], store: Path
) -> None:
    feed = ReplayFeed(store, "calm-otter", speed=1000)
    async with walk(Workbench(store, feed=feed, mode="watch", tour=True), size) as on:
        await on.until(lambda: on.screen.snapshot.status == "completed")
        for place, stop in enumerate(stops()):
            on.app.frame_now()
            assert on.app.tour is not None
            assert on.app.tour.index == place
            await on.pilot.pause()
            line = on.screen.query_one(TourLine)
            key = key_of(on.screen, stop.binding)
            assert f" {key} " in f" {line.sentence} ", stop
            shown = " ".join(on.text.split())
            assert " ".join(line.sentence.split()[:6]) in shown
            frames.check(on.app)
            await on.press(key if len(key) > 1 else _character_to_key(key))
        tour = on.app.tour
        assert tour is not None
        assert tour.stop is None
        await on.until(lambda: isinstance(on.screen, HelpScreen))
        await on.press("escape")
        on.app.frame_now()
        assert on.screen.query_one(TourLine).sentence == END


async def test_on_another_screen_it_says_how_to_get_back(store: Path) -> None:
    async with walk(
        Workbench(store, feed=ReplayFeed(store, "calm-otter"), mode="watch", tour=True), (80, 24)
    ) as on:
        await on.press("1")
        on.app.frame_now()
        await on.pilot.pause()
        assert "The tour continues on Watch: press 3." in on.text
        await on.press("n")
        assert on.app.tour is not None
        assert on.app.tour.index == 0
