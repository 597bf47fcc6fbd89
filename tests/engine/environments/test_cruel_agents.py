"""Programs that do harm beyond their requests: the rollout fails, all others go on."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine.config.parse import build
from grpo_engine.events import GroupScored, RunFinished
from tests.engine.environments.pools import client_of, play
from tests.engine.runs import events_of

SCRIPT = Path(__file__).parent / "hostile_agent.py"
CONTINUED = {
    "half a character",
    "many tokens",
    "deep arguments",
    "odd tools",
    "odd calls",
    "deep",
    "a link as home",
    "no home",
    "a file as home",
}
FAILED = {
    "a fifo",
    "zeros",
    "a hole",
    "a folder",
    "a loop",
    "unreadable",
    "digits",
    "ends its parent",
    "ends its group",
    "many numbers",
}

UNUSABLE = {"a fifo", "zeros", "a hole", "digits", "many numbers"}  # read as far as it makes sense


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are; removed also if they are thousands deep."""
    folder = tmp_path / "t"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.parametrize("kind", sorted(CONTINUED | FAILED))
def test_a_cruel_program_harms_its_own_rollout_at_most(
    tmp_path: Path, temporary: Path, kind: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    script = tmp_path / "cruel_agent.py"
    script.write_text(SCRIPT.read_text())
    with client_of((), {"": f"agent: python {script}"}, tmp_path, 10.0) as environments:
        # the third lives in the same process
        rows = [{"kind": k, "precious": str(precious)} for k in (kind, "", "")]
        ends = [replies[-1] for replies in play(environments, rows, "a")]
    assert [(ends[i].error, ends[i].reward) for i in (1, 2)] == [("", 1.0)] * 2
    assert bool(ends[0].error) == (kind in FAILED), ends[0]
    assert len(ends[0].error) < 1000
    assert ("not a number" in ends[0].error) == (kind in UNUSABLE), ends[0].error
    assert (precious / "file").exists()
    assert not [*temporary.rglob("*.scratch")]


@pytest.mark.slow
def test_a_run_goes_on_whatever_a_program_asks_for(tmp_path: Path) -> None:
    script, rows = tmp_path / "cruel_agent.py", tmp_path / "rows.jsonl"
    script.write_text(SCRIPT.read_text())
    kinds = ["half a character", "many tokens", "deep arguments", "odd tools", "odd calls"]
    lines = (
        json.dumps({"prompt": f"p{n}", "kind": kind}) for n, kind in enumerate((*kinds, "", "", ""))
    )
    rows.write_text("\n".join(lines))
    config = build(
        {
            "steps": 2,
            "model": {"path": "starter-guess"},
            "evaluation": {"every": 0, "pinned": 0},
            "task": {
                "name": str(rows),
                "held_out_size": 1,
                "environment": f"agent: python {script}",
            },
            "rollout": {"prompts": 4, "group_size": 2, "max_new_tokens": 8},
        }
    )
    events = events_of(config, tmp_path / "run")
    assert isinstance(events[-1], RunFinished)
    finishes = {
        rollout.finish
        for event in events
        if isinstance(event, GroupScored)
        for rollout in event.group.rollouts
    }
    assert finishes >= {"stop", "environment_error"}
