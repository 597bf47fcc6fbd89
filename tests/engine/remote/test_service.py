"""The client of the Tinker API beside a server in this process, with its faults and its lies."""

import gzip
import io
import math
import os
import socket
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker")

from grpo_engine.remote import service as remote
from grpo_engine.remote import transport
from grpo_engine.remote.protocol import (
    UNDER_WAY,
    Adam,
    Capabilities,
    Connection,
    Prompt,
    Row,
    Service,
    ServiceOutcomeUnknownError,
    ServiceRefusedError,
    ServiceUnavailableError,
)
from tests.engine.remote.fake_server import MODEL, FakeServer, serving

KEY = "tml-a-key-of-the-hosted-service"
WAIT = 60  # seconds before a test gives up on a result
PROMPT = Prompt(ids=(5, 6), count=2, max_tokens=4, stop_ids=(2,), seed=9)
ROW = Row(
    ids=(5, 6, 7),
    targets=(6, 7, 2),
    weights=(0.0, 1.0, 1.0),
    logprobs=(0.0, -1.0, -1.0),
    advantages=(0.0, 0.75, -0.5),
)
CAPABILITIES = Capabilities(
    models=(MODEL,), context=0, scale="mean per row", ignores=(), sdk="", server="SkyRL"
)
ADAM = Adam(learning_rate=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, max_grad_norm=1.0)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[FakeServer, Any]]:
    """A server and the SDK's clients of it, which take half a second to make."""
    with serving() as server:
        client = remote._Client(server.url, remote.NO_KEY, "SkyRL")
        yield server, client
        client.close()


@pytest.fixture
def fake(shared: tuple[FakeServer, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(transport, "LONGEST_PAUSE", 0.001)
    server, _ = shared
    vars(server).update(vars(FakeServer(server.url)))
    yield server
    server.free.set()


@pytest.fixture
def service(fake: FakeServer, shared: tuple[FakeServer, Any]) -> Service:
    """A service that has begun, on a server that has forgotten how."""
    service = remote.TinkerService(connection(fake.url), shared[1], CAPABILITIES)
    service.begin().result(WAIT)
    fake.counts.clear()
    return service


def connection(url: str, **values: Any) -> Connection:
    settings: dict[str, Any] = {"model": MODEL, "rank": 8, "seed": 1, "vocab_size": 100}
    return Connection(url=url, **{**settings, **values})


@contextmanager
def connected(fake: FakeServer, **values: Any) -> Iterator[Service]:
    service = remote.connect(connection(fake.url, **values)).result(WAIT)
    try:
        yield service
    finally:
        service.close()


def test_an_update_reaches_the_server_as_it_was_asked_for(
    fake: FakeServer, service: Service
) -> None:
    assert service.accumulate([ROW]).result(WAIT) == [(-1.0, -1.0, -1.0)]
    norm = service.step(ADAM).result(WAIT)
    assert norm == 0.125  # (0.75 - 0.5) / 2 targets that count
    assert service.logprobs([(5, 6, 7)]).result(WAIT) == [pytest.approx((-1.1, -1.1))]
    (row,) = fake.gradients[0]
    sent = {name: tuple(values.tolist()) for name, values in row.items()}
    expected = {"weights": ROW.weights, "logprobs": ROW.logprobs, "advantages": ROW.advantages}
    assert sent == {"target_tokens": ROW.targets, **expected}
    (step,) = fake.steps
    assert step == {
        "learning_rate": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "grad_clip_norm": 1.0,
    }


def test_samples_come_from_the_weights_of_the_last_sync(fake: FakeServer, service: Service) -> None:
    samples = service.sample(PROMPT).result(WAIT)
    assert [sample.ids for sample in samples] == [(7, 8, 2)] * 2
    assert samples[0].logprobs == (-1.0, -1.0, -1.0)
    assert not samples[0].is_cut
    assert fake.counts["save_weights_for_sampler"] == 1
    service.sync().result(WAIT)
    service.sample(PROMPT).result(WAIT)
    assert fake.counts["save_weights_for_sampler"] == 2
    # Older weights for samplers are of no use any more.
    assert [path.rpartition("/")[2] for path in fake.deleted] == ["sync-1"]


def test_the_base_model_is_an_adapter_that_is_never_trained(
    fake: FakeServer, service: Service
) -> None:
    assert service.logprobs([(5, 6)], base=True).result(WAIT) == [(-1.0,)]
    service.logprobs([(5, 6)], base=True).result(WAIT)
    assert fake.counts["create_model"] == 1
    assert len(fake.models) == 2


@pytest.mark.parametrize("rule", ["mean per row", "sum"])
def test_the_rule_of_a_server_is_measured_on_an_adapter_that_is_thrown_away(
    fake: FakeServer, rule: str
) -> None:
    fake.rule = rule
    with connected(fake) as service:
        assert service.capabilities.scale == rule
        assert service.capabilities.models == (MODEL,)
        assert service.capabilities.context == 4096
        assert fake.models == {}
        assert [step["learning_rate"] for step in fake.steps] == [1e-3] * 3 + [0.0] * 3


CLIPPING, ADAMS = ("optimizer.max_grad_norm",), ("optimizer.options", "optimizer.weight_decay")


@pytest.mark.parametrize(
    ("clips", "reads_epsilon", "ignores"),
    [
        (True, True, ()),
        (False, True, CLIPPING),  # SkyRL's JAX back end
        (False, False, CLIPPING + ADAMS),  # its other ones
        (True, False, ADAMS),
    ],
)
def test_the_settings_that_a_server_does_not_read_are_measured(
    fake: FakeServer, clips: bool, reads_epsilon: bool, ignores: tuple[str, ...]
) -> None:
    fake.clips, fake.reads_epsilon = clips, reads_epsilon
    with connected(fake) as service:
        assert service.capabilities.ignores == ignores


def test_where_no_step_changes_a_log_probability_the_documented_settings_are_not_read(
    fake: FakeServer,
) -> None:
    fake.logprobs = [-1.0] * 20
    with connected(fake) as service:
        assert service.capabilities.ignores == CLIPPING


def test_a_server_with_an_unknown_rule_is_refused(fake: FakeServer) -> None:
    fake.rule = "mean over rows"
    with pytest.raises(
        ServiceRefusedError, match=r"row twice has 1\.0 times .* targets 1\.0 times"
    ):
        remote.connect(connection(fake.url)).result(WAIT)


def test_without_norms_the_documented_rule_is_taken(fake: FakeServer) -> None:
    fake.gives_norm = False
    with connected(fake) as service:
        assert service.capabilities.scale == "mean per row"


def test_a_saved_state_is_restored_into_a_new_adapter_and_deleted(
    fake: FakeServer, tmp_path: Path, service: Service
) -> None:
    fake.archive = archive(("adapter_config.json", b"{}"), ("adapter_model.safetensors", b"12"))
    path = service.save("step-3").result(WAIT)
    (first,) = fake.models
    assert path == f"tinker://{first}/weights/step-3-1"
    service.restore(path).result(WAIT)
    assert fake.loaded == [path]
    assert first not in fake.models
    service.download(path, tmp_path).result(WAIT)
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == b"12"
    service.delete(path).result(WAIT)
    kinds = [name.split("/")[-2:] for name in fake.deleted]
    assert kinds == [["weights", "step-3-1"], ["sampler_weights", "step-3-1"]]


@pytest.mark.parametrize("fault", [429, 500, 503, "drop", "half"])
def test_what_the_sdk_repeats_counts_once(fake: FakeServer, fault: Any, service: Service) -> None:
    """The request fails, and then the question for its result does, twice."""
    for path in ("forward_backward", "optim_step"):
        fake.faults[path] = [fault]
    fake.faults["retrieve_future"] = [500, 503]
    service.accumulate([ROW]).result(WAIT)
    service.step(ADAM).result(WAIT)
    assert fake.counts["forward_backward"] == fake.counts["optim_step"] == 2
    assert len(fake.gradients) == len(fake.steps) == 1


@pytest.mark.parametrize("path", ["forward_backward", "optim_step"])
@pytest.mark.parametrize("stage", ["request", "result"])
def test_an_update_with_an_unknown_outcome_is_not_sent_again(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, path: str, stage: str, service: Service
) -> None:
    service.accumulate([ROW]).result(WAIT)
    fake.counts.clear()
    monkeypatch.setattr(transport, "PATIENCE", 0.0)
    fake.forever[path if stage == "request" else "retrieve_future"] = 500
    call = service.accumulate([ROW]) if path == "forward_backward" else service.step(ADAM)
    with pytest.raises(ServiceOutcomeUnknownError, match=r"answered 500.*is not known"):
        call.result(WAIT)
    assert fake.counts[path] == 1


def test_a_server_that_stays_away_is_unavailable(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setattr(transport, "PATIENCE", 0.0)
    fake.forever["forward_backward"] = 503
    with pytest.raises(ServiceUnavailableError, match="answered 503"):
        service.logprobs([(5, 6)]).result(WAIT)


def test_a_server_that_forgot_the_session_says_so(fake: FakeServer, service: Service) -> None:
    service.sync().result(WAIT)
    fake.faults["asample"] = [404]
    with pytest.raises(ServiceOutcomeUnknownError, match="has forgotten"):
        service.sample(PROMPT).result(WAIT)
    fake.refusals["asample"] = "Model model_1 not loaded (likely stale request)"
    with pytest.raises(ServiceOutcomeUnknownError, match="has forgotten"):
        service.sample(PROMPT).result(WAIT)
    fake.faults["weights_info"] = [404]
    with pytest.raises(ServiceRefusedError, match="restore: planned"):
        service.restore("tinker://gone/weights/step-1").result(WAIT)


def test_a_full_pool_of_adapters_is_refused_in_the_server_s_words(fake: FakeServer) -> None:
    with connected(fake) as service:
        fake.places = 0
        with pytest.raises(ServiceRefusedError, match=r"begin: Maximum .*adapters \(0\)"):
            service.begin().result(WAIT)


def test_a_refused_connection_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ServiceUnavailableError, match=r"start the server, or correct remote\.url"):
        remote.connect(connection(f"http://127.0.0.1:{port}")).result(WAIT)


def test_a_page_that_is_no_such_server_is_said_at_once(fake: FakeServer) -> None:
    fake.forever["healthz"] = 404
    with pytest.raises(ServiceUnavailableError, match=r"is remote\.url its address"):
        remote.connect(connection(fake.url)).result(WAIT)
    assert fake.counts.total() == 2


def test_a_model_that_the_server_lacks_is_refused(fake: FakeServer) -> None:
    with pytest.raises(ServiceRefusedError, match=rf"remote\.model to one of {MODEL}"):
        remote.connect(connection(fake.url, model="org/other")).result(WAIT)
    assert "create_model" not in fake.counts


def test_a_foreign_server_gets_none_of_the_hosted_service_s_variables(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("API_KEY", "TAGS", "PROJECT_ID"):
        monkeypatch.setenv(f"TINKER_{name}", KEY)
    for name in ("ID", "SECRET"):
        monkeypatch.setenv(f"CLOUDFLARE_ACCESS_CLIENT_{name}", KEY)
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    with connected(fake, key="tml-of-this-server") as service:
        service.begin().result(WAIT)
        service.sample(PROMPT).result(WAIT)
    assert KEY not in str(fake.headers)
    keys = {headers.get("x-api-key") for headers in fake.headers}
    # None for the first look at the server, and the other clients' of this server.
    assert keys - {remote.NO_KEY} == {None, "tml-of-this-server"}
    assert "telemetry" not in fake.counts
    assert os.environ["TINKER_API_KEY"] == KEY
    # A server may ask for a key that a command of the user prints.
    fake.config |= {"pjwt_auth_enabled": True, "credential_default_source": "credential_cmd"}
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", f"touch {tmp_path}/ran; echo {KEY}")
    with pytest.raises(ServiceRefusedError):
        remote.connect(connection(fake.url)).result(WAIT)
    assert not list(tmp_path.iterdir())


def test_a_foreign_server_never_gets_the_hosted_key(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    with pytest.raises(ServiceRefusedError, match="goes to no other server") as caught:
        remote.connect(connection(fake.url, key=KEY)).result(WAIT)
    assert not fake.headers
    assert KEY not in f"{caught.value}{connection(fake.url, key=KEY)}"


def test_a_key_that_the_server_quotes_stays_out_of_messages(fake: FakeServer) -> None:
    key = "tml-of-this-server"
    fake.fault_text = f"\x1b[31mnot {key}"
    fake.forever["create_model"] = 401
    with pytest.raises(ServiceRefusedError, match=r"\\x1b\[31mnot \[key\].*401") as caught:
        remote.connect(connection(fake.url, key=key)).result(WAIT)
    assert key not in str(caught.value)


def test_at_most_64_requests_are_under_way(fake: FakeServer, service: Service) -> None:
    service.sync().result(WAIT)
    fake.free.clear()
    futures = [service.sample(PROMPT) for _ in range(UNDER_WAY + 6)]
    while fake.waiting < UNDER_WAY:
        assert not any(future.done() for future in futures)
        time.sleep(0.01)
    assert fake.counts["asample"] == UNDER_WAY
    fake.free.set()
    assert len([future.result(WAIT) for future in futures]) == UNDER_WAY + 6
    assert fake.most_waiting <= UNDER_WAY


def test_calls_and_their_end_never_wait_for_the_server(fake: FakeServer) -> None:
    with connected(fake) as service:
        service.begin().result(WAIT)
        service.sync().result(WAIT)
        fake.free.clear()
        future = service.sample(PROMPT)
        while not fake.waiting:
            assert not future.done()
            time.sleep(0.01)
        service.close()
        assert future.cancel()
        assert fake.waiting  # the server has not answered


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        ({"tokens": [7] * 1_000_000}, "1,000,000 tokens where at most 4"),
        ({"tokens": [7, 100, 2]}, "token 100, which is not in the vocabulary of 100"),
        ({"tokens": [7, -1, 2]}, "token -1"),
        ({"tokens": []}, "a sample without tokens"),
        ({"logprobs": [-1.0, 0.5, -1.0]}, "a log-probability of 0.5; none is above 0"),
        ({"logprobs": [-1.0, math.nan, -1.0]}, "log-probability nan of token 2 of 3"),
        ({"logprobs": [-1.0, -math.inf, -1.0]}, "log-probability -inf of token 2 of 3"),
        ({"logprobs": [-1.0]}, "1 log-probabilities for 3 tokens"),
        ({"logprobs": []}, "without log-probabilities"),
    ],
)
def test_samples_that_lie_are_refused(
    fake: FakeServer, lie: Any, problem: str, service: Service
) -> None:
    vars(fake).update(lie)
    with pytest.raises(ServiceRefusedError, match=problem):
        service.sample(PROMPT).result(WAIT)


def test_half_of_a_row_s_numbers_is_refused(fake: FakeServer, service: Service) -> None:
    fake.logprobs = [-1.0]
    with pytest.raises(ServiceRefusedError, match="1 log-probabilities for 3 tokens"):
        service.accumulate([ROW]).result(WAIT)


def test_an_answer_without_an_end_is_cut(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    service.sync().result(WAIT)
    monkeypatch.setattr(transport, "LARGEST_REPLY", 1 << 10)
    fake.tokens = [7] * 1000
    with pytest.raises(ServiceRefusedError, match="more than"):
        service.sample(PROMPT).result(WAIT)


def archive(*files: tuple[str, bytes | str]) -> bytes:
    """An archive of files, and of links where there is a text in place of bytes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (archive(("../outside", b"1")), r"a file outside it, '\.\./outside'"),
        (archive(("/tmp/outside", b"1")), "a file outside it"),
        (archive(("link", "/etc"), ("link/outside", b"1")), "'link' is a link"),
        (archive(("a", b"1"))[:40], "an archive that cannot be read"),
        (gzip.compress(b"no archive"), "an archive that cannot be read"),
        (archive(*((f"{n}", b"") for n in range(1001))), "or 1,000 files"),
    ],
    ids=["parent", "absolute", "link", "half", "other", "many"],
)
def test_archives_that_would_harm_are_refused(
    fake: FakeServer, tmp_path: Path, data: bytes, problem: str, service: Service
) -> None:
    fake.archive = data
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ServiceRefusedError, match=problem):
        service.download("tinker://model_1/weights/a", folder).result(WAIT)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_archive_elsewhere_is_not_fetched(
    fake: FakeServer, tmp_path: Path, service: Service
) -> None:
    with serving() as other:
        fake.archive_url = f"{other.url}/secret"
        with pytest.raises(ServiceRefusedError, match="which is not this server"):
            service.download("tinker://model_1/weights/a", tmp_path).result(WAIT)
        assert not other.headers
