"""Rollouts on a stored run: the screen agrees with the store."""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.keys import _character_to_key
from textual.pilot import Pilot

from grpo_engine import events as ev
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.inspector.groups import measure_of
from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import RolloutOpened, RunOpened
from grpo_tui.app.tui.screens.rollouts.lab.screen import LabScreen
from grpo_tui.app.tui.screens.rollouts.render import (
    probability,
)
from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from grpo_tui.app.tui.screens.rollouts.state import (
    Search,
    load_group,
    load_step,
    run_info,
    search,
    split,
    without_losses,
)
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RecordedTokens
from tests.app import frames
from tests.app.compared import workbench
from tests.app.frames import SIZES
from tests.app.rest import until
from tests.app.script import ScriptFeed, hostile_group, started
from tests.app.script import scored as group_scored
from tests.app.stored import STEPS, half_recorded, record, run_events, with_ends


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    record(path)
    return path


async def opened(
    app: Workbench,
    pilot: Pilot[int],
    step: int = 4,
    origin: ev.Origin = "train",
    group: int = 1,
    rollout: int = 1,
) -> RolloutsScreen:
    """Open the screen on one answer and wait for its numbers."""
    await app.forward(RolloutOpened(run=1, step=step, origin=origin, group=group, rollout=rollout))
    screen = app.screen
    assert isinstance(screen, RolloutsScreen)
    await settled(pilot, screen)
    return screen


async def watched(app: Workbench) -> None:
    """Open the run on Watch."""
    app.post_message(RunOpened("calm-otter"))
    await until(app, lambda: "▌3 Watch▐" in frames.text(app), app.frame_now)


async def settled(pilot: Pilot[int], screen: RolloutsScreen) -> None:
    """Wait until everything the screen requested from the store is loaded."""
    await pilot.pause()
    assert screen.view.group is None or screen.view.loaded is not None


async def test_the_shown_probability_is_the_stored_one(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        await pilot.press("right", "right")
        reader = StoreReader(store)
        group = reader.groups(1, step=4, origin="train")[1]
        tokens = reader.tokens(1, group.key)
        reader.close()
        assert tokens is not None
        row = tokens.rows[1]
        text = frames.text(app)
        assert f"old {probability(row.old[2])}" in text
        assert f"new {probability(row.passes[1][2])}" in text
        ratio = math.exp(row.passes[1][2] - row.old[2])
        assert f"in each pass: 1, {short(ratio, 3)}" in text


async def test_the_same_prompt_is_followed_over_three_steps(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=2, origin="pinned", group=0, rollout=0)
        seen = [screen.view.group]
        await pilot.press("left_square_bracket")
        assert app.notices[-1].text == (
            "This prompt has no earlier answers; t shows prompts sampled at many steps."
        )
        for _ in range(2):
            await pilot.press("right_square_bracket")
            await settled(pilot, screen)
            seen.append(screen.view.group)
        assert "push with KL" in frames.text(app)
        assert [group.step for group in seen if group] == [2, 4, 6]
        assert len({group.prompt_hash for group in seen if group}) == 1
        assert "▌6 " in frames.text(app)
        await pilot.press("d")
        assert "changes since step 4" in frames.text(app)
        assert "push with KL" not in frames.text(app)  # changes have no shading


async def test_a_step_that_is_not_recorded_yet_opens_the_newest_one(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=4)
        assert screen.view.step is not None
        run, newest = screen.view.step.run.key, screen.view.step.steps[-1]
        await app.forward(RolloutOpened(run, newest + 1, "train", 0, 0))
        await until(app, lambda: bool(app.notices))
        assert app.notices[-1].text == (
            f"Step {newest + 1} has no recorded answers; this is step {newest}."
        )
        assert screen.view.step.step == newest
        assert screen.view.group is not None


async def test_a_running_run_is_followed_until_the_cursor_moves(store: Path) -> None:
    feed = ScriptFeed(run_events(steps=6), name="otter", slice_size=1)
    app = Workbench(store, feed=feed, mode="rollouts")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = app.screen
        assert isinstance(screen, RolloutsScreen)

        def is_at(step: int) -> bool:
            return screen.snapshot.step == step and screen._seen_step == step

        await until(app, lambda: is_at(2), app.frame_now)
        await settled(pilot, screen)
        await pilot.press("right")
        shown = screen.view.step
        await until(app, lambda: screen.snapshot.step == 5, app.frame_now)
        await settled(pilot, screen)
        assert screen.view.step is shown


async def test_the_lab_is_offered_for_training_prompts_alone(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=2, group=0, rollout=0)
        assert "what if" in frames.frame(app)[-1]
        await pilot.press("t")
        await until(app, lambda: screen.view.group and screen.view.group.origin != "train")
        await settled(pilot, screen)
        assert "what if" not in frames.frame(app)[-1]


async def test_a_kind_with_fewer_answers_to_a_prompt_shows_its_last(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=2, group=0, rollout=3)
        step = screen.view.step
        assert step is not None
        alone = tuple(replace(one, rollouts=one.rollouts[:1]) for one in step.groups)
        screen.view = screen.view.with_step(replace(step, groups=alone))
        await settled(pilot, screen)
        assert "answer a by token" in frames.text(app)


TEMPLATE = "<|im_start|>system\nYou are a careful assistant.<|im_end|>\n<|im_start|>user\n{}"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 60 prompts in a chat template; every answer carries a digit, one a zebra."""
    path = tmp_path_factory.mktemp("texts") / "runs.db"
    events: list[ev.Event] = [started()]
    for step in range(1, 61):
        words = "then we carry the 1 to the tens" + (" with a zebra" if step == 30 else "")
        scored = group_scored(step, 0, (17, step), [(f"first 7+{step}, {words}", True, False)])
        asked = replace(scored.group, prompt_text=TEMPLATE.format(f"17 + {step} = ?"))
        events.append(replace(scored, group=with_ends(asked)))
    record(path, iter(events))
    return path


async def searched(pilot: Pilot[int], screen: RolloutsScreen, text: str) -> str:
    """The frame once the text was looked for."""
    screen.find(text)
    await pilot.pause()
    assert screen.view.search is not None
    assert screen.view.search.done
    return frames.text(screen.app)


async def test_a_part_of_a_word_is_found_and_shown_where_it_is(texts: Path) -> None:
    app = workbench(texts)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot, step=60, group=0, rollout=0)
        shown = await searched(pilot, screen, "zeb")
        (line,) = [line for line in shown.splitlines() if "30 1a " in line]
        assert "zebra" in line
        assert "1 of 1" in shown
        assert screen.view.group is not None
        assert screen.view.group.step == 30
        frames.check(app)
        # in a prompt the question is shown, and not how its template begins
        shown = await searched(pilot, screen, "17 + 5 =")
        (line,) = [line for line in shown.splitlines() if "5 1a " in line]
        assert "17 + 5 = ?" in line
        assert "system" not in line
        shown = await searched(pilot, screen, "car")
        assert "carry" in next(line for line in shown.splitlines() if "60 1a " in line)
        frames.check(app)
        await pilot.press("n")
        await settled(pilot, screen)
        hit = screen.view.hits[1]
        assert screen.view.hit == 1
        assert (screen.view.group.step, screen.view.group.index) == (hit.step, hit.group_index)


async def test_a_search_waits_until_typing_pauses_and_says_nothing_before(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = asyncio.Event()
    looked: list[str] = []

    def noted(reader: StoreReader, run: int, text: str) -> Iterator[Search]:
        looked.append(text)
        return search(reader, run, text)

    async def pause() -> None:
        await paused.wait()

    monkeypatch.setattr("grpo_tui.app.tui.screens.rollouts.screen.search", noted)
    app = workbench(texts)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=60, group=0, rollout=0)
        screen.typing_pause = pause
        await pilot.press("slash")
        for typed in ("q", "qu", "qux"):
            await pilot.press(typed[-1])
            shown = frames.text(app)
            assert "searching…" in shown
            assert f"Searching “{typed}”" in shown
            assert "contains" not in shown
        assert looked == []
        paused.set()
        await pilot.pause()
        assert looked == ["qux"]
        assert "No prompt or answer of this run contains “qux”." in " ".join(
            line[1:43].strip() for line in frames.frame(app)
        )
        paused.clear()
        await pilot.press("escape")
        assert screen.view.search is None
        assert "sort prompt" in frames.text(app)


async def test_a_search_leaves_the_reader_free_between_slices(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.experiments.search.PAGE", 5)
    monkeypatch.setattr("grpo_tui.app.tui.screens.rollouts.state.SLICE", 2)
    reader = StoreReader(texts)
    monkeypatch.setattr("grpo_tui.app.tui.screens.rollouts.state.MAX_HITS", 50)
    states = []
    for state in search(reader, 1, "7+1"):
        states.append(state)
        assert reader.runs()  # another question in between
    reader.close()
    # two pages of five answers at a time, of 60
    assert len(states) in (6, 7)
    assert [len(state.hits) for state in states] == sorted(len(state.hits) for state in states)
    # 7+1 and 7+10 to 7+19
    assert len(states[-1].hits) == 11


@pytest.mark.slow
async def test_hostile_answers_are_harmless(tmp_path: Path) -> None:
    group = hostile_group(1)
    path = tmp_path / "runs.db"
    events: list[ev.Event] = [started(), replace(group, group=with_ends(group.group))]
    record(path, iter(events))
    for size in SIZES:
        app = workbench(path)
        async with app.run_test(size=size) as pilot:
            screen = await opened(app, pilot, step=1, group=0, rollout=0)
            for _ in range(8 if size == SIZES[1] else 6):
                frames.check(app)
                await pilot.press("down", "D", "m")
                await settled(pilot, screen)


def asking(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[RolloutsScreen, SimpleNamespace, list[int | None]]:
    """A screen without an app, a stub of the workbench, and the runs whose steps it requests."""
    asked: list[int | None] = []
    monkeypatch.setattr(RolloutsScreen, "_read_step", lambda _, run, *__: asked.append(run))
    shown = SimpleNamespace(session=SimpleNamespace(run=1))
    monkeypatch.setattr(RolloutsScreen, "workbench", shown)
    return RolloutsScreen(), shown, asked


def test_a_step_that_is_asked_for_while_its_run_is_read_takes_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, shown, asked = asking(monkeypatch)
    screen.show(Snapshot(step=3))
    shown.session.run = 2
    screen.show(Snapshot(step=0))
    screen.show(Snapshot(step=30))  # the steps of run 2 arrive while it is being read
    assert asked == [1, 2, 2]


def test_a_run_that_is_opened_is_shown_after_an_answer_of_another_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, shown, asked = asking(monkeypatch)
    screen.receive(RolloutOpened(run=7, step=4, origin="train", group=1, rollout=1))
    screen.show(Snapshot(step=3))
    assert asked == [7]
    shown.session.run = 2
    screen.show(Snapshot(step=30))
    assert asked == [7, 2]


def clipped_in_store(store: Path) -> list[tuple[int, int, int, int]]:
    """Step, group, answer and token of every clipped token of the last pass, in reading order."""
    found = []
    reader = StoreReader(store)
    facts = run_info(reader, 1)
    for at in reader.group_steps(1, "train"):
        step = load_step(reader, facts, at)
        for group in step.groups:
            detail = load_group(reader, step, group)
            for answer in detail.completions:
                found += [
                    (at, group.index, answer.rollout.index, token)
                    for token, term in enumerate(answer.losses)
                    if term.side != "free"
                ]
    reader.close()
    return found


@pytest.mark.slow
async def test_f_visits_every_clipped_token_of_the_run_and_shift_f_goes_back(store: Path) -> None:
    wanted = clipped_in_store(store)
    assert len({step for step, *_ in wanted}) > 1
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=1, group=0, rollout=0)

        def here() -> tuple[int, ...]:
            return screen.view.cursor

        seen = [here()] if here() in wanted else []
        for _ in range(len(wanted) - len(seen)):
            await pilot.press("f")
            await settled(pilot, screen)
            seen.append(here())
        assert seen == wanted
        assert "clipped token" in frames.text(app)
        assert "CLIPPED" in frames.text(app)
        await pilot.press("f")
        assert here() == wanted[-1]
        assert "No later clipped token" in app.notices[-1].text
        back = [here()]
        for _ in range(len(wanted) - 1):
            await pilot.press("F")
            await settled(pilot, screen)
            back.append(here())
        assert back == wanted[::-1]


async def test_f_goes_on_to_steps_recorded_since_the_screen_read_its_step(tmp_path: Path) -> None:
    recorder, record_rest = half_recorded(tmp_path / "runs.db")
    app = workbench(tmp_path / "runs.db")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=STEPS // 2, group=0, rollout=0)
        while not (app.notices and "No later clipped token" in app.notices[-1].text):
            await pilot.press("f")
            await settled(pilot, screen)
        record_rest()
        await pilot.press("f")
        await settled(pilot, screen)
        assert screen.view.step is not None
        assert screen.view.step.step > STEPS // 2
    recorder.close()


async def test_a_typed_step_goes_to_it_or_to_the_nearest_before_it(store: Path) -> None:
    """Pinned prompts are sampled at steps 2, 4 and 6."""
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=6, origin="pinned", group=1, rollout=3)
        for typed, step, told in (
            ("3", 2, "Step 3 has no recorded answers; this is step 2."),
            ("+2", 4, ""),
            ("-50", 2, "Step 0 has no recorded answers; this is step 2."),
            ("six", 2, "“six” is not such a number."),
            ("60", 6, "Step 60 has no recorded answers; this is step 6."),
        ):
            await pilot.press("at", *map(_character_to_key, typed), "enter")
            await settled(pilot, screen)
            chosen = screen.view.group
            assert chosen is not None
            assert (chosen.step, chosen.origin, chosen.index) == (step, "pinned", 1), typed
            assert not told or app.notices[-1].text == told
            assert "answer d by token" in frames.text(app)
        await pilot.press("at", "escape")
        await settled(pilot, screen)
        assert screen.view.group is chosen


async def test_another_step_keeps_the_prompt_also_where_the_order_is_another(
    tmp_path: Path,
) -> None:
    """The second of two pinned prompts is the better one at step 2, the first at step 4."""
    right, wrong = [("<answer>1</answer>", True, False)] * 2, [("1", False, True)] * 2

    def asked(step: int, *scores: list[tuple[str, bool, bool]]) -> Iterator[ev.Event]:
        for index, answers in enumerate(scores):
            group = group_scored(step, index, (index, 1), answers).group
            yield ev.GroupScored(step=step, group=replace(group, origin="pinned"))

    events = (event for event in run_events(steps=4) if event.step <= 4)
    pinned = [*asked(2, wrong, right), *asked(4, right, wrong)]
    record(
        tmp_path / "grpo.db",
        iter(
            [
                *(
                    event
                    for event in events
                    if not (isinstance(event, ev.GroupScored) and event.group.origin == "pinned")
                ),
                *pinned,
            ]
        ),
    )
    app = workbench(tmp_path / "grpo.db")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=2, origin="pinned", group=1, rollout=0)
        await pilot.press("s", "r")
        await settled(pilot, screen)
        for typed in ("4", "2"):
            await pilot.press("at", typed, "enter")
            await settled(pilot, screen)
            assert screen.view.group is not None
            assert (screen.view.group.step, screen.view.group.index) == (int(typed), 1)


async def test_greedy_and_sampled_answers_to_held_out_problems_are_told_apart(
    tmp_path: Path,
) -> None:
    def held_out(index: int, temperature: float) -> ev.GroupScored:
        group = group_scored(0, index, (index % 2, 2), [("2", True, False)]).group
        sampling = {"temperature": temperature}
        return ev.GroupScored(step=0, group=replace(group, origin="eval", sampling=sampling))

    events: list[ev.Event] = [started()]
    events += [held_out(index, float(index > 1)) for index in range(4)]
    between = ev.PhaseStarted(step=0, phase="evaluate", total=2, detail="sampled")
    feed = ScriptFeed([*events, between])
    app = Workbench(tmp_path / "none.db", feed=feed, mode="watch")
    async with app.run_test(size=(120, 40)):
        await until(app, lambda: "held-out, sampled" in frames.text(app), app.frame_now)
        assert [group.index for group in app.session.state.snapshot().groups] == [2, 3]  # type: ignore[union-attr]
    record(tmp_path / "grpo.db", iter(events))
    app = workbench(tmp_path / "grpo.db")
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot, step=0, origin="eval", group=0, rollout=0)
        lines = [line.split("│")[1].split() for line in frames.frame(app)[4:9]]
        assert [line[-2] for line in lines] == ["mean", "0", "0", "1", "1"], frames.text(app)
        assert "held-out, greedy" in frames.text(app)
        await pilot.press("n", "n")
        assert "held-out, sampled" in frames.text(app)


async def test_sorting_leads_to_the_best_and_the_worst_answer_of_the_step(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert screen.view.step is not None
        groups = screen.view.step.groups
        best = max(r.reward or 0.0 for group in groups for r in group.rollouts)
        worst = min(groups, key=lambda group: group.reward_mean or 0.0)
        for key, reward in (("r", best), ("w", min(r.reward or 0.0 for r in worst.rollouts))):
            await pilot.press("s", key)
            await settled(pilot, screen)
            assert screen.view.rollout is not None
            assert screen.view.rollout.reward == reward


async def test_the_lab_opens_on_training_prompts_alone(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot, step=2, origin="pinned", group=0, rollout=0)
        await pilot.press("v")
        assert "The lab computes with training prompts" in app.notices[-1].text
        await opened(app, pilot, step=2, group=1, rollout=1)
        await pilot.press("v")
        await until(app, lambda: isinstance(app.screen, LabScreen))
        assert isinstance(app.screen, LabScreen)
        assert app.screen.view.step.step == 2
        assert app.screen.view.selected == (1, 1)


async def test_without_token_numbers_f_says_so_and_not_that_nothing_was_clipped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "none.db"
    record(path, run_events(steps=3), record={"tokens": "none"})
    app = workbench(path)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=1, group=0, rollout=0)
        await settled(pilot, screen)
        await pilot.press("f")
        await settled(pilot, screen)
        assert app.notices[-1].text == (
            "No clipped token: token numbers were not recorded for this group "
            "(record.tokens=all records them)."
        )
        head = frames.text(app).split("all answers to this prompt")[0]
        assert "token numbers were not recorded" in head.splitlines()[5]
        await opened(app, pilot, step=3, group=1, rollout=1)
        assert screen.view.rollout is not None
        first, second = (row.split("││")[1].strip() for row in frames.frame(app)[7:9])
        assert second  # no line for shades between them
        assert f"{first} {second}" == screen.view.rollout.text


async def test_sorting_goes_to_the_furthest_token_of_the_furthest_answer(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("s", "k")
        await settled(pilot, screen)
        view = screen.view
        assert view.completion is not None
        distances = [term.kl or 0 for term in view.completion.losses]
        furthest = max(one.value for one in view.highlights)
        assert distances[view.token] == max(distances) == furthest > 0
        assert f"highest KL {short(furthest, 3)} in the step" in frames.text(app)
        await pilot.press("f")
        await settled(pilot, screen)
        assert "clipped token " in frames.text(app)  # f does not follow the sort
        await pilot.press("s", "l")
        await settled(pilot, screen)
        chosen, rollout = screen.view.group, screen.view.rollout
        assert chosen is not None
        assert rollout is not None
        assert rollout.tokens == max(one.tokens for one in chosen.rollouts)
        await pilot.press("n", "s", "p")
        await settled(pilot, screen)
        first = screen.view.group
        assert first is not None
        assert screen.view.group_at == first.index
        frames.check(app)


async def test_the_key_of_the_screen_leads_to_the_newest_step(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        await watched(app)
        await pilot.press("4")
        screen = app.screen
        assert isinstance(screen, RolloutsScreen)
        await until(app, lambda: screen.view.loaded is not None, app.frame_now)
        assert screen.view.step is not None
        newest = screen.view.step.step
        await pilot.press("<", "<")
        await settled(pilot, screen)
        assert screen.view.step.step == newest - 2
        await pilot.press("4")
        await settled(pilot, screen)
        assert screen.view.step.step == newest


def test_a_group_whose_answers_are_not_in_the_loss_says_so_and_one_without_scores_too(
    store: Path,
) -> None:
    reader = StoreReader(store)
    step = load_step(reader, run_info(reader, 1), 2)
    group = next(group for group in step.groups if group.has_tokens)
    tokens = reader.tokens(1, group.key)
    reader.close()
    assert tokens is not None
    rows = [replace(row, old=()) for row in tokens.rows]
    masked = tuple(replace(rollout, advantage=0.0) for rollout in group.rollouts)
    expected = "no push: no token of its answers is in the loss"
    assert without_losses(step.run, replace(group, no_signal="", rollouts=masked), rows) == expected
    cut_off = "the step ended before its tokens were scored"
    pushed = tuple(replace(rollout, advantage=1.0) for rollout in group.rollouts)
    assert without_losses(step.run, replace(group, no_signal="", rollouts=pushed), rows) == cut_off


async def test_steps_add_up_while_one_is_still_being_read(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=6)
        for _ in range(4):
            screen.action_step(-1)  # as keys do that have waited long enough
        await settled(pilot, screen)
        assert screen.view.step is not None
        assert screen.view.step.step == 2


async def test_outside_the_gradient_nothing_says_0_or_that_it_is_shaded(store: Path) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, origin="pinned", group=0)
        assert "heat: push with KL: no numbers" in frames.text(app)
        await pilot.press("s", "s")
        await settled(pilot, screen)
        assert [measure_of(one, "surprise") for one in screen.view.groups] == [None, None]
        assert "–" in next(row for row in frames.frame(app) if "▸" in row).split("││")[0]
        await pilot.press("f")
        await settled(pilot, screen)
        assert app.notices[-1].text == "No clipped token: no push: not trained on."


async def test_without_an_earlier_answer_a_diff_leaves_the_answer_on_the_screen(
    store: Path,
) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot, step=4)
        await pilot.press("d")
        text = frames.text(app)
        assert "this prompt has no earlier answer to compare with" in text
        assert " answer b by token " in text
        assert "← token 1 of" in text
        await opened(app, pilot, step=4, origin="pinned", group=0)
        assert screen.view.diff
        assert "since step 2" in frames.text(app)
        assert "heat" not in frames.frame(app)[3]


async def test_another_run_begins_in_the_order_of_its_prompts(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    record(path)
    record(path)
    app = workbench(path)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("s", "k")
        await settled(pilot, screen)
        assert (screen.view.order, screen.view.measure) == ("kl", "kl")
        await app.forward(RolloutOpened(2, step=4, origin="train", group=0, rollout=0))
        await settled(pilot, screen)
        assert (screen.view.order, screen.view.measure) == ("prompt", "clipped")
        assert "f next clipped" in frames.text(app)


async def test_a_step_that_is_read_while_the_screen_is_taken_down_is_no_failure(
    store: Path,
) -> None:
    app = workbench(store)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await screen.query("*").remove()  # as the end of the program does, before the screen's own
        screen.receive(RolloutOpened(run=1, step=3, origin="train", group=0, rollout=0))
        screen.view = screen.view.cleared()  # the read began before the run was known
        await app.workers.wait_for_complete()


def test_an_answer_is_split_at_the_ends_of_its_tokens() -> None:
    row = RecordedTokens(
        index=0,
        ids=(1, 2, 3, 4),
        sampler=(),
        ends=(1, 3, 3, 5),
        old=(),
        reference=(),
        passes=(),
        after=(),
        entropy=(),
        advantages=(),
    )
    assert split("abcde", row) == ("a", "bc", "", "de")
    assert split("abcde", replace(row, ends=())) == ("abcde",)
