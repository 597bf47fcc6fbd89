"""One run on several machines: ranks split the work and agree on every number.

Each rank samples, scores and differentiates its share. The results are summed or gathered, so that
every rank holds the same groups, denominators and gradients and makes the same decisions. Messages
use MLX's distributed back ends. A process that `mlx.launch` did not start is the only rank.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from grpo_engine.platform.threads import launched_rank
from grpo_engine.policy.trees import flatten, nest

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's rank among those of the run; the only one if `group` is None."""

    group: Any = None

    @classmethod
    def join(cls) -> "Ranks":
        """Connect to the other ranks, if a launcher started this process as one of several."""
        if launched_rank() is None:
            return cls()
        group = mx.distributed.init()
        return cls(group) if group.size() > 1 else cls()

    @property
    def rank(self) -> int:
        return int(self.group.rank()) if self.group else 0

    @property
    def size(self) -> int:
        return int(self.group.size()) if self.group else 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which records the run and decides for all ranks."""
        return self.rank == 0

    def assigned(self, items: Sequence[Item]) -> list[tuple[int, Item]]:
        """This rank's items with their places: every `size`-th, so that long ones are spread."""
        return list(enumerate(items))[self.rank :: self.size]

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in rank order."""
        if not self.group:
            return [value]
        data = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        sizes = self._all_gather(np.array([len(data)], dtype=np.int32))
        padded = np.zeros(int(sizes.max()), dtype=np.uint8)
        padded[: len(data)] = data
        whole = self._all_gather(padded).reshape(self.size, -1)
        return [json.loads(row[:size].tobytes()) for row, size in zip(whole, sizes, strict=True)]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value on every rank."""
        return self.gather(value if self.leads else None)[0] if self.group else value

    def gather_by_place(self, items: Iterable[tuple[int, Any]], count: int) -> list[Any]:
        """JSON values in the order of their places, each computed by one rank."""
        values: list[Any] = [None] * count
        for part in self.gather([[place, value] for place, value in items]):
            for place, value in part:
                values[place] = value
        return values

    def sum(self, tree: Any) -> Any:
        """Sum every array of a tree over all ranks, in one message per number format."""
        if not self.group:
            return tree
        flat = flatten(tree)
        kinds: dict[Any, list[str]] = {}
        for name, value in flat.items():
            kinds.setdefault(value.dtype, []).append(name)
        summed: dict[str, mx.array] = {}
        for names in kinds.values():
            ends = np.cumsum([flat[name].size for name in names])[:-1].tolist()
            whole = self._all_sum(mx.concatenate([flat[name].reshape(-1) for name in names]))
            for name, part in zip(names, mx.split(whole, ends), strict=True):
                summed[name] = part.reshape(flat[name].shape)
        mx.eval(summed)
        return nest(summed)

    def sum_array(self, value: mx.array) -> mx.array:
        if not self.group:
            return value
        total = self._all_sum(value)
        mx.eval(total)
        return total

    def broadcast_arrays(self, arrays: Mapping[str, mx.array] | None) -> dict[str, mx.array]:
        if not self.group:
            return dict(arrays or {})
        local = arrays or {}
        kinds = {n: [list(a.shape), str(a.dtype).rpartition(".")[2]] for n, a in local.items()}
        everywhere: dict[str, mx.array] = {}
        for name, (shape, dtype) in self.broadcast(kinds).items():
            value = local[name] if self.leads else mx.zeros(shape, getattr(mx, dtype))
            everywhere[name] = self.sum_array(value) if value.size else value
        return everywhere

    def _stream(self) -> Any:
        """The stream of the back end: the CPU's for sockets and Thunderbolt, the GPU's for NCCL."""
        return None if "NCCL_HOST_IP" in os.environ else mx.cpu

    def _all_sum(self, value: mx.array) -> mx.array:
        total: mx.array = mx.distributed.all_sum(value, group=self.group, stream=self._stream())
        return total

    def _all_gather(self, value: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        gathered = mx.distributed.all_gather(
            mx.array(value), group=self.group, stream=self._stream()
        )
        mx.eval(gathered)
        return np.array(gathered)
