"""The palette finds actions, metrics, settings, runs, help and answers; `/` what is on screen."""

import asyncio
from pathlib import Path

import pytest
from textual.command import Hits
from textual.keys import _character_to_key

from grpo_engine.metrics import METRICS, spec
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.help.screen import HelpScreen
from grpo_tui.app.tui.finding import NameProvider, best
from grpo_tui.app.tui.keys import KEYS
from grpo_tui.app.tui.messages import RunOpened
from grpo_tui.app.tui.questions import questions
from grpo_tui.app.tui.screens.base import Entry, WorkbenchScreen
from grpo_tui.app.tui.screens.watch.panels import Curves
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.experiments.store import ExperimentStore
from tests.app import frames
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
    await on.until(lambda: name in on.text)
    frames.check(on.app)
    await on.press("enter")


async def everything(app: Workbench) -> tuple[Entry, ...]:
    finding = NameProvider(app.screen)
    await finding.startup()
    return await finding.names()


@pytest.mark.slow
async def test_every_metric_is_found_by_its_key_its_title_and_everyday_words(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)):
        every = await everything(app)
    for key, one in METRICS.items():
        for words in (key, one.label, *filter(None, one.also.split(", "))):
            names = [found.name for _, found in best(every, words)]
            assert any(key in name for name in names), (key, words)


QUESTIONS = (
    ("is it learning?", "Is it learning, and is it healthy?"),
    ("is it healthy", "Is it learning, and is it healthy?"),
    ("is the reward hacked", "Is the reward hacked?"),
    ("how long", "How long does it take?"),
    ("why is the loss near 0", "Why is the loss near 0?"),
    ("which prompt fails", "Which prompt fails most?"),
    ("best and worst", "What are the best and worst answers?"),
    ("why was this token not pushed", "Why was this token not pushed?"),
    ("what changed for this prompt", "What changed for this prompt from first to last?"),
    ("answers with a text", "Which answers have a text in them?"),
    ("another clip range", "What would another clip range have done?"),
    ("which setting is better", "Which setting is better, and how sure is that?"),
    ("how sure is that", "Which setting is better, and how sure is that?"),
    ("which run is training", "Which run is training?"),
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


async def test_a_question_leads_to_its_screen_and_says_where_the_answer_is(store: Path) -> None:
    async with walk(workbench(store)) as on:
        on.app.post_message(RunOpened("quick-otter"))
        await on.until(lambda: "completed after" in on.text)
        assert isinstance(on.app.screen, WorkbenchScreen)
        health = on.app.screen.snapshot.health
        every = {entry.name: entry for entry in await everything(on.app)}
        asked = every["Is it learning, and is it healthy?"]
        assert (asked.value, asked.help) == (health.label, health.reason)
        for question in ("Is the reward hacked?", "Why is the loss near 0?"):
            assert every[question].help in " ".join(on.text.split())
        await take(on, "which prompt fails", "Which prompt fails most?")
        await on.until(lambda: "▌4 Rollouts▐" in on.text)
        await on.until(lambda: "s, then f" in on.told)
        await take(on, "what would another clip", "What would another clip range")
        await on.until(lambda: "v opens the lab" in on.told)
        assert "▌4 Rollouts▐" in on.text


def test_every_question_names_a_screen_and_a_binding_of_it() -> None:
    for question in questions():
        parts = (question.mode, "screen")
        assert any(question.binding in KEYS[part] for part in parts), question.text
        assert question.text.endswith("?")


async def test_the_palette_begins_with_questions_and_screens_without_what_is_of_no_use(
    store: Path,
) -> None:
    async with walk(workbench(store)) as on:
        await on.until(lambda: "completed" in on.text)
        finding = NameProvider(on.app.screen)
        await finding.startup()
        names = [str(hit.text) async for hit in finding.discover()]
    order = ("Is the reward hacked?", "Watch", "Metrics", "Log axis", "Down")
    assert [name for name in names if name in order] == [*order]
    assert not {"Pause run", "Stop…", "Checkpoint"} & {*names}  # the run has ended


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
        await on.until(lambda: "▸reward" not in on.text)
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
        await on.until(lambda: on.screen.maximized is not None)
        await on.until(lambda: "answers cut" in on.text)
        await on.press("ctrl+p", *"loss")
        await on.until(lambda: "Metric: loss" in on.text)


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
        await on.until(lambda: f"Prompt {place + 1}:" in on.text)
        await on.press("enter")
        assert screen.view.prompt == place


async def test_a_run_is_opened(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await take(on, "run: quick", "Run: quick-otter")
        await on.until(lambda: "quick-otter" in on.lines[0])


@pytest.mark.slow
async def test_a_setting_is_gone_to_on_new_run(store: Path) -> None:
    async with walk(workbench(store)) as on:
        await take(on, "max_new_tok", "Setting: rollout.max_new_tokens")
        await on.until(lambda: getattr(on.screen, "mode", "") == "new_run")
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
        await on.until(lambda: isinstance(on.screen, HelpScreen))
        await on.until(lambda: words in on.text)
