"""Hostile text in every part of a run: name, notes, tags, settings, alerts, answers.

One store of hostile runs, with a hostile dialogue, is visited by keys, and each frame is checked.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore
from tests.app import dialogues, frames
from tests.app.script import CONFIG, HOSTILE, hostile_group
from tests.app.stored import run_events, with_ends
from tests.app.walk import walk
from tests.experiments.made import alerted

NAME = HOSTILE[0] + HOSTILE[1] + HOSTILE[2] + HOSTILE[4] + HOSTILE[5]
OBEYED = ("\x1b", "\x07", "\x00", "\x9b", "\u202e", "\u2066")


def with_hostile_groups(events: Iterator[ev.Event]) -> Iterator[ev.Event]:
    """Hostile answers in place of those to the first prompt, and a hostile dialogue of the second.

    A text is long as well. Neither group has token numbers, but for those of the dialogue.
    """
    evil = "\x1b]0;title\x07\u202e\x00[link=x]y[/]" + "long" * 30_000
    turn = dialogues.Turn(evil, evil, 1.0, {evil[:40]: evil}, evil, evil[:40])
    dialogue = dialogues.group(1, "?", [([turn, turn], "environment_error")])
    for event in events:
        index = event.group.index if isinstance(event, ev.GroupScored) else -1
        if isinstance(event, ev.GroupScored) and event.group.origin == "train" and index < 2:
            group = (with_ends(hostile_group(event.step).group), dialogue)[index]
            yield replace(event, group=group)
        elif not isinstance(event, ev.TokensScored) or event.origin != "train" or event.group > 1:
            yield event
        elif event.group == 1:
            yield replace(event, numbers=dialogues.token_numbers(dialogue))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "grpo.db"
    for seed in (0, 1):
        tree = {
            **CONFIG,
            "seed": seed,
            "name": f"{seed} {NAME}",
            "model": {"path": NAME, "tuning": "lora"},
        }
        handle = start_run(path, build(tree), name=f"{seed} {NAME}", tags=(NAME.split()[0],))
        for event in with_hostile_groups(run_events(steps=2, seed=seed)):
            if isinstance(event, ev.StepFinished):
                handle.put(alerted(event.step, explanation=NAME, remedy=NAME))
                handle.put(ev.NoteWritten(step=event.step, text=NAME, severity="error"))
                event = replace(event, metrics={**event.metrics, f"rewards/{NAME}/mean": 1.0})
            handle.put(event)
        handle.close()
    with ExperimentStore(path) as opened:
        opened.change(1, note=HOSTILE[7][:3000] + NAME)
    return path


KEYS = ("g", "g", "g", "g", "g", "g", "g", "down", "z", "z", "y", "x", "escape", "m", "escape", "i",
        "escape", "s", "b", "escape", "space", "down", "space", "d", "right_square_bracket",
        "right_square_bracket", "n", "down", "plus", "escape", "1", "c", "v", "escape", "escape",
        "1", "enter", "tab", "tab", "tab",
        "down", "enter", "escape", "ctrl+c", "escape", "4", "down", "m", "pageup", "D", "n", "down",
        "end", "pageup", "v", "escape", "question_mark", "escape")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_store_of_hostile_runs_is_harmless_on_every_screen(
    size: tuple[int, int], store: Path
) -> None:
    async with walk(Workbench(store, preferences=Preferences()), size, notifications=True) as on:
        screen = on.screen
        await on.until(lambda: len(screen.view.runs) == 2 and screen.view.preview is not None)
        for key in KEYS:
            await on.press(key)
            frames.check(on.app)
            assert not any(sign in on.text for sign in OBEYED)


WORDS = {
    "run": ("status",),
    "alert": ("rule", "severity"),
    "rollout": ("finish",),
    "rollout_group": ("no_signal",),
    "evaluation": ("mode", "moment"),
}


@pytest.mark.slow
async def test_words_of_another_version_are_shown_as_they_are(tmp_path: Path, store: Path) -> None:
    path = Path(shutil.copytree(store.parent, tmp_path / "other")) / store.name
    with closing(sqlite3.connect(path)) as conn:
        for table, columns in WORDS.items():
            for column in columns:
                conn.execute(f"UPDATE {table} SET {column} = 'vexed' || {column}")
        conn.execute("UPDATE rollout_group SET origin = 'vexed' WHERE id % 3 = 0")
        for word in ("severity", "reason", "mode", "finish", "kind"):
            place = f"$.{word}"
            conn.execute(
                "UPDATE event SET payload = json_set(payload, ?, 'vexed') "
                "WHERE json_extract(payload, ?) IS NOT NULL",
                (place, place),
            )
        conn.commit()
    async with walk(Workbench(path, preferences=Preferences()), notifications=True) as on:
        screen = on.screen
        await on.until(lambda: len(screen.view.runs) == 2 and screen.view.preview is not None)
        assert "vexed" in on.text
        for key in KEYS:
            await on.press(key)
            frames.check(on.app)
