"""Sweeps from the form: several values and seeds, their check, their cost, and the queue."""

from pathlib import Path

import pytest

from grpo_engine.presets import preset
from grpo_tui.app.jobs import launch
from grpo_tui.app.trial import ready
from grpo_tui.app.tui.screens.new_run import render, state
from grpo_tui.app.tui.screens.new_run.state import (
    INFO,
    NewRunView,
    Origin,
    RunForm,
    can_sweep,
    preset_view,
)
from grpo_tui.experiments.reader import StoreReader
from tests.app import frames
from tests.app.compared import workbench
from tests.app.new_run_kit import go_to, opened, write
from tests.app.walk import walk


def form(**edits: str) -> RunForm:
    result = RunForm(preset("starter").config, Origin(name="starter"))
    for path, text in edits.items():
        result = result.type(path.replace("__", "."), text)
    return result


def test_several_values_of_settings_and_seeds_make_a_grid() -> None:
    swept = form(algorithm__beta="0.04, 0.4", rollout__prompts="8,16", seeds="2")
    assert swept.errors == {}
    assert swept.count == 8
    assert [config.algorithm.beta for _, config in swept.points] == [0.04, 0.04, 0.4, 0.4]
    assert [config.rollout.prompts for _, config in swept.points] == [8, 16, 8, 16]
    assert swept.config == swept.points[0][1]


def test_choices_can_be_swept_as_well() -> None:
    swept = form(algorithm__recipe="grpo,dapo")
    assert [config.algorithm.recipe for _, config in swept.points] == ["grpo", "dapo"]
    # each with its own choices, as if it alone were chosen
    assert swept.points[1][1] == form(algorithm__recipe="dapo").config


def test_lists_and_texts_with_commas_are_no_sweeps() -> None:
    changes = {
        "rollout__stop": "a,b",
        "task__system_prompt": "one, two",
        "name": "a,b",
        "rewards__functions": "numeric_answer,format_all",
        "rewards__weights": "1,3",
    }
    assert form(**changes).axes == {}
    assert [
        path
        for path in ("rewards.weights", "task.name", "model.path", "seeds", "preset")
        if can_sweep(INFO[path])
    ] == []
    assert all(can_sweep(INFO[path]) for path in ("steps", "algorithm.beta", "model.tuning"))


@pytest.mark.parametrize(
    ("edits", "path", "text"),
    [
        ({"algorithm__beta": "0.04,x"}, "algorithm.beta", "x: must be a number"),
        ({"algorithm__beta": "0.04,-1"}, "algorithm.beta", "-1: must be a number ≥ 0"),
        ({"algorithm__beta": ",0.04"}, "algorithm.beta", "empty value"),
        ({"algorithm__trust": "clip,nothing"}, "algorithm.trust", "nothing: must be one of"),
        # each value of a sweep that makes another setting wrong
        ({"algorithm__minibatches": "16", "rollout__prompts": "16,1"}, "rollout.prompts", "1: "),
        ({"seeds": "0"}, "seeds", "must be a whole number ≥ 1"),
        ({"seeds": "two"}, "seeds", "must be a whole number"),
        ({"steps": ",".join(map(str, range(1, 40))), "seeds": "8"}, "seeds", "312 runs"),
    ],
)
def test_each_value_is_checked_like_a_single_one(
    edits: dict[str, str], path: str, text: str
) -> None:
    errors = form(**edits).errors
    assert list(errors) == [path]
    assert text in errors[path]


def test_the_cost_of_a_sweep_is_that_of_all_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def price(config: object, *_: object) -> state.Cost:
        steps = config.steps  # type: ignore[attr-defined]
        return state.Cost(tokens=1, seconds=float(steps), gigabytes=steps / 1000, run="")

    monkeypatch.setattr(state, "cost", price)
    view = preset_view("starter").with_form(form(steps="10,50", seeds="3"))
    # 3 seeds x (10 + 50) steps of one second and one megabyte
    text = render.launch_text(view, "")
    assert "steps 10, 50 × 3 seeds: 6 runs, about 3 min, .18 GB of disk in all." in text
    header = "".join(part for part, _ in render.header_line(view, 120))
    assert header.startswith(" about 3 min, .18 GB of disk")
    assert [way for way, *_ in render.launch_options(view, "")] == ["worker", "queue", ""]


def test_a_sweep_names_the_command_that_does_the_same() -> None:
    view = preset_view("starter").with_form(form(algorithm__beta="0.04,0.4", seeds="2"))
    assert render.sweep_command(view, "x.yaml") == (
        "grpo-tui sweep x.yaml --set algorithm.beta=0.04,0.4 --seeds 2"
    )


@pytest.mark.slow
async def test_a_sweep_is_typed_launched_and_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(launch, "start_queue_worker", started.append)
    monkeypatch.setattr(ready, "require_apart", lambda configs, later: ())  # noqa: ARG005
    path = tmp_path / "grpo.db"
    async with walk(workbench(path), (80, 24), notifications=True) as on:
        screen = await opened(on)
        for setting, text in (("algorithm.beta", "0.04,0.4"), ("seeds", "2")):
            await go_to(on, screen, setting)
            await on.press("enter")
            await write(on, text)
            await on.press("enter", "escape")
        await on.until(lambda: "4 runs" in on.text)
        frames.check(on.app)
        await on.press("L")
        await on.until(lambda: "start the sweep" in on.text)
        assert "4 runs" in on.text
        frames.check(on.app)
        await on.press("s")
        await on.until(lambda: "4 runs of starter" in on.text)
        await on.until(lambda: "4 in the queue (Q)" in on.text)  # on Runs
    assert started == [path]
    with StoreReader(path) as reader:
        items = reader.queue()
    settings = [(item.settings["algorithm.beta"], item.settings["seed"]) for item in items]
    assert settings == [(0.04, 0), (0.04, 1), (0.4, 0), (0.4, 1)]


async def test_several_values_marked_in_a_list_make_a_sweep(tmp_path: Path) -> None:
    async with walk(workbench(tmp_path / "grpo.db")) as on:
        screen = await opened(on)
        await go_to(on, screen, "algorithm.trust")
        await on.press("enter", "home", "down", "space", "down", "space", "enter")
        await on.until(lambda: on.screen is screen)
        values = screen.view.form.axes["algorithm.trust"]
        assert len(values) == 2
        await on.press("u")
        assert isinstance(screen.view, NewRunView)
        assert screen.view.form.axes == {}
