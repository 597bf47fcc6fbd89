"""What the shell may complete: verbs, runs, presets, settings and their choices, metrics."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.stored import record, run_events

PROGRAM = [sys.executable, "-P", "-m", "grpo_tui"]


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
            "_TYPER_COMPLETE_ARGS": " ".join(words), "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    }[shell]  # fmt: skip
    found = subprocess.run(
        PROGRAM, capture_output=True, text=True, check=False,
        env=os.environ | asked
        | {"_GRPO_TUI_COMPLETE": f"complete_{shell}", "GRPO_TUI_DB": str(store)},
    )  # fmt: skip
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
        ("fish", ("train", "--set", "optimizer.w"),
         ["optimizer.warmup_steps=", "optimizer.weight_decay="]),
    ],
)  # fmt: skip
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
