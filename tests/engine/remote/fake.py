"""A service in this process: its weights are a policy of ours, and it replays a local run's tokens.

It is an independent way to the same numbers: logits of whole sequences, its own loss and scale.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.optimizers import AdamW
from mlx.utils import tree_map

from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten
from grpo_engine.remote.protocol import (
    Adam,
    Capabilities,
    Prompt,
    Row,
    Sample,
    Scale,
    ServiceRefusedError,
)
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from tests.engine.policy.helpers import drain


@dataclass
class Recorded:
    """The answers of a local run, in the order in which they were sampled."""

    rollouts: list[Trajectory] = field(default_factory=list)
    used: set[tuple[int, int]] = field(default_factory=set)  # rollout and first token
    step: int = 0  # the run's; what it samples at step 0 is not recorded

    def next(self, ids: tuple[int, ...], most: int) -> Sample | None:
        """The next recorded turn after these ids."""
        for number, rollout in enumerate(self.rollouts if self.step else ()):
            whole = rollout.prompt_ids + rollout.ids
            before = len(rollout.prompt_ids)
            starts = [0, *(before + at for at, _ in rollout.contexts)]
            for start in starts:
                begin = start + len(ids) - before
                if (number, begin) in self.used or whole[start : start + len(ids)] != ids:
                    continue
                end = turn_end(rollout, begin)
                if not begin < end:
                    continue
                self.used.add((number, begin))
                return Sample(
                    ids=rollout.ids[begin:end],
                    logprobs=rollout.logprobs[begin:end],
                    is_cut=end - begin == most,
                )
        return None


def turn_end(rollout: Trajectory, begin: int) -> int:
    """Where the model's turn that begins there ends; 0 if none begins there."""
    if not rollout.spans:
        return len(rollout.ids) if begin == 0 else 0
    turns = [(s.start, s.start + s.length) for s in rollout.spans if s.kind == "model"]
    return dict(turns).get(begin, 0)


class FakeService:
    """A server of the Tinker API; `fail` raises what a call shall fail with."""

    def __init__(self, policy: Policy, recorded: Recorded, scale: Scale = "mean per row") -> None:
        self.capabilities = Capabilities(
            models=("model",), context=0, scale=scale, ignores=(), sdk="0", server="a fake"
        )
        self.policy, self.recorded = policy, recorded
        self.initial = policy.snapshot()
        self.states: dict[str, tuple[dict[str, mx.array], Any]] = {}
        self.calls: list[str] = []
        self.fail: Callable[[str], Exception | None] = lambda _: None
        self.lose: Callable[[str], Exception | None] = lambda _: None  # after it was done
        self.is_open = True
        self._begin()

    def _begin(self) -> None:
        self.policy.load_trainable(self.initial)
        self.optimizer: Any = None
        self.state: Any = None
        self.gradient: Any = None
        self.rows = 0

    def _done(self, name: str, work: Callable[[], Any]) -> Future[Any]:
        self.calls.append(name)
        future: Future[Any] = Future()
        error, result = self.fail(name), None
        if error is None:
            try:
                result = work()
            except Exception as raised:
                error = raised
        if error := error or self.lose(name):
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def begin(self) -> Future[None]:
        return self._done("begin", self._begin)

    def sample(self, prompt: Prompt) -> Future[list[Sample]]:
        def work() -> list[Sample]:
            samples = [self.recorded.next(prompt.ids, prompt.max_tokens)]
            if samples[0] is None:
                return self._fresh(prompt)
            samples += [
                self.recorded.next(prompt.ids, prompt.max_tokens) for _ in range(prompt.count - 1)
            ]
            return [sample for sample in samples if sample is not None]

        return self._done("sample", work)

    def _fresh(self, prompt: Prompt) -> list[Sample]:
        rows = [PromptRows(key="fresh", group=0, ids=prompt.ids, rows=prompt.count)]
        sampling = Sampling(
            max_new_tokens=prompt.max_tokens, temperature=max(prompt.temperature, 0.0)
        )
        rollouts = drain(sample_groups(self.policy, rows, sampling, seed=prompt.seed, step=0))[1]
        return [
            Sample(ids=r.ids, logprobs=r.raw_logprobs, is_cut=r.finish != "stop") for r in rollouts
        ]

    def _logprobs(self, ids: Sequence[int], targets: Sequence[int]) -> mx.array:
        logits = self.policy.model(mx.array([list(ids)]))[0].astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return mx.take_along_axis(logprobs, mx.array(list(targets))[:, None], axis=-1)[:, 0]

    def logprobs(
        self, sequences: Sequence[tuple[int, ...]], *, base: bool = False
    ) -> Future[list[tuple[float, ...]]]:
        def work() -> list[tuple[float, ...]]:
            with self.policy.using(self.initial if base else None):
                return [floats(self._logprobs(i[:-1], i[1:])) for i in sequences]

        return self._done("logprobs of the base" if base else "logprobs", work)

    def accumulate(self, rows: Sequence[Row]) -> Future[list[tuple[float, ...]]]:
        def loss(row: Row) -> tuple[mx.array, mx.array]:
            logprobs = self._logprobs(row.ids, row.targets)
            ratio = mx.exp(logprobs - mx.array(row.logprobs))
            terms = -ratio * mx.array(row.advantages) * mx.array(row.weights)
            if self.capabilities.scale == "mean per row":
                return terms.sum() / sum(row.weights), logprobs
            return terms.sum(), logprobs

        def work() -> list[tuple[float, ...]]:
            results = []
            for row in rows:
                (_, logprobs), gradient = nn.value_and_grad(self.policy.module, loss)(row)
                flat = flatten(gradient["model"])
                self.gradient = (
                    flat
                    if self.gradient is None
                    else {name: self.gradient[name] + flat[name] for name in flat}
                )
                mx.eval(self.gradient)
                results.append(floats(logprobs))
            self.rows += len(rows)
            return results

        return self._done("accumulate", work)

    def step(self, adam: Adam) -> Future[float | None]:
        def work() -> float:
            divisor = self.rows if self.capabilities.scale == "mean per row" else 1
            gradient = {name: value / divisor for name, value in self.gradient.items()}
            squares = sum(float(mx.square(value).sum()) for value in gradient.values())
            norm = math.sqrt(squares)
            if adam.max_grad_norm:
                factor = min(1.0, adam.max_grad_norm / (norm + 1e-6))
                gradient = {name: value * factor for name, value in gradient.items()}
            if self.optimizer is None:
                self.optimizer = AdamW(
                    adam.learning_rate,
                    betas=list(adam.betas),
                    eps=adam.eps,
                    weight_decay=adam.weight_decay,
                    bias_correction=True,
                )
            self.optimizer.learning_rate = adam.learning_rate
            weights = self.policy.snapshot()
            if self.state is not None:
                self.optimizer.state, self.state = self.state, None
                self.optimizer._initialized = True
            self.policy.load_trainable(self.optimizer.apply_gradients(gradient, weights))
            mx.eval(self.policy.snapshot(), self.optimizer.state)
            self.gradient, self.rows = None, 0
            return norm

        return self._done("step", work)

    def sync(self) -> Future[None]:
        return self._done("sync", lambda: None)

    def save(self, name: str) -> Future[str]:
        def work() -> str:
            path = f"tinker://model/weights/{name}"
            state = None if self.optimizer is None else tree_map(lambda a: a, self.optimizer.state)
            self.states[path] = self.policy.snapshot(), state
            return path

        return self._done("save", work)

    def restore(self, path: str) -> Future[None]:
        def work() -> None:
            if path not in self.states:
                raise ServiceRefusedError(f"there is no {path}.")
            self._begin()
            weights, state = self.states[path]
            self.state = tree_map(lambda a: a, state)
            self.policy.load_trainable(weights)

        return self._done("restore", work)

    def download(self, path: str, folder: Path) -> Future[None]:
        def work() -> None:
            write_peft(self.states[path][0], self.policy.adapter, folder)

        return self._done("download", work)

    def delete(self, path: str) -> Future[None]:
        return self._done("delete", lambda: self.states.pop(path))

    def close(self) -> None:
        self.is_open = False


def floats(values: mx.array) -> tuple[float, ...]:
    return tuple(map(float, np.array(values)))


def write_peft(weights: Mapping[str, mx.array], adapter: Mapping[str, Any], folder: Path) -> None:
    """Our adapter as PEFT writes it."""
    rank, scale = (adapter["lora_parameters"][name] for name in ("rank", "scale"))
    arrays = {}
    for name, array in weights.items():
        module, _, kind = name.rpartition(".lora_")
        arrays[f"base_model.model.{module}.lora_{kind.upper()}.weight"] = mx.contiguous(array.T)
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), arrays)
    config = {"r": rank, "lora_alpha": scale * rank, "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
