"""The lab: what other settings would have done to a range of steps, a step or a group."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build, entries, settings
from grpo_engine.config.recipes import recipe
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.inspector.lab import VARIED, LossEffect, together
from grpo_tui.app.inspector.stored import load_step, run_info
from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui.dialogs.help.topics import topic_part
from grpo_tui.app.tui.screens.new_run.screen import NewRunScreen
from grpo_tui.app.tui.screens.rollouts.lab.render import (
    distinct_texts,
    result_lines,
    rollout_lines,
    table_lines,
    token_lines,
)
from grpo_tui.app.tui.screens.rollouts.lab.screen import EffectPanel, LabScreen, LabSettingsPanel
from grpo_tui.app.tui.screens.rollouts.lab.state import LabView, read_step, spread
from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen
from grpo_tui.app.tui.widgets.panel import cells, plain_text
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from tests.app import dialogues, frames
from tests.app.rest import until
from tests.app.script import CONFIG
from tests.app.stored import record, run_events, workbench
from tests.app.walk import Walk, walk


async def opened(on: Walk) -> Any:
    """Go from Watch to the lab."""
    await on.press("4")
    await on.until(lambda: isinstance(on.screen, RolloutsScreen) and bool(on.screen.view.groups))
    await on.press("v")
    return await computed(on)


async def computed(on: Walk) -> LabScreen:
    """Wait until all numbers are on the screen."""

    def done() -> bool:
        view = on.screen.view if isinstance(on.screen, LabScreen) else None
        return (
            view is not None and not view.pending and {view.base, view.recipe} <= set(view.outcomes)
        )

    await until(on.app, done)
    await on.pilot.pause()
    assert isinstance(on.screen, LabScreen)
    return on.screen


BETA = recipe("grpo", passes=2, beta=0.1)


def unfinished(steps: int) -> Iterator[ev.Event]:
    """A run of which the next step is being trained: scored, without token numbers."""
    following = False
    for event in run_events(steps=steps + 1):
        if following and isinstance(event, ev.TokensScored | ev.StepFinished):
            return
        following |= isinstance(event, ev.StepFinished) and event.step == steps
        yield event


@pytest.mark.slow
async def test_a_live_run_is_asked_with_the_same_keys(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    handle = start_run(path, build(CONFIG), name="otter")
    for event in unfinished(3):
        handle.put(event)
    handle.flush()
    async with walk(workbench(path)) as on:
        lab = await opened(on)
        await on.press("enter", "full_stop", "1", "enter")
        await computed(on)
        assert lab.view.steps == (1, 2, 3, 4)
        # the step that is being trained has no token numbers: it is not in the curves
        assert list(lab.view.curve(lab.view.recipe)) == [1, 2, 3]
        effect = lab.view.effect(lab.view.recipe)
        assert effect is not None
        assert effect.missing == frozenset()
        assert "● beta 0.1" in on.text
    handle.close()


@pytest.mark.slow
async def test_a_run_without_token_numbers_says_so_at_the_top_and_how_they_are_recorded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=2), record={"tokens": "none"})
    async with walk(workbench(path), (80, 24)) as on:
        await opened(on)
        await computed(on)
        top = " ".join(line.split("││")[1].strip("│ ") for line in on.lines[1:4])
        assert top.startswith("Some answers have no token numbers")
        assert "record.tokens=all" in top
        assert "KL penalty: unknown" in on.text
        assert "with signal: unknown" not in on.text
        frames.check(on.app)
        await on.press("t")
        await computed(on)
        assert "No answer of this step has token numbers." in on.text


async def test_a_step_shows_its_answers_before_and_after(store: Path) -> None:
    async with walk(workbench(store)) as on:
        lab = await opened(on)
        await on.press(*["down"] * (list(VARIED).index("clip_low") - 1), "right", "right")
        await on.press("t")
        await computed(on)
        text, view = on.text, lab.view
        assert "was 0.2" in text
        push = view.outcomes[view.recipe].effect(0).push
        assert short(abs(push), 3) in next(line for line in text.splitlines() if "│  1a " in line)
        assert "would " in text
        assert plain_text(token_lines(view, 60)).startswith(f"{' ' * 6}{view.texts[0]}")
        assert "  push" in text
        for width in (46, 54, 55, 58, 120):  # the first is that at 80 columns
            assert max(map(cells, rollout_lines(view, width, 20))) <= width
        lab.query_one(EffectPanel).focus()
        await on.press("down")
        assert lab.view.rollout_at == 1
        await on.press("up", "up")
        assert lab.view.rollout_at == 0
        await on.press("backspace")
        await computed(on)
        assert lab.view.recipe == view.base


@pytest.mark.slow
async def test_a_value_that_is_none_is_refused_and_a_clone_trains_with_the_changes(
    store: Path,
) -> None:
    async with walk(workbench(store)) as on:
        lab = await opened(on)
        await on.press("enter", *"some", "enter")
        told = [one.message for one in on.app._notifications]
        assert any("beta" in words for words in told)
        assert lab.view.recipe == lab.view.base
        await on.press("up", "enter", *"dapo", "enter", "down", "enter", "full_stop", "1", "enter")
        await computed(on)
        await on.press("c")
        await on.until(
            lambda: (
                isinstance(on.screen, NewRunScreen) and on.screen.view.form.origin.kind == "clone"
            ),
        )
        screen = on.screen
        algorithm = screen.view.form.build().algorithm
        assert (algorithm.recipe, algorithm.beta) == ("dapo", 0.1)
        assert screen.view.form.build().rollout.temperature == 1.0


def test_a_group_left_out_of_the_update_has_no_token_numbers(store: Path) -> None:
    # as where old log-probabilities are computed before the rows to train are chosen
    update = ev.UpdateTotals(rows=16, tokens=100)
    with StoreReader(store) as reader:
        shown = load_step(reader, run_info(reader, 1), 6)
        whole = {group.key: reader.tokens(1, group.key) for group in shown.groups}
        assert {group for group, _ in read_step(reader, shown, 6)[1]} == {0, 1, 2, 3}
        for key, view in whole.items():
            assert view is not None
            updates = () if key == shown.groups[1].key else (update,) * 2
            told = tuple(replace(row, updates=updates) for row in view.rows)
            whole[key] = replace(view, rows=told)
        reader.tokens = lambda run, group: whole[group]  # type: ignore[method-assign]  # noqa: ARG005
        numbers, rows = read_step(reader, shown, 6)
    assert {group for group, _ in rows} == {0, 2, 3}
    assert (len(numbers.groups), len(numbers.recorded)) == (16, 12)


def test_a_range_has_no_average_before_all_its_steps_are_computed(store: Path) -> None:
    with StoreReader(store) as reader:
        shown = load_step(reader, run_info(reader, 1), None)
    view = LabView(step=shown, selected=(0, 0), recipe=BETA, steps=(1, 2))
    one, other = LossEffect(tokens=10, clipped=1), LossEffect(tokens=10, clipped=9)
    assert view.pending == [(how, step) for step in (6, 2, 1) for how in (view.base, BETA)]
    computed = {(view.base, 1): one, (view.base, 2): other, (BETA, 1): one}
    view = replace(view, effects={**computed, (view.base, 6): one, (BETA, 6): one})
    assert view.effect(view.base) == together([one, other])
    assert view.effect(BETA) is None
    assert view.pending == [(BETA, 2)]
    assert list(view.curve(view.base)) == [1, 2]
    assert list(view.curve(BETA)) == [1]
    # its row says how far it is, at every width
    for width in (44, 80, 160):
        _, run, other_row = plain_text(table_lines(view, width)).splitlines()
        assert "50%" in run
        assert " 1 of 2 steps" in other_row
        assert len(other_row) <= width


@pytest.mark.parametrize(
    ("changes", "clipped", "label", "sentence"),
    [
        (
            {"clip_high": 0.28},
            11,
            "● 0.28",
            "With clip_high 0.28 instead of 0.2, 2 of 13 clipped tokens would be free: "
            "clipped .13% → .11%.",
        ),
        (
            {"clip_high": 0.05},
            14,
            "● 0.05",
            "With clip_high 0.05 instead of 0.2, 14 tokens would be clipped instead of 13: "
            "clipped .13% → .14%.",
        ),
        (
            {"clip_high": 0.5},
            13,
            "● 0.5",
            "With clip_high 0.5 instead of 0.2, no token would be clipped differently: "
            "13 of 10,000 are.",
        ),
        (
            {"clip_high": 0.3, "beta": 0.1},
            13,
            "● 0.3, 0.1",
            "With clip_high 0.3, beta 0.1, the number of clipped tokens would stay 13 of 10,000.",
        ),
    ],
)
def test_the_rows_of_two_recipes_are_distinct_texts_and_a_sentence_says_what_differs(
    changes: dict[str, float], clipped: int, label: str, sentence: str, store: Path
) -> None:
    with StoreReader(store) as reader:
        shown = load_step(reader, run_info(reader, 1), None)
    other = recipe(shown.run.recipe, **changes)
    effects = {
        (of, 1): LossEffect(tokens=10_000, clipped=count, groups=4, with_signal=2, steps=1)
        for of, count in ((shown.run.recipe, 13), (other, clipped))
    }
    view = LabView(step=shown, selected=(0, 0), recipe=other, steps=(1,), effects=effects)
    _, run_row, row = plain_text(table_lines(view, 46)).splitlines()
    assert row.startswith(f"{label} ")
    assert (run_row.split()[3] == row[14:].split()[0]) == (clipped == 13)
    assert " ".join(plain_text(result_lines(view, 46)).split()) == sentence


def test_two_values_have_the_digits_that_tell_them_apart() -> None:
    assert distinct_texts((0.001302, 0.001104), "share", 7) == [".13%", ".11%"]
    assert distinct_texts((0.001102, 0.0004), "share", 7) == [".11%", ".04%"]
    assert distinct_texts((0.00331, 0.00332), "", 7) == [".00331", ".00332"]
    assert distinct_texts((8.21e-5, 8.22e-5), "", 7) == ["8.21e−5", "8.22e−5"]
    assert distinct_texts((0.5, 0.5), "share", 7) == ["50%", "50%"]
    assert distinct_texts((0.00331111, 0.00331112), "", 7) == [".0033", ".0033"]  # there is no room


@pytest.mark.slow
async def test_replies_of_an_environment_have_no_push_in_the_lab(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, dialogues.run_events())
    async with walk(workbench(path)) as on:
        lab = await opened(on)
        await on.press("right", "t")
        await computed(on)
        lines = [line.split("││")[-1] for line in on.lines]
        reply, *_ = [place for place, line in enumerate(lines) if "higher" in line]
        assert "was" in lines[reply - 2]
        assert "75" in lines[reply + 1]
        frames.check(on.app)
        assert lab.view.rollout_at == 0


def test_a_long_run_is_read_in_evenly_spread_steps() -> None:
    assert spread((1, 2, 3), 3) == (1, 2, 3)
    assert spread(tuple(range(1, 12)), 3) == (1, 6, 11)
    assert spread(tuple(range(1000)), 1) == (999,)
    many = spread(tuple(range(1000)), 100)
    assert (len(many), many[0], many[-1]) == (100, 0, 999)
    assert {b - a for a, b in itertools.pairwise(many)} == {10, 11}


def test_every_setting_that_can_be_changed_is_explained() -> None:
    for index in range(len(VARIED)):
        panel = LabSettingsPanel(None)  # type: ignore[arg-type]  # only `paint` reads it
        panel.set_reactive(LabSettingsPanel.selected, index)
        assert "no such setting" not in str(topic_part(panel.topic(), Snapshot())), panel.topic()
        assert panel.path in {**settings(), **entries()}
