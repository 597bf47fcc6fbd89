"""The probe on New run: progress, stop, what it shows, and its use."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.app.trial.probing import PROMPTS, SAMPLES, Probing
from grpo_tui.app.tui.screens.new_run import NewRunScreen
from grpo_tui.app.tui.screens.new_run.render import probe_enter
from tests.app import frames
from tests.app.compared import workbench
from tests.app.new_run_kit import opened, turn_to
from tests.app.rest import until


def table(temperature: float, *shares: float, recommended: int | None = None) -> dict[str, Any]:
    rows = [
        {"group_size": 2 ** (n + 1), "share": one, "low": one - 0.1, "high": min(1, one + 0.1),
         "seconds": 1.5 * 2**n}
        for n, one in enumerate(shares)
    ]  # fmt: skip
    counts = [("never", 3), *((f"{n}0 to {n + 1}0%", n % 3) for n in range(10)), ("always", 1)]
    return {"temperature": temperature, "prompts": 32, "group_sizes": rows, "right": 0.25,
            "recommended": recommended, "histogram": counts}  # fmt: skip


DONE: Mapping[str, Any] = {
    "ended": True, "enough": 0.8, "answers": 1024, "of": 1024,
    "tables": [table(1.0, 0.5, 0.7, 0.9, recommended=8), table(1.25, 0.6, 0.85, recommended=4)],
    "best": {"group_size": 4, "temperature": 1.25},
}  # fmt: skip


class Answers:
    """Gives the trial process's answers one by one; the last waits for its release."""

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        self.answers, self.asked = list(answers), list[Mapping[str, Any]]()
        self.released = asyncio.Event()

    async def request(self, method: str, *_: Any, **arguments: Any) -> Mapping[str, Any]:
        self.asked.append({"key": method, "begin": arguments.get("begin")})
        if method == "stop":
            return {}
        if len(self.answers) == 1:
            await self.released.wait()
        return self.answers.pop(0)

    def close(self) -> None: ...


def answered(screen: NewRunScreen, *answers: Mapping[str, Any]) -> Answers:
    trial = Answers(*answers)
    screen.trial = trial  # type: ignore[assignment]
    return trial


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 48)])
async def test_a_probe_shows_its_progress_and_its_advice_is_used(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app = workbench(tmp_path / "store.db")
    async with app.run_test(size=size) as pilot:
        screen = await opened(app, pilot)
        half = {**DONE, "ended": False, "answers": 512, "best": None, "tables": DONE["tables"][:1]}
        trial = answered(screen, half, DONE)
        await turn_to(pilot, screen, "probe")
        await until(app, lambda: "⏎ start the probe" in frames.text(app))
        await pilot.press("enter")
        await until(app, lambda: "512 of 1,024 answers" in frames.text(app))
        assert "25% of the answers" in frames.text(app)
        assert "use it" not in frames.text(app)
        trial.released.set()
        await until(app, lambda: "Use group size 4 at temperature 1.25" in frames.text(app))
        assert "⏎ use it" in frames.text(app)
        assert "85%" in frames.text(app)
        if size != (80, 24):
            assert "always" in frames.text(app)
        await pilot.press("enter")
        config = screen.view.form.config
        assert config is not None
        assert (config.rollout.group_size, config.rollout.temperature) == (4, 1.25)
        # the result is still that of these settings
        assert probe_enter(screen.view) == "use it"
        assert [one["begin"] for one in trial.asked] == [True, False]
        await pilot.press("ctrl+z")
        assert screen.view.form.config is not config


async def test_a_probe_can_be_stopped_and_repeated(tmp_path: Path) -> None:
    app = workbench(tmp_path / "store.db")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        half = {**DONE, "ended": False, "answers": 512, "best": None}
        trial = answered(screen, half, DONE)
        await turn_to(pilot, screen, "probe")
        await pilot.press("enter")
        await until(app, lambda: "512 of 1,024 answers" in frames.text(app))
        await pilot.press("enter")
        await until(app, lambda: "Stopped at 512 of 1,024 answers" in frames.text(app))
        await until(app, lambda: trial.asked[-1]["key"] == "stop")
        assert screen.view.form.edits == {}
        trial.released.set()
        await pilot.press("enter")
        await until(app, lambda: "Use group size 4" in frames.text(app))
        assert trial.asked[-1] == {"key": "probe", "begin": True}


async def test_a_probe_of_other_settings_says_so_and_is_repeated(tmp_path: Path) -> None:
    app = workbench(tmp_path / "store.db")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        trial = answered(screen, DONE, {"problem": "no such model"})
        trial.released.set()
        await turn_to(pilot, screen, "probe")
        await pilot.press("enter")
        await until(app, lambda: "Use group size 4" in frames.text(app))
        screen.change(screen.view.form.type("model.path", "nowhere"))
        await until(app, lambda: "Of other settings" in frames.text(app))
        await pilot.press("enter")
        await until(app, lambda: "✗ no such model" in frames.text(app))


@pytest.mark.slow
def test_the_trial_process_probes_a_little_with_each_question(tmp_path: Path) -> None:
    from grpo_engine.api.probe import PromptsProbed, merged, probe, signals
    from grpo_engine.control import Control
    from tests.engine.runs import settings, write_world

    config = settings(write_world(tmp_path), task={"train_size": 12})
    probing, times = Probing(), 0
    found: dict[str, Any] = {"ended": False}
    while not found["ended"]:
        found = probing.advance(config, begin=not times)
        times += 1
    assert times > 1
    assert found["answers"] == found["of"] == 3 * 12 * SAMPLES
    events = probe(
        config, Control(), folder=tmp_path / "whole", prompts=PROMPTS, samples=SAMPLES,
        temperatures=[1.0],
    )  # fmt: skip
    (expected,) = merged([event for event in events if isinstance(event, PromptsProbed)])
    shares = [one.share for one in signals(expected, [2, 4, 8, 16], 2)]
    assert [row["share"] for row in found["tables"][0]["group_sizes"]] == shares
