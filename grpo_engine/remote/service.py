"""The Tinker API through its SDK, which nothing else here imports, and only runs that use it.

Imports take seconds, and load torch where it is installed. The SDK starts a thread of its own, in
which these calls run. It repeats what it sends under the same number, and servers drop what they
have; `forward_backward` and `optim_step` are never called a second time here.
"""

import asyncio
import functools
import importlib.metadata
import json
import logging
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

import httpx2
import numpy as np

from grpo_engine.config.remote import HOSTED
from grpo_engine.errors import EngineError, MissingPackageError, quoted, shortened
from grpo_engine.platform.library_logs import escaped
from grpo_engine.remote import answers, transport
from grpo_engine.remote.protocol import (
    UNDER_WAY,
    Adam,
    Capabilities,
    Connection,
    Prompt,
    Row,
    Sample,
    Scale,
    Service,
    ServiceError,
    ServiceOutcomeUnknownError,
    ServiceRefusedError,
    ServiceUnavailableError,
)

PACKAGE: Final = "tinker"
NO_KEY: Final = "tml-dummy"  # the SDK asks for a key, and these servers for none
HOSTED_KEY: Final = "TINKER_API_KEY"
SKYRL: Final = "Tinker API Mock"  # what its server calls itself
LOST: Final = "not loaded"  # what SkyRL says of an adapter after a restart, with status 400
FITS_SKYRL: Final = ("0", "25")
CLOSE_LIMIT: Final = 2.0  # seconds
CONNECT_LIMIT: Final = 10.0  # seconds for the first answer of a server
LONGEST_GREETING: Final = 1 << 16
NOT_READ: Final = ("optimizer.max_grad_norm",)  # by SkyRL
NOT_READ_BY_TORCH: Final = ("optimizer.options", "optimizer.weight_decay")  # its other back ends
MOVED: Final = 1e-4  # nats by which a step must change log-probabilities to tell anything
# Of the SDK's own variables none applies to other servers than the hosted one: they hold its key
# and its address, and a command for a key that a server may have started.
VARIABLES: Final = ("TINKER_", "CLOUDFLARE_ACCESS_")
ADDRESS: Final = "TINKER_BASE_URL"
SETTINGS: Final = {
    "TINKER_TELEMETRY": "0",  # would send tracebacks to the server
    "TINKER_SUBPROCESS_SAMPLING": "0",  # would hand the key to a child
}
BY_PATH: Final = ("restore", "download", "delete")  # calls that name a state on the server
CHANGES: Final = ("accumulate", "step")  # calls that change weights
T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger(PACKAGE)
os.environ.update(SETTINGS)
try:
    import tinker
    from tinker import _base_client, types
    from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
except ImportError as error:
    raise MissingPackageError(
        f"`remote.url` needs the package {PACKAGE} ({error}); install it with "
        "`pip install 'grpo-tui[remote]'`"
    ) from None
vars(_base_client)["AsyncHttpxClientWrapper"] = transport.HttpClient
log.addHandler(logging.NullHandler())
log.propagate = False  # what went wrong is in the errors of calls


def connect(connection: Connection) -> "Future[Service]":
    """Connect to a server and learn what it can, with an adapter that is thrown away."""
    future: Future[Service] = Future()

    def work() -> None:
        try:
            future.set_result(_connected(connection))
        except BaseException as error:
            future.set_exception(error)

    # The SDK's clients can only be made outside its own thread, and wait for the server.
    threading.Thread(target=work, name="connect", daemon=True).start()
    return future


def _connected(connection: Connection) -> "TinkerService":
    url = None if connection.url == HOSTED else connection.url.rstrip("/")
    key = _key(connection)
    server = "Tinker" if url is None else _greeting(url)
    client = _Client(url, key, server)
    try:
        learn = functools.partial(_learn, client, connection, server)
        model, capabilities = client.run("connect", learn).result()
        return TinkerService(replace(connection, model=model), client, capabilities)
    except BaseException:
        client.close()
        raise


def _key(connection: Connection) -> str:
    hosted = os.environ.get(HOSTED_KEY, "")
    if connection.url == HOSTED:
        key = connection.key or hosted
        if not key:
            raise ServiceRefusedError(f"remote.url: {HOSTED} needs a key; set {HOSTED_KEY}")
    else:
        key = connection.key or NO_KEY
        if key == hosted:
            raise ServiceRefusedError(
                f"remote.key_env names the key of the hosted service ({HOSTED_KEY}), which goes to "
                f"no other server; name a variable with the key of {connection.url}"
            )
    if not key.startswith(("tml-", "eyJ")):
        raise ServiceRefusedError(
            "the key for remote.url does not begin with `tml-`, as the SDK asks; see remote.key_env"
        )
    return key


def _greeting(url: str) -> str:
    """What the server calls itself; raises where none answers, before the SDK waits for minutes."""
    try:
        with httpx2.Client(trust_env=False, timeout=CONNECT_LIMIT) as client:
            health, _ = _get(client, f"{url}/api/v1/healthz")
            _, page = _get(client, f"{url}/")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ServiceUnavailableError(
            f"{url} cannot be reached: {escaped(shortened(str(error)))}; start the server, or "
            "correct remote.url"
        ) from None
    if not health.is_success:
        raise ServiceUnavailableError(
            f"{url} answered {health.status_code} {escaped(health.reason_phrase)} where a server "
            "of the Tinker API says that it is well; is remote.url its address?"
        )
    try:
        name = json.loads(page)["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        name = ""
    return "SkyRL" if name == SKYRL else ""


def _get(client: httpx2.Client, url: str) -> tuple[httpx2.Response, bytes]:
    """The answer, and the beginning of what it holds, which may have no end."""
    data = b""
    with client.stream("GET", url) as response:
        for part in response.iter_raw():
            data += part
            if len(data) > LONGEST_GREETING:
                break
    return response, data


class _Client:
    """The SDK's clients of one server, and calls on the SDK's thread.

    Besides errors of its own the SDK raises those of httpx, pydantic and the standard library, and
    groups of them, so each `Exception` of a call becomes one of ours, with its text.
    """

    def __init__(self, url: str | None, key: str, server: str) -> None:
        self._key = key
        self._advice = _advice(server, importlib.metadata.version(PACKAGE))
        self._opened = transport.Opened()
        self.url = url or HOSTED
        transport.OPENED.set(self._opened)
        with _variables(hosted=url is None):
            try:
                self.service = tinker.ServiceClient(base_url=url, api_key=key)
                self.holder = self.service.holder
                self.rest = _rest(self.service, url, key)
            except Exception as error:
                self._opened.close(CLOSE_LIMIT)
                raise self.translated(error, "connect") from None
        self.loop = self.holder.get_loop()

    def run(self, name: str, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Do this on the SDK's thread."""

        async def running() -> T:
            transport.OPENED.set(self._opened)
            try:
                return await transport.Call().result_of(work)
            except Exception as error:
                raise self.translated(error, name) from None

        return asyncio.run_coroutine_threadsafe(running(), self.loop)

    async def ask(self, owner: object, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the SDK, whose names and futures differ between versions."""
        method = getattr(owner, f"{name}_async", None)
        if method is None or hasattr(method, "__deprecated__"):
            method = getattr(owner, name)
        result = method(*arguments, **options)
        while hasattr(result, "__await__"):
            result = await result
        return result

    async def unload(self, training: Any) -> None:
        """Free the place of an adapter; a server that cannot do so frees it after the session."""
        with suppress(Exception), self.holder.aclient(ClientConnectionPoolType.TRAIN) as client:
            await client.models.unload(
                request=types.UnloadModelRequest(model_id=training.model_id), max_retries=0
            )

    def close(self, *last: Callable[[], Awaitable[None]]) -> None:
        """End the session after these last calls, and wait for it, but not for long."""

        async def closing() -> None:
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_LIMIT):
                    for call in last:
                        with suppress(Exception):
                            await call()
            self.holder.close()

        with suppress(Exception):
            self.run("close", closing).result(CLOSE_LIMIT)
        self._opened.close(CLOSE_LIMIT)

    def translated(self, error: Exception, name: str) -> EngineError:
        """Our error for one of the SDK, without the key, which a server may have quoted."""
        if isinstance(error, EngineError) and not isinstance(error, ServiceError):
            return error
        cause = error if isinstance(error, tinker.APIStatusError) else error.__cause__
        status = cause.status_code if isinstance(cause, tinker.APIStatusError) else 0
        text = _detail(cause) if isinstance(cause, tinker.APIStatusError) else str(error)
        text = escaped(shortened(text.replace(self._key, "[key]"))).rstrip(".")
        problem = f"{self.url}: {name}: {text}" + f" (HTTP {status})" * bool(status)
        if isinstance(error, ServiceRefusedError):
            return ServiceRefusedError(problem)
        if name in CHANGES:
            return ServiceOutcomeUnknownError(f"{problem}; what of it was done is not known")
        if status in (401, 403):
            return ServiceRefusedError(f"{problem}; is the key that remote.key_env names right?")
        may_pass = status == 429 or status >= 500 or isinstance(error, ServiceUnavailableError)
        if may_pass or (not status and isinstance(cause, tinker.APIConnectionError)):
            return ServiceUnavailableError(problem)
        if (status in (404, 410) or LOST in text) and name not in BY_PATH:
            return ServiceOutcomeUnknownError(f"{problem}; the server has forgotten this session")
        return ServiceRefusedError(problem + self._advice)


def _advice(server: str, version: str) -> str:
    """What to try when a server refuses, where the SDK may not fit."""
    if server != "SkyRL" or version.split(".")[:2] == list(FITS_SKYRL):
        return ""
    wanted = ".".join(FITS_SKYRL)
    return (
        f"; SkyRL 0.4 goes with {PACKAGE} {wanted}, and {version} is installed: pip install "
        f"'{PACKAGE}=={wanted}.*'"
    )


def _detail(error: Any) -> str:
    """What the server says in its answer."""
    body = error.body
    detail = body.get("detail", body) if isinstance(body, dict) else body
    return str(detail or error)


def _rest(service: Any, url: str | None, key: str) -> Any:
    """The SDK's client for calls that need no adapter."""
    if hasattr(type(service).create_rest_client, "__deprecated__"):
        return tinker.RestClient(base_url=url, api_key=key)
    return service.create_rest_client()


@contextmanager
def _variables(*, hosted: bool) -> Iterator[None]:
    """Without the variables that only the hosted service may see, while the SDK reads them."""
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name not in SETTINGS and (name == ADDRESS or (not hosted and name.startswith(VARIABLES)))
    }
    try:
        yield
    finally:
        os.environ.update(hidden)


def on_sdk_thread(
    method: "Callable[Concatenate[TinkerService, P], Awaitable[T]]",
) -> "Callable[Concatenate[TinkerService, P], Future[T]]":
    """A method whose call is done on the SDK's thread, and returns a future."""

    @functools.wraps(method)
    def call(self: "TinkerService", /, *arguments: P.args, **options: P.kwargs) -> Future[T]:
        work = functools.partial(method, self, *arguments, **options)
        return self._client.run(method.__name__, work)

    return call


class TinkerService:
    """A server with one adapter that is trained."""

    def __init__(self, connection: Connection, client: _Client, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._connection, self._client = connection, client
        self._slots = asyncio.Semaphore(UNDER_WAY)
        self._syncing = asyncio.Lock()
        self._training: Any = None
        self._base: Any = None  # an adapter that is never trained, so equal to the base model
        self._sampler: Any = None
        self._sampler_path = ""
        self._syncs = self._saves = 0

    @on_sdk_thread
    async def begin(self) -> None:
        await self._replace(await _adapter(self._client, self._connection))

    @on_sdk_thread
    async def restore(self, path: str) -> None:
        await self._replace(None)  # its place may be the only one
        name = "create_training_client_from_state_with_optimizer"
        await self._replace(await self._client.ask(self._client.service, name, path))

    async def _replace(self, training: Any) -> None:
        old, self._training, self._sampler = self._training, training, None
        if old is not None:
            await self._client.unload(old)

    @on_sdk_thread
    async def sample(self, prompt: Prompt) -> list[Sample]:
        async with self._syncing:
            if self._sampler is None:
                await self._sync()
        parameters = types.SamplingParams(
            max_tokens=prompt.max_tokens,
            seed=prompt.seed,
            stop=list(prompt.stop_ids),
            temperature=prompt.temperature,
        )
        ids = types.ModelInput.from_ints(list(prompt.ids))
        async with self._slots:
            answer = await self._client.ask(
                self._sampler,
                "sample",
                prompt=ids,
                num_samples=prompt.count,
                sampling_params=parameters,
            )
        return answers.samples(answer.sequences, prompt, self._connection.vocab_size)

    def logprobs(
        self, sequences: Sequence[tuple[int, ...]], *, base: bool = False
    ) -> Future[list[tuple[float, ...]]]:
        name = "logprobs of the base model" if base else "logprobs"
        return self._client.run(name, functools.partial(self._logprobs, sequences, base))

    async def _logprobs(
        self, sequences: Sequence[tuple[int, ...]], base: bool
    ) -> list[tuple[float, ...]]:
        training = self._training
        if base:
            if self._base is None:
                self._base = await _adapter(self._client, self._connection)
            training = self._base
        data = [_datum(ids[:-1], ids[1:], weights=[1.0] * (len(ids) - 1)) for ids in sequences]
        answer = await self._client.ask(training, "forward", data, "cross_entropy")
        return _logprobs(answer, [len(ids) - 1 for ids in sequences])

    @on_sdk_thread
    async def accumulate(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        return await _accumulate(self._client, self._training, rows, self.capabilities.scale)

    @on_sdk_thread
    async def step(self, adam: Adam) -> float | None:
        return await _step(self._client, self._training, adam)

    @on_sdk_thread
    async def sync(self) -> None:
        async with self._syncing:
            await self._sync()

    async def _sync(self) -> None:
        self._syncs += 1
        old = self._sampler_path
        self._sampler_path = await self._save_sampler(f"sync-{self._syncs}")
        self._sampler = await self._client.ask(
            self._client.service, "create_sampling_client", self._sampler_path
        )
        if old:
            with suppress(Exception):
                await self._delete(old)

    async def _save_sampler(self, name: str) -> str:
        ask = self._client.ask
        return str((await ask(self._training, "save_weights_for_sampler", name)).path)

    @on_sdk_thread
    async def save(self, name: str) -> str:
        """SkyRL gives only weights for samplers away, so both kinds are saved."""
        # A save that failed may have left its name behind, which servers take only once.
        self._saves += 1
        name = f"{name}-{self._saves}"
        path = str((await self._client.ask(self._training, "save_state", name)).path)
        await self._save_sampler(name)
        return path

    @on_sdk_thread
    async def download(self, path: str, folder: Path) -> None:
        run, _, name = path.removeprefix("tinker://").split("/", 2)
        # SkyRL takes a bare name, and the hosted service a name with its kind.
        name = name if self.capabilities.server == "SkyRL" else f"sampler_weights/{name}"
        answer = await self._client.ask(self._client.rest, "get_checkpoint_archive_url", run, name)
        url = str(answer.url)
        if self._client.url != HOSTED and _origin(url) != _origin(self._client.url):
            raise ServiceRefusedError(
                f"the archive is at {escaped(shortened(url))}, which is not this server"
            )
        with tempfile.TemporaryFile() as archive:
            async with (
                httpx2.AsyncClient(trust_env=False, timeout=transport.PATIENCE) as client,
                client.stream("GET", url, follow_redirects=False) as response,
            ):
                if not response.is_success:
                    raise ServiceUnavailableError(f"the archive: HTTP {response.status_code}")
                async for part in response.aiter_raw():
                    archive.write(part)
                    if archive.tell() > answers.LARGEST_ADAPTER:
                        raise ServiceRefusedError("the archive is larger than any adapter")
            archive.seek(0)
            await asyncio.to_thread(answers.unpack, archive, folder)

    @on_sdk_thread
    async def delete(self, path: str) -> None:
        await self._delete(path)
        await self._delete(path.replace("/weights/", "/sampler_weights/"))

    async def _delete(self, path: str) -> None:
        name = "delete_checkpoint_from_tinker_path"
        await self._client.ask(self._client.rest, name, path)

    def close(self) -> None:
        last = [
            functools.partial(self._client.unload, training)
            for training in (self._training, self._base)
            if training is not None
        ]
        if self._sampler_path:
            last.append(functools.partial(self._delete, self._sampler_path))
        self._client.close(*last)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


async def _adapter(client: _Client, connection: Connection) -> Any:
    """A new adapter; its last layer is left alone, as everywhere here."""
    return await client.ask(
        client.service,
        "create_lora_training_client",
        base_model=connection.model,
        rank=connection.rank,
        seed=connection.seed,
        train_unembed=False,
    )


def _datum(ids: Sequence[int], targets: Sequence[int], **values: Sequence[float]) -> Any:
    def tensor(numbers: Sequence[float], dtype: str) -> Any:
        return types.TensorData(data=list(numbers), dtype=dtype, shape=[len(numbers)])

    inputs = {name: tensor(numbers, "float32") for name, numbers in values.items()}
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(ids)),
        loss_fn_inputs={"target_tokens": tensor(targets, "int64"), **inputs},
    )


def _logprobs(answer: Any, lengths: Sequence[int]) -> list[tuple[float, ...]]:
    """The log-probabilities of each row's targets."""
    outputs = answer.loss_fn_outputs
    if len(outputs) != len(lengths):
        raise ServiceRefusedError(f"The server sent {len(outputs)} of {len(lengths)} rows.")
    rows = zip(outputs, lengths, strict=True)
    return [answers.finite(_data(output), length) for output, length in rows]


def _data(output: Any) -> Any:
    try:
        return output["logprobs"].data
    except (KeyError, TypeError, AttributeError):
        raise ServiceRefusedError("The server sent a row without log-probabilities.") from None


async def _accumulate(
    client: _Client, training: Any, rows: Sequence[Row], scale: Scale
) -> list[tuple[float, ...]]:
    # A sum needs no weights where advantages are 0, and the hosted service takes none.
    weighted = scale == "mean per row"
    data = [
        _datum(
            row.ids,
            row.targets,
            logprobs=row.logprobs,
            advantages=row.advantages,
            **({"weights": row.weights} if weighted else {}),
        )
        for row in rows
    ]
    answer = await client.ask(training, "forward_backward", data, "importance_sampling")
    return _logprobs(answer, [len(row.ids) for row in rows])


async def _step(client: _Client, training: Any, adam: Adam) -> float | None:
    parameters = types.AdamParams(
        learning_rate=adam.learning_rate,
        beta1=adam.betas[0],
        beta2=adam.betas[1],
        eps=adam.eps,
        weight_decay=adam.weight_decay,
        grad_clip_norm=adam.max_grad_norm,
    )
    answer = await client.ask(training, "optim_step", parameters)
    return next(
        (
            float(value)
            for name, value in (answer.metrics or {}).items()
            if name.rpartition("/")[2] == "grad_norm"
        ),
        None,
    )


async def _learn(client: _Client, connection: Connection, server: str) -> tuple[str, Capabilities]:
    """The model, and what the server can: from its answers, and from an adapter thrown away."""
    owner = client.rest if hasattr(client.rest, "get_server_capabilities") else client.service
    answer = await client.ask(owner, "get_server_capabilities")
    models = {
        escaped(model.model_name): model.max_context_length or 0
        for model in answer.supported_models
        if model.model_name
    }
    if not connection.model and len(models) == 1:
        connection = replace(connection, model=next(iter(models)))
    if connection.model not in models:
        raise ServiceRefusedError(
            f"it has no model {quoted(connection.model)}; set remote.model to one of "
            f"{shortened(', '.join(models) or 'none')}"
        )
    training = await _adapter(client, connection)
    try:
        scale, ignores = await _measured(client, training, server)
    finally:
        await client.unload(training)
    return connection.model, Capabilities(
        models=tuple(models),
        context=models[connection.model],
        scale=scale,
        ignores=ignores,
        sdk=importlib.metadata.version(PACKAGE),
        server=server,
    )


async def _measured(client: _Client, training: Any, server: str) -> tuple[Scale, tuple[str, ...]]:
    """How losses are reduced, and which settings of the optimiser have no effect.

    A gradient that is clipped to nothing, or an epsilon that dwarfs it, leaves the weights as they
    are, beside a step with neither. Then rates are 0: the same row twice has the norm of one under
    a mean over rows, and twice that under a sum. Ten more targets without advantage halve it under
    a mean over tokens, and change no sum.
    """
    documented: Scale = "sum" if server == "Tinker" else "mean per row"

    async def scored(count: int = 1, counted: int = 10) -> Any:
        ids = tuple(range(5, 26))
        row = Row(
            ids=ids[:-1],
            targets=ids[1:],
            weights=(0.0,) * (20 - counted) + (1.0,) * counted,
            logprobs=(0.0,) * 20,
            advantages=(0.0,) * 10 + (1.0,) * 10,
        )
        return np.array(await _accumulate(client, training, [row] * count, documented))

    moving = Adam(
        learning_rate=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, max_grad_norm=0.0
    )
    still = replace(moving, learning_rate=0.0)
    moved, before = [], await scored()
    for adam in (replace(moving, max_grad_norm=1e-12), replace(moving, eps=1e6), moving):
        await _step(client, training, adam)
        after = await scored()
        moved.append(float(np.abs(after - before).max()))
        before = after
    clipped, dwarfed, free = moved
    ignored: tuple[str, ...] = NOT_READ if server == "SkyRL" else ()
    if free > MOVED:
        ignored = NOT_READ * (clipped > free / 10) + NOT_READ_BY_TORCH * (dwarfed > free / 10)
    one = await _step(client, training, still)
    await scored(count=2)
    two = await _step(client, training, still)
    await scored(counted=20)
    longer = await _step(client, training, still)
    if not one or two is None or longer is None:
        return "mean per row" if server == "SkyRL" else "sum", ignored
    ratios = round(two / one, 2), round(longer / one, 2)
    if ratios == (1, 0.5):
        return "mean per row", ignored
    if ratios == (2, 1):
        return "sum", ignored
    raise ServiceRefusedError(
        f"reduces its losses in a way that is not known here: a row twice has {ratios[0]} times "
        f"the gradient of one, and ten more targets {ratios[1]} times; please report this server"
    )
