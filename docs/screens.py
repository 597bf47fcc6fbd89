"""Renders screens of the workbench to SVG, and to PNG where `rsvg-convert` is installed.

python docs/screens.py --out FOLDER [--theme dark] [--size 120x40] [--screen watch] [--png]

"""

import argparse
import asyncio
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.app import SCREENS, Workbench
from app.feed import ScriptFeed
from app.palette import PALETTES
from app.picture import picture
from app.preferences import Preferences
from tests.app.script import FIRST_WALL_TIME, Script

SIZES = ((80, 24), (120, 40), (200, 60))


async def shoot(
    screen: str, size: tuple[int, int], theme: str, keys: Sequence[str], *, sampling: bool = False,
    store: Path | None = None,
) -> str:  # fmt: skip
    """One screen as SVG."""
    preferences = Preferences()
    preferences.remember(theme=theme)
    events = Script().sampling() if sampling else Script().events()
    app = Workbench(
        store, feed=ScriptFeed(events, at=FIRST_WALL_TIME), mode=screen, preferences=preferences,
        clock=lambda: FIRST_WALL_TIME,
    )  # fmt: skip
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.frame_now()
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
        app.frame_now()
        await pilot.pause(0.1)
        return picture(app)


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--theme", choices=list(PALETTES), action="append")
    parser.add_argument("--size", action="append", help="columns x rows, as 120x40")
    parser.add_argument("--screen", choices=list(SCREENS), action="append")
    parser.add_argument("--keys", default="", help="keys to press first, separated by commas")
    parser.add_argument("--sampling", action="store_true", help="in the middle of sampling")
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--png", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = [tuple(map(int, size.split("x"))) for size in args.size or ()] or list(SIZES)
    keys = [key for key in args.keys.split(",") if key]
    for screen in args.screen or list(SCREENS):
        for theme in args.theme or ["dark"]:
            for width, height in sizes:
                name = f"{screen}-{width}x{height}-{theme}{'-sampling' if args.sampling else ''}"
                path = args.out / f"{name}.svg"
                text = asyncio.run(shoot(screen, (width, height), theme, keys,
                                         sampling=args.sampling, store=args.store))  # fmt: skip
                path.write_text(text, encoding="utf-8")
                if args.png and shutil.which("rsvg-convert"):
                    command = ["rsvg-convert", "-w", "1800", str(path), "-o"]
                    subprocess.run([*command, str(path.with_suffix(".png"))], check=True)
                print(path)


if __name__ == "__main__":
    main()
