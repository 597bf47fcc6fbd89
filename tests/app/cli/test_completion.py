"""What the shell may complete: verbs, runs, presets, settings and their choices, metrics."""

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest
import typer

from grpo_tui.app.cli.main import load, root
from grpo_tui.app.cli.verb_table import VERBS
from tests.app.stored import record, run_events
from tests.e2e.terminal import ROOT
from tests.patience import PATIENCE

PROGRAM = [sys.executable, "-P", "-m", "grpo_tui"]
RUN = r"\$(touch x)"  # Typer escapes the dollar again, which leaves a backslash before it
# names that a shell would run or expand, or that the program would take for an option
HOSTILE = (
    f"fine{RUN}", "fine`touch x`", r"fine\";touch x;\"", "fine'; touch x; '", "fine $(touch x)",
    "fine\ntouch x", "fine\x1b]0;x\x07", "\u202efine", "a;touch x", "$HOME", "~root", "*", "{a,b}",
    "=ls", "a=b", "--trust", "-h", "..", "@best", "",
)  # fmt: skip
SHELLS = {
    "zsh": (["-f", "-i"], "autoload -Uz compinit && compinit -u -D; unsetopt beep"),
    "bash": (["--norc", "--noprofile", "-i"], "bind 'set completion-query-items 0'"),
    "fish": (["--no-config", "--interactive"], "function fish_prompt; echo 'READY> '; end"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "s.db"
    for name in ("calm-otter", "calm-heron", "bold-crow"):
        record(path, run_events(steps=1), name=name)
    return path


def completed(store: Path, shell: str, *words: str) -> list[str]:
    """The choices that a shell is offered for the last of these words, without their help."""
    asked = {
        "bash": {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": " ".join(words)},
        "fish": {
            "_TYPER_COMPLETE_ARGS": " ".join(words),
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    }[shell]
    found = subprocess.run(
        PROGRAM,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | asked
        | {"_GRPO_TUI_COMPLETE": f"complete_{shell}", "GRPO_TUI_DB": str(store)},
    )
    assert not found.stderr
    lines = found.stdout.splitlines()
    if shell == "zsh":
        return [line.split('"')[1] for line in lines if '"' in line]
    return [line.split("\t")[0] for line in lines if line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "words", "choices"),
    [
        ("bash", ("repl",), ["replay"]),
        ("bash", ("watch", "calm-"), ["calm-heron", "calm-otter"]),
        ("zsh", ("watch", "calm-"), ["calm-heron", "calm-otter"]),
        ("fish", ("watch", "calm-"), ["calm-heron", "calm-otter"]),
        ("zsh", ("plot", "--metric", "kl"), ["kl", "kl_to_old"]),
        (
            "fish",
            ("train", "--set", "optimizer.w"),
            ["optimizer.warmup_steps=", "optimizer.weight_decay="],
        ),
    ],
)
def test_the_shell_is_offered_what_begins_with_the_word(
    store: Path, shell: str, words: tuple[str, ...], choices: list[str]
) -> None:
    assert sorted(completed(store, shell, "grpo-tui", *words)) == sorted(choices)


def test_a_setting_is_completed_to_its_choices(store: Path) -> None:
    one = "algorithm.recipe=grpo-s"
    assert completed(store, "zsh", "grpo-tui", "train", "--set", one) == [
        "algorithm.recipe=grpo-sequence"
    ]


def test_a_store_that_does_not_exist_offers_no_runs(tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    assert completed(missing, "fish", "grpo-tui", "watch", "calm") == []
    assert not missing.exists()


def written(path: Path, names: Sequence[str], recipe: str = "", short: str = "") -> Path:
    """A stranger's store with these runs and a harmless one; the first may have a hostile id."""
    for _ in (names := (*names, "harmless")):
        record(path, run_events(steps=1), name="harmless")
    with closing(sqlite3.connect(path)) as store:
        keys = [key for (key,) in store.execute("SELECT id FROM run ORDER BY id")]
        store.executemany("UPDATE run SET name = ? WHERE id = ?", zip(names, keys, strict=False))
        store.execute("UPDATE run SET recipe = ?", (recipe,))
        if short:
            store.execute("UPDATE run SET short = ? WHERE id = ?", (short, keys[0]))
        store.commit()
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("hostile") / "s.db", HOSTILE, RUN + "`", HOSTILE[0])


def shown_by(shell: str, store: Path, folder: Path, line: str) -> str:
    """What a shell with the program's own completion script shows after TAB behind a line."""
    if not (path := shutil.which(shell)):
        pytest.skip(f"{shell} is not installed")
    program = folder / "bin" / "grpo-tui"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    environment: Any = {
        **os.environ,
        "GRPO_TUI_DB": str(store),
        "HOME": str(folder),
        "TERM": "xterm",
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PS1": "READY> ",
    }
    variable = {"_GRPO_TUI_COMPLETE": f"source_{shell}"}
    script = subprocess.run(PROGRAM, capture_output=True, check=True, env=environment | variable)
    (folder / "script").write_bytes(script.stdout)
    arguments, setup = SHELLS[shell]
    child = pexpect.spawn(
        path,
        arguments,
        env=environment,
        cwd=folder,
        timeout=PATIENCE,
        encoding="utf-8",
        dimensions=(60, 150),
    )
    try:
        child.expect("READY> |# |> ")
        child.sendline(f"{setup}; source ./script; echo load''ed")
        child.expect("loaded")
        child.expect("READY> ")
        child.send(line + "\t" * (2 if shell == "bash" else 1))
        child.expect("@last")
        text = str(child.before)
        child.sendcontrol("u")  # the line is not to be run
        child.sendline("echo ov''er")
        child.expect("over")
        return text + str(child.before)
    finally:
        child.close(force=True)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_no_shell_shows_names_that_it_could_take_for_more(
    hostile: Path, tmp_path: Path, shell: str
) -> None:
    text = shown_by(shell, hostile, tmp_path, "grpo-tui runs show ")
    assert "harmless" in text
    assert not re.search(r"fine|trust|~root|[`\\]", text)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), [(HOSTILE[0], "grpo"), ("fine", RUN)])
@pytest.mark.parametrize("shell", SHELLS)
def test_no_shell_runs_a_strangers_name_or_recipe(
    tmp_path: Path, shell: str, name: str, recipe: str
) -> None:
    store = written(tmp_path / "s.db", [name], recipe)
    shown_by(shell, store, tmp_path, "grpo-tui runs show ")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_runs_are_offered_by_id_if_a_shell_could_take_their_names_for_more(
    hostile: Path,
) -> None:
    choices = completed(hostile, "bash", "grpo-tui", "watch", "")
    with closing(sqlite3.connect(hostile)) as store:
        ids = [short for (short,) in store.execute("SELECT short FROM run ORDER BY id DESC")]
    assert choices == ["harmless", *ids[1:-1], "@last"]


def test_no_help_that_a_shell_is_offered_has_a_backslash() -> None:
    """Typer escapes all else that zsh evaluates."""
    commands: list[Any] = [typer.main.get_command(root), *map(load, VERBS)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for param in command.params:
            assert "\\" not in f"{getattr(param, 'help', '')}", (command.name, param.name)
        assert "\\" not in command.get_short_help_str(999), command.name
