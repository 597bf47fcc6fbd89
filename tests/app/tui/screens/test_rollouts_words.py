"""What Rollouts says about older runs, unfinished steps, bounds and visits is true."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.inspector.explain import gradient_sum
from grpo_tui.app.inspector.stored import (
    UNFINISHED,
    load_group,
    load_step,
    run_info,
    without_losses,
)
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.screens.rollouts.render import (
    CUT_FIRST,
    _ratio_line,
    _ratio_text,
    compared_lines,
    fitted,
    group_blocks,
    history_line,
    hit_columns,
    hit_lines,
    table_lines,
)
from grpo_tui.app.tui.screens.rollouts.screen import GroupsPanel
from grpo_tui.app.tui.screens.rollouts.state import RolloutsView
from grpo_tui.app.tui.widgets.panel import Line, cells
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.values import GroupView, SearchHit
from tests.app.inspector.kit import group, rollout, term
from tests.app.script import CONFIG
from tests.app.stored import run_events
from tests.app.tui.screens.test_rollouts import opened
from tests.app.walk import painted, rollouts_view, walk


def said(lines: list[Line]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


@pytest.mark.parametrize(
    ("advantage", "scored", "text"),
    [
        (
            1.0,
            True,
            "its share of the loss is not known: this run was recorded before its updates were",
        ),
        (0.0, False, "no push: no token of its answers is in the loss"),
        (1.0, False, "the step ended before its tokens were scored"),
    ],
)
def test_a_group_without_losses_says_why(
    advantage: float, scored: bool, text: str, store: Path
) -> None:
    with StoreReader(store) as reader:
        step = load_step(reader, run_info(reader, 1), 3)
        group = step.groups[0]
        tokens = reader.tokens(1, group.key)
    assert tokens is not None
    rows = [replace(row, updates=(), old=row.old if scored else ()) for row in tokens.rows]
    rollouts = tuple(replace(rollout, advantage=advantage) for rollout in group.rollouts)
    group = replace(group, no_signal="", rollouts=rollouts)
    assert without_losses(step.run, group, rows) == text


def test_a_group_without_a_signal_says_why_its_tokens_have_no_term(store: Path) -> None:
    with_reader = StoreReader(store)
    facts = run_info(with_reader, 1)
    step = load_step(with_reader, facts, 3)
    chosen = step.groups[0]
    alike = replace(chosen, no_signal="all right")
    tokens = with_reader.tokens(1, chosen.key)
    assert tokens is not None
    bare = replace(tokens, rows=tuple(replace(row, old=()) for row in tokens.rows))

    class Reader:
        def tokens(self, *_: object) -> object:
            return bare

        def groups(self, *_: object, **__: object) -> tuple[GroupView, ...]:
            return ()

        def run(self, *_: object) -> object:
            return SimpleNamespace(summary=SimpleNamespace(active=at < 4, step=at))

    fake = Reader()
    at = 4
    detail = load_group(fake, step, alike)  # type: ignore[arg-type]  # only these are asked
    assert detail.missing == "no push: all right, so its tokens were left out of the update"
    early = load_group(fake, step, replace(chosen, no_signal=""))  # type: ignore[arg-type]
    assert early.missing == "the step ended before its tokens were scored"
    at = 2  # and the run is in step 3
    for one in (alike, replace(chosen, no_signal="")):
        found = load_group(fake, step, one)  # type: ignore[arg-type]  # only these are asked
        assert found.missing == UNFINISHED
    with_reader.close()


@pytest.mark.slow
async def test_an_unfinished_step_shows_its_numbers_once_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    handle = start_run(path, build(CONFIG), name="otter")
    events = list(run_events(steps=3))
    scored_at = max(
        n
        for n, one in enumerate(events)
        if isinstance(one, ev.GroupScored) and one.group.origin == "train"
    )
    for event in events[: scored_at + 1]:
        handle.put(event)
    handle.flush()
    async with walk(Workbench(path, feed=StoreFeed(path, "otter"), mode="rollouts")) as on:
        screen = await opened(on, step=3)
        assert screen.view.loaded.missing == UNFINISHED
        assert "the update of this step has not ended" in on.text
        await on.press("f")  # the latest clipped token is in an earlier step
        assert (screen.view.step.step, screen.view.highlight is None) == (2, False)
        await opened(on, step=3)
        for event in events[scored_at + 1 :]:
            handle.put(event)
        handle.flush()
        await on.until(lambda: screen.view.loaded and screen.view.loaded.missing != UNFINISHED)
        assert screen.view.completion.losses
        assert screen.view.step.step == 3
    handle.close()


def test_the_diamond_is_beyond_its_bound_only_where_the_ratio_is() -> None:
    for ratio in (0.01, 0.79, 0.8, 1.0, 1.1, 1.2, 1.21, 50.0):
        line = _ratio_line(term(ratio=ratio, low=0.8, high=1.2, side="free"))
        drawn = said([line])
        assert len(drawn) <= 52
        before, _, rest = drawn.partition(".8")
        between, _, after = rest.partition("1.2")
        parts = [(ratio < 0.8, before), (0.8 <= ratio <= 1.2, between), (ratio > 1.2, after)]
        assert all(("◆" in part) is there for there, part in parts), drawn


@pytest.mark.parametrize(
    ("rewards", "bars"),
    [
        ((0.0, 0.0, 0.0), "▁▁▁"),  # none is no reward, and not one in the middle
        ((2.0, 1.0, 2.0), "█▅█"),  # 1 of 2 is the fifth of eight: round(7 * .5) = 4
        ((1.0, 1.0, 1.0), "███"),
        ((-1.0, 0.0, 1.0), "▁▅█"),
    ],
)
def test_the_bars_of_a_prompt_by_step_begin_at_no_reward(
    rewards: tuple[float, ...], bars: str, store: Path
) -> None:
    with StoreReader(store) as reader:
        (first, *_) = reader.groups(1, step=4, origin="train")
    visits = [
        replace(first, key=step, step=step, reward_mean=reward)
        for step, reward in enumerate(rewards, 1)
    ]
    line = said([history_line(visits, visits[0], 120)])
    assert "".join(re.findall("[▁-█]", line.replace("▌", "").replace("▐", ""))) == bars


def test_the_table_of_tokens_tells_a_ratio_from_1_as_the_panel_does(store: Path) -> None:
    view = rollouts_view(store)
    detail = view.loaded
    assert detail is not None
    near = [
        replace(one, losses=[loss._replace(ratio=0.996) for loss in one.losses])
        for one in detail.completions
    ]
    view = replace(view, detail=replace(detail, completions=tuple(near)))
    _, *rows = said(table_lines(view, 90, 60)).splitlines()
    assert len(rows) > 5
    assert all(".996" in row.split() for row in rows)
    assert [_ratio_text(ratio) for ratio in (0.996, 1.0, 123.4, 1.5e-7)] == [
        ".996", "1", "123", "1.5e−7",
    ]  # fmt: skip


def test_the_table_of_tokens_leaves_out_columns_before_it_is_wider_than_its_panel(
    store: Path,
) -> None:
    """All columns need 5 + 10 + 7 numbers of 7 cells + 3 = 67."""
    view = rollouts_view(store)
    heads = []
    for width in range(30, 90):
        lines = table_lines(view, width, 60)
        assert all(cells(line) <= width for line in lines)
        heads.append(said(lines[:1]).split())
    assert heads[67 - 30] == ["token", "ref", "old", "new", "after", "ratio", "KL", "gradient"]
    assert heads[66 - 30] == ["token", "ref", "old", "new", "ratio", "KL", "gradient"]
    assert heads[40 - 30] == ["token", "old", "new", "ratio"]


def test_what_says_why_a_token_is_not_pushed_stays_where_there_is_no_room() -> None:
    names = ("title", "prob", "after", "ratio", "passes", "why", "gradient", "share")
    parts: dict[str, list[Line]] = {name: [[(name, "")]] for name in names}
    assert fitted(parts, 8) == [[(name, "")] for name in names]
    for height in range(4, 8):
        lines = said(fitted(parts, height)).splitlines()
        assert len(lines) == height
        left = [name for name in names if name not in CUT_FIRST[: len(names) - height + 1]]
        assert lines == [*left, f"… {len(names) - height + 1} more lines; z makes room"]
        assert "why" in left


def test_a_list_of_a_thousand_prompts_shows_those_around_the_cursor(store: Path) -> None:
    view = rollouts_view(store, group=0)
    assert view.step is not None
    (group, *_) = view.step.groups
    many = tuple(replace(group, index=n, key=n) for n in range(1000))
    view = replace(view, step=replace(view.step, groups=many), group_at=500)
    rows = painted(GroupsPanel, 40, 20, view=view).splitlines()[3:]
    numbers = [int(row.split("▸")[0].split()[0]) for row in rows]
    assert 501 in numbers
    assert numbers == list(range(numbers[0], numbers[0] + 19))


def test_a_table_that_is_cut_says_which_tokens_it_has(store: Path) -> None:
    view = rollouts_view(store)
    count = len(view.tokens)
    assert "for more" not in said(table_lines(view, 90, count + 1))
    *_, last = said(table_lines(view, 90, 6)).splitlines()
    assert last.split() == ["tokens", "1–4", "of", f"{count},", "←→", "for", "more"]


def test_the_gradient_in_the_table_is_the_one_of_the_panel(store: Path) -> None:
    view = rollouts_view(store)
    loss = replace_loss(view, push=0.0123456, pull=-0.0000664)
    table = said(table_lines(loss, 90, 60))
    assert loss.completion is not None
    assert gradient_sum(loss.completion.losses[0]) == (
        "+.0123 by the advantage − 6.64e−5 by KL = +.0123"
    )
    assert "+.0123" in table


def replace_loss(view: RolloutsView, **changes: Any) -> RolloutsView:
    """The view with other losses of every token."""
    assert view.loaded is not None
    losses = [
        replace(one, losses=[loss._replace(**changes) for loss in one.losses])
        for one in view.loaded.completions
    ]
    return replace(view, detail=replace(view.loaded, completions=tuple(losses)))


def test_answers_of_two_steps_are_compared_from_the_best_on() -> None:
    before = group(0, rollout(0, reward=1.0, text="a b"), rollout(1, reward=2.0, text="c d"))
    after = group(0, rollout(0, reward=3.0, text="c d"), rollout(1, reward=0.0, text="a b"))
    text = said(compared_lines(before, after, 0, 50, 40))
    assert "b → a  reward 2 → 3   no changes" in text
    assert "a → b  reward 1 → 0   no changes" in text


def test_hits_stand_below_their_headings_with_kind_and_reward() -> None:
    hit = SearchHit(
        rollout=1, group=1, step=40, origin="eval", group_index=9, index=0,
        where="completion", text="x 42", start=2, end=4, reward=1.5,
    )  # fmt: skip
    (line,) = said(hit_lines([hit], 0, 60)).splitlines()
    assert line.split() == ["40", "held-out", "10a", "1.5", "x", "42"]
    heads = hit_columns("step", "kind", "answer", "reward", 60)
    assert line.index("10a") + 3 == heads.index("answer") + 6


def test_all_answers_of_a_group_are_in_the_list_or_a_mark_that_more_follow(store: Path) -> None:
    """The last of eight is the only failure: rewards, then arrows, then no answers beside."""
    answers = [rollout(i, reward=1.6, advantage=0.4) for i in range(7)]
    answers.append(rollout(7, reward=0.1, advantage=-2.6))
    view = rollouts_view(store)
    assert view.step is not None
    view = replace(view, step=replace(view.step, groups=(group(0, *answers),)), group_at=0)
    for width in (26, 40, 80):
        text = said([line for block in group_blocks(view, width, 8) for line in block])
        assert text.count("▲") == 7
        assert text.count("▼") == 1
    for width in (22, 26, 80):
        text = said([line for block in group_blocks(view, width, 2) for line in block])
        assert (text.count("▲"), text.count("▼")) in ((0, 0), (7, 1))
