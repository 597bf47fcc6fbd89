"""Judges that reply with what harms a reader: one answer has no score, the others have theirs."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.errors import RewardError
from grpo_engine.rewards import http_client
from tests.engine.rewards.judges import Handler, data_of, reply, scores, serving, write_rubric
from tests.engine.rewards.test_judge import judged


def _headers(handler: Handler) -> None:
    """Send headers without an end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(200_000):
        handler.wfile.write(b"X-%d: y\r\n" % number)


def _informs(handler: Handler) -> None:
    """Say over and over that the reply will come."""
    while not handler.server.script.ended.wait(0.001):
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")


HARM: dict[str, Any] = {
    "headers without an end": _headers,
    "only continues": _informs,
    "nested lists": reply("[" * 1_000_000),
    "nested scores": reply('{"scores": ' * 50_000 + "1" + "}" * 50_000),
    "fences": reply("```json" * 300_000 + "{"),
    "braces": reply("{" + "}a" * 500_000 + "<"),
    "thoughts": reply("<think>" * 300_000),
    "a number of digits": reply('{"scores": {"good": ' + "9" * 5000 + "}}"),
    "no number": reply('{"scores": {"good": NaN}}'),
    "infinite": reply('{"scores": {"good": 1e999}}'),
    "a text of digits": reply('{"scores": {"good": "' + "9" * 100_000 + '"}}'),
    "true": reply('{"scores": {"good": true}}'),
    "another scores": reply('{"scores": {"good": 1, "x": 1}}'),
    "many choices": {"choices": [{"message": {"content": "{}"}}] * 100_000},
    "no text": reply({"scores": {"good": None}}),
    "a list": [],
}


@pytest.mark.parametrize("kind", HARM)
def test_a_reply_that_harms_its_reader_gives_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(http_client, "FIRST_PAUSE", 0.01)
    with serving(lambda r: HARM[kind] if data_of(r)["answer"] == "b" else scores(good=10)) as s:
        name = write_rubric(tmp_path / "r.yaml", s.url, retries=0, time_limit=2.0)
        begun = time.monotonic()
        result = judged(name, "a", "b")
    assert result.scores[0] == 1
    assert isinstance(result.scores[1], RewardError), result.scores[1]
    assert len(str(result.scores[1])) < 2000
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("reason", ["x" * 3_000_000, "\ud800", "\x1b]0;x\x07", ["a"], {"a": 1}])
def test_whatever_a_reason_is_the_score_counts_and_the_reason_is_short_text(
    tmp_path: Path, reason: Any
) -> None:
    text = json.dumps({"reason": reason, "scores": {"good": 5}})
    with serving(lambda _: reply(text)) as script:
        result = judged(write_rubric(tmp_path / "r.yaml", script.url), "a")
    assert result.scores == [0.5]
    assert len(result.reasons[0]) < 2100
