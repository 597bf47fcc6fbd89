"""Programs that do harm beyond their requests: the rollout fails, all others go on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.environments.pools import client_of, play

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
