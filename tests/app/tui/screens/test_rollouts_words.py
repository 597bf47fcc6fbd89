"""What Rollouts says about older runs, unfinished steps, bounds and visits is true."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.inspector.measures import Highlight
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
    fitted,
    heat_notes,
    history_line,
    reward_lines,
    table_lines,
)
from grpo_tui.app.tui.screens.rollouts.screen import CompletionPanel, GroupsPanel
from grpo_tui.app.tui.widgets.panel import Line, cells
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.values import GroupView
from tests.app.inspector.kit import term
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
    with closing(StoreReader(store)) as reader:
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


@pytest.mark.parametrize("high", [1.2, 1.28])
def test_the_side_that_is_clipped_fits_into_the_narrowest_panel(high: float) -> None:
    drawn = said([_ratio_line(term(ratio=1.316, low=0.8, high=high, side="high"))])
    assert drawn.endswith("CLIPPED high")
    assert len(drawn) <= 54  # at 80 columns


def test_names_of_reward_functions_and_duplicates_are_not_cut_beside_room(store: Path) -> None:
    with closing(StoreReader(store)) as reader:
        (first, *_) = reader.groups(1, step=4, origin="train")
    names = {"numeric_answer": 1.0, "format_all": 0.5}
    rewards = tuple(
        ev.RewardValue(name=name, value=value, weight=1.0) for name, value in names.items()
    )
    rollouts = tuple(
        replace(first.rollouts[0], index=index, text="so 22", rewards=rewards) for index in range(8)
    )
    group = replace(first, rollouts=rollouts)
    shown = SimpleNamespace(group=group, rollout=rollouts[0], step=None)
    lines = reward_lines(shown, 22)  # type: ignore[arg-type]  # only these are read
    text = said(lines)
    for name in names:
        line = next(line for line in text.splitlines() if name in line)
        assert "━" in line
    assert "same as b, c, d, e, f, g, h" in " ".join(text.split())
    assert max(map(cells, lines)) <= 22


@pytest.mark.parametrize(
    ("origin", "temperature", "text"),
    [
        ("train", 1.0, "training drew this prompt once"),
        ("eval", 0.0, "this held-out prompt has greedy answers at this step only"),
        ("eval", 1.0, "this held-out prompt has sampled answers at this step only"),
        ("pinned", 1.0, "this pinned prompt has sampled answers at this step only"),
    ],
)
def test_only_a_training_prompt_is_said_to_be_drawn(
    origin: ev.Origin, temperature: float, text: str, store: Path
) -> None:
    with closing(StoreReader(store)) as reader:
        (first, *_) = reader.groups(1, step=4, origin="train")
    group = replace(first, origin=origin, sampling={"temperature": temperature})
    assert text in said([history_line((group,), group, 78)])
    assert history_line((), group, 78) == []  # the history is not read yet


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
    with closing(StoreReader(store)) as reader:
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


def test_a_clipped_token_is_named_in_the_title_of_a_narrow_panel(store: Path) -> None:
    view = rollouts_view(store)
    clipped = Highlight(view.cursor, 1.3)
    view = replace(view, measure="clipped", highlights=(clipped,))
    assert heat_notes(view) == [
        "clipped token 1 of 1 in the step · heat: push with KL",
        "clipped token 1 of 1 · push with KL",
        "clipped token 1 of 1 in the step",
        "clipped token 1 of 1",
    ]
    assert "clipped token 1 of 1" in painted(CompletionPanel, 54, 20, view=view)


def test_what_says_why_a_token_is_not_pushed_stays_where_there_is_no_room() -> None:
    names = ("title", "prob", "ratio", "passes", "why", "gradient", "share")
    parts: dict[str, list[Line]] = {name: [[(name, "")]] for name in names}
    assert fitted(parts, 7) == [[(name, "")] for name in names]
    for height in range(3, 7):
        lines = said(fitted(parts, height)).splitlines()
        assert len(lines) == height
        left = [name for name in names if name not in CUT_FIRST[: len(names) - height + 1]]
        assert lines == [*left, f"… {len(names) - height + 1} more lines; z makes room"]
        assert "why" in left


@pytest.mark.parametrize(("width", "beside"), [(76, False), (118, True)])
def test_the_other_answers_and_the_tokens_fill_the_room(
    width: int, beside: bool, store: Path
) -> None:
    view = rollouts_view(store)
    lines = painted(CompletionPanel, width, 50, view=view).splitlines()
    top = next(n for n, line in enumerate(lines) if "all answers to this prompt" in line)
    numbers = next(n for n, line in enumerate(lines) if line.startswith("← token"))
    assert (top < numbers) == beside
    text = "\n".join(lines)
    assert view.group is not None
    for rollout in view.group.rollouts:
        assert rollout.text[-24:].split()[-1] in text
    head = next(n for n, line in enumerate(lines) if re.match(" +token +ref +old +new", line))
    numbers_of_tokens = [line[:5].strip() for line in lines[head + 1 :]]
    shown = [int(number) for number in numbers_of_tokens if number.isdecimal()]
    assert len(shown) > 5
    assert shown == list(range(shown[0], shown[0] + len(shown)))


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
