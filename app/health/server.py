"""A server of the Tinker API: what it can, how fast it is, and whether a run could use it."""

import statistics
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from grpo_engine.config.parse import build
from grpo_engine.errors import EngineError
from grpo_engine.remote.protocol import Connection, Prompt, Sample, Service
from grpo_tui.app.health.checks import Check

RANK: Final = 8
TRIES: Final = 5  # of the shortest request
IDS: Final = tuple(range(5, 21))  # tokens that every vocabulary has
ANSWERS, LENGTH = 8, 32
GAP: Final = 0.02  # nats, as rounding to bfloat16 makes; a run corrects for a larger one


def checks(url: str, model: str, key_env: str, *, insecure: bool) -> list[Check]:
    """Connect, measure with an adapter that is thrown away, and say what was seen."""
    lines: list[Check] = []
    try:
        from grpo_engine.remote.opening import connect, key_of

        settings = {"url": url, "model": model, "key_env": key_env, "insecure": insecure}
        remote = build({"remote": settings}, "this server").remote
        connection = Connection(url=url, model=model, rank=RANK, seed=0, key=key_of(remote))
        started = time.perf_counter()
        service = connect(connection).result()
        lines.append(Check("connected", f"in {time.perf_counter() - started:.1f} s"))
        try:
            lines += described(service)
            lines += measured(service)
        finally:
            service.close()
    except EngineError as error:
        lines.append(Check("server", "cannot train", str(error), stops=True))
    return lines


def described(service: Service) -> Iterator[Check]:
    """What the server said of itself, or was seen to do, when the client connected."""
    it = service.capabilities
    yield Check("server", it.server or "of an unknown kind")
    yield Check("models", ", ".join(it.models))
    yield Check("context", f"{it.context:,} tokens" if it.context else "not said")
    yield Check("SDK", f"tinker {it.sdk}, which fits: it made, trained and removed an adapter")
    yield Check("rank", f"{RANK} works")
    yield Check("losses", f"reduced to the {it.scale}")
    if it.ignores:
        yield Check(
            "not read", ", ".join(it.ignores), "These settings have no effect on this server."
        )


def measured(service: Service) -> Iterator[Check]:
    """Time and numbers of a new adapter; what is asked first may be compiled first."""
    service.begin().result()
    cold = time.perf_counter()
    _sample(service, 0)
    warm = time.perf_counter()
    samples = _sample(service, 1)
    seconds = time.perf_counter() - warm
    tokens = sum(len(sample.ids) for sample in samples)
    yield Check(
        "samples",
        f"{tokens / seconds:,.0f} tokens/s in {ANSWERS} answers at once; the first ones took "
        f"{warm - cold:.1f} s",
    )
    sequences = [(*IDS, *sample.ids) for sample in samples]
    scored = service.logprobs(sequences).result()
    pairs = zip(samples, scored, strict=True)
    gap = max(
        float(np.abs(np.subtract(sample.logprobs, row[len(IDS) - 1 :])).max())
        for sample, row in pairs
    )
    remedy = "Choose a recipe with importance correction, or `float32` on the server."
    yield Check("gap", f"{gap:.1e} nats between sampler and trainer", remedy * (gap > GAP))
    yield _reference(service)
    times = []
    for _ in range(TRIES):
        started = time.perf_counter()
        service.logprobs([IDS]).result()
        times.append(time.perf_counter() - started)
    yield Check("latency", f"{statistics.median(times) * 1000:,.0f} ms to score {len(IDS)} tokens")


def _reference(service: Service) -> Check:
    """Whether a second adapter has a place; being untrained, it scores as the base model."""
    try:
        service.logprobs([IDS], base=True).result()
    except EngineError as error:
        return Check("reference", "none", f"{error} Choose a recipe with beta 0.")
    return Check("reference", "a second adapter, for KL")


def _sample(service: Service, seed: int) -> list[Sample]:
    prompt = Prompt(ids=IDS, count=ANSWERS, max_tokens=LENGTH, stop_ids=(), seed=seed * ANSWERS)
    return service.sample(prompt).result()
