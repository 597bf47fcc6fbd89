"""The key of a judge is in no file, no output and no process list, whatever its server sends."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.training import grpo_tui, write_config
from tests.engine.rewards.judges import KEY, reply, scores, serving, write_rubric
from tests.engine.runs import write_world


@pytest.mark.slow
def test_no_key_is_stored_exported_logged_or_seen(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world")
    replies = cycle(
        [
            scores(f"The key is {KEY}.", good=7),
            lambda handler: handler.send(401, f"Incorrect API key provided: {KEY}"),
            lambda handler: handler.wfile.write(b"HTTP/1.1 500 " + KEY.encode() + b"\r\n\r\n"),
            reply(f"No form, but {KEY}"),
            {"error": KEY},
        ]
    )
    command_lines: set[bytes] = set()

    def answer(_: Any) -> Any:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command_lines.add(file.read_bytes())
            except OSError:  # it has ended
                continue
        return next(replies)

    with serving(answer) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url, key_variable="JUDGE_KEY", retries=1)
        config = write_config(world, tmp_path / "run.yaml", rewards={"functions": [name]}, steps=2)
        home = tmp_path / "home"
        home.mkdir()
        variables = {"JUDGE_KEY": KEY, "XDG_CACHE_HOME": str(home / "cache")}
        trained = grpo_tui(home, "train", config, "--json", **variables)
    assert trained.returncode == 0, trained.stderr
    assert {headers["Authorization"] for headers in script.headers} == {f"Bearer {KEY}"}
    assert "The key is [key]." in trained.stdout
    assert "Incorrect API key provided: [key]" in trained.stdout
    exported = [
        grpo_tui(home, "export", "@last", "--what", "rollouts", "--format", "jsonl"),
        grpo_tui(home, "report", "@last", "--out", home / "report.md"),
    ]
    assert [done.returncode for done in exported] == [0, 0], [d.stderr for d in exported]
    printed = [text for done in (trained, *exported) for text in (done.stdout, done.stderr)]
    assert not any(KEY in text for text in printed)
    files = [file for file in home.rglob("*") if file.is_file()]
    assert home / "store.db" in files
    assert [file for file in files if KEY.encode() in file.read_bytes()] == []
    assert not any(KEY.encode() in line for line in command_lines)
