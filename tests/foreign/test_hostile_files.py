"""Damaged and hostile files: an error that names file, line and remedy, or no harm."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.foreign import files
from grpo_tui.foreign.importing import Options, import_runs
from tests.foreign.made import detail, events, names, texts, verl_step

Make = Callable[[Path], object]
ROW = {"input": "1 + 1 =", "output": "2", "gts": "2", "score": 1.0, "step": 2}


def line(data: bytes) -> Make:
    """Step 2 has this line between two whole ones."""
    whole = json.dumps(ROW).encode() + b"\n"
    return lambda folder: (folder / "2.jsonl").write_bytes(whole + data + b"\n" + whole)


def row(**fields: object) -> Make:
    return line(json.dumps({**ROW, **fields}).encode())


def without(name: str) -> Make:
    return line(json.dumps({k: v for k, v in ROW.items() if k != name}).encode())


def outside(folder: Path) -> None:
    (folder.parent / "secret.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "2.jsonl").symlink_to(folder.parent / "secret.jsonl")


REFUSED: list[tuple[str, Make, str]] = [
    ("no JSON", line(b"{'input': 1}"), r"2\.jsonl:2 is not JSON: .*; correct it or take it out"),
    ("cut in the middle", line(json.dumps(ROW).encode()[:-9]), r"2\.jsonl:2 is not JSON"),
    ("nested", line(b'{"input": ' + b"[" * 200_000 + b"}"), r"2\.jsonl:2 is not JSON: it is nes"),
    ("no object", line(b"[1, 2]"), r"2\.jsonl:2: must be an object, got \[1, 2\]; correct"),
    ("a name twice", line(b'{"input": "a", "input": "b"}'), "'input' is given twice; correct"),
    ("not UTF-8", line(b'{"input": "\xff"}'), r"2\.jsonl:2 is not JSON: 'utf-8' codec"),
    ("5,000 digits", line(b'{"score": ' + b"9" * 5_000 + b"}"), r"2\.jsonl:2 is not JSON: Exceeds"),
    ("no prompt", without("input"), r"2\.jsonl:2: input must be a text, got None; correct it or"),
    ("an answer that is a list", row(output=["2"]), r"2\.jsonl:2: output must be a text, got"),
    ("a score that is a text", row(score="high"), r"2\.jsonl:2: score must be a number, got 'hi"),
    ("a score beyond floats", row(score=10**400), r"2\.jsonl:2: score must be a number, got"),
    ("a long line", row(output="2" * 2_000), r"2\.jsonl:2 is longer than .* MiB; correct it or"),
    ("a link that leaves the folder", outside, r"is a link to .*secret\.jsonl, outside of .*put"),
    ("more files than any run has", lambda f: [verl_step(f, n) for n in range(3, 9)], "more than"),
]


@pytest.mark.parametrize(
    ("make", "sentence"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_cannot_be_read_is_named_with_its_place_and_remedy(
    make: Make, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1_500 if "longer" in sentence else 1 << 26)
    monkeypatch.setattr(files, "MOST_FILES", 5)
    folder, store = tmp_path / "run", tmp_path / "s.db"
    verl_step(folder, 1)
    make(folder)
    with pytest.raises(ImportRefusedError, match=sentence):
        import_runs(folder, Options(store=store))
    if store.exists():
        assert texts(store) == [f"{letter} of step 1" for letter in "abcd"]


def loop(folder: Path) -> None:
    (folder / "2.jsonl").symlink_to(folder / "2.jsonl")


HARMLESS: list[tuple[str, Make, int]] = [
    ("a pipe that nobody writes", lambda f: os.mkfifo(f / "2.jsonl"), 4),
    ("a link to itself", loop, 4),
    ("a folder with a file's name", lambda f: (f / "2.jsonl").mkdir(), 4),
    ("an empty file", lambda f: (f / "2.jsonl").touch(), 4),
    ("an absurd step", lambda f: verl_step(f, 99_999_999), 4),
    ("a step below 1", lambda f: verl_step(f, 0), 4),
    ("half a character", row(output="\ud800 2"), 7),
    ("control characters", row(output="\x1b[2J\x00 2", **{"\x1b]0;x\x07": 1}), 7),
    ("numbers that are none", row(score=float("nan"), acc=float("inf"), size=10**300), 7),
    ("a file of another kind", lambda f: (f / "notes.jsonl").write_bytes(b"\xff" * 100), 4),
]


@pytest.mark.parametrize(
    ("make", "count"), [case[1:] for case in HARMLESS], ids=[case[0] for case in HARMLESS]
)
def test_what_can_be_left_out_keeps_nothing_else_out(
    make: Make, count: int, tmp_path: Path
) -> None:
    folder, store = tmp_path / "run", tmp_path / "s.db"
    verl_step(folder, 1)
    make(folder)
    import_runs(folder, Options(store=store))
    assert len(texts(store)) == count


def test_settings_that_are_nested_too_deep_are_left_out_and_named(tmp_path: Path) -> None:
    answer = {"example_id": 1, "prompt": "1 + 1 =", "completion": "2", "reward": 1.0}
    folder, store = tmp_path / "run", tmp_path / "s.db"
    folder.mkdir()
    (folder / "results.jsonl").write_text(json.dumps(answer) + "\n")
    nested = '{"a": ' * 400 + "1" + "}" * 400
    (folder / "metadata.json").write_text(f'{{"model": "m", "sampling_args": {nested}}}')
    import_runs(folder, Options(store=store))
    notes = [event.text for event in events(store) if isinstance(event, ev.NoteWritten)]
    assert texts(store) == ["2"]
    assert any("settings are left out" in note and "nested more than 50" in note for note in notes)


def test_a_folders_name_is_made_the_name_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / ("@\x1b[31m" + "long" * 50)
    verl_step(folder, 1)
    import_runs(folder, Options(store=tmp_path / "s.db"))
    assert names(tmp_path / "s.db") == [("[31m" + "long" * 50)[:80]]
    assert detail(tmp_path / "s.db", "[31m").files is not None
