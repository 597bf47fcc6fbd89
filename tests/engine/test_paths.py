"""Names from elsewhere stay in their folder, for every write and every deletion."""

from pathlib import Path

import pytest

import grpo_engine
from grpo_engine.errors import CheckpointError, OutsideError
from grpo_engine.paths import inside, remove
from grpo_engine.run import checkpoint

PACKAGES = [
    Path(grpo_engine.__file__).parents[1] / name for name in ("app", "experiments", "grpo_engine")
]
OUTSIDE = [
    "",
    ".",
    "..",
    "../victim",
    "../../victim",
    "a/../../victim",
    "a/b",
    "\0",
    "a\0b",
]


@pytest.mark.parametrize("name", [*OUTSIDE, "/", "ABSOLUTE"])
def test_a_name_of_something_elsewhere_is_refused_and_removes_nothing(
    tmp_path: Path, name: str
) -> None:
    folder, victim = tmp_path / "a" / "folder", tmp_path / "victim"
    folder.mkdir(parents=True)
    (victim / "kept").mkdir(parents=True)
    name = str(victim) if name == "ABSOLUTE" else name
    for names in ((name,), ("entry", name), (name, "entry")):
        for call in (inside, remove):
            with pytest.raises(OutsideError, match="cannot be the name of a file or folder in"):
                call(folder, *names)
    assert (victim / "kept").is_dir()
    assert folder.is_dir()


def test_a_link_that_leads_out_is_refused_and_removing_it_removes_only_the_link(
    tmp_path: Path,
) -> None:
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    (folder / "real").mkdir(parents=True)
    (victim / "kept").mkdir(parents=True)
    (folder / "link").symlink_to(victim)
    (folder / "self").symlink_to(".")
    (folder / "near").symlink_to("real")
    for names in (("link",), ("link", "kept"), ("self",), ("self", "link")):
        with pytest.raises(OutsideError, match="is a link that leads out of"):
            inside(folder, *names)
    with pytest.raises(OutsideError):
        remove(folder, "link", "kept")
    assert inside(folder, "near") == folder / "near"
    assert inside(folder, "new", "entry") == folder / "new" / "entry"

    remove(folder, "link")
    remove(folder, "near")
    remove(folder, "real")
    remove(folder, "missing")
    assert [path.name for path in folder.iterdir()] == ["self"]
    assert (victim / "kept").is_dir()


def test_a_folder_that_is_itself_reached_by_a_link_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    assert inside(tmp_path / "home", "runs", "abc") == tmp_path / "home" / "runs" / "abc"


def test_checkpoints_that_lead_out_of_their_run_are_neither_used_nor_cleared(
    tmp_path: Path,
) -> None:
    victim = tmp_path / "victim"
    (victim / ".partial-thesis").mkdir(parents=True)
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(victim)
    for call in (checkpoint.latest, checkpoint.clear_leftovers, checkpoint.newest_step):
        with pytest.raises(OutsideError):
            call(run)
    with pytest.raises(OutsideError):
        checkpoint.prune(run, keep=1, best=None)
    assert (victim / ".partial-thesis").is_dir()


def test_a_link_among_checkpoints_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "kept").mkdir(parents=True)
    root = tmp_path / "run" / "checkpoints"
    root.mkdir(parents=True)
    (root / ".partial-step-000001").symlink_to(victim)
    (root / ".doomed-step-000002").symlink_to(victim)
    checkpoint.clear_leftovers(tmp_path / "run")
    assert list(root.iterdir()) == []
    assert (victim / "kept").is_dir()


def test_a_checkpoint_that_names_a_file_elsewhere_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "step-000001"
    folder.mkdir()
    (folder / "state.json").write_text(
        '{"format": 1, "step": 1, "files": {"../secret": {"bytes": 0, "sha256": ""}}}'
    )
    with pytest.raises(CheckpointError, match=r"'../secret' cannot be the name"):
        checkpoint.open_folder(folder)


def test_folders_are_removed_in_one_place() -> None:
    files = [path for package in PACKAGES for path in package.rglob("*.py")]
    removing = [path.name for path in files if "rmtree" in path.read_text(encoding="utf-8")]
    assert removing == ["paths.py"]
