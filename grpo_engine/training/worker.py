"""A local worker: holds the model, and samples, scores and differentiates what it is asked to.

The first process loads what all workers have in common, forks them, and waits for them. It never
evaluates an array, because a fork copies no threads.
"""

import importlib
import json
import math
import mmap
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from grpo_engine.config.settings import ModelConfig
from grpo_engine.distributed.messages import Arrays, ClosedError, receive, send
from grpo_engine.distributed.parent import die_with
from grpo_engine.errors import EngineError
from grpo_engine.events import NoteWritten, RolloutsAdvanced
from grpo_engine.platform import blas, kernels
from grpo_engine.policy import adapters
from grpo_engine.policy.batch import TokenBatch, Tokens, make_batch
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy, probes_of
from grpo_engine.policy.policy import Policy, Weights
from grpo_engine.policy.source import find_folder, load_parts, stored_parameters
from grpo_engine.policy.switches import FastPaths
from grpo_engine.policy.trees import flatten
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling
from grpo_engine.training.compute import scoring, unpacked
from grpo_engine.training.loss import LossInputs, MicroBatchResult, gradient, loss
from grpo_engine.training.remote import remote_dialogues

PAUSES = ("pause", "continue")
Reply = tuple[dict[str, Any], dict[str, Any]]


class Worker:
    """One worker's model and memory, and the requests that it answers."""

    def __init__(
        self, engine: socket.socket, weights: int, gradients: int, frozen: Weights
    ) -> None:
        self.engine, self._frozen = engine, frozen
        self._inherited = mx.get_active_memory()  # of the forking process, shared by all
        self._weights, self._gradients = weights, gradients
        self.policy: Policy
        self.other: dict[str, mx.array] | None = None
        self.rows: list[Tokens] = []
        self.inputs: LossInputs | None = None
        self.total: Any = None

    def load(self, asked: Mapping[str, Any], _: Arrays) -> Reply:
        self.policy = load_policy(
            ModelConfig.model_validate(asked["config"]), seed=asked["seed"],
            critic=asked["critic"], weights=self._frozen,
        )  # fmt: skip
        shared, self._frozen = sum(array.nbytes for array in self._frozen.values()), {}
        return {"probes": asdict(probes_of(self.policy)), "shared": shared}, {}

    def serve(self) -> None:
        """Answer requests until the engine closes the connection."""
        while True:
            asked, arrays = receive(self.engine)
            if asked["do"] in PAUSES:  # it came after the last row
                continue
            if threads := asked.get("threads"):
                blas.set_threads(threads)
            if asked.get("fresh_peak"):
                self.policy.forget_peak_memory()
            self.answer(asked["do"], asked, arrays)

    def answer(self, what: str, asked: Mapping[str, Any], arrays: Arrays) -> None:
        """Answer a request; an error is sent and ends nothing."""
        try:
            value, found = getattr(self, what)(asked, arrays)
        except ClosedError:
            raise
        except Exception as error:  # told to the engine, which ends the run
            trace = traceback.format_exc()
            failed = {"error": type(error).__name__, "message": str(error), "trace": trace}
            send(self.engine, failed)
        else:
            loaded = hasattr(self, "policy")
            peak = self.policy.peak_memory - self._inherited if loaded else 0
            send(self.engine, {**value, "peak": peak}, found)

    def tokens(self, asked: Mapping[str, Any], _: Arrays) -> Reply:
        """Keep the tokens of rollouts, for the micro-batches that follow."""
        self.rows = [Tokens(*map(tuple, row)) for row in asked["rows"]]
        return {}, {}

    def weights(self, asked: Mapping[str, Any], _: Arrays) -> Reply:
        """Take weights from shared memory."""
        trained = flatten(self.policy.module.trainable_parameters())
        whole, place = np.frombuffer(self._map(self._weights), dtype=np.float32), 0
        taken: dict[str, mx.array] = {}
        for name in asked["names"]:
            size, like = trained[name].size, trained[name]
            taken[name] = mx.array(whole[place : place + size].reshape(like.shape))
            place += size
        model = {n.removeprefix("model."): a for n, a in taken.items() if n[:6] == "model."}
        match asked["slot"]:
            case "policy":
                self.policy.load_trainable(model)
                critic = {n.removeprefix("critic."): a for n, a in taken.items()
                          if n[:7] == "critic."}  # fmt: skip
                self.policy.load_critic(critic)
            case "reference":
                self.policy.reference = model
            case _:
                self.other = model
        mx.eval(taken)
        return {}, {}

    def sample(self, asked: Mapping[str, Any], _: Arrays) -> Reply:
        """Sample rows, and send progress meanwhile."""
        prompts = [PromptRows(**{**each, "ids": tuple(each["ids"])}) for each in asked["prompts"]]
        sampling = Sampling(**{**asked["sampling"], "stop": tuple(asked["sampling"]["stop"])})
        spoken = asked["dialogues"]
        dialogues = remote_dialogues(self._request, spoken) if spoken is not None else None
        decoding = sample_groups(
            self.policy, prompts, sampling, seed=asked["seed"], step=asked["step"],
            weights=self.other if asked["slot"] == "other" else None, dialogues=dialogues,
        )  # fmt: skip
        while True:
            try:
                event = next(decoding)
            except StopIteration as end:
                rollouts = [asdict(rollout) for rollout in end.value]
                return {"rollouts": rollouts, "waited": dialogues.waited if dialogues else 0.0}, {}
            if isinstance(event, RolloutsAdvanced):
                send(self.engine, {
                    "rows": [asdict(row) for row in event.rows], "tokens": event.tokens,
                    "finished": event.finished, "total": event.total,
                })  # fmt: skip
            elif isinstance(event, NoteWritten):
                send(self.engine, {"note": event.text})
            self._wait_while_paused()

    def _wait_while_paused(self) -> None:
        if select.select([self.engine], [], [], 0)[0]:
            receive(self.engine)  # "pause"
            receive(self.engine)  # "continue"

    def _request(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the engine while rows are sampled; it may hold the run before it answers."""
        send(self.engine, asked)
        while (found := receive(self.engine)[0]).get("do") in PAUSES:
            pass
        return found

    def score(self, asked: Mapping[str, Any], _: Arrays) -> Reply:
        """Log-probabilities of one micro-batch."""
        other = self.other if asked["slot"] == "other" else None
        with scoring(self.policy, other, reference=asked["reference"], folded=asked["folded"]):
            scores = token_scores(
                self.policy, self._batch(asked["rows"]), temperature=asked["temperature"],
                gradient=False, entropy=asked["entropy"], values=asked["values"],
            )  # fmt: skip
            named = {"logprobs": scores.logprobs, "entropy": scores.entropy,
                     "values": scores.values}  # fmt: skip
            mx.eval(named)
        return {"place": asked["place"]}, _plain(named)

    def begin(self, asked: Mapping[str, Any], arrays: Arrays) -> Reply:
        """Keep what the losses of an update read."""
        self.inputs, self.total = unpacked(asked, arrays), None
        return {}, {}

    def gradient(self, asked: Mapping[str, Any], _: Arrays) -> Reply:
        """Add the gradient of one micro-batch to the sum."""
        assert self.inputs is not None
        batch = self._batch(asked["rows"])
        outputs, own = gradient(self.policy, self.inputs, batch)
        self.total = own if self.total is None else tree_map(mx.add, self.total, own)
        mx.eval(self.total, outputs)
        return _result(asked["place"], batch, outputs)

    def loss(self, asked: Mapping[str, Any], _: Arrays) -> Reply:
        assert self.inputs is not None
        batch = self._batch(asked["rows"])
        outputs = loss(self.policy, self.inputs, batch)
        mx.eval(outputs)
        return _result(asked["place"], batch, outputs)

    def give(self, _: Mapping[str, Any], __: Arrays) -> Reply:
        """Put the sum of gradients into shared memory."""
        whole, place = np.frombuffer(self._map(self._gradients), dtype=np.float32), 0
        total = flatten(self.total)
        for name in sorted(total):
            array = total[name]
            whole[place : place + array.size] = np.array(array).reshape(-1)
            place += array.size
        self.total = None
        return {}, {}

    def _batch(self, rows: list[int]) -> TokenBatch:
        return make_batch(
            self.rows, rows, pad_id=self.policy.pad_id, bucket=self.policy.fast.bucket
        )

    def _map(self, descriptor: int) -> mmap.mmap:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


def _result(place: int, batch: TokenBatch, outputs: Mapping[str, Any]) -> Reply:
    found = MicroBatchResult.of(batch, outputs)
    named = {n: getattr(found, n) for n in ("logprobs", "entropy", "clipped", "kl", "values")}
    return {"place": place, "loss": found.loss, "sums": found.sums}, _plain(named)


def _plain(named: Mapping[str, mx.array | None]) -> dict[str, Any]:
    return {n: np.array(one.astype(mx.float32)) for n, one in named.items() if one is not None}


def main() -> None:
    """Fork the workers, and report to the engine how each ends."""
    _, *descriptors = map(int, sys.argv[1:])
    count = len(descriptors) // 2 - 1
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    parent, *engines = (socket.socket(fileno=number) for number in descriptors[: count + 1])
    weights, *gradients = descriptors[count + 1 :]
    try:
        asked, _ = receive(parent)
    except ClosedError:
        return
    blas.ensure()
    importlib.import_module("mlx_lm")
    pids, own = {}, os.getpid()
    config = ModelConfig.model_validate(asked["config"])
    frozen = shared_weights(config, asked["least_shared"])
    for worker, engine in enumerate(engines):
        pid = os.fork()
        if pid == 0:
            die_with(own)
            kernels.prepare()
            _work(Worker(engine, weights, gradients[worker], frozen), asked, [parent, *engines])
        pids[pid] = worker
    for engine in engines:
        engine.close()
    while pids:
        pid, status = os.wait()
        try:
            send(parent, {"worker": pids.pop(pid), "status": status})
        except ClosedError:
            continue


def shared_weights(config: ModelConfig, least: int) -> dict[str, mx.array]:
    """A large model's weights, which workers share if this process has never evaluated an array.

    Those of `lie_transposed` layers are transposed. Another process reads them, changes their
    format, writes them into memory and ends. Empty if the model has less than `least` parameters or
    cannot be read: then each worker reads it.
    """
    try:
        if stored_parameters(find_folder(config.path)) < least:
            return {}
    except EngineError:
        return {}  # each worker will report it
    memory, own = os.memfd_create("grpo-tui-model"), os.getpid()
    listing, written = os.pipe()
    pid = os.fork()
    if pid == 0:
        die_with(own)
        _write_weights(config, memory, written)
    os.close(written)
    with os.fdopen(listing, "rb") as file:
        listed = json.loads(file.read() or b"[]")
    os.waitpid(pid, 0)
    found, place = {}, 0
    size = os.fstat(memory).st_size
    if listed and size:
        with mmap.mmap(memory, size) as mapped:
            for name, kind, shape in listed:
                count = math.prod(shape)
                # not np.frombuffer on the map itself, which could then not be closed
                plain = np.frombuffer(mapped[place : place + count * np.dtype(kind).itemsize], kind)
                found[name] = mx.array(plain.reshape(shape))
                place += plain.nbytes
    os.close(memory)
    return found


def _write_weights(config: ModelConfig, memory: int, listing: int) -> None:
    """Read a model and write its weights; never returns."""
    status = 1
    try:
        model = load_parts(config)[0]
        layers = adapters.lie_transposed(model, config, FastPaths())
        transposed = {f"{name}.weight" for name in layers}
        plain = {
            name: np.array(array.T if name in transposed else array)
            for name, array in flatten(model.parameters()).items()
        }
        with os.fdopen(os.dup(memory), "wb") as file:
            file.writelines(array.tobytes() for array in plain.values())
        with os.fdopen(listing, "wb") as file:
            listed = [[name, array.dtype.str, array.shape] for name, array in plain.items()]
            file.write(json.dumps(listed).encode())
        status = 0
    finally:
        os._exit(status)


def _work(worker: Worker, settings: Mapping[str, Any], others: list[socket.socket]) -> None:
    """Be a worker until the engine is gone; never returns."""
    status = 1
    try:
        for other in others:
            if other is not worker.engine:
                other.close()
        worker.answer("load", settings, {})
        worker.serve()
    except ClosedError:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
