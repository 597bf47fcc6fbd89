"""Commands that start runs refuse what would fail at the first step, and record nothing."""

from pathlib import Path

import pytest

from grpo_engine.config.parse import build, merge
from grpo_engine.presets import preset
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.startup import leave_to_background
from grpo_tui.app.jobs.detach import LaunchError
from grpo_tui.app.jobs.launch import detached
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.reader import StoreReader
from tests.app.calls import Cli

WRONG = {"rewards.functions": "abc", "model.path": "./nowhere", "task.name": "nowhere.jsonl"}


def recorded(store: Path) -> tuple[int, int]:
    """How many runs and queued runs there are."""
    try:
        with StoreReader(store) as reader:
            return len(reader.runs()), len(reader.queue())
    except StoreError:  # there is no store yet
        return 0, 0


@pytest.mark.parametrize("setting", WRONG)
def test_train_refuses_a_wrong_setting_and_records_no_run(
    setting: str, cli: Cli, store: Path
) -> None:
    done = cli("train", "--steps", "1", "--set", f"{setting}={WRONG[setting]}")
    assert done.code == exit_codes.USAGE
    assert setting in done.err
    assert WRONG[setting].strip("./") in done.err
    assert recorded(store) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("setting", WRONG)
def test_sweep_tries_every_point_and_queues_nothing_if_one_would_fail(
    setting: str, cli: Cli, store: Path
) -> None:
    right = {"rewards.functions": "length", "model.path": "starter", "task.name": "arithmetic"}
    axis = f"{setting}={right[setting]},{WRONG[setting]}"
    done = cli("sweep", "--steps", "1", "--set", axis, "--add-only")
    assert done.code == exit_codes.USAGE
    assert setting in done.err
    assert recorded(store) == (0, 0)


@pytest.mark.slow
def test_a_detached_run_is_refused_in_the_words_of_the_check(store: Path) -> None:
    wrong = {"rewards": {"functions": ["abc"]}}
    config = build(merge(preset("starter").tree, wrong))
    with pytest.raises(LaunchError, match=r"rewards\.functions: reward abc: 'abc' is no name"):
        detached(config, store)
    assert recorded(store) == (0, 0)


@pytest.mark.parametrize("id_", [{"id": "abc"}, {}])
def test_a_run_in_the_background_is_named_as_other_verbs_find_it(
    id_: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = {"name": "otter", "folder": "otter", **id_}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpo_tui.app.jobs.detach.start_detached", lambda *_: started)
    assert leave_to_background(as_json=False) == 0
    assert capsys.readouterr().out == f"{'otter' if id_ else tmp_path / 'otter'}\n"


def test_a_run_in_the_background_gets_the_same_words_without_detach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[tuple[str, ...]] = []

    def start(*words: str) -> None:
        started.append(words)
        raise LaunchError("no run", 3)

    monkeypatch.setattr("grpo_tui.app.jobs.detach.start_detached", start)
    monkeypatch.setattr("sys.argv", ["grpo-tui", "train", "--detach", "--steps", "2"])
    assert leave_to_background(as_json=True) == 3
    assert started == [("train", "--steps", "2")]
