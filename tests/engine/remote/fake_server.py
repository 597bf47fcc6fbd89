"""A server of the Tinker API in this process, as far as the SDK's calls here need one.

Each token's log-probability is -1, and -0.1 more for each optimiser step of its adapter that moves
the weights: neither one of rate 0, nor one that clipping or epsilon make small; a saved state is
the number of these steps. As SkyRL's server, it drops a request for training that it has by the
same number. Faults and lies are planned by path.
"""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

Fault = int | Literal["drop", "half"]
"""A status in place of an answer; or the request is carried out, and its answer lost or cut."""
MODEL = "org/model"
PROTO = "application/x-protobuf"
Answer = tuple[int, dict[str, str], bytes]


class FakeServer:
    def __init__(self, url: str = "") -> None:
        self.url = url
        self.rule = "mean per row"
        self.gives_norm = True
        self.clips, self.reads_epsilon = False, True
        self.config: dict[str, Any] = {"pjwt_auth_enabled": False}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.forever: dict[str, Fault] = {}
        self.fault_text = "planned"
        self.refusals: dict[str, str] = {}  # what a result says in place of one, by path
        self.places = 8  # for adapters
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.counts: Counter[str] = Counter()
        self.gradients: list[list[Any]] = []  # rows of each one that was computed
        self.steps: list[dict[str, float]] = []
        self.moved: Counter[str] = Counter()  # such steps of adapters and of saved states
        self.updates: list[tuple[int, int]] = []  # each one's number in its adapter, and gradients
        self.loaded: list[str] = []
        self.deleted: list[str] = []
        self.models: dict[str, int] = {}  # rank by name
        self.tokens = [7, 8, 2]
        self.logprobs: Sequence[float] | None = None
        self.lies: dict[str, Sequence[float]] = {}  # log-probabilities in answers, by path
        self.norm: float | None = None  # in place of the gradient's
        self.sampled_gap = 0.0  # nats, from what the trainer says
        self.archive = b""
        self.archive_url = ""
        self.free = threading.Event()  # results with samples wait for it
        self.free.set()
        self.waiting = self.most_waiting = 0
        self._futures: dict[str, tuple[str, bytes]] = {}
        self._numbers: dict[tuple[str, int], str] = {}
        self._created = 0
        self._pending: dict[str, list[list[Any]]] = defaultdict(list)  # gradients, by adapter
        self._lock = threading.Lock()

    def moves(self, adam: dict[str, float]) -> bool:
        is_clipped = self.clips and 0 < adam["grad_clip_norm"] < 1e-6
        is_dwarfed = self.reads_epsilon and adam["eps"] > 1
        return adam["learning_rate"] > 0 and not is_clipped and not is_dwarfed

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answer a request, and note it; a negative status stands for half of an answer."""
        name = path.removeprefix("/api/v1/")
        with self._lock:
            self.headers.append(headers)
            self.bodies.append(body)
            self.counts[name] += 1
            fault = self.forever.get(name) or (self.faults[name] or [0]).pop(0)
        if isinstance(fault, int) and fault:
            return _json({"detail": self.fault_text}, fault, {"retry-after-ms": "1"})
        status, extra, data = self._carried_out(method, name, body)
        return {"drop": 0, "half": -status}.get(str(fault), status), extra, data

    def _carried_out(self, method: str, name: str, body: bytes) -> Answer:
        if method == "DELETE":
            self.deleted.append(name)
            return 204, {}, b""
        if name == "/":
            return _json({"name": "Tinker API Mock"})
        if name.endswith("/archive"):
            url = self.archive_url or f"{self.url}/api/v1/download"
            return 302, {"Location": url}, b""
        if name == "download":
            return 200, {"Content-Type": "application/octet-stream"}, self.archive
        if name == "forward_backward":
            return self._rows(body)
        handler = getattr(self, f"_{name.replace('/', '_')}", None)
        if handler is None:
            return _json({"detail": f"no {name}"}, 404)
        answer: Answer | dict[str, Any] = handler(json.loads(body) if body else {})
        return answer if isinstance(answer, tuple) else _json(answer)

    def _retrieve_future(self, request: Any) -> Answer:
        if request["request_id"] not in self._futures:
            return _json({"detail": "Future not found"}, 404)
        kind, data = self._futures[request["request_id"]]
        if kind == "no place":
            return _json({"detail": f"Maximum number of LoRA adapters ({self.places})"}, 400)
        if kind in self.refusals:
            return _json({"detail": self.refusals[kind]}, 400)
        if kind == "asample":
            with self._lock:
                self.waiting += 1
                self.most_waiting = max(self.waiting, self.most_waiting)
            self.free.wait()
            with self._lock:
                self.waiting -= 1
        return 200, {"Content-Type": "application/json" if data[:1] == b"{" else PROTO}, data

    def _future(self, kind: str, data: bytes | dict[str, Any], key: Any = None) -> Answer:
        with self._lock:
            number = str(len(self._futures))
            self._futures[number] = kind, data if isinstance(data, bytes) else _bytes(data)
            self._numbers[key or ("", len(self._futures))] = number
        return _pending(number)

    def _healthz(self, _: Any) -> dict[str, Any]:
        return {"status": "ok"}

    def _client_config(self, _: Any) -> dict[str, Any]:
        return self.config

    def _create_session(self, _: Any) -> dict[str, Any]:
        return {"type": "create_session", "session_id": "session"}

    def _session_heartbeat(self, _: Any) -> dict[str, Any]:
        return {"type": "session_heartbeat"}

    def _get_server_capabilities(self, _: Any) -> dict[str, Any]:
        return {"supported_models": [{"model_name": MODEL, "max_context_length": 4096}]}

    def _create_model(self, request: Any) -> Answer:
        if len(self.models) >= self.places:
            return self._future("no place", {})
        self._created += 1
        model = f"model_{self._created}"
        self.models[model] = request["lora_config"]["rank"]
        result = {"model_id": model, "base_model": MODEL, "type": "create_model"}
        return self._future("create_model", result)

    def _unload_model(self, request: Any) -> Answer:
        self.models.pop(request["model_id"], None)
        return self._future("unload_model", {"model_id": request["model_id"]})

    def _rows(self, body: bytes) -> Answer:
        message = pb.ForwardBackwardRequest()
        message.ParseFromString(body)
        key = (message.model_id, message.seq_id)
        if key in self._numbers:
            return _pending(self._numbers[key])
        rows = [
            {name: _numbers(tensor) for name, tensor in row.loss_fn_inputs.items()}
            for row in message.data
        ]
        kind = "forward" if message.forward_only else "forward_backward"
        answer = pb.ForwardBackwardOutput(loss_fn_output_type="scalar")
        lengths = [len(row["target_tokens"]) for row in rows]
        _add_logprobs(answer, [self._logprobs_of(message.model_id, n, kind) for n in lengths])
        if not message.forward_only:
            self.gradients.append(rows)
            self._pending[message.model_id].append(rows)
        return self._future(kind, answer.SerializeToString(), key)

    def _logprobs_of(self, model: str, count: int, kind: str) -> Sequence[float]:
        if kind in self.lies:
            return self.lies[kind]
        return [-1 - 0.1 * self.moved[model]] * count if self.logprobs is None else self.logprobs

    def gradient(self, row: dict[str, Any]) -> float:
        """The gradient of a row, of a model with one parameter."""
        if self.rule == "sum":
            return float(np.sum(row["advantages"]))
        weights = np.ones(1) if self.rule == "mean over rows" else row["weights"]
        return float(np.sum(row["advantages"] * row["weights"]) / np.sum(weights))

    def _optim_step(self, request: Any) -> Answer:
        key = (request["model_id"], request["seq_id"])
        if key in self._numbers:
            return _pending(self._numbers[key])
        self.steps.append(request["adam_params"])
        model = request["model_id"]
        gradients = self._pending.pop(model, [])
        rows = [row for gradient in gradients for row in gradient]
        norm = abs(sum(map(self.gradient, rows))) / (1 if self.rule == "sum" else len(rows))
        if self.moves(request["adam_params"]):
            self.moved[model] += 1
            self.updates.append((self.moved[model], len(gradients)))
        norm = norm if self.norm is None else self.norm
        metrics = {"skyrl.ai/grad_norm": norm} if self.gives_norm else {}
        return self._future("optim_step", {"type": "optim_step", "metrics": metrics}, key)

    def _save_weights_for_sampler(self, request: Any) -> Answer:
        path = f"tinker://{request['model_id']}/sampler_weights/{request['path']}"
        self.moved[path] = self.moved[request["model_id"]]
        return self._future("save", {"path": path, "type": "save_weights_for_sampler"})

    def _save_weights(self, request: Any) -> Answer:
        path = f"tinker://{request['model_id']}/weights/{request['path']}"
        self.moved[path] = self.moved[request["model_id"]]
        return self._future("save", {"path": path, "type": "save_weights"})

    def _weights_info(self, _: Any) -> dict[str, Any]:
        return {"base_model": MODEL, "is_lora": True, "lora_rank": 8}

    def _load_weights(self, request: Any) -> Answer:
        self.loaded.append(request["path"])
        self.moved[request["model_id"]] = self.moved[request["path"]]
        return self._future("load_weights", {"type": "load_weights", "path": request["path"]})

    def _create_sampling_session(self, request: Any) -> dict[str, Any]:
        return {"type": "create_sampling_session", "sampling_session_id": request["model_path"]}

    def _asample(self, request: Any) -> Answer:
        answer = pb.SampleResponse()
        told = self._logprobs_of(request["sampling_session_id"], len(self.tokens), "asample")
        logprobs = np.array(told, np.float32) - self.sampled_gap
        for _ in range(request["num_samples"]):
            answer.sequences.append(
                pb.SampledSequence(
                    stop_reason=pb.STOP_REASON_STOP,
                    tokens=np.array(self.tokens, np.int32).tobytes(),
                    logprobs=logprobs.astype(np.float32).tobytes(),
                )
            )
        return self._future("asample", answer.SerializeToString())


def _numbers(tensor: Any) -> Any:
    kinds = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64}
    return np.frombuffer(tensor.dense, dtype=kinds[tensor.dtype])


def _add_logprobs(answer: Any, rows: list[Sequence[float]]) -> None:
    record = answer.loss_fn_outputs.add()
    record.num_datums = len(rows)
    arrays = [np.array(row, np.float32) for row in rows]
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)])
    record.fields["logprobs"].CopyFrom(
        pb.BatchedTensor(
            data=b"".join(array.tobytes() for array in arrays),
            offsets=offsets.astype(np.int64).tobytes(),
            dtype=pb.DTYPE_FLOAT32,
        )
    )


def _bytes(data: Any) -> bytes:
    return json.dumps(data).encode()


def _pending(number: str) -> Answer:
    return _json({"request_id": number, "future_id": number, "status": "pending"})


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return status, {"Content-Type": "application/json", **(headers or {})}, _bytes(data)


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A server on a free port of this machine, until the end of the block."""
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, extra, data = fake.answer(self.command, self.path, headers, body)
            if status:
                self.send_response(abs(status))
                for name, value in {**extra, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data if status > 0 else data[: len(data) // 2])
            self.close_connection = status <= 0

        do_GET = do_POST = do_DELETE = _handle

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client may have gone."""

    with Server(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            fake.free.set()
            server.shutdown()
            thread.join()
