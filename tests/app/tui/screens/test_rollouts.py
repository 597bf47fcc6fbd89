"""Rollouts on a stored run: the screen agrees with the store."""

import asyncio
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from textual.keys import _character_to_key

from grpo_engine import events as ev
from grpo_tui.app.inspector.explain import probability
from grpo_tui.app.inspector.groups import measure_of, right_count
from grpo_tui.app.inspector.stored import (
    GroupList,
    load_group,
    load_step,
    split,
)
from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import RolloutOpened, RunOpened
from grpo_tui.app.tui.screens.rollouts.lab.screen import LabScreen
from grpo_tui.app.tui.screens.rollouts.screen import (
    CompletionPanel,
    GroupsPanel,
    HistoryBar,
)
from grpo_tui.app.tui.screens.rollouts.state import (
    Search,
    search,
)
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RecordedTokens
from tests.app import frames
from tests.app.compared import workbench
from tests.app.script import ScriptFeed, started
from tests.app.script import scored as group_scored
from tests.app.stored import STEPS, half_recorded, record, run_events, with_ends
from tests.app.walk import Walk, on_rollouts, painted, rollouts_view, walk


async def opened(
    on: Walk,
    step: int = 4,
    origin: ev.Origin = "train",
    group: int = 1,
    rollout: int = 1,
) -> Any:
    """Open the screen on one rollout and wait for its numbers."""
    await on.app.forward(RolloutOpened(1, step, origin, group, rollout))
    await on.pilot.pause()
    return on.screen


# -- what a panel says --------------------------------------------------------------------------


def test_the_shown_probability_is_the_stored_one(store: Path) -> None:
    view = rollouts_view(store).move_token(2)
    with StoreReader(store) as reader:
        tokens = reader.tokens(1, reader.groups(1, step=4, origin="train")[1].key)
    assert tokens is not None
    row = tokens.rows[1]
    text = painted(CompletionPanel, view=view)
    assert f"old {probability(row.old[2])}" in text
    assert f"new {probability(row.passes[1][2])}" in text
    ratio = math.exp(row.passes[1][2] - row.old[2])
    assert f"in each pass: 1, {short(ratio, 3)}" in text


def test_the_words_that_changed_since_the_prompt_was_last_sampled_are_shown(store: Path) -> None:
    first, second = (
        replace(rollouts_view(store, step, 0, 0, "pinned"), against="before") for step in (2, 4)
    )
    text = painted(CompletionPanel, view=first)
    assert "this prompt has no earlier answer to compare with" in text
    assert "answer a by token" in text
    assert "← token 1 of" in text
    text = painted(CompletionPanel, 50, view=second)
    assert "answer a, changes\nd first → newest\nstep 2 → 4 " in text  # no shading
    changed = text.partition(" words\n")[2].partition("\n\n")[0].replace("\n", "")
    after = re.sub(r"\[\+(.*?)\]", r"\1", re.sub(r"\[−.*?\]", "", changed))
    assert second.rollout is not None
    assert "".join(after.split()) == "".join(second.rollout.text.split())
    assert "push with KL" in painted(CompletionPanel, view=replace(second, against=""))
    assert "▌4 " in painted(HistoryBar, 120, view=second)
    visits = [second.visit(by) for by in (-2, -1, 1, 2)]
    assert [visit.step if visit else None for visit in visits] == [None, 2, 6, None]


def test_outside_the_gradient_nothing_says_0_or_that_it_is_shaded(store: Path) -> None:
    view = rollouts_view(store, group=0, origin="pinned").ordered_by("surprise")
    assert "heat: push with KL (no numbers here)" in painted(CompletionPanel, view=view)
    assert [measure_of(group, "surprise") for group in view.groups] == [None, None]
    _, _, _, row, *_ = painted(GroupsPanel, 40, view=view).splitlines()
    assert "▸" in row
    assert "–" in row


def test_greedy_and_sampled_answers_to_held_out_problems_are_told_apart(tmp_path: Path) -> None:
    def held_out(index: int, temperature: float) -> ev.GroupScored:
        group = group_scored(0, index, (index % 2, 2), [("2", True, False)]).group
        sampling = {"temperature": temperature}
        return ev.GroupScored(step=0, group=replace(group, origin="eval", sampling=sampling))

    events: list[ev.Event] = [started()]
    events += [held_out(index, float(index > 1)) for index in range(4)]
    record(tmp_path / "grpo.db", iter(events))
    view = rollouts_view(tmp_path / "grpo.db", 0, 0, 0, "eval")
    text = painted(GroupsPanel, 40, view=view)
    assert text.startswith("held-out, greedy\n")
    assert "Mean reward: greedy " in text
    assert [group.index for group in view.groups] == [0, 1]
    assert "held-out, greedy" in painted(HistoryBar, 120, view=view)
    sampled = view.move_group(1).other_sampling()
    assert sampled is not None
    assert [group.index for group in sampled.groups] == [2, 3]
    assert sampled.group.prompt_hash == view.move_group(1).group.prompt_hash  # type: ignore[union-attr]
    assert "held-out, sampled" in painted(HistoryBar, 120, view=sampled)
    assert sampled.other_sampling() is None
    assert view.at_rollout(3, 0).groups == sampled.groups


@pytest.mark.parametrize("width", [22, 40])
def test_the_list_of_groups_shows_and_names_what_it_is_sorted_by(width: int, store: Path) -> None:
    view = rollouts_view(store).ordered_by("reward")
    best = [max(rollout.reward or 0.0 for rollout in group.rollouts) for group in view.groups]
    note, heading, *rows = painted(GroupsPanel, width, 6, view=view).splitlines()[1:]
    assert note.endswith(" reward")
    end = heading.index("max") + len("max")
    assert [row[:end].split()[-1] for row in rows] == [short(reward, 1) for reward in best]


def test_an_answer_is_split_at_the_ends_of_its_tokens() -> None:
    fields = ("sampler", "old", "reference", "passes", "after", "entropy", "advantages")
    numbers: dict[str, Any] = dict.fromkeys(fields, ())
    row = RecordedTokens(index=0, ids=(1, 2, 3, 4), ends=(1, 3, 3, 5), **numbers)
    assert split("abcde", row) == ("a", "bc", "", "de")
    assert split("abcde", replace(row, ends=())) == ("abcde",)


# -- keys ---------------------------------------------------------------------------------------


async def test_the_same_prompt_is_followed_over_three_steps(store: Path) -> None:
    async with on_rollouts(store, 2, 0, 0, "pinned") as on:
        seen = [on.view.group]
        await on.press("left_square_bracket")
        assert on.told == (
            "This prompt has no earlier answers; t shows prompts sampled at many steps."
        )
        for _ in range(2):
            await on.press("right_square_bracket")
            seen.append(on.view.group)
        assert [group.step for group in seen] == [2, 4, 6]
        assert len({group.prompt_hash for group in seen}) == 1
        await on.press("d")
        assert "step 4 → 6   mean reward " in on.text
        assert "d first → newest" in on.text
        await on.press("d")
        assert "d leaves" in on.text
        assert "step 2 → 6   mean reward " in on.text
        assert "answer a, first against newest" in on.text
        await on.press("d")
        assert "answer a by token" in on.text


async def test_changes_are_no_longer_compared_at_another_prompt(store: Path) -> None:
    async with on_rollouts(store, 4, 0, 0, "pinned") as on:
        await on.press("d", ">")
        assert on.view.against == "before"  # the same prompt at step 6
        assert "answer a, changes" in on.text
        await on.press("t")
        await on.until(lambda: on.view.loaded is not None and on.view.group.origin != "pinned")
        assert on.view.against == ""
        assert "no earlier answer to compare with" not in on.text
        await on.press("d", "s", "r")
        assert on.view.against == ""


async def test_a_step_that_is_not_recorded_yet_opens_the_newest_one(store: Path) -> None:
    async with on_rollouts(store, STEPS + 1, 0, 0) as on:
        assert on.told == f"Step {STEPS + 1} has no recorded answers; this is step {STEPS}."
        assert on.view.step.step == STEPS
        assert on.view.group is not None


async def test_a_running_run_is_followed_until_the_cursor_moves(store: Path) -> None:
    feed = ScriptFeed(run_events(steps=6), name="otter", slice_size=1)
    async with walk(Workbench(store, feed=feed, mode="rollouts")) as on:
        await on.until(lambda: on.screen.snapshot.step == on.screen._seen_step == 2)
        await on.press("right")
        shown = on.view.step
        await on.until(lambda: on.screen.snapshot.step == 5)
        await on.pilot.pause()
        assert on.view.step is shown


@pytest.mark.parametrize(
    ("origin", "step", "selected"), [("train", 2, (1, 1)), ("pinned", 4, (0, 0))]
)
async def test_the_lab_opens_on_the_step_of_training(
    origin: ev.Origin, step: int, selected: tuple[int, int], store: Path
) -> None:
    async with on_rollouts(store, step, 1, 1, origin) as on:
        assert "what if" in on.lines[-1]
        await on.press("v")
        await on.until(lambda: isinstance(on.screen, LabScreen))
        assert (on.view.step.step, on.view.step.origin) == (step, "train")
        assert on.view.selected == selected


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


async def searched(on: Walk, text: str) -> str:
    """The frame once the text was looked for."""
    on.screen.find(text)
    await on.pilot.pause()
    assert on.view.search.done
    return on.text


def squeezed(line: str) -> str:
    """A line with one space between its columns."""
    return " ".join(line.split())


async def test_a_part_of_a_word_is_found_and_shown_where_it_is(texts: Path) -> None:
    async with on_rollouts(texts, 60, 0, 0, size=(80, 24)) as on:
        shown = await searched(on, "zeb")
        (line,) = [line for line in shown.splitlines() if "30 1a " in squeezed(line)]
        assert "zebra" in line
        assert "1 of 1" in shown
        assert on.view.group.step == 30
        frames.check(on.app)
        # in a prompt the question is shown, and not how its template begins
        shown = await searched(on, "17 + 5 =")
        (line,) = [line for line in shown.splitlines() if "5 1a " in squeezed(line)]
        assert "17 + 5 = ?" in line
        assert "system" not in line
        shown = await searched(on, "car")
        assert "carry" in next(line for line in shown.splitlines() if "60 1a " in squeezed(line))
        frames.check(on.app)
        await on.press("n")
        hit = on.view.item
        assert on.view.hit == 1
        assert (on.view.group.step, on.view.group.index) == (hit.step, hit.group_index)


async def test_a_search_waits_until_typing_pauses_and_says_nothing_before(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = asyncio.Event()
    searched: list[str] = []

    def noted(reader: StoreReader, run: int, text: str, *, answers_only: bool) -> Iterator[Search]:
        searched.append(text)
        return search(reader, run, text, answers_only=answers_only)

    async def pause() -> None:
        await paused.wait()

    monkeypatch.setattr("grpo_tui.app.tui.screens.rollouts.screen.search", noted)
    async with on_rollouts(texts, 60, 0, 0) as on:
        on.screen.typing_pause = pause
        await on.pilot.press("slash")
        for typed in ("q", "qu", "qux"):
            await on.pilot.press(typed[-1])
            assert "searching…" in on.text
            assert f"Searching “{typed}”" in on.text
            assert "contains" not in on.text
        assert searched == []
        paused.set()
        await on.pilot.pause()
        assert searched == ["qux"]
        assert "No prompt or answer of this run contains “qux”." in " ".join(
            line[1:43].strip() for line in on.lines
        )
        paused.clear()
        await on.pilot.press("escape")
        assert on.view.search is None
        assert "sort prompt" in on.text


async def test_leaving_out_prompts_searches_at_once_since_nobody_types(texts: Path) -> None:
    paused: list[str] = []

    async def pause() -> None:
        paused.append("typing")

    async with on_rollouts(texts, 60, 0, 0) as on:
        await searched(on, "17 + 5 = ")
        assert on.view.search.matches
        on.screen.typing_pause = pause
        await on.press("x")
        assert on.view.search.done
        assert on.view.search.answers_only
        assert not on.view.search.matches
    assert not paused


@pytest.mark.slow
async def test_a_search_counts_all_hits_and_goes_through_them_by_step_and_kind(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.tui.screens.rollouts.state.WINDOW", 4)
    with StoreReader(store) as reader:
        counts = {
            origin: sum(
                "a" in (group.prompt_text + rollout.text).lower()
                for step in reader.group_steps(1, origin)
                for group in reader.groups(1, step=step, origin=origin)
                for rollout in group.rollouts
            )
            for origin in ("train", "pinned")
        }
    async with on_rollouts(store) as on:
        await searched(on, "a")
        assert len(on.view.search.matches) == sum(counts.values()) > 100
        assert f"training {counts['train']:,}  pinned {counts['pinned']}" in on.text
        on.screen.query_one(GroupsPanel).focus()
        await on.press("end")
        await on.press("p")
        newest = on.view.search.matches[on.view.hit]
        assert on.view.hit == len(on.view.search.matches) - 2
        assert (on.view.group.step, on.view.group.origin) == (newest.step, newest.origin)
        kinds = set()
        for _ in counts:
            await on.press("t")
            kinds.add(on.view.group.origin)
            assert on.view.group.step == on.view.search.matches[on.view.hit].step
        assert kinds == set(counts)
        while on.view.group.origin != "train":
            await on.press("t")
        step = on.view.group.step
        await on.press("<")
        assert (on.view.group.step, on.view.group.origin) == (step - 1, "train")


async def test_the_prompts_of_the_run_that_fail_most_are_listed_first(store: Path) -> None:
    """Three visits of two pinned prompts."""
    with StoreReader(store) as reader:
        visits: dict[str, list[Any]] = {}
        for step in reader.group_steps(1, "pinned"):
            for group in reader.groups(1, step=step, origin="pinned"):
                visits.setdefault(group.prompt_hash, []).append(group)
    means = {prompt: fmean(g.reward_mean for g in groups) for prompt, groups in visits.items()}
    right = {
        prompt: [sum(of) for of in zip(*(right_count(g, "") for g in groups), strict=True)]
        for prompt, groups in visits.items()
    }
    order = sorted(means, key=lambda prompt: (right[prompt][0], means[prompt]))
    async with on_rollouts(store, 2, 0, 0, "pinned") as on:
        await on.press("s", "o")
        assert "pinned of the run" in on.text
        assert on.view.group.prompt_hash == order[0]
        assert on.view.group.step == max(g.step for g in visits[order[0]])
        rows = [line.split() for line in on.lines if re.match(r"│ +\d+/\d+ +[\d.]+ +3 +6  ", line)]
        assert [row[1] for row in rows] == ["{}/{}".format(*right[prompt]) for prompt in order]
        assert [row[2] for row in rows] == [short(means[prompt]) for prompt in order]
        await on.press("n")
        assert on.view.group.prompt_hash == order[1]
        await on.press("[")
        assert "pinned of the run" in on.text  # at another step it is still the selected prompt
        await on.press("escape")
        assert "sort prompt" in on.text
        assert on.screen.mode == "rollouts"


async def test_the_worst_and_the_best_answer_of_the_run_are_two_keys_away(store: Path) -> None:
    with StoreReader(store) as reader:
        groups = reader.groups(1, origin="train")
    rewards = [r.reward for group in groups for r in group.rollouts if r.reward is not None]
    async with on_rollouts(store, 2, 0, 0) as on:
        for key, extreme in (("W", min(rewards)), ("R", max(rewards))):
            await on.press("s", key)
            await on.until(lambda: "of the run is" in on.told)
            assert on.view.rollout.reward == extreme
            count = rewards.count(extreme)
            assert f"{short(extreme)}: {count} answer" in on.told


@pytest.mark.slow
@pytest.mark.parametrize("key", ["t", "f", "4", ">"])
async def test_the_prompts_of_the_run_are_listed_only_beside_the_selected_one(
    key: str, store: Path
) -> None:
    async with on_rollouts(store, 2, 0, 0) as on:
        await on.press("s", "o", "n")
        assert "esc closes the list" in on.text
        shown = on.view.group
        while on.view.group.key == shown.key:
            assert on.view.prompts
            await on.press(key)
        assert not on.view.prompts
        assert "of the run" not in on.text


async def test_a_search_counts_answers_and_prompts_apart(texts: Path) -> None:
    """Each of 60 answers has `7+` with its step, and each prompt `17 + ` with it."""
    async with on_rollouts(texts, 60, 0, 0) as on:
        shown = await searched(on, "7+5")
        assert "11 in answers, 0 in prompts" in shown  # 7+5 and 7+50 to 7+59
        shown = await searched(on, "17 + 5")
        assert "0 in answers, 11 in prompts" in shown
        (line,) = [
            line
            for line in shown.splitlines()
            if " 5 training 1a " in squeezed(line) and "17 + 5 =" in line
        ]
        assert "prompt: " in line
        assert "11 in prompts: x" in shown  # hides them, in the next line
        await on.press("x")
        await on.until(lambda: on.view.search.done)
        assert on.view.search.matches == ()
        assert "No answer contains “17 + 5”." in on.text
        await searched(on, "5")
        assert {match.in_answer for match in on.view.search.matches} == {True}
        await on.press("x")
        await on.until(lambda: on.view.search.done)
        assert not on.view.search.answers_only
        shown = await searched(on, "7")
        assert "60 in answers, 0 in prompts" in shown


def clipped_in_store(store: Path) -> list[tuple[int, int, int, int]]:
    """Step, group, rollout and token of every clipped token of the last pass, in reading order."""
    with StoreReader(store) as reader:
        return [
            (at, group.index, completion.rollout.index, token)
            for at in reader.group_steps(1, "train")
            for step in [load_step(reader, 1, at)]
            for group in step.groups
            for completion in load_group(reader, step, group).completions
            for token, loss in enumerate(completion.losses)
            if loss.side != "free"
        ]


@pytest.mark.slow
async def test_f_visits_every_clipped_token_of_the_run_and_shift_f_goes_back(store: Path) -> None:
    expected = clipped_in_store(store)
    assert len({step for step, *_ in expected}) > 1
    async with on_rollouts(store, 1, 0, 0) as on:
        seen = [on.view.cursor] if on.view.cursor in expected else []
        for _ in range(len(expected) - len(seen)):
            await on.press("f")
            seen.append(on.view.cursor)
        assert seen == expected
        assert "clipped token" in on.text
        assert "CLIPPED" in on.text
        await on.press("f")
        assert "No later clipped token" in on.told
        back = [on.view.cursor]
        for _ in range(len(expected) - 1):
            await on.press("F")
            back.append(on.view.cursor)
        assert back == expected[::-1]


@pytest.mark.slow
async def test_f_leaves_the_hits_of_a_search_for_the_groups_of_the_step(store: Path) -> None:
    expected = clipped_in_store(store)
    async with on_rollouts(store) as on:
        await searched(on, "a")
        on.screen.query_one(GroupsPanel).focus()
        while on.view.group.origin != "train":
            await on.press("t")
        assert "search" in on.screen.query_one(GroupsPanel).title
        await on.press("F")  # the hit is behind the last one
        assert on.view.cursor in expected
        assert on.view.search is None
        assert not on.screen.query_one(FindBar).display
        assert "search" not in on.screen.query_one(GroupsPanel).title
        assert on.view.group in on.view.step.groups


@pytest.mark.slow
async def test_f_goes_on_to_steps_recorded_since_the_screen_read_its_step(tmp_path: Path) -> None:
    recorder, record_rest = half_recorded(tmp_path / "runs.db")
    async with on_rollouts(tmp_path / "runs.db", STEPS // 2, 0, 0) as on:
        while "No later clipped token" not in on.told:
            await on.press("f")
        record_rest()
        await on.press("f")
        assert on.view.step.step > STEPS // 2
    recorder.close()


@pytest.mark.slow
async def test_a_typed_step_goes_to_it_or_to_the_nearest_before_it(store: Path) -> None:
    """Pinned prompts are sampled at steps 2, 4 and 6."""
    async with on_rollouts(store, 6, 1, 3, "pinned") as on:
        for typed, step, told in (
            ("3", 2, "Step 3 has no recorded answers; this is step 2."),
            ("+2", 4, ""),
            ("-50", 2, "Step 0 has no recorded answers; this is step 2."),
            ("six", 2, "“six” is not such a number."),
            ("60", 6, "Step 60 has no recorded answers; this is step 6."),
        ):
            await on.press("at", *map(_character_to_key, typed), "enter")
            chosen = on.view.group
            assert (chosen.step, chosen.origin, chosen.index) == (step, "pinned", 1), typed
            assert not told or on.told == told
            assert "answer d by token" in on.text
        await on.press("at", "escape")
        assert on.view.group is chosen


def test_another_step_keeps_the_prompt_also_where_the_order_is_another(store: Path) -> None:
    """The second of two pinned prompts is the better one at step 2, the first at step 4."""
    view = rollouts_view(store, 2, 1, 0, "pinned")
    base = view.step
    assert base is not None

    def scored(step: int, *rewards: float) -> GroupList:
        groups = tuple(
            replace(group, step=step, rollouts=(replace(group.rollouts[0], reward=reward),))
            for group, reward in zip(base.groups, rewards, strict=True)
        )
        return replace(base, step=step, groups=groups)

    view = replace(view, step=scored(2, 0.0, 1.0)).ordered_by("reward")
    for step in (scored(4, 1.0, 0.0), scored(2, 0.0, 1.0)):
        view = view.with_step(step)
        assert view.group is not None
        assert (view.group.step, view.group.index) == (step.step, 1)


@pytest.mark.slow
async def test_without_token_numbers_f_says_so_and_not_that_nothing_was_clipped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "none.db"
    record(path, run_events(steps=3), record={"tokens": "none"})
    async with on_rollouts(path, 1, 0, 0) as on:
        await on.press("f")
        assert on.told == (
            "No clipped token: token numbers were not recorded for this group "
            "(record.tokens=all records them)."
        )
        head = on.text.split("all answers to this prompt")[0]
        assert "token numbers were not recorded" in head.splitlines()[5]
        await on.go(RolloutOpened(1, 3, "train", 1, 1))
        first, second = (row.split("││")[1].strip() for row in on.lines[7:9])
        assert second  # no line for shades between them
        assert f"{first} {second}" == on.view.rollout.text


@pytest.mark.slow
async def test_sorting_goes_to_the_furthest_token_of_the_furthest_answer(store: Path) -> None:
    async with on_rollouts(store) as on:
        await on.press("s", "k")
        distances = [loss.kl or 0 for loss in on.view.completion.losses]
        furthest = max(highlight.value for highlight in on.view.highlights)
        assert distances[on.view.token] == max(distances) == furthest > 0
        assert f"highest KL {short(furthest, 3)}, step 4 " in on.text
        await on.press("f")
        assert "clipped token " in on.text  # f does not follow the sort
        await on.press("s", "l")
        assert on.view.rollout.tokens == max(r.tokens for r in on.view.group.rollouts)
        await on.press("n", "s", "p")
        assert on.view.group_at == on.view.group.index
        frames.check(on.app)


@pytest.mark.slow
async def test_the_key_of_the_screen_leads_to_the_newest_step(store: Path) -> None:
    async with walk(workbench(store)) as on:
        on.app.post_message(RunOpened("calm-otter"))
        await on.until(lambda: "▌3 Watch▐" in on.text)
        await on.press("4")
        await on.until(lambda: on.view.loaded is not None)
        newest = on.view.step.step
        await on.press("<", "<")
        assert on.view.step.step == newest - 2
        await on.press("4")
        assert on.view.step.step == newest


async def test_steps_add_up_while_one_is_still_being_read(store: Path) -> None:
    async with on_rollouts(store, step=6) as on:
        for _ in range(4):
            on.screen.action_step(-1)  # as keys do that have waited long enough
        await on.pilot.pause()
        assert on.view.step.step == 2


async def test_a_step_that_is_read_while_the_screen_is_taken_down_is_no_failure(
    store: Path,
) -> None:
    async with on_rollouts(store) as on:
        screen = on.screen
        await screen.query("*").remove()  # as the end of the program does, before the screen's own
        screen.receive(RolloutOpened(1, 3, "train", 0, 0))
        screen.view = screen.view.cleared()  # the read began before the run was known
        await on.app.workers.wait_for_complete()
