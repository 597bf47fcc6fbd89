"""Twelve questions that a person asks about a run, each answered on screen within five keys.

Every answer starts on Watch as it opens, and is read from the screen's text alone. The expected
answer is computed from the events.
"""

import math
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.text.numbers import short
from app.tui.app import Workbench
from app.tui.messages import RunOpened
from app.tui.preferences import Preferences
from experiments.reader import StoreReader
from grpo_engine import events as ev
from tests.app import frames
from tests.app.rest import until
from tests.app.script import Script, algorithm
from tests.app.stored import record, run_events
from tests.app.tui.screens.test_watch import workbench

SIZE = (140, 44)
MOST_KEYS = 5


def events() -> Iterator[ev.Event]:
    """The run, with alerts for gaming the format and for cut-off answers."""
    for event in run_events(steps=8, seed=1):
        yield event
        if isinstance(event, ev.StepFinished) and event.step == 8:
            for rule, text in (
                ("format_hacking", "Reward rose by .2 while accuracy fell."),
                ("truncation", "61% of the answers were cut at the length limit."),
            ):
                yield ev.AlertRaised(step=8, rule=rule, severity="warning", explanation=text,
                                     remedy="Weigh accuracy more.")  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "grpo.db"
    record(
        path, run_events(steps=6, seed=2), name="brave-fox", seed=1, algorithm=algorithm(beta=0.1)
    )
    record(path, events(), name="calm-otter", seed=0)
    return path


class Asker:
    """Press keys, starting from Watch, and read the screen."""

    def __init__(self, app: Workbench, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    async def until(self, *wanted: str) -> str:
        """Return the screen's text once it contains all of `wanted`."""
        await until(
            self.app, lambda: all(part in frames.text(self.app) for part in wanted),
            self.app.frame_now,
        )  # fmt: skip
        return frames.text(self.app)

    async def press(self, *keys: str) -> None:
        """Press at most five keys, waiting until the screen is idle after each."""
        assert len(keys) <= MOST_KEYS
        for key in keys:
            await self.pilot.press(key)
            await self.pilot.pause()


@pytest.fixture
async def asker(store: Path) -> AsyncIterator["Asker"]:
    app = Workbench(store, preferences=Preferences())
    async with app.run_test(size=SIZE) as pilot:
        found = Asker(app, pilot)
        app.post_message(RunOpened("calm-otter"))
        await found.until("▌3 Watch▐", "answers to prompt 1", "run completed")
        yield found


def last_groups() -> list[ev.Group]:
    step = [e.group for e in events() if isinstance(e, ev.GroupScored) and e.step == 8]
    return [group for group in step if group.origin == "train"]


async def test_which_group_gave_no_signal_and_why(asker: Asker) -> None:
    dead = [group for group in last_groups() if group.no_signal]
    assert dead
    text = await asker.until("no push")
    for reason in {group.no_signal for group in dead}:
        assert text.count(f"{reason}: no push") == sum(g.no_signal == reason for g in dead)


async def test_which_reward_function_moved(asker: Asker, store: Path) -> None:
    """The reward curve's title lists all functions, and the preview shows the run's trend."""
    with_metrics = StoreReader(store)
    run = with_metrics.resolve("calm-otter").key
    for name in ("accuracy", "format"):
        values = with_metrics.metric_series(run, f"rewards/{name}/mean").values
        total = norm = 0.0
        for value in values:
            total, norm = 0.9 * total + 0.1 * value, 0.9 * norm + 0.1
        await asker.until(f"{name} {short(total / norm)}")
    with_metrics.close()


async def test_is_the_format_being_hacked(asker: Asker) -> None:
    await asker.until("Reward rose by .2 while accuracy fell.", "Weigh accuracy more.")


async def test_which_token_was_clipped_on_which_side_and_why(asker: Asker, store: Path) -> None:
    place, answer, clipped = clipped_within_four_keys(store)
    await asker.press("4", *["J"] * place, *["down"] * answer)
    text = await asker.until("clipped ", f"answer {'abcd'[answer]} of")
    found = re.search(r"│clipped +(\d+) “[^”]*” (low|high)", text)
    assert found, text
    token, side = int(found[1]), found[2]
    assert clipped[token - 1] == side
    assert f"; {'better' if side == 'high' else 'worse'} answer, already" in text


def clipped_within_four_keys(store: Path) -> tuple[int, int, dict[int, str]]:
    """A group, one of its answers and the clipped tokens, from the store's own numbers."""
    reader = StoreReader(store)
    for group in reader.groups(reader.resolve("calm-otter").key, 8, "train"):
        tokens = reader.tokens(group.run, group.key)
        for answer, row in enumerate(tokens.rows[: 5 - group.index] if tokens else ()):
            clipped = {}
            for t, (new, old) in enumerate(zip(row.passes[-1], row.old, strict=True)):
                better = row.advantages[min(t, len(row.advantages) - 1)]
                if better > 0 and math.exp(new - old) > 1.2:
                    clipped[t] = "high"
                if better < 0 and math.exp(new - old) < 0.8:
                    clipped[t] = "low"
            if clipped and not group.no_signal:
                reader.close()
                return group.index, answer, clipped
    raise AssertionError("no answer within four keys has a clipped token")


async def test_where_the_answer_is_furthest_from_the_reference(asker: Asker, store: Path) -> None:
    await asker.press("4")
    reader = StoreReader(store)
    group = reader.groups(reader.resolve("calm-otter").key, 8, "train")[0]
    tokens = reader.tokens(group.run, group.key)
    reader.close()
    assert tokens is not None
    row = tokens.rows[0]
    gaps = [abs(a - r) for a, r in zip(row.after, row.reference, strict=True)]
    await asker.until(f"from the reference at {gaps.index(max(gaps)) + 1} “")


async def test_what_the_model_said_to_this_prompt_before(asker: Asker, store: Path) -> None:
    reader = StoreReader(store)
    run = reader.resolve("calm-otter").key
    before = reader.groups(run, 6, "pinned")[0].rollouts[0].text
    reader.close()
    await asker.press("4", "t", "left_square_bracket")
    text = await asker.until("step 6  pinned")
    flat = "".join(line.split("││")[1] if "││" in line else "" for line in text.splitlines())
    assert before.replace(" ", "")[:30] in flat.replace(" ", "").replace("▁", "")


async def test_what_differs_between_two_runs(asker: Asker) -> None:
    await asker.press("1", "space", "space", "d")
    await asker.until("▌5 Compare▐", "algorithm.beta", "0.1", "0.04")


async def test_which_is_better_and_how_sure_that_is(asker: Asker) -> None:
    await asker.press("1", "space", "space", "d")
    await asker.until("held-out problems", "p ")


async def test_why_the_loss_reads_nearly_nothing(asker: Asker) -> None:
    await asker.press("question_mark", "slash", "l", "o", "s")
    await asker.until("It often reads near 0", "advantages of a group cancel")


async def test_is_it_truncating(asker: Asker) -> None:
    await asker.until("61% of the answers were cut at the length limit.")


async def test_what_is_slow_in_a_step(tmp_path: Path) -> None:
    app = workbench(Script(steps=3).events(), tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        text = await Asker(app, pilot).until("generate ✓", "update ✓", "s/step")
        spent = dict(re.findall(r"(generate|score|logprobs|update) ✓ ([\d.]+)s", text))
        assert len(spent) == 4
        assert float(spent["generate"]) == max(map(float, spent.values()))


async def test_what_another_beta_would_have_changed(asker: Asker) -> None:
    await asker.press("4", "v", "down", "right")
    text = await asker.until("was 0.04")
    pairs = re.findall(r"(\S+) → (\S+) +│", text)
    assert any(before != after for before, after in pairs), text
