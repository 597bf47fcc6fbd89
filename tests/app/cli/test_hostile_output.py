"""Text from models and users in all printed and exported output: complete and harmless."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app import exit_codes
from grpo_tui.experiments.export.rows import WHAT, rows_of
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore
from tests.app.calls import Cli, caller
from tests.app.script import HOSTILE, hostile_group
from tests.experiments.csv_reader import read_csv
from tests.experiments.made import alerted, config, ended, evaluated, finished, put_all, started

NAME = HOSTILE[0] + HOSTILE[2] + HOSTILE[4] + "=cmd|\n## title\r\n" + HOSTILE[3]
RUNS = ("one ", "two ")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in which every text is hostile."""
    path = tmp_path_factory.mktemp("hostile") / "s.db"
    for seed in (0, 1):
        scored = hostile_group(1)
        group = replace(scored.group, example_key=NAME, no_signal="")
        completions = tuple(
            replace(
                one,
                ids=(1, 2, 3),
                sampler_logprobs=(-1.0,) * 3,
                ends=(1, 2, len(one.text)),
                rewards=(ev.RewardValue(name=NAME, value=1.0, weight=1.0, reason=NAME),),
            )
            for one in group.rollouts
        )
        tree = config(seed=seed, task={"name": NAME}, model={"path": NAME})
        handle = start_run(path, tree, name=f"{RUNS[seed]}{NAME}", tags=(NAME,))
        held_out = evaluated(1)
        put_all(
            handle,
            started(),
            replace(scored, group=replace(group, rollouts=completions)),
            alerted(1, rule=NAME, explanation=NAME, remedy=NAME),
            ev.NoteWritten(step=1, text=NAME, severity="warning"),
            finished(1, **{NAME: 1.0}),
            replace(
                held_out,
                rows=tuple(
                    replace(row, example_key=NAME, rewards={NAME: 1.0}) for row in held_out.rows
                ),
            ),
            ended(1),
        )
        assert handle.close()
    with ExperimentStore(path) as store:
        store.change(1, note=NAME)
    return path


@pytest.fixture
def cli(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    monkeypatch.setenv("GRPO_TUI_DB", str(path))
    return caller(monkeypatch, capfdbinary)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_every_export_holds_every_text_whole(
    cli: Cli, path: Path, tmp_path: Path, what: str, format: str
) -> None:
    out = tmp_path / f"out.{format}"
    raw = ["--raw"] if format == "csv" else []
    assert cli("export", *RUNS, "--what", what, "--out", str(out), *raw).code == exit_codes.OK
    with StoreReader(path) as reader:
        rows = list(rows_of(what, reader, [reader.resolve(name) for name in RUNS]))
    wanted = [{key: text for key, text in row.items() if isinstance(text, str)} for row in rows]
    assert any("\x1b" in text for row in wanted for text in row.values())
    if format == "csv":
        with out.open(encoding="utf-8", newline="") as stream:
            found = list(read_csv(stream, raw=True))
    else:
        found = [json.loads(line) for line in out.read_text("utf-8").split("\n") if line]
    assert len(found) == len(wanted)
    for got, row in zip(found, wanted, strict=True):
        assert {key: got[key] for key in row} == row


def test_raw_csv_on_a_terminal_is_harmless_and_elsewhere_as_it_is(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal in (True, False):
        out = io.StringIO(newline="")
        monkeypatch.setattr(out, "isatty", lambda answer=terminal: answer)
        monkeypatch.setattr("sys.stdout", out)
        assert cli("export", RUNS[0], "--what", "rollouts", "--raw").code == exit_codes.OK
        assert ("\x1b" in out.getvalue()) != terminal
