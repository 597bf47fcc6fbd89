"""Rows that cannot be used are told before a run, with file, row and reason, or skipped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.tasks.base import load_task
from tests.engine.byte_tokenizer import byte_tokenizer

BAD = {
    4: ('{"promt": "no such column", "answer": "4"}', "there is no column 'prompt'"),
    5: ("{broken", "not JSON"),
    7: ('{"prompt": "", "answer": "7"}', "the prompt is empty"),
    9: ('{"prompt": [{"role": "user"}], "answer": "9"}', "has no text in 'content'"),
    11: ("[1, 2]", "a row is an object"),
}
UNREADABLE = {
    3: ('{"prompt": "a lone \\ud800 half", "answer": "3"}', "half of a character"),
    8: (json.dumps({"prompt": "long " * 50, "answer": "8"}), "the prompt has 250 tokens, more"),
}


def data(folder: Path, bad: Mapping[int, tuple[str, str]]) -> Path:
    """Twelve rows, some of which are bad."""
    lines = [
        bad.get(n, (json.dumps({"prompt": f"say {n}", "answer": str(n)}), "")) for n in range(1, 13)
    ]
    file = folder / "data.jsonl"
    file.write_text("".join(line + "\n" for line, _ in lines), encoding="utf-8")
    return file


def settings(file: Path, **more: Any) -> TaskConfig:
    return TaskConfig(name=str(file), held_out_size=2, **more)


def renderer(config: TaskConfig) -> PromptRenderer:
    return PromptRenderer(
        byte_tokenizer(), load_task(config), config, "tiny", context=100, max_new_tokens=10
    )


def test_bad_rows_are_counted_and_the_first_are_told_with_their_lines(tmp_path: Path) -> None:
    file = data(tmp_path, BAD)
    with pytest.raises(DataError) as caught:
        load_task(settings(file))
    message = str(caught.value)
    assert message.startswith("5 of 12 rows cannot be used: ")
    assert "; and 2 more. " in message
    assert message.endswith("Correct or remove them, or set task.bad_rows to skip")
    # lines that are no rows are found first, while the file is read
    for number in (5, 11, 4):
        assert f"{file}:{number}: {BAD[number][1]}" in message


def test_bad_rows_are_skipped_when_asked_for_and_counted(tmp_path: Path) -> None:
    task = load_task(settings(data(tmp_path, BAD), bad_rows="skip"))
    assert task.skipped == 5
    assert task.notes[0].startswith("5 of 12 rows are skipped: ")
    kept = {example.prompt for example in (*task.train, *task.held_out)}
    assert kept == {f"say {n}" for n in range(1, 13) if n not in BAD}


def test_prompts_that_the_model_cannot_read_are_told_with_their_lines(tmp_path: Path) -> None:
    file = data(tmp_path, UNREADABLE)
    with pytest.raises(DataError) as caught:
        renderer(settings(file)).usable()
    message = str(caught.value)
    assert message.startswith("2 of 12 rows cannot be used: ")
    for number, (_, reason) in UNREADABLE.items():
        assert f"{file}:{number}: " in message
        assert reason in message


def test_prompts_that_the_model_cannot_read_are_skipped_when_asked_for(tmp_path: Path) -> None:
    render, notes = renderer(settings(data(tmp_path, UNREADABLE), bad_rows="skip")).usable()
    assert render.task.skipped == 2
    assert [note[:26] for note in notes] == [
        "2 of 12 rows are skipped: ",
        "the prompts are text, and ",
    ]
    rows = (*render.task.train, *render.task.held_out)
    assert {row.prompt for row in rows} == {f"say {n}" for n in range(1, 13) if n not in UNREADABLE}
    assert [render(row).text for row in rows] == [row.prompt for row in rows]


def test_data_without_one_good_row_are_refused_even_when_bad_ones_are_skipped(
    tmp_path: Path,
) -> None:
    file = data(tmp_path, dict.fromkeys(range(1, 13), BAD[5]))
    with pytest.raises(DataError, match="none of 12 rows can be used: "):
        load_task(settings(file, bad_rows="skip"))


def test_short_prompts_are_checked_without_the_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    rows = [{"prompt": f"say {n}", "answer": str(n)} for n in range(1000)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    render = renderer(settings(file))
    encode = Mock(wraps=render.tokenizer.encode)
    render.tokenizer.encode = encode
    render.usable()
    # at most 2 tokens for each of 7 bytes, and there is room for 90
    assert encode.call_count == 1


def test_a_prompt_that_no_tokenizer_could_take_is_named_before_it_is_tokenised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"prompt": "say 1", "answer": "1"}, {"prompt": "x" * 50_000_000, "answer": "2"}]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    render = renderer(TaskConfig(name=str(file), held_out_size=0))
    lengths: list[int] = []
    encode = render.tokenizer.encode

    def counted(text: str, **options: Any) -> Any:
        lengths.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(render.tokenizer, "encode", counted)
    with pytest.raises(DataError, match=r"data\.jsonl:2: the prompt has 50,000,000 characters"):
        render.usable()
    assert max(lengths) < 100
