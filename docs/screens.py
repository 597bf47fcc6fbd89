"""Renders the screens of the workbench from stored runs: an SVG of each, and a moving one of Watch.

    python docs/screens.py                      the pictures of README.md and docs, into docs/images
    python docs/screens.py --out /tmp/p --png --size 80x24 --size 200x60 --theme light watch lab
    python docs/screens.py --out /tmp/p --png all    every state of every screen, on no page
    python docs/screens.py --out /tmp/p --blank all  also counts blank cells, and names lines cut
                                                     beside free ones

One run is the recording that comes with the program; where several are needed, they are those of
docs/several.tar.xz: starter runs with two settings of `beta` and two seeds each, which `--record`
trains again. `--store` takes the runs of another store for both; `dialogue` needs one, whose last
run is of the preset `guess`.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from textual.pilot import Pilot
from textual.screen import Screen

from docs.picture import Row, document, elements_of, paper_of, picture, rows_of
from grpo_tui.app.feed import demo
from grpo_tui.app.feed.feed import Feed
from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.dialogs.crash import crash_page
from grpo_tui.app.tui.dialogs.leaving import quit_dialog
from grpo_tui.app.tui.looks.colours import DARK, PALETTES
from grpo_tui.app.tui.messages import RolloutOpened
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.run_keys import ControlledRun, stop_dialog
from tests.app.frames import blank_share, cut_beside_blank
from tests.app.script import FIRST_WALL_TIME
from tools.make_demo import pack

WORDS_WIDTH = 110  # a narrower screen may leave out what shows that a picture is complete
SECONDS = 6.0  # of a replay that are shown at their own pace before a picture is taken
LAST_STAYS = 6  # frames of a moving picture for which the last one is shown
KEYS = {"[": "left_square_bracket", "]": "right_square_bracket"}
IMAGES = Path(__file__).parent / "images"
SEVERAL = Path(__file__).parent / "several.tar.xz"
RUNS = (
    ("calm-otter", 0.04, 0),
    ("wide-newt", 0.4, 0),
    ("quick-heron", 0.04, 1),
    ("shy-mole", 0.4, 1),
)
# token numbers would be most of the file, and nothing that needs several runs shows them
LEAN = ("record.tokens=none", "evaluation.every=20")


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: the screen it begins on, the store it needs, keys, and what must show."""

    mode: str
    store: Literal["one", "several", "none"]
    keys: tuple[str, ...]
    words: tuple[str, ...]
    at: float | None = None  # seconds into the replay; None for the run as it ended
    rollout: tuple[int, int, int] | None = None  # step, group and answer to open on Rollouts
    tour: bool = False
    over: Callable[[Snapshot], Screen[Any]] | None = None  # a dialog that keys cannot open here


SHOTS = {
    "rollouts": Shot("rollouts", "one", ("WAIT:token 1 of 6", *["right"] * 3),
                     ("token 4 of", "CLIPPED"),
                     rollout=(26, 10, 7)),
    "same-prompt": Shot("rollouts", "one",
                        ("WAIT:each pass", "t", "WAIT:▌60", "WAIT:answer a by", "d", "d"),
                        ("by step", "first against newest")),
    "dialogue": Shot("rollouts", "one", ("WAIT:turn 1",), ("higher", "lower"), rollout=(40, 1, 1)),
    "lab": Shot("rollouts", "one",
                ("WAIT:token 1 of 6", "v", "WAIT:what if", "right", "down", *["right"] * 2),
                ("tokens would be", "was"), rollout=(26, 10, 7)),
    "compare": Shot("runs", "several", ("home", *("space", "down") * len(RUNS), "d"),
                    ("5 Compare", "algorithm.beta", "4 runs")),
}  # fmt: skip
CLIPPED = (26, 10, 7)
MARKED = ("home", *("space", "down") * len(RUNS), "d", "WAIT:legend · ")
TURNED = ("right_square_bracket",) * 7
SWEEP = (
    "slash",
    *"beta",
    "enter",
    "enter",
    "0",
    "full_stop",
    "0",
    "4",
    "comma",
    "0",
    "full_stop",
    "4",
    "enter",
    "slash",
    *"seeds",
    "enter",
    "enter",
    "backspace",
    "2",
    "enter",
    "escape",
)
FAILURE = ("[metal::malloc] Attempting to allocate 19327352832 bytes", "Traceback\n  in step")
STATES = {
    "runs": Shot("runs", "several", (), ("newt", "reward", "changed settings")),
    "new-run": Shot("new_run", "several", (), ("2 New", "prompts", "GB")),
    "watch": Shot("watch", "one", ("n", "n", "n"), ("generate", "reward"), at=112.0),
    "help": Shot("watch", "one", ("down", "question_mark"), ("KL", "stored as")),
    "palette": Shot("watch", "one", ("ctrl+p",), ("Find an action",)),
    "runs-none": Shot("runs", "none", (), ("No runs yet", "play the recorded run")),
    "runs-marked": Shot("runs", "several", ("home", "space", "down", "space"), ("2 marked",)),
    "runs-grouped": Shot("runs", "several", ("g", "WAIT:group by", "down", "enter"),
                         ("recipe grpo",)),
    "runs-search": Shot("runs", "several", ("slash", *"newt"), ("filter newt",)),
    "runs-remove": Shot("runs", "several", ("x",), ("remove the run", "archive")),
    "columns": Shot("runs", "several", ("m",), ("─ columns ─", "model.path")),
    "tags": Shot("runs", "several", ("i",), ("tags, separated by spaces",)),
    "export": Shot("runs", "several", ("e",), ("in full precision", "as one HTML file")),
    "export-compare": Shot("runs", "several", (*MARKED, "e"), ("as SVG", "full precision")),
    "export-answer": Shot("rollouts", "one", ("WAIT:each pass", "e"), ("JSON", "each token")),
    "queue": Shot("runs", "several", ("Q",), ("The queue is empty",)),
    "messages": Shot("runs", "several", ("G", "exclamation_mark"), ("part of no sweep",)),
    "leave": Shot("runs", "several", ("q",), ("Leave the workbench?",)),
    "found": Shot("watch", "one", ("ctrl+p", *"kl"), ("Metric: KL to reference",)),
    "presets": Shot("new_run", "one", ("enter",), ("start from",)),
    "recipes": Shot("new_run", "one", (*["down"] * 4, "enter"), ("conflicts with",)),
    "recipe": Shot("new_run", "one", TURNED[:1], ("signal", "choose recipe")),
    "prompts": Shot("new_run", "one", TURNED[:2], ("problems to train on", "1 of 3")),
    "rewards": Shot("new_run", "one", TURNED[:3], ("try rewards", "target")),
    "launch": Shot("new_run", "one", ("L",), ("into the queue",)),
    "sweep": Shot("new_run", "one", SWEEP, ("4 runs, ", "ready")),
    "sweep-launch": Shot("new_run", "one", (*SWEEP, "WAIT:ready", "L"), ("start the sweep",)),
    "all-settings": Shot("new_run", "one", ("slash",), ("find a setting",)),
    "data-columns": Shot("new_run", "one",
                         ("down", "down", "enter", *"docs", "slash", *"growth", "full_stop", *"csv",
                          "enter", "WAIT:task.columns", "down", "enter", "right"),
                         ("what a column is used as", "prompt")),
    "setting": Shot("new_run", "one", ("slash", *"beta", "enter", "enter"), ("leave field",)),
    "refused": Shot("new_run", "one", ("slash", *"beta", "enter", "enter", "minus", "1", "enter"),
                    ("1 to fix",)),
    "watch-none": Shot("watch", "none", (), ("No run is open",)),
    "watch-ended": Shot("watch", "one", (), ("completed after",)),
    "watch-begins": Shot("watch", "one", (), ("1/60",), at=2.0),
    "earlier-step": Shot("watch", "one", ("less_than_sign",) * 2, ("esc returns",)),
    "chart": Shot("watch", "one", ("z",), ("reward",)),
    "chart-log": Shot("watch", "one", ("down", "z", "Y", *["less_than_sign"] * 9, "WAIT:at step 5"),
                      ("log axis", "KL to reference")),
    "charts-found": Shot("watch", "one", ("slash", *"length"), ("answers cut", "longest answer")),
    "compare-chart": Shot("runs", "several", (*MARKED, "z"), ("beta 0.04", "60%")),
    "answers-alone": Shot("watch", "one", ("tab", "z"), ("answers to prompt",)),
    "groups-alone": Shot("watch", "one", ("tab", "tab", "z"), ("groups", "signal")),
    "log-alone": Shot("watch", "one", ("tab", "tab", "tab", "z"), ("run completed",)),
    "alert": Shot("watch", "one", ("tab", "tab", "tab", "enter"), ("alert: no signal",)),
    "metrics": Shot("watch", "one", ("m",), ("metrics",)),
    "stop": Shot("watch", "one", (), ("stop the run",),
                 over=lambda _: stop_dialog(ControlledRun("calm-otter", True, False))),
    "leave-training": Shot("watch", "one", (), ("hand over",),
                           over=lambda _: quit_dialog("calm-otter")),
    "failure": Shot("watch", "one", (), ("the run failed",),
                    over=lambda snapshot: crash_page(snapshot, *FAILURE)),
    "rollouts-none": Shot("rollouts", "none", (), ("No run is open",)),
    "pinned": Shot("rollouts", "one", ("WAIT:each pass", "t"), ("pinned prompt by step",)),
    "held-out": Shot("rollouts", "one", ("WAIT:each pass", "t", "WAIT:pinned prompt by", "t"),
                     ("held-out answers",)),
    "search": Shot("rollouts", "one", ("WAIT:each pass", "slash", *"12", "WAIT:<answer>"),
                   ("held-out", "step 0 ")),
    "prompts-of-run": Shot("rollouts", "one", ("WAIT:each pass", "s", "o", "WAIT:of the run"),
                           ("times", "groups of the run")),
    "another-step": Shot("rollouts", "one", ("WAIT:each pass", "at"), ("50 steps earlier",)),
    "sorting": Shot("rollouts", "one", ("WAIT:each pass", "s"), ("sort groups",)),
    "lab-clip": Shot("rollouts", "one",
                     ("WAIT:token 1 of 6", "v", "WAIT:what if", "down", "down", "right"),
                     ("would be", "was"), rollout=(26, 10, 7)),
    "lab-step": Shot("rollouts", "one", ("WAIT:each pass", "v", "WAIT:60 steps", "t"), ("step 26",),
                     rollout=CLIPPED),
    "compare-none": Shot("compare", "none", (), ("No runs to compare yet",)),
    "ranking": Shot("runs", "several", (*MARKED, "]:goal: "), ("goal: ",)),
    "by-metric": Shot("runs", "several", (*MARKED, "]:means over"), ("means over seeds at",)),
    "answers": Shot("runs", "several", (*MARKED, "]:@60 mean"), ("prompt 1 of",)),
    "pick-runs": Shot("runs", "several", (*MARKED, "plus"), ("runs to compare",)),
    "tour": Shot("watch", "one", (), ("1/9",), at=12.0, tour=True),
    "tour-new-run": Shot("watch", "one",
                         ("n", "right_curly_bracket", "full_stop", "4", "WAIT:5/9",
                          "WAIT:each pass", "f", "WAIT:6/9", "m", "WAIT:7/9", "1", "WAIT:8/9", "2"),
                         ("9/9",), at=12.0, tour=True),
    # last, as its run is missing from then on
    "runs-deleted": Shot("runs", "several", ("x", "WAIT:remove the run", "d", "WAIT:1 deleted"),
                         ("1 deleted (u)",)),
}  # fmt: skip


class Clock:
    """Seconds that pass only when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def text_of(app: Workbench) -> str:
    """The screen in front as text."""
    return "\n".join("".join(text for text, _ in row) for row in rows_of(app))


def shows(app: Workbench, *words: str) -> bool:
    """Whether all the words are on the screen in front."""
    return all(word in text_of(app) for word in words)


async def until(pilot: Pilot[int], app: Workbench, true: Callable[[], bool]) -> None:
    """Wait until something shows; leave with the screen where it does not."""
    for _ in range(3000):
        app.frame_now()
        if true():
            return
        await pilot.pause(0.02)
    raise SystemExit(f"this did not show what it should:\n{text_of(app)}")


def feed_of(shot: Shot, store: Path, clock: Clock) -> Feed | None:
    """The run on screen: as it ended, or as it was after some seconds."""
    if shot.mode in ("runs", "new_run") or shot.store == "none":
        return None
    if shot.at is not None:
        return ReplayFeed(store, "@last", clock=clock)
    feed = StoreFeed(store, "@last")
    feed.caught_up.wait(60)
    return feed


async def catch_up(pilot: Pilot[int], app: Workbench, feed: ReplayFeed) -> None:
    """Feed every event whose time in the replay has come."""
    idle = 0
    while idle < 5:
        app.frame_now()
        await pilot.pause(0.01)
        comes = feed.catching_up if not feed._events else feed._events[0].offset <= feed._now()
        idle = 0 if comes else idle + 1


async def shoot(
    shot: Shot, store: Path, size: tuple[int, int], theme: str
) -> tuple[str, list[str]]:
    """One screen as SVG, its share of blank cells, and its lines cut beside free cells."""
    preferences = Preferences()
    preferences.remember(theme=theme)
    clock = Clock()
    feed = feed_of(shot, store, clock)
    app = Workbench(store, feed=feed, mode=shot.mode, preferences=preferences, tour=shot.tour)
    async with app.run_test(size=size) as pilot:
        if isinstance(feed, ReplayFeed) and shot.at is not None:
            await until(pilot, app, lambda: bool(feed._events))
            await catch_up(pilot, app, feed)
            clock.now = max(0.0, shot.at - SECONDS)
            await catch_up(pilot, app, feed)
            for _ in range(round(SECONDS / 0.2)):
                clock.now += 0.2
                app.frame_now()
                await pilot.pause(0.2)
        least = 40 if shot.store != "none" else 20
        await until(pilot, app, lambda: len(text_of(app).split()) > least)
        await pilot.pause(0.5)
        if shot.rollout is not None:
            step, group, rollout = shot.rollout
            run = app.session.run if app.session else 1
            await app.forward(RolloutOpened(run, step, "train", group, rollout))
            await until(pilot, app, lambda: f"step {step} " in text_of(app))
        for key in shot.keys:
            if key.startswith("WAIT:"):
                await until(pilot, app, partial(shows, app, key[5:]))
            elif ":" in key:  # press until the words show
                pressed, words = key.split(":", 1)
                for _ in range(8):
                    if shows(app, words):
                        break
                    await pilot.press(KEYS.get(pressed, pressed))
                    await pilot.pause(0.5)
            else:
                await pilot.press(KEYS.get(key, key))
                await pilot.pause(0.2)
        if shot.over is not None and isinstance(app.screen, WorkbenchScreen):
            app.push_screen(shot.over(app.screen.snapshot))
        if size[0] >= WORDS_WIDTH:
            await until(pilot, app, partial(shows, app, *shot.words))
        await pilot.pause(0.5)
        return picture(app), [
            f"{blank_share(app):.1%} of the cells are blank",
            *cut_beside_blank(app),
        ]


async def film(store: Path, size: tuple[int, int], theme: str) -> str:
    """The recorded run on Watch from its first to its last step, as one moving SVG."""
    preferences = Preferences()
    preferences.remember(theme=theme)
    clock = Clock()
    feed = ReplayFeed(store, "@last", clock=clock)
    app = Workbench(
        store,
        feed=feed,
        mode="watch",
        preferences=preferences,
        clock=lambda: FIRST_WALL_TIME + clock.now,
    )
    frames: list[list[Row]] = []
    async with app.run_test(size=size) as pilot:
        await until(pilot, app, lambda: bool(feed._events))
        for moment in moments():
            clock.now = moment
            await catch_up(pilot, app, feed)
            frames.append(rows_of(app))
        return moving(frames, size, paper_of(app))


def moments() -> list[float]:
    """Seconds of the run at which a frame is taken: the first steps slowly, the rest in leaps."""
    return [*(0.5 * i for i in range(1, 8)), *(6.0 + 9.0 * i for i in range(15))]


def moving(frames: list[list[Row]], size: tuple[int, int], paper: str, each: float = 0.3) -> str:
    """Frames as one SVG that repeats; an element is drawn once for as long as it stays the same.

    It begins with the last one, which stays a while: what does not move a picture shows that.
    """
    width, height = size
    count = len(frames) + LAST_STAYS
    shown: dict[str, int] = {}  # elements that are on screen, and since when
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for number, frame in enumerate([*frames, []]):
        elements = [part for y, row in enumerate(frame) for part in elements_of(row, y, paper)]
        for element in shown.keys() - set(elements):
            groups[shown.pop(element), number if frame else count].append(element)
        for element in elements:
            shown.setdefault(element, number)
    parts: list[str] = []
    for background in (True, False):  # text is drawn above the background of its row
        for (start, end), elements in sorted(groups.items()):
            drawn = [part for part in elements if part.startswith("<rect") == background]
            if drawn:
                parts += [f'<g class="f{start}-{end}">', *drawn, "</g>"]
    return document(parts, width, height, paper, sheet(set(groups), count, each))


def sheet(spans: set[tuple[int, int]], count: int, each: float) -> str:
    """The style sheet that shows each group of rows from its first to its last frame."""
    rules = []
    for start, end in sorted(spans):
        if (start, end) == (0, count):
            continue
        name = f"f{start}-{end}"
        on, off = 100 * start / count, 100 * end / count
        marks = f"{on:.3f}%{{visibility:visible}}" + (
            f"{off:.3f}%{{visibility:hidden}}" if end < count else ""
        )
        hidden = "0%{visibility:hidden}" if start else ""
        at_first = "visible" if end == count else "hidden"
        times = f"{count * each:.2f}s step-end {(LAST_STAYS - count) * each:.2f}s infinite"
        rules.append(
            f"@keyframes {name}{{{hidden}{marks}}}"
            f".{name}{{visibility:{at_first};animation:{name} {times}}}"
        )
    return "<style>" + "\n".join(rules) + "</style>"


def record_several() -> None:
    """Train the runs that are put side by side, one after the other, and pack their store."""
    with tempfile.TemporaryDirectory(prefix="grpo-tui-several-") as folder:
        store = Path(folder) / "grpo-tui.db"
        for name, beta, seed in RUNS:
            words = ["train", "--preset", "starter", "--name", name, "--seed", str(seed)]
            changes = [
                part for setting in (f"algorithm.beta={beta}", *LEAN) for part in ("--set", setting)
            ]
            command = [sys.executable, "-m", "grpo_tui", *words, *changes, "--db", str(store)]
            subprocess.run(command, check=True)
        pack(store, SEVERAL)


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(SHOTS)}, replay; of {', '.join(STATES)}; or all",
    )
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--theme", choices=list(PALETTES), default=DARK)
    parser.add_argument("--size", action="append", help="columns x rows; 120x36 without it")
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--record", action="store_true", help=f"train {SEVERAL.name} again first")
    parser.add_argument("--png", action="store_true", help="as well, where rsvg-convert is there")
    parser.add_argument(
        "--blank", action="store_true", help="count blank cells, name lines cut beside them"
    )
    args = parser.parse_args()
    shots = {**SHOTS, **STATES}
    if args.names == ["all"]:
        args.names = [name for name in shots if name != "dialogue"]
    unknown = set(args.names) - {*shots, "replay"}
    if unknown:
        parser.error(f"no picture is named {', '.join(sorted(unknown))}")
    if "dialogue" in args.names and args.store is None:
        parser.error("dialogue needs --store, with a run of `train --preset guess`")
    if args.record:
        record_several()
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = [tuple(map(int, size.split("x"))) for size in args.size or ("120x36",)]
    with tempfile.TemporaryDirectory() as folder:
        one = args.store or demo.unpack(Path(folder))
        many = args.store or demo.unpack(Path(folder) / "several", SEVERAL)
        stores = {"one": one, "several": many, "none": Path(folder) / "none.db"}
        usual = [name for name in SHOTS if name != "dialogue" or args.store is not None]
        for name in args.names or [*usual, "replay"]:
            for width, height in sizes:
                began = time.monotonic()
                cut: list[str] = []
                if name == "replay":
                    text = asyncio.run(film(one, (width, height), args.theme))
                else:
                    shot = shots[name]
                    text, cut = asyncio.run(
                        shoot(shot, stores[shot.store], (width, height), args.theme)
                    )
                more = f"-{width}x{height}" if args.size else ""
                more += f"-{args.theme}" if args.theme != DARK else ""
                path = args.out / f"{name}{more}.svg"
                path.write_text(text, encoding="utf-8")
                if args.png and shutil.which("rsvg-convert"):
                    command = ["rsvg-convert", "-w", "1600", str(path), "-o"]
                    subprocess.run([*command, str(path.with_suffix(".png"))], check=True)
                print(f"{path}  {len(text) // 1000} kB  {time.monotonic() - began:.1f} s")
                if args.blank:
                    print("".join(f"    {line}\n" for line in cut), end="")


if __name__ == "__main__":
    main()
