"""`doctor --remote`, beside a server in this process."""

import socket

import pytest

pytest.importorskip("tinker")

from grpo_tui.app.health import server
from tests.engine.remote.fake_server import MODEL, serving


def test_a_server_is_described_and_measured() -> None:
    with serving() as fake:
        fake.tokens = [7] * 8
        lines = {line.name: line for line in server.checks(fake.url, "", "", insecure=False)}
        assert lines["models"].result == MODEL
        assert lines["context"].result == "4,096 tokens"
        assert lines["losses"].result == "reduced to the mean per row"
        assert lines["not read"].level == "warning"
        assert lines["reference"].level == "fine"
        assert lines["gap"].result == "0.0e+00 nats between sampler and trainer"
        assert "tokens/s in 8 answers" in lines["samples"].result
        assert not fake.models  # both adapters were removed


def test_a_server_without_a_place_for_a_reference_says_what_to_choose() -> None:
    with serving() as fake:
        fake.places = 1
        lines = {line.name: line for line in server.checks(fake.url, "", "", insecure=False)}
        assert lines["reference"].level == "warning"
        assert "Maximum number of LoRA adapters (1)" in lines["reference"].remedy
        assert "beta 0" in lines["reference"].remedy
        assert lines["latency"].level == "fine"


def test_a_large_gap_between_sampler_and_trainer_is_a_warning() -> None:
    with serving() as fake:
        fake.sampled_gap = 0.25
        lines = {line.name: line for line in server.checks(fake.url, MODEL, "", insecure=False)}
        assert lines["gap"].result == "2.5e-01 nats between sampler and trainer"
        assert "importance correction" in lines["gap"].remedy


def test_a_server_that_is_not_there_stops_a_run_and_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    (line,) = server.checks(url, "", "", insecure=False)
    assert line.stops
    assert "start the server, or correct remote.url" in line.remedy


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    (line,) = server.checks("http://127.0.0.1:9", "", "MY_KEY", insecure=False)
    assert line.stops
    assert "remote.key_env names MY_KEY, which is not set" in line.remedy


def test_plain_http_to_another_machine_is_refused_without_the_choice() -> None:
    (line,) = server.checks("http://example.org:8000", "", "", insecure=False)
    assert line.stops
    assert "readable over the network" in line.remedy
