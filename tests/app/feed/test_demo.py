"""The bundled recording opens, plays to its end without MLX, and names no machine."""

import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from grpo_tui import app
from grpo_tui.app.feed import demo
from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.tui.app import Workbench
from tests.app import frames
from tests.app.rest import until
from tests.app.stored import record
from tests.patience import PATIENCE
from tools.make_demo import pack

PLAY = """
import sys
import time
from pathlib import Path
from grpo_tui.app.feed.demo import RUN, unpack
from grpo_tui.app.feed.replay import ReplayFeed
import pytest

from docs import screens
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.app.feed.feed import Session

session = Session(ReplayFeed(unpack(Path(sys.argv[1])), RUN, speed=1e5))
while (seen := session.pull()).status != "completed":
    time.sleep(0.01)  # a busy wait would keep the reading thread from its turn
assert seen.step == seen.head.total_steps, seen.step
assert "mlx" not in sys.modules
print(seen.step)
"""


@pytest.mark.slow
def test_it_is_small_and_plays_to_its_end_without_mlx(tmp_path: Path) -> None:
    archive = Path(app.__file__).parent / "assets" / demo.ARCHIVE
    done = subprocess.run(
        [sys.executable, "-P", "-c", PLAY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "."},
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20
    assert archive.stat().st_size < 4_000_000


@pytest.mark.slow
async def test_every_screen_has_something_to_show_of_it(tmp_path: Path) -> None:
    store = demo.unpack(tmp_path)
    app = Workbench(store, feed=ReplayFeed(store, demo.RUN, speed=1e5), mode="watch")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(app, lambda: "complete" in frames.text(app))
        frames.check(app)
        await pilot.press("4")
        # the first token alone: the recording stores where each token ends
        await until(app, lambda: "“<think>”" in frames.text(app))
        frames.check(app)


def test_packing_leaves_out_the_machine_and_its_folders(tmp_path: Path) -> None:
    store = tmp_path / "here" / "grpo-tui.db"
    record(store)

    pack(store, tmp_path / "packed.tar.xz")
    with tarfile.open(tmp_path / "packed.tar.xz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "out", filter="data")
    content = b"".join((tmp_path / "out" / name).read_bytes() for name in names)

    assert names[0] == "grpo-tui.db"
    assert len(names) == 2
    assert str(tmp_path).encode() not in content
    with closing(sqlite3.connect(tmp_path / "out" / "grpo-tui.db")) as packed:
        assert packed.execute("SELECT DISTINCT host, boot, pid FROM attempt").fetchall() == [
            ("", "", 0)
        ]


def test_the_bundled_recording_names_no_folder_of_its_machine(tmp_path: Path) -> None:
    content = demo.unpack(tmp_path).read_bytes()

    assert b"/tmp/" not in content
    assert b"/home/" not in content
