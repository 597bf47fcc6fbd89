"""A verdict on runs that were not evaluated after the same training says so."""

import json
import re
from pathlib import Path

import pytest

from grpo_tui.app.tui.screens.compare.render import verdict
from grpo_tui.app.tui.screens.compare.state import CompareView, load_comparison
from grpo_tui.experiments.db.paths import starts_folder
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.compared import (
    cli,
    evaluated_events,
    evaluated_runs,
    opened,
    refs_of,
    settled,
    workbench,
)
from tests.app.stored import record
from tests.app.walk import walk


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_verdict_says_so_and_the_legend_has_its_values(
    size: tuple[int, int], tmp_path: Path
) -> None:
    """Where the short run ends, at step 5, the long one was not evaluated since step 0."""
    async with walk(
        workbench(evaluated_runs(tmp_path, ("short", 5, 100, 5), ("long", 30, 100, 10))), size
    ) as on:
        screen = await opened(on)
        frames.check(on.app)
        told = " ".join(verdict(screen.view).split())
        first, second, third, *_ = told.split(". ")
        assert first.startswith("long is better than short in greedy answers")
        assert "Unequal training: long had 30 steps, short 5 steps" in (second, third)
        assert "The key a compares" in told
        text = on.text
        assert "Unequal training" in text
        # the value that the verdict is from, then the best one
        assert re.search("● short .* 33% @5 +33% @5 ", text)
        assert re.search("■ long .* 72% @30 +72% @30 ", text)
        await on.press("left")  # from here on it is the value at the crosshair
        await settled(on, screen)
        assert re.search("■ long .* 25% @0 +72% @30 ", on.text)


@pytest.mark.parametrize(
    ("every", "axis", "unequal"),
    [
        (5, "step", ""),  # both were evaluated at step 5
        (4, "step", ""),  # at steps 4 and 5
        (3, "step", "a had 30 steps, b 5 steps"),  # at steps 3 and 5 they are not equal
        (10, "step", "a had 30 steps, b 5 steps"),
        # a step of b takes as many tokens as ten of a: at 3k tokens they are at steps 30 and 3
        (10, "tokens", "b had about 5,000 tokens, a about 3,000 tokens"),
        (10, "wall", "a had about 60s, b about 10s"),
    ],
)
def test_it_depends_on_the_axis(every: int, axis: str, unequal: str, tmp_path: Path) -> None:
    path = evaluated_runs(tmp_path, ("a", 30, 100, every), ("b", 5, 1000, 5))
    with StoreReader(path) as reader:
        comparison = load_comparison(reader, ["a", "b"], "", axis, None)
    told = verdict(CompareView(refs=refs_of(path), axis=axis).with_comparison(comparison))
    assert unequal in told
    assert ("Unequal training" in told) is bool(unequal)


def test_at_equal_tokens_other_steps_are_no_unequal_training(tmp_path: Path) -> None:
    path = evaluated_runs(tmp_path, ("a", 30, 100, 10), ("b", 5, 1000, 1))
    with StoreReader(path) as reader:
        comparison = load_comparison(reader, ["a", "b"], "", "tokens", None)
    assert comparison.equal_work
    told = verdict(CompareView(refs=refs_of(path), axis="tokens").with_comparison(comparison))
    assert "steps 30 and 3" in told
    assert "Unequal training" not in told


def test_evaluations_of_unequal_steps_are_not_compared_as_equal_work(tmp_path: Path) -> None:
    """Up to step 16 long was evaluated at 10: 16 steps are 1.6 times as many."""
    path = evaluated_runs(tmp_path, ("long", 30, 100, 10), ("short", 16, 100, 8))
    with StoreReader(path) as reader:
        comparison = load_comparison(reader, ["long", "short"], "", "step", None)
    assert (comparison.equal_work, comparison.cut_at) == (False, "")
    (test,) = (row.test for row in comparison.rankings[0].settings if row.test)
    assert {test.own.steps, test.other.steps} == {(30,), (16,)}
    told = verdict(CompareView(refs=refs_of(path)).with_comparison(comparison))
    assert " Unequal training: long had 30 steps, short 16 steps. " in told


def test_what_equal_steps_leave_out_is_said(tmp_path: Path) -> None:
    path = evaluated_runs(tmp_path, ("long", 30, 100, 10), ("short", 10, 100, 10))
    with StoreReader(path) as reader:
        comparison = load_comparison(reader, ["long", "short"], "", "step", None)
    assert (comparison.equal_work, comparison.cut_at) == (True, "step 10")
    told = verdict(CompareView(refs=refs_of(path)).with_comparison(comparison))
    assert " Evaluations after step 10 are left out. " in told


def test_the_command_names_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = evaluated_runs(tmp_path, ("short", 5, 100, 5), ("long", 30, 100, 5))
    runs = ("short", "long", "--db", str(path))
    assert ". --at compares" in " ".join(cli(capsys, *runs).split())
    assert "Unequal training" not in cli(capsys, *runs, "--at", "step")
    equal = [
        json.loads(cli(capsys, *runs, *at, "--json"))["equal_work"] for at in ((), ("--at", "step"))
    ]
    assert equal == [False, True]


@pytest.mark.parametrize("steps", [2, 30])
def test_a_run_that_began_from_a_checkpoint_had_the_steps_until_there_as_well(
    steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = evaluated_runs(tmp_path, ("base", 30, 100, 10))
    (base,) = refs_of(path)
    adapter = str(starts_folder(path) / f"{base}-step-000030")
    for number in (1, 2):
        record(
            path,
            evaluated_events(steps, 100, 2),
            parent=base,
            name=f"later{number}",
            model={"path": "starter", "adapter": adapter},
            steps=10 * number,
        )
    runs = ("base", "later1", "--db", str(path))
    for at in ((), ("--at", "tokens")):
        told = " ".join(cli(capsys, *runs, *at).split())
        assert "Unequal training: " in told
        assert re.search(
            r"later1 (had )?(about )?[\d,]+ (steps|tokens) after step 30 of base", told
        )
        assert "compares at equal" not in told  # no option can make this equal
    assert "Unequal training" not in cli(capsys, "later1", "later2", *runs[2:])
