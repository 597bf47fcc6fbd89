"""Batched decoding of groups, as a generator of progress events."""

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence

import mlx.core as mx
import numpy as np

from grpo_engine.control import Control, StopNow
from grpo_engine.errors import DataError
from grpo_engine.events import Event, NoteWritten, RolloutsAdvanced, RunPaused, RunResumed
from grpo_engine.policy.policy import Policy, Weights
from grpo_engine.rollouts.batches import Batch, Prefilled, batch_for
from grpo_engine.rollouts.noise import row_key, token_keys
from grpo_engine.rollouts.row import THINK_END, GrowingText, Row, decoder
from grpo_engine.rollouts.sampler import draw
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling

SLOW = (
    "rows are decoded one after another: batching would change this model's results, so "
    "sampling time grows with the number of rows"
)
REPORT_EVERY = 0.08  # seconds between progress events


def sample_groups(
    policy: Policy,
    prompts: Sequence[PromptRows],
    sampling: Sampling,
    *,
    seed: int,
    step: int,
    control: Control | None = None,
    weights: Weights | None = None,
) -> Generator[Event, None, list[Rollout]]:
    """Sample all rows, yield `RolloutsAdvanced`, return the rollouts in the order of `prompts`.

    A pause yields `RunPaused` and `RunResumed`; `control.stop_now` raises `StopNow`. `weights`
    are the sampler's if it lags behind the policy.
    """
    rows = make_rows(policy, prompts, sampling, seed=seed, step=step)
    with policy.for_sampling(weights):
        batch = batch_for(policy)
        if policy.fast.batched_decode and policy.batching == "separate":
            yield NoteWritten(step=step, text=SLOW, severity="warning")
        state = _Decoding(policy, rows, sampling, batch)
        yield from _decode(state, step=step, control=control)
    decode = decoder(policy)
    return [row.rollout(decode, policy.end_ids) for row in rows]


def make_rows(
    policy: Policy, prompts: Sequence[PromptRows], sampling: Sampling, *, seed: int, step: int
) -> list[Row]:
    """One row per answer, each with its noise and its length limit."""
    decode = decoder(policy)
    rows = []
    for prompt in prompts:
        limit = min(sampling.max_new_tokens, policy.context_length - len(prompt.ids))
        if not prompt.ids or limit < 1:
            raise DataError(
                f"the prompt of {prompt.key} has {len(prompt.ids)} tokens, but the model takes 1 "
                f"to {policy.context_length - 1}; shorten it or set task.max_prompt_tokens"
            )
        for index in range(prompt.first_index, prompt.first_index + prompt.rows):
            key = row_key(
                seed=seed, step=step, prompt=prompt.key, attempt=prompt.attempt, index=index,
                occurrence=prompt.occurrence,
            )  # fmt: skip
            rows.append(
                Row(prompt=prompt, index=index, key=key, limit=limit, text=GrowingText(decode))
            )
    return rows


class _Decoding:
    """Waiting rows, active rows, and the batch of the active ones."""

    def __init__(self, policy: Policy, rows: list[Row], sampling: Sampling, batch: Batch) -> None:
        self.policy = policy
        self.sampling = sampling
        self.rows = rows
        self.waiting = deque(rows)
        self.active: list[Row] = []
        self.batch = batch
        self.prefilled: dict[tuple[int, ...], Prefilled] = {}
        self.max_rows = sampling.max_rows or len(rows)
        self.think_end = _think_end(policy) if sampling.think_budget else []
        self.seen: mx.array | None = None

    def admit(self) -> None:
        """Fill free places with waiting rows: run their prompts, draw their first tokens."""
        rows = [
            self.waiting.popleft()
            for _ in range(min(len(self.waiting), self.max_rows - len(self.active)))
        ]
        if not rows:
            return
        new = dict.fromkeys(row.prompt.ids for row in rows)
        missing = [ids for ids in new if ids not in self.prefilled]
        self.prefilled |= zip(missing, self.batch.prefill(missing), strict=True)
        chosen = [self.prefilled[row.prompt.ids] for row in rows]
        seen = self._seen_in_prompts(rows)
        self._draw(rows, mx.stack([prompt.logits for prompt in chosen]), seen)
        stay = [i for i, row in enumerate(rows) if row.finish is None]
        if stay:
            self.batch.add([chosen[i] for i in stay])
            self.active += [rows[i] for i in stay]
            self._join_seen(rows, stay, seen)
        ahead = {row.prompt.ids for row in self.waiting}
        self.prefilled = {ids: kept for ids, kept in self.prefilled.items() if ids in ahead}

    def advance(self) -> None:
        """Draw one token for every active row and drop finished rows."""
        logits = self.batch.step([row.ids[-1] for row in self.active])
        self._draw(self.active, logits, self._mark_seen())
        stay = [i for i, row in enumerate(self.active) if row.finish is None]
        if len(stay) < len(self.active):
            stay = _fill_holes(stay)
            self.batch.keep(stay)
            self.active = [self.active[i] for i in stay]
            if self.seen is not None and stay:
                self.seen = self.seen[mx.array(stay)]

    def _draw(self, rows: list[Row], logits: mx.array, seen: mx.array | None) -> None:
        keys = token_keys([row.key for row in rows], [len(row.ids) for row in rows])
        forced = None
        if any(row.to_force for row in rows):
            forced = mx.array([row.next_forced for row in rows], dtype=mx.int32)
        drawn = draw(logits, self.sampling, keys, seen=seen, forced=forced)
        mx.eval(drawn, seen if seen is not None else [])  # the only synchronisation of a step
        tokens, logprobs, raws = (np.array(column) for column in drawn)
        for place, row in enumerate(rows):
            row.take(int(tokens[place]), float(logprobs[place]), float(raws[place]))
            row.settle(self.sampling, self.policy.end_ids, self.think_end)

    def _seen_in_prompts(self, rows: list[Row]) -> mx.array | None:
        if self.sampling.repetition_penalty == 1:
            return None
        marks = mx.zeros((len(rows), self.prefilled[rows[0].prompt.ids].logits.shape[0]), mx.bool_)
        for place, row in enumerate(rows):
            marks[place, mx.array(sorted(set(row.prompt.ids)))] = True
        return marks

    def _join_seen(self, rows: list[Row], stay: list[int], seen: mx.array | None) -> None:
        if seen is not None and rows:
            new = seen[mx.array(stay)]
            self.seen = new if self.seen is None else mx.concatenate([self.seen, new])

    def _mark_seen(self) -> mx.array | None:
        if self.seen is not None:
            last = mx.array([[row.ids[-1]] for row in self.active])
            self.seen = mx.put_along_axis(self.seen, last, mx.array(True), axis=1)
        return self.seen


def _decode(state: _Decoding, *, step: int, control: Control | None) -> Iterator[Event]:
    started = reported = time.monotonic()
    while state.waiting or state.active:
        if control is not None:
            paused = time.monotonic()
            yield from pause_or_stop(control, step)
            started += time.monotonic() - paused
        if len(state.active) < state.max_rows:
            state.admit()
        if state.active:
            state.advance()
        done = not state.waiting and not state.active
        # the receiver of the event writes a requested checkpoint
        requested = control is not None and control.wants_checkpoint
        if done or requested or time.monotonic() - reported >= REPORT_EVERY:
            reported = time.monotonic()
            yield _progress(state.rows, state.policy, step, reported - started)


def pause_or_stop(control: Control, step: int) -> Iterator[Event]:
    """Wait while the run is paused; raise `StopNow` to drop the step."""
    if control.stop_now:
        raise StopNow
    if not control.paused:
        return
    yield RunPaused(step=step)
    while control.wait_while_paused(0.5):
        pass
    if control.stop_now:
        raise StopNow
    yield RunResumed(step=step)


def _progress(rows: list[Row], policy: Policy, step: int, seconds: float) -> RolloutsAdvanced:
    grown = [row for row in rows if len(row.ids) > row.reported]
    tokens = sum(len(row.ids) for row in rows)
    return RolloutsAdvanced(
        step=step, rows=tuple(row.delta(policy.end_ids) for row in grown), tokens=tokens,
        finished=sum(row.finish is not None for row in rows), total=len(rows),
        tokens_per_second=tokens / max(seconds, 1e-9),
    )  # fmt: skip


def _fill_holes(stay: list[int]) -> list[int]:
    """An order in which remaining rows keep their places and the last ones fill the gaps."""
    order = [place for place in stay if place < len(stay)]
    holes = sorted(set(range(len(stay))) - set(order))
    late = [place for place in stay if place >= len(stay)]
    by_place = dict(zip(order, order, strict=True)) | dict(zip(holes, late, strict=True))
    return [by_place[place] for place in range(len(stay))]


def _think_end(policy: Policy) -> list[int]:
    ids: list[int] = policy.tokenizer.encode(THINK_END, add_special_tokens=False)
    return ids
