"""The trained model and the one it began as, asked the same thing: real processes, a tiny model."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from grpo_engine.config.parse import build
from grpo_tui.app import exit_codes
from grpo_tui.app.chat.client import Chat, Pair, Token, Turn, pair_of
from grpo_tui.app.cli.main import main
from grpo_tui.app.jobs.start import new_job
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.chat import ChatPanel, ChatScreen
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.rest import until
from tests.app.script import CONFIG
from tests.engine.runs import settings, write_world
from tests.patience import until as wait_until


def made(folder: Path, learning_rate: float) -> Pair:
    """A run of two steps."""
    world = folder / "world"
    world.mkdir(parents=True)
    config = settings(write_world(world), steps=2, optimizer={"learning_rate": learning_rate})
    job = new_job(config, store=folder / "s.db")
    job.train(lambda _: None)
    job.close()
    with StoreReader(folder / "s.db") as reader:
        return pair_of(reader, "@last", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(tmp_path_factory.mktemp("trained"), 1e-2)


@pytest.fixture
def chat(trained: Pair) -> Iterator[Chat]:
    talk = Chat(trained, tokens=8)
    yield talk
    talk.close()


@pytest.mark.slow
def test_both_models_answer_and_each_token_has_its_probability_under_both(chat: Chat) -> None:
    *grown, turn = chat.send("ab")
    assert grown
    assert turn.done
    assert turn.problem == ""
    for which in (0, 1):
        tokens = turn.tokens[which]
        assert "".join(token.text for token in tokens) == turn.texts[which]
        assert 1 <= len(tokens) <= 8
        assert all(token.trained <= 0 and token.before <= 0 for token in tokens)
    trained, before = turn.tokens
    # at temperature 0 each model begins with the token that is likeliest for it
    assert trained[0].trained >= before[0].trained
    assert before[0].before >= trained[0].before
    assert trained[0].trained != trained[0].before


@pytest.mark.slow
def test_a_run_that_learned_nothing_answers_as_before(tmp_path: Path) -> None:
    talk = Chat(made(tmp_path, 0.0), tokens=8)
    try:
        *_, turn = talk.send("ab")
    finally:
        talk.close()
    assert turn.texts[0] == turn.texts[1]
    # LoRA's B is 0: adapter and base differ in nothing
    assert [one.trained for one in turn.tokens[0]] == [one.before for one in turn.tokens[0]]


@pytest.mark.slow
def test_a_question_that_is_too_long_is_refused_with_an_option_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, 1e-2)
    monkeypatch.setenv("GRPO_TUI_DB", str(tmp_path / "s.db"))
    assert main(["chat", "@last", "ab" * 2000]) == exit_codes.USAGE
    refused = capsys.readouterr().err
    assert "lower --tokens" in refused
    assert "max_new_tokens" not in refused


@pytest.mark.slow
def test_an_answer_can_be_stopped_and_the_next_question_is_answered(chat: Chat) -> None:
    chat.tokens = 100_000
    answering = chat.send("ab")
    next(answering)
    chat.stop()
    *_, turn = answering
    assert turn.done
    assert turn.problem == ""
    chat.tokens = 4
    *_, turn = chat.send("ab")
    assert turn.tokens[1]


@pytest.mark.slow
def test_a_process_that_dies_is_told_and_the_next_question_starts_another(chat: Chat) -> None:
    chat.tokens = 100_000
    pieces = chat.send("ab")
    next(pieces)
    (process,) = answering_processes()
    process.kill()
    process.wait()
    *_, turn = pieces
    assert turn.problem == "the answer was lost with its process; ask again"
    chat.tokens = 8
    *_, turn = chat.send("ab")
    assert turn.problem == ""
    assert turn.texts[0]


def answering_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    living = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if "grpo_tui.app.chat.service:ChatService" in child.cmdline()]


@pytest.mark.slow
async def test_the_screen_asks_both_and_colours_what_training_changed(trained: Pair) -> None:
    store = Path(trained.trained.model.adapter or "").parents[3] / "s.db"
    app = Workbench(store, preferences=Preferences(), first=lambda: ChatScreen(trained))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: isinstance(app.screen, ChatScreen))
        await pilot.pause()
        assert "What the trained model answers appears here." in frames.text(app)
        assert "█ likelier since training  █ less likely" in frames.text(app)
        await pilot.press("a", "b", "enter")
        panels = app.screen.query(ChatPanel)
        await until(app, lambda: all(panel._turns[-1].tokens[0] for panel in panels))
        assert "green" not in frames.text(app)
        frames.check(app)
        await pilot.press("escape")
        await until(app, lambda: not isinstance(app.screen, ChatScreen))
    wait_until(lambda: not answering_processes())


async def test_arrows_scroll_the_dialogue(tmp_path: Path) -> None:
    config = build(CONFIG)
    pair = Pair(run="calm-otter", step=60, trained=config, before=config)
    screen = ChatScreen(pair)
    tokens = tuple(Token(f"{n} ", -0.5, -1.5) for n in range(40))
    screen._chat.turns += [
        Turn(f"question {n}", ["", ""], [tokens, tokens], done=True) for n in range(30)
    ]
    app = Workbench(tmp_path / "none.db", preferences=Preferences(), first=lambda: screen)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, lambda: "question 29" in frames.text(app))
        await pilot.press("tab")
        panel = screen.query(ChatPanel).first()
        assert panel.has_focus
        await pilot.press("home")
        await until(app, lambda: "question 0 " in frames.text(app))
        await pilot.press("end")
        await until(app, lambda: "question 29" in frames.text(app))
        frames.check(app)
