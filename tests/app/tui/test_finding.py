"""The palette finds actions, metrics, settings, runs, help and answers; `/` what is on screen."""

import asyncio
import re
from pathlib import Path

import pytest
from textual.command import Hits
from textual.events import Click
from textual.keys import _character_to_key

from grpo_engine.metrics import METRICS, spec
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.help.screen import HelpScreen
from grpo_tui.app.tui.dialogs.help.topics import ALERTS
from grpo_tui.app.tui.finding import NameProvider, best
from grpo_tui.app.tui.screens.base import Entry, WorkbenchScreen
from grpo_tui.app.tui.screens.watch.panels import Curves
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.experiments.store import ExperimentStore
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record, run_events, workbench
from tests.app.walk import Walk, walk


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finding") / "runs.db"
    for name in ("quick-otter", "[b]heron"):
        record(path, run_events(steps=2), name=name)
    made = ExperimentStore(path)
    made.change(2, note="[/b] slow")
    made.close()
    return path


async def take(on: Walk, text: str, name: str) -> None:
    """Type into the palette and take what is found."""
    await on.press("ctrl+p", *(_character_to_key(char) for char in text))
    await until(on.app, lambda: name in on.text)
    frames.check(on.app)
    await on.press("enter")


async def test_a_double_click_beside_the_palette_closes_it_once(tmp_path: Path) -> None:
    async with walk(Workbench(tmp_path / "none.db")) as on:
        await on.press("ctrl+p")
        palette = on.screen
        palette.post_message(Click(palette, 1, 1, 0, 0, 1, False, False, False))
        palette.post_message(Click(palette, 1, 1, 0, 0, 1, False, False, False))
        await until(on.app, lambda: on.screen is not palette)


async def everything(app: Workbench) -> tuple[Entry, ...]:
    finding = NameProvider(app.screen)
    await finding.startup()
    return (*finding._actions, *finding._entries)


@pytest.mark.slow
async def test_every_metric_is_found_by_its_key_its_title_and_everyday_words(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)):
        every = await everything(app)
    for key, one in METRICS.items():
        for words in (key, one.label, *filter(None, one.also.split(", "))):
            names = [found.name for _, found in best(every, words)]
            assert any(key in name for name in names), (key, words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("export", {"Export…", "Copy", "Save a picture", "Help: export, report, share"}),
        ("report", {"Export…", "Save a picture", "Help: export, report, share"}),
        ("share", {"Export…", "Copy", "Save a picture", "Help: export, report, share"}),
        ("worst", {"Rollouts"}),
        ("time left", {"Watch"}),
        ("clip range", {"Rollouts"}),
        ("healthy", {"Watch", "Runs"}),
        ("chart", {"Zoom", "Metrics", "Log axis"}),
    ],
)
async def test_the_palette_knows_what_people_call_things(
    word: str, names: set[str], store: Path
) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: "reward" in frames.text(app))
        app.screen.query_one("#curves").focus()
        await pilot.pause()
        every = await everything(app)
    assert names <= {entry.name for _, entry in best(every, word)}


QUESTIONS = (
    ("is it learning?", "Watch"),
    ("is it healthy", "Watch"),
    ("is the reward hacked", "Watch"),
    ("how long", "Watch"),
    ("why is the loss near 0", "Watch"),
    ("which prompt fails", "Rollouts"),
    ("best and worst", "Rollouts"),
    ("why was this token not pushed", "Rollouts"),
    ("what changed for this prompt", "Rollouts"),
    ("answers with a text", "Rollouts"),
    ("what would another clip range have done", "Rollouts"),
    ("which setting is better", "Compare"),
    ("how sure is that", "Compare"),
    ("which run is training", "Runs"),
    ("what is KL", "Metric: KL to reference (kl)"),
    ("what is entropy", "Metric: entropy"),
    ("learning", "Metric: learning rate (learning_rate)"),
)


@pytest.mark.slow
async def test_questions_lead_to_what_answers_them(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)):
        every = await everything(app)
    first = {question: best(every, question)[0][1].name for question, _ in QUESTIONS}
    assert first == dict(QUESTIONS)


@pytest.mark.slow
async def test_over_a_dialog_the_palette_says_that_it_finds_its_actions_alone(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await on.press("ctrl+p")
        await on.see("Find an action, a metric")
        await on.press("escape", "ctrl+c")
        await until(on.app, lambda: not isinstance(on.screen, WorkbenchScreen))
        await on.press("ctrl+p")
        await on.until(lambda: "Find an action of this dialog" in on.text)
        assert "a setting, a run" not in on.text


async def test_the_palette_begins_with_the_actions_of_the_screen(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)):
        finding = NameProvider(app.screen)
        await finding.startup()
        names = [str(hit.text) async for hit in finding.discover()]
    assert names.index("Pause run") < names.index("Down")
    assert names.index("Pause run") < names.index("Back")


@pytest.mark.slow
async def test_slash_is_the_same_field_on_every_screen_and_says_what_it_finds(
    store: Path,
) -> None:
    async with walk(workbench(store)) as on:
        for mode in ("3", "1", "2", "4", "5"):
            await on.press(mode)
            await on.pilot.pause()
            await on.press("slash")
            await on.pilot.pause()
            bar = on.screen.query_one(FindBar)
            assert bar.field.has_focus
            assert bar.field.placeholder.startswith("find ")
            assert not on.screen.is_modal
            # on New run, the first one goes to the settings that match
            await on.press(*["escape"] * (2 if mode == "2" else 1))
            await on.pilot.pause()
            assert not bar.display, mode


@pytest.mark.slow
async def test_slash_on_watch_keeps_the_charts_that_match_until_esc(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await on.see("reward", "KL to reference")
        await on.press("slash", *"drift")  # an everyday word for KL
        await until(on.app, lambda: "▸reward" not in on.text)
        await on.press("enter")
        curves = on.screen.query_one("#curves", Curves)
        assert [chart.keys[0] for chart in curves.charts] == ["kl"]
        assert curves.copy_text().startswith("step\tkl\n1\t")
        assert curves.has_focus
        await on.press("escape")
        await on.see("▸reward")
        await on.press("slash", *"zzz")
        await on.see("No metric of this run matches", "“zzz”", "searched")


async def test_without_a_run_no_metric_is_said_to_be_missing_in_it(store: Path) -> None:
    app = Workbench(store)
    async with app.run_test(size=(120, 40)):
        values = {found.value for found in await everything(app) if "Metric" in found.name}
        assert values == {""}


async def test_the_first_hit_is_the_metric_that_was_meant(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)):
        every = await everything(app)
    for words, key in (
        ("truncated", "completions/clipped_ratio"),
        ("slow", "time/generate"),
        ("time", "time/generate"),
        ("length", "completions/mean_length"),
        ("distance", "kl"),
        ("reference", "kl"),
        ("how far", "kl"),
        ("reward", "reward"),
        ("lr", "learning_rate"),
        ("furthest", "kl"),
    ):
        first = best(every, words)[0][1].name
        assert first in (f"Metric: {spec(key).label} ({key})", f"Metric: {key}"), words


def test_whole_words_come_first_then_beginnings_parts_and_the_help() -> None:
    names = {
        "in the help": Entry("a", "its rate", print),
        "part": Entry("karate", "", print),
        "beginning": Entry("b", "", print, also="rates"),
        "word": Entry("clip (rate)", "", print),
        "none": Entry("c", "", print),
    }
    found = [
        next(n for n, one in names.items() if one is hit) for _, hit in best(names.values(), "RATE")
    ]
    assert found == ["word", "beginning", "part", "in the help"]
    assert [hit.name for _, hit in best(names.values(), "rate clip")] == ["clip (rate)"]
    assert best(names.values(), "  ") == []


@pytest.mark.slow
async def test_enter_right_after_the_text_waits_for_the_first_hit(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = NameProvider.search

    async def late(finding: NameProvider, query: str) -> Hits:
        await asyncio.sleep(0.2)
        async for hit in search(finding, query):
            yield hit

    monkeypatch.setattr(NameProvider, "search", late)
    async with walk(workbench(store)) as on:
        await on.press("ctrl+p")
        for key in (*"truncated", "enter"):  # without waiting for hits
            on.app.simulate_key(key)
        await until(on.app, lambda: on.screen.maximized is not None)
        await until(on.app, lambda: "answers cut" in on.text)
        await on.press("ctrl+p", *"loss")
        await until(on.app, lambda: "Metric: loss" in on.text)


@pytest.mark.slow
async def test_a_word_of_an_answer_leads_to_its_prompt(
    store: Path,
) -> None:
    async with walk(workbench(store)) as on:
        screen = on.screen
        groups = screen.snapshot.groups
        word = max(groups[-1].rollouts[0].text.split(), key=len)
        place = next(
            at for at, group in enumerate(groups) if any(word in one.text for one in group.rollouts)
        )
        await on.press("ctrl+p", *map(_character_to_key, word))
        await until(on.app, lambda: f"Prompt {place + 1}:" in on.text)
        await on.press("enter")
        assert screen.view.prompt == place


@pytest.mark.slow
async def test_what_a_hit_says_is_not_cut_by_the_scroll_bar(store: Path) -> None:
    async with walk(workbench(store), (80, 24)) as on:
        await on.press("ctrl+p", *"entropy")
        await until(on.app, lambda: "Help: alert entropy_collapse" in on.text)
        _, _, text = on.text.partition("Help: alert entropy_collapse")
        assert " ".join(re.findall(r"[\w,.]+", text)).startswith(ALERTS["entropy_collapse"])


async def test_a_run_is_opened(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await take(on, "run: quick", "Run: quick-otter")
        await until(on.app, lambda: "quick-otter" in on.lines[0])


@pytest.mark.slow
async def test_a_name_is_shown_as_it_is(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await on.press("ctrl+p", *"heron")
        await until(on.app, lambda: "Run: [b]heron" in on.text)
        assert "[/b] slow" in on.text


@pytest.mark.slow
async def test_a_setting_is_gone_to_on_new_run(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await take(on, "max_new_tok", "Setting: rollout.max_new_tokens")
        await until(on.app, lambda: getattr(on.screen, "mode", "") == "new_run")
        assert on.screen.view.row.path == "rollout.max_new_tokens"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("cispo_clip_ratio", "Metric:", "stored as"),
        ("help: alert entropy", "Help: alert entropy_collapse", "entropy collapse"),
    ],
)
async def test_help_is_found(store: Path, text: str, name: str, words: str) -> None:
    async with walk(workbench(store)) as on:
        await take(on, text, name)
        await until(on.app, lambda: isinstance(on.screen, HelpScreen))
        await until(on.app, lambda: words in on.text)
