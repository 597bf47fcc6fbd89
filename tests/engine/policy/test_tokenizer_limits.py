"""A tokenizer that would hang, fill the memory or end the process is refused before its use."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.settings import ModelConfig
from grpo_engine.control import Control
from grpo_engine.errors import ModelError
from grpo_engine.events import RunFailed
from grpo_engine.policy import tokenizer
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.policy.load import load_policy
from grpo_engine.sandbox import client
from grpo_engine.trainer import run
from tests.app.calls import Cli, caller

Content = dict[str, Any]


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer, "_problems", {})


def model(folder: Path, change: Callable[[Content], object] = id) -> Path:
    """The starter's files with another tokenizer."""
    shutil.copytree(EMBEDDED["starter"], folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return folder


def steps(kind: str, key: str, letter: str = "a") -> Callable[[Content], None]:
    """Forty steps that double a letter."""
    step = {"type": "Replace", "pattern": {"String": letter}, "content": letter * 2}
    return lambda content: content.update({kind: {"type": "Sequence", key: [step] * 40}})


def charsmap(data: bytes) -> Callable[[Content], None]:
    text = base64.b64encode(data).decode()
    return lambda content: content.update(
        normalizer={"type": "Precompiled", "precompiled_charsmap": text}
    )


def add_tokens(content: Content) -> None:
    token = dict(content["added_tokens"][0])
    content["added_tokens"] += [
        {**token, "id": 316 + index, "content": f"<x{index}>"} for index in range(300_000)
    ]


def split(pattern: str) -> Callable[[Content], None]:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return lambda content: content.update(pre_tokenizer=step)


def part(**values: Any) -> Callable[[Content], None]:
    return lambda content: content.update(values)


PANICS = {
    "a map that ends in the middle": charsmap(b"\x08\0\0\0" + b"\xff" * 8 + b"ab\0"),
    "a map whose length is a lie": charsmap(b"\xff\xff\xff\x7f" + b"\x01" * 40),
    "a decoder that strips too much": part(
        decoder={"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}
    ),
    "chunks of no characters": part(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "a pattern that backtracks": split("(a+)+b"),
}
ENDLESS = {
    "normalizers that double": steps("normalizer", "normalizers"),
    "normalizers that double a Chinese letter": steps("normalizer", "normalizers", "中"),
    "decoders that double": steps("decoder", "decoders"),
    "300,000 added tokens": add_tokens,
}


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_policy(ModelConfig(path=str(folder)), seed=0)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("change", PANICS.values(), ids=PANICS)
def test_a_tokenizer_that_panics_is_refused_with_its_file(
    tmp_path: Path, change: Callable[[Content], None]
) -> None:
    folder = model(tmp_path / "model", change)
    message = refusal(folder)
    assert message.startswith(f"model.path: the tokenizer {folder}/tokenizer.json fails (")
    assert "get the model again from where you trust it" in message


@pytest.mark.slow
@pytest.mark.parametrize("change", ENDLESS.values(), ids=ENDLESS)
def test_a_tokenizer_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Content], None]
) -> None:
    monkeypatch.setattr(tokenizer, "CPU_S", 5.0)
    folder = model(tmp_path / "model", change)
    # A fast processor reaches the limit of memory first, where the process aborts.
    start = f"model.path: the tokenizer {folder}/tokenizer.json "
    assert refusal(folder).startswith((f"{start}needs more than", f"{start}fails (its process"))


@pytest.mark.slow
def test_showing_a_task_tries_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = model(tmp_path / "model", PANICS["chunks of no characters"])
    cli: Cli = caller(monkeypatch, capfdbinary)
    result = cli("tasks", "show", "arithmetic", "--set", f"model.path={folder}")
    assert result.code == 1
    assert "tokenizer.json fails (PanicException: chunk size must be non-zero)" in result.err
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_a_tokenizer_that_panics_in_the_middle_of_a_run_fails_the_run(tmp_path: Path) -> None:
    """The text that it cannot read is not among those that were tried."""
    folder = model(tmp_path / "model", split("(?:zq|zqzq|zqzqzq)+w"))
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(
            json.dumps({"prompt": f"{'zq' * 60} {number}", "answer": "1"}) + "\n"
            for number in range(9)
        )
    )
    config = build({"steps": 1, "model": {"path": str(folder)}, "task": {"name": str(data)}})
    *_, last = run(config, Control(), folder=tmp_path / "run")
    assert isinstance(last, RunFailed)
    assert (last.error, "Onig" in last.message) == ("PanicException", True)


@pytest.mark.slow
def test_what_passed_is_not_tried_again_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "model")
    tokenizer.load_tokenizer(folder)
    monkeypatch.setattr(tokenizer, "_problems", {})  # as in another process
    monkeypatch.setattr(client, "Process", None)
    assert tokenizer.load_tokenizer(folder).encode("1")
    other = model(tmp_path / "other", part(normalizer={"type": "NFC"}))
    with pytest.raises(TypeError):  # a process would start
        tokenizer.load_tokenizer(other)


def test_a_model_that_comes_with_the_program_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "Process", None)
    assert tokenizer.load_tokenizer(EMBEDDED["starter"]).encode("1")
