"""KV caches of all rows during decoding, in four implementations of one interface.

`RowsBatch` is for models whose caches hold plain keys and values: one block of storage, rows
right-aligned so that each has one start offset, finished rows replaced by the last row.
`CompiledBatch` computes the steps of Llama-like models on it with our own code for the CPU.
`MergedBatch` is for caches that mlx-lm can batch. `SeparateBatch` decodes row by row. Axes: n rows.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from grpo_engine.policy.fast.attention import reads_prompts_once
from grpo_engine.policy.fast.caches import BiasedCache, Layout, PrefixCache
from grpo_engine.policy.fast.decoding import CompiledStep
from grpo_engine.policy.load import TOLERANCE
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import agrees

PREFILL_TOKENS = 2048  # tokens of one prefill forward
GROWTH = 64  # positions by which storage grows
SHARED_FROM = 128  # prompt tokens from which rows of one prompt read the same keys and values


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """Tokens that were run: how many, and their caches in the batch's own format."""

    length: int
    caches: list[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled(Cached):
    """Tokens that were run, and the logits after them [V]."""

    logits: mx.array


class Batch(Protocol):
    """Rows decoded together."""

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run the prompts."""

    def add(self, prompts: Sequence[Prefilled]) -> None:
        """Append one row per entry; a prompt may occur many times."""

    def step(self, tokens: Sequence[int]) -> mx.array:
        """Append one token per row and return the logits after it, [n, V]."""

    def keep(self, places: Sequence[int]) -> None:
        """Drop all rows but these; the new row i is the old row places[i]."""

    def take(self, places: Sequence[int]) -> list[Cached]:
        """Copy the caches of rows that leave the batch, to continue them later."""

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run a piece of tokens on top of each row's caches, which stay as they are."""


def batch_for(policy: Policy) -> Batch:
    """The fastest implementation that reproduces this model's logits; chosen once per policy."""
    if not policy.fast.batched_decode:
        return SeparateBatch(policy)
    if policy.decodes_compiled:
        policy.batching = "compiled"
    elif policy.batching in (None, "compiled"):
        policy.batching = next(
            kind for kind in BUILDS if kind != "compiled" and _serves(kind, policy)
        )
    return BUILDS[policy.batching](policy)


def _serves(kind: str, policy: Policy) -> bool:
    """Decode two prompts of different length and compare the logits with whole forwards."""
    if kind == "separate":
        return True
    prompts = [tuple(7 * i % policy.vocabulary for i in range(1, count)) for count in (6, 4, 6)]
    whole = mx.concatenate([policy.model(mx.array([prompt]))[:, -1] for prompt in prompts])
    try:
        batch = BUILDS[kind](policy)
        batch.add(batch.prefill([prompt[:-2] for prompt in prompts]))
        batch.step([prompt[-2] for prompt in prompts])
        batch.keep([2, 1])
        given = batch.step([prompts[2][-1], prompts[1][-1]])
        return agrees(given, mx.stack([whole[2], whole[1]]), TOLERANCE[policy.dtype])
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError):
        return False  # an unknown kind of model: it uses a slower batch


class _RowsLayout:
    """Position of the rows in the storage of every layer: row i has positions pads[i]:end.

    Rows of one prompt may share its tokens, stored once; they have no pads then.
    """

    def __init__(self) -> None:
        self.pads: list[int] = []
        self.end = 0
        self.shared = 0  # tokens
        self.offset: int | mx.array = 0
        self._masks: dict[int | None, mx.array | None] = {}
        self._bias: mx.array | None = None

    @property
    def start(self) -> int:
        return min(self.pads, default=self.end)

    def settle(self) -> None:
        """Compute what all layers of the next step share."""
        even = len(set(self.pads)) <= 1
        lengths = [self.shared + self.end - pad for pad in self.pads]
        self.offset = lengths[0] if even and lengths else mx.array(lengths, dtype=mx.int32)
        self._masks = {}
        mask = self.mask(None)
        self._bias = None if mask is None else mx.where(mask, 0.0, -mx.inf)

    def bias(self) -> mx.array | None:
        """-inf at positions outside a row, [n, 1, 1, end + 1 - start]."""
        return self._bias

    def mask(self, window: int | None) -> mx.array | None:
        """Positions visible to the next token of each row, [n, 1, 1, end + 1 - start]."""
        if window is not None and self.end + 1 - self.start <= window:
            window = None
        if window not in self._masks:
            self._masks[window] = self._make(window)
        return self._masks[window]

    def _make(self, window: int | None) -> mx.array | None:
        first = self.pads if window is None else [max(p, self.end + 1 - window) for p in self.pads]
        if all(place == self.start for place in first):
            return None
        places = mx.arange(self.start, self.end + 1)
        return (places[None] >= mx.array(first)[:, None])[:, None, None]


class _RowsCache(BiasedCache):
    """One layer's block of storage, [rows, heads, positions, width]."""

    keys: mx.array
    values: mx.array

    def __init__(self, layout: _RowsLayout, window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        del self.offset
        self.layout = layout
        self.window = window
        self.prompt = None

    def __getattr__(self, name: str) -> Any:
        if name == "offset":
            return self.layout.offset
        raise AttributeError(name)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self.with_prompt(*self.append(keys, values))

    def with_prompt(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Rows' own keys and values after a copy of the shared prompt's."""
        if self.prompt is None:
            return keys, values
        before = [mx.repeat(array, keys.shape[0], axis=0) for array in self.prompt]
        return mx.concatenate([before[0], keys], axis=2), mx.concatenate(
            [before[1], values], axis=2
        )

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows, start, end = len(self.layout.pads), self.layout.start, self.layout.end
        self.keys[:rows, :, end : end + 1] = keys
        self.values[:rows, :, end : end + 1] = values
        return self.keys[:rows, :, start : end + 1], self.values[:rows, :, start : end + 1]

    def bias(self) -> mx.array | None:
        return self.layout.bias()

    def make_mask(
        self,
        N: int,  # noqa: ARG002 (always 1 here)
        return_array: bool = False,  # noqa: ARG002 - a cache of mlx-lm has it
        window_size: int | None = None,
    ) -> mx.array | None:
        return self.layout.mask(window_size or self.window)

    def make_room(self, rows: int, left: int, right: int) -> None:
        """Add positions on the left and right, and rows up to `rows`."""
        padding = [(0, max(0, rows - self.keys.shape[0])), (0, 0), (left, right), (0, 0)]
        self.keys, self.values = mx.pad(self.keys, padding), mx.pad(self.values, padding)


class RowsBatch:
    """All rows as one batch in our own storage."""

    def __init__(self, policy: Policy) -> None:
        assert policy.parts is not None
        assert policy.windows is not None
        self.policy = policy
        self.parts = policy.parts
        self.layout = _RowsLayout()
        self.caches = [_RowsCache(self.layout, window) for window in policy.windows]
        self._made = False

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run prompts, in batches of at most `PREFILL_TOKENS` tokens."""
        prefilled: list[Prefilled] = []
        for part in self._portions(prompts):
            prefilled += self._run(part)
        return prefilled

    def _portions(self, prompts: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
        portions: list[list[tuple[int, ...]]] = []
        longest = 0
        for prompt in prompts:
            longest = max(longest, len(prompt))
            full = portions and longest * (len(portions[-1]) + 1) > PREFILL_TOKENS
            if not portions or full or not self.policy.fast.batched_prefill:
                portions.append([])
                longest = len(prompt)
            portions[-1].append(prompt)
        return portions

    def _run(self, prompts: list[tuple[int, ...]]) -> list[Prefilled]:
        width = max(map(len, prompts))
        padded = [prompt + (self.policy.pad_id,) * (width - len(prompt)) for prompt in prompts]
        ids = mx.array(padded, dtype=mx.int32)
        caches = [PrefixCache(cache.window) for cache in self.caches]
        last: list[mx.array | None] = [None] * len(prompts)
        for start in range(0, width, PREFILL_TOKENS):
            states = self.parts.hidden(ids[:, start : start + PREFILL_TOKENS], list(caches))
            for row, prompt in enumerate(prompts):
                place = len(prompt) - 1 - start
                if 0 <= place < states.shape[1]:
                    last[row] = states[row, place]
            mx.eval([cache.keys for cache in caches], [cache.values for cache in caches])
        logits = self.parts.logits(mx.stack([state for state in last if state is not None]))
        mx.eval(logits)
        return [
            Prefilled(len(prompt), [(cache, row) for cache in caches], logits[row])
            for row, prompt in enumerate(prompts)
        ]

    def take(self, places: Sequence[int]) -> list[Cached]:
        taken = []
        for place in places:
            pad, end = self.layout.pads[place], self.layout.end
            caches = []
            for cache in self.caches:
                keys, values = cache.with_prompt(
                    cache.keys[place : place + 1, :, pad:end],
                    cache.values[place : place + 1, :, pad:end],
                )
                kept = mx.contiguous(keys), mx.contiguous(values)
                caches.append(_one_row(*kept, cache.window))
            taken.append(Cached(self.layout.shared + end - pad, [(cache, 0) for cache in caches]))
        # copied at once: a step writes into the storage
        mx.eval([(one.keys, one.values) for row in taken for one, _ in row.caches])
        return taken

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run the pieces, in batches of at most `PREFILL_TOKENS` tokens."""
        extended: list[Prefilled] = []
        for portion in self._portions(pieces):
            start = len(extended)
            extended += self._extend(rows[start : start + len(portion)], portion)
        return extended

    def _extend(self, rows: Sequence[Cached], pieces: list[tuple[int, ...]]) -> list[Prefilled]:
        lengths = tuple(row.length for row in rows)
        layout = Layout(lengths, max(lengths), tuple(range(len(rows))))
        width = max(map(len, pieces))
        padded = [piece + (self.policy.pad_id,) * (width - len(piece)) for piece in pieces]
        caches = [PrefixCache(cache.window, layout) for cache in self.caches]
        for layer, cache in enumerate(caches):
            cache.offset = layout.offset
            cache.keys, cache.values = (
                mx.concatenate([
                    mx.pad(array, [(0, 0), (0, 0), (0, layout.width - array.shape[2]), (0, 0)])
                    for array in column
                ])
                for column in zip(*(_keys_and_values(row, layer) for row in rows), strict=True)
            )  # fmt: skip
        states = self.parts.hidden(mx.array(padded, dtype=mx.int32), list(caches))
        places = [(row, len(piece) - 1) for row, piece in enumerate(pieces)]
        logits = self.parts.logits(mx.stack([states[row, place] for row, place in places]))
        found = [
            Prefilled(
                lengths[row] + len(piece),
                [(_joined(cache, row, lengths[row], len(piece)), 0) for cache in caches],
                logits[row],
            )
            for row, piece in enumerate(pieces)
        ]
        mx.eval(logits, [(one.keys, one.values) for row in found for one, _ in row.caches])
        return found

    def add(self, prompts: Sequence[Prefilled]) -> None:
        """Append rows, with the last token at the common end."""
        if not prompts:
            return
        if not self.layout.pads:
            self.layout.end = 0
            self._made = False
            self._share(prompts)
            if self.layout.shared:
                return
        elif self.layout.shared:
            self._stop_sharing()
        longest = max(prompt.length for prompt in prompts)
        rows, left = len(self.layout.pads), max(0, longest - self.layout.end)
        pieces = [self._piece(prompts, layer, longest) for layer in range(len(self.caches))]
        if not self._made:
            for cache, (keys, values) in zip(self.caches, pieces, strict=True):
                cache.keys, cache.values = (mx.pad(x, [(0, 0), (0, 0), (0, GROWTH), (0, 0)])
                                            for x in (keys, values))  # fmt: skip
            self._made = True
            self.layout.end = longest
        else:
            self.layout.pads = [pad + left for pad in self.layout.pads]
            self.layout.end += left
            end, total = self.layout.end, rows + len(prompts)
            for cache, (keys, values) in zip(self.caches, pieces, strict=True):
                if left or cache.keys.shape[0] < total:
                    cache.make_room(total, left, 0)
                cache.keys[rows:total, :, end - longest : end] = keys
                cache.values[rows:total, :, end - longest : end] = values
        self.layout.pads += [self.layout.end - prompt.length for prompt in prompts]
        mx.eval([cache.keys for cache in self.caches], [cache.values for cache in self.caches])

    def _share(self, prompts: Sequence[Prefilled]) -> None:
        """Begin with rows that read the keys of their prompt once, if it is one and long."""
        first = prompts[0]
        shares = (
            self.policy.fast.shared_decode
            and first.length >= SHARED_FROM
            and len(prompts) > 1
            and all(prompt.caches[0] == first.caches[0] for prompt in prompts)
            and reads_prompts_once(self.policy)
        )
        self.layout.shared = first.length if shares else 0
        for cache, (found, row) in zip(self.caches, first.caches, strict=True):
            cache.prompt = None
            if shares:
                whole = [
                    mx.contiguous(array[row : row + 1]) for array in (found.keys, found.values)
                ]
                shape = (len(prompts), whole[0].shape[1], GROWTH, whole[0].shape[3])
                cache.keys, cache.values = (mx.zeros(shape, array.dtype) for array in whole)
                cache.prompt = (whole[0][:, :, : first.length], whole[1][:, :, : first.length])
        if shares:
            self._made = True
            self.layout.pads = [0] * len(prompts)
            mx.eval([(cache.prompt, cache.keys, cache.values) for cache in self.caches])

    def _stop_sharing(self) -> None:
        """Copy the shared prompt for each row, since others join."""
        rows, end = len(self.layout.pads), self.layout.end
        for cache in self.caches:
            cache.keys, cache.values = cache.with_prompt(
                cache.keys[:rows, :, :end], cache.values[:rows, :, :end]
            )
            cache.prompt = None
            cache.make_room(0, 0, GROWTH)
        self.layout.end += self.layout.shared
        self.layout.shared = 0

    def _piece(
        self, prompts: Sequence[Prefilled], layer: int, longest: int
    ) -> tuple[mx.array, mx.array]:
        """Keys and values of the new rows at one layer, right-aligned, [rows, H, longest, D]."""
        parts: dict[int, tuple[PrefixCache, list[int]]] = {}
        for place, prompt in enumerate(prompts):
            cache = prompt.caches[layer][0]
            parts.setdefault(id(cache), (cache, []))[1].append(place)
        keys: list[mx.array] = []
        values: list[mx.array] = []
        order: list[int] = []
        for cache, places in parts.values():
            rows = mx.array([prompts[place].caches[layer][1] for place in places])
            lengths = [prompts[place].length for place in places]
            for array, out in ((cache.keys, keys), (cache.values, values)):
                assert array is not None
                out.append(_align_right(array[rows], lengths, longest))
            order += places
        if order == sorted(order):
            return mx.concatenate(keys), mx.concatenate(values)
        back = mx.array(sorted(range(len(order)), key=order.__getitem__))
        return mx.concatenate(keys)[back], mx.concatenate(values)[back]

    def step(self, tokens: Sequence[int]) -> mx.array:
        if self.caches[0].keys.shape[2] <= self.layout.end:
            self._make_room()
        self.layout.settle()
        ids = mx.array(list(tokens), dtype=mx.int32)[:, None]
        states = self.parts.hidden(ids, list(self.caches))
        self.layout.end += 1
        return self.parts.logits(states[:, 0])

    def _make_room(self) -> None:
        """Free positions that no row uses, or add new ones."""
        spare = self.layout.start
        for cache in self.caches:
            if spare >= GROWTH // 4:
                cache.keys, cache.values = cache.keys[:, :, spare:], cache.values[:, :, spare:]
            cache.make_room(0, 0, GROWTH)
        if spare >= GROWTH // 4:
            self.layout.pads = [pad - spare for pad in self.layout.pads]
            self.layout.end -= spare

    def keep(self, places: Sequence[int]) -> None:
        """Drop rows, moving the remaining ones as little as possible."""
        moves = [(to, place) for to, place in enumerate(places) if to != place]
        self.layout.pads = [self.layout.pads[place] for place in places]
        for cache in self.caches:
            if len(moves) > len(places) // 2:
                order = mx.array(list(places), dtype=mx.int32)
                cache.keys, cache.values = cache.keys[order], cache.values[order]
                continue
            for to, place in moves:
                cache.keys[to] = cache.keys[place]
                cache.values[to] = cache.values[place]


class CompiledBatch(RowsBatch):
    """`RowsBatch` whose steps are compiled code; it writes into the storage that MLX reads."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._code = CompiledStep(policy)
        self._storage: list[tuple[np.ndarray, ...]] = []

    def add(self, prompts: Sequence[Prefilled]) -> None:
        super().add(prompts)
        self._take_storage()

    def step(self, tokens: Sequence[int]) -> mx.array:
        if self.caches[0].keys.shape[2] <= self.layout.end:
            self._make_room()
            self._take_storage()
        logits = self._code.logits(tokens, self.layout.pads, self.layout.end)
        self.layout.end += 1
        return mx.array(logits)

    def keep(self, places: Sequence[int]) -> None:
        moves = [(to, place) for to, place in enumerate(places) if to != place]
        self.layout.pads = [self.layout.pads[place] for place in places]
        to, place = [to for to, _ in moves], [place for _, place in moves]
        for keys, values, *_ in self._storage:
            keys[to], values[to] = keys[place], values[place]

    def _take_storage(self) -> None:
        """Write into the storage from now on; it was just copied, so no other array is in it."""
        self._storage = []
        for cache in self.caches:
            cache.keys, cache.values = (
                mx.contiguous(array) for array in (cache.keys, cache.values)
            )
            shared = [np.ascontiguousarray(array) for array in cache.prompt or ()]
            self._storage.append((np.asarray(cache.keys), np.asarray(cache.values), *shared))
        self._code.use(self._storage)


def _one_row(keys: mx.array, values: mx.array, window: int | None) -> PrefixCache:
    cache = PrefixCache(window)
    cache.take(keys, values)
    return cache


def _keys_and_values(row: Cached, layer: int) -> tuple[mx.array, mx.array]:
    """One row's keys and values at a layer, [1, H, length, D] each."""
    cache, place = row.caches[layer]
    rows = slice(place, place + 1)
    return cache.keys[rows, :, : row.length], cache.values[rows, :, : row.length]


def _joined(cache: PrefixCache, row: int, before: int, new: int) -> PrefixCache:
    """One row of a padded cache without its padding."""
    assert cache.layout is not None
    assert cache.keys is not None
    assert cache.values is not None
    width = cache.layout.width
    keys, values = (
        mx.concatenate(
            [array[row : row + 1, :, :before], array[row : row + 1, :, width : width + new]], axis=2
        )
        for array in (cache.keys, cache.values)
    )
    return _one_row(keys, values, cache.window)


def _align_right(array: mx.array, lengths: list[int], width: int) -> mx.array:
    """Move each row's first `length` positions to the end of `width` positions."""
    if len(set(lengths)) == 1:
        cut = array[:, :, : lengths[0]]
        return mx.pad(cut, [(0, 0), (0, 0), (width - lengths[0], 0), (0, 0)])
    shifts = mx.array([width - length for length in lengths], dtype=mx.int32)[:, None]
    source = mx.clip(mx.arange(width)[None] - shifts, 0, array.shape[2] - 1)
    return mx.take_along_axis(array, source[:, None, :, None], axis=2)


class MergedBatch:
    """All rows as one batch over mlx-lm's own batch caches."""

    def __init__(self, policy: Policy) -> None:
        self.model = policy.model
        self.caches: list[Any] | None = None

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        return [_prefill_alone(self.model, prompt) for prompt in prompts]

    def add(self, prompts: Sequence[Prefilled]) -> None:
        """Merge the new rows' caches and append them to the existing ones."""
        merged = [
            type(layer[0]).merge(list(layer))
            for layer in zip(*(prompt.caches for prompt in prompts), strict=True)
        ]
        if self.caches is None:
            self.caches = merged
        else:
            for cache, new in zip(self.caches, merged, strict=True):
                cache.extend(new)

    def step(self, tokens: Sequence[int]) -> mx.array:
        logits: mx.array = self.model(mx.array(list(tokens))[:, None], cache=self.caches)[:, -1]
        return logits

    def keep(self, places: Sequence[int]) -> None:
        if not places:
            self.caches = None
            return
        for cache in self.caches or []:
            cache.filter(mx.array(list(places)))

    def take(self, places: Sequence[int]) -> list[Cached]:
        caches = self.caches or []
        return [Cached(0, [cache.extract(place) for cache in caches]) for place in places]

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        return [_extend_alone(self.model, *pair) for pair in zip(rows, pieces, strict=True)]


class SeparateBatch:
    """Each row with its own caches, run one after another."""

    def __init__(self, policy: Policy) -> None:
        self.model = policy.model
        self.rows: list[list[Any]] = []

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        return [_prefill_alone(self.model, prompt) for prompt in prompts]

    def add(self, prompts: Sequence[Prefilled]) -> None:
        """Give each row a copy of its prompt's caches."""
        self.rows += [copy.deepcopy(prompt.caches) for prompt in prompts]

    def step(self, tokens: Sequence[int]) -> mx.array:
        """Run each row's token."""
        return mx.concatenate([
            self.model(mx.array([[token]]), cache=caches)[:, -1]
            for token, caches in zip(tokens, self.rows, strict=True)
        ])  # fmt: skip

    def keep(self, places: Sequence[int]) -> None:
        self.rows = [self.rows[place] for place in places]

    def take(self, places: Sequence[int]) -> list[Cached]:
        return [Cached(0, self.rows[place]) for place in places]

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        return [_extend_alone(self.model, *pair) for pair in zip(rows, pieces, strict=True)]


def _extend_alone(model: Any, row: Cached, piece: tuple[int, ...]) -> Prefilled:
    caches = copy.deepcopy(row.caches)
    logits = model(mx.array([piece]), cache=caches)[0, -1]
    mx.eval(logits, [cache.state for cache in caches])
    return Prefilled(row.length + len(piece), caches, logits)


def _prefill_alone(model: Any, prompt: tuple[int, ...]) -> Prefilled:
    caches = make_prompt_cache(model)
    logits = model(mx.array([prompt]), cache=caches)[0, -1]
    mx.eval(logits, [cache.state for cache in caches])
    return Prefilled(len(prompt), caches, logits)


BUILDS: Final[dict[str, Callable[[Policy], Batch]]] = {
    "compiled": CompiledBatch,
    "rows": RowsBatch,
    "merged": MergedBatch,
    "separate": SeparateBatch,
}
