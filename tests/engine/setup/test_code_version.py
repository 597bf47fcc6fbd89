"""Git's commit of the folder and of functions' files; no repository runs anything."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from grpo_engine.control import Control
from grpo_engine.events import RunStarted, from_json, to_json
from grpo_engine.setup import code_version as module
from grpo_engine.setup.code_version import Git, code_version, difference
from grpo_engine.trainer import run
from tests.engine.runs import settings, write_world

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="there is no git")


def git(folder: Path, *arguments: str) -> str:
    """Git as a user calls it."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of `rewards.py` and `other.py`."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "rewards.py").write_text("one = 1\n")
    (folder / "other.py").write_text("two = 2\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_clean_folder_has_its_commit(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD").strip()
    digest = hashlib.sha256(b"one = 1\n").hexdigest()
    assert code_version(repository, [repository / "rewards.py"]) == {
        ".": {"commit": head, "dirty": False, "diff": ""},
        "rewards.py": {"sha256": digest, "commit": head, "dirty": False},
    }


def test_a_change_makes_the_folder_and_its_file_dirty_alone(repository: Path) -> None:
    (repository / "rewards.py").write_text("one = 3\n")
    version = code_version(repository, [repository / "rewards.py", repository / "other.py"])
    assert version["."]["dirty"] is True
    assert version["rewards.py"]["dirty"] is True
    assert version["other.py"]["dirty"] is False
    text = difference(Git(repository))
    assert b"-one = 1\n+one = 3\n" in text
    assert version["."]["diff"] == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("ignored", [False, True])
def test_a_file_that_git_does_not_know_is_dirty(repository: Path, ignored: bool) -> None:
    (repository / "new.py").write_text("x")
    if ignored:
        (repository / ".git" / "info" / "exclude").write_text("new.py\n")
    version = code_version(repository, [repository / "new.py"])
    assert version["."]["dirty"] is False
    assert version["new.py"]["dirty"] is True


def test_files_of_one_name_in_other_folders_are_all_recorded(tmp_path: Path) -> None:
    files = [tmp_path / folder / "rewards.py" for folder in ("a", "b", "here")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(str(number))
    version = code_version(tmp_path / "here", files)
    digests = [hashlib.sha256(text).hexdigest() for text in (b"2", b"0", b"1")]
    assert {name: known["sha256"] for name, known in version.items()} == dict(
        zip(["rewards.py", "rewards.py (2)", "rewards.py (3)"], digests, strict=True)
    )


def test_names_say_nothing_of_where_the_folders_are(repository: Path, tmp_path: Path) -> None:
    (repository / "sub").mkdir()
    (repository / "sub" / "a.py").write_text("x")
    (tmp_path / "b.py").write_text("x")
    version = code_version(repository, [repository / "sub" / "a.py", tmp_path / "b.py"])
    assert list(version) == [".", "sub/a.py", "b.py"]
    assert set(version["b.py"]) == {"sha256"}  # is in no repository
    inner = code_version(repository / "sub", [repository / "rewards.py"])
    assert inner["rewards.py"]["dirty"] is False


def test_nothing_is_known_without_a_repository_a_commit_or_git(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_version(tmp_path, [tmp_path / "missing.py"]) == {}
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert code_version(empty, []) == {}
    (tmp_path / "strange" / ".git").mkdir(parents=True)
    assert code_version(tmp_path / "strange", []) == {}
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert code_version(repository, []) == {}


def test_a_git_that_takes_too_long_is_not_waited_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.0)
    assert code_version(repository, []) == {}


def test_variables_of_another_repository_do_not_count(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {tmp_path / 'ran'}")
    (repository / "rewards.py").write_text("one = 3\n")
    assert code_version(repository, [])["."]["dirty"] is True
    assert not (tmp_path / "ran").exists()


def test_a_hostile_repository_runs_nothing(repository: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho $0 $@ >> {ran}\ncat\n")
    trap.chmod(0o700)
    for hook in ("post-index-change", "fsmonitor-watchman", "post-checkout", "pre-commit"):
        shutil.copy(trap, repository / ".git" / "hooks" / hook)
    config = f"""
[core]
    fsmonitor = {trap}
    pager = {trap}
    hooksPath = {repository / ".git" / "hooks"}
    sshCommand = {trap}
    alternateRefsCommand = {trap}
[diff]
    external = {trap}
[diff "evil"]
    textconv = {trap}
    command = {trap}
[filter "evil"]
    clean = {trap}
    smudge = {trap}
    process = {trap}
    required = true
[filter "a=b.clean=c"]
    clean = {trap}
    required = true
[extensions]
    partialClone = origin
[remote "origin"]
    url = ext::{trap}
    promisor = true
"""
    with (repository / ".git" / "config").open("a") as file:
        file.write(config)
    attributes = "rewards.py filter=evil diff=evil\nother.py filter=a=b.clean=c diff=evil\n"
    (repository / ".git" / "info" / "attributes").write_text(attributes)
    (repository / ".gitattributes").write_text(attributes)
    for name in ("rewards.py", "other.py"):  # as long as before, so that git has to read them
        (repository / name).write_text("six = 6\n")
    version = code_version(repository, [repository / "rewards.py", repository / "other.py"])
    assert version["."]["dirty"] is True
    assert version["."]["diff"]
    assert {version[name]["dirty"] for name in ("rewards.py", "other.py")} == {True}
    assert not ran.exists(), ran.read_text()
    subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
    assert ran.exists()  # a plain one does run them


def test_a_repository_stays_as_it_is(repository: Path) -> None:
    (repository / "rewards.py").touch()  # git would write that down in its index
    index = (repository / ".git" / "index").read_bytes()
    assert code_version(repository, [])["."]["dirty"] is False
    assert (repository / ".git" / "index").read_bytes() == index


def test_a_run_records_the_code_that_it_begins_with(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(repository)
    monkeypatch.chdir(repository)
    events = run(settings(repository), Control(), folder=repository / "run")
    started = next(event for event in events if isinstance(event, RunStarted))
    assert set(started.code) == {".", "rewards.py"}
    assert started.code["rewards.py"]["dirty"] is True  # it was written anew
    assert started.code["."]["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert from_json(to_json(started)) == started
