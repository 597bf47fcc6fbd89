"""Batched decoding of groups, as a generator of progress events."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from grpo_engine.control import Control, StopNow
from grpo_engine.errors import DataError
from grpo_engine.events import Event, RolloutsAdvanced, RunPaused, RunResumed, warning
from grpo_engine.frozen import frozen
from grpo_engine.policy.policy import Policy, Weights
from grpo_engine.rollouts.batches import batch_for
from grpo_engine.rollouts.dialogue import Dialogues, EnvironmentReply
from grpo_engine.rollouts.graph import Caches, GraphBatch, Prefilled
from grpo_engine.rollouts.noise import row_key, token_keys
from grpo_engine.rollouts.row import THINK_END, DecodingRow, GrowingText, decoder
from grpo_engine.rollouts.sampler import Draw, draw
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory

SLOW = (
    "rows are decoded one after another: batching would change this model's results, so "
    "sampling time grows with the number of rows"
)
REPORT_EVERY = 0.08  # seconds between progress events
LEAVING = 0.25  # share of an asynchronous batch that must have ended before rows leave it
JOIN_EVERY = 8  # tokens after which rows may come back from their environments
PATIENCE = 1.0  # seconds for which a slow environment may delay other rows, once per turn
TICK = 0.05  # seconds between checks of the user's requests

Requests = Callable[[], Iterator[Event]]
"""Handles a user's requests between tokens, and may raise `StopNow`."""


@frozen
class SampleRows:
    """The rows of some prompts, and what decides their answers besides the weights.

    `weights` are the sampler's if it lags behind the policy.
    """

    prompts: Sequence[PromptRows]
    sampling: Sampling
    seed: int
    noise_step: int
    dialogues: Dialogues | None = None
    weights: Weights | None = None


def sample_groups(
    policy: Policy,
    prompts: Sequence[PromptRows],
    sampling: Sampling,
    *,
    seed: int,
    step: int,
    event_step: int | None = None,
    requests: Requests = lambda: iter(()),
    weights: Weights | None = None,
    dialogues: Dialogues | None = None,
) -> Generator[Event, None, list[Trajectory]]:
    """Sample all rows, yield `RolloutsAdvanced`, return trajectories in the order of `prompts`.

    `step` is that of the noise, and of the events unless they have another one. `weights` are the
    sampler's if it lags behind the policy.
    """
    rows = make_rows(
        policy,
        SampleRows(
            prompts=prompts, sampling=sampling, seed=seed, noise_step=step, dialogues=dialogues
        ),
    )
    with policy.for_sampling(weights):
        state = _Decoding(
            policy, rows, sampling, dialogues, step if event_step is None else event_step
        )
        if policy.batching == "separate":
            yield warning(state.step, SLOW)
        yield from _decode(state, requests)
    return [row.trajectory(has_environment=dialogues is not None) for row in rows]


def make_rows(policy: Policy, request: SampleRows) -> list[DecodingRow]:
    """One row per completion, each with its noise and its limits."""
    decode, sampling = decoder(policy), request.sampling
    max_context = request.dialogues.max_context if request.dialogues is not None else 0
    rows: list[DecodingRow] = []
    for prompt in request.prompts:
        context = min(max_context or policy.context_length, policy.context_length)
        max_tokens = context - len(prompt.ids)
        if not prompt.ids or max_tokens < 1:
            raise DataError(_does_not_fit(policy, prompt, max_context))
        for index in range(prompt.rows):
            key = row_key(
                seed=request.seed,
                step=request.noise_step,
                prompt=prompt.key,
                attempt=prompt.attempt,
                index=index,
                occurrence=prompt.occurrence,
            )
            rows.append(
                DecodingRow(
                    prompt=prompt,
                    index=index,
                    key=key,
                    max_tokens=max_tokens,
                    limit=min(sampling.max_new_tokens, max_tokens),
                    number=len(rows),
                    max_new_tokens=sampling.max_new_tokens,
                    end_ids=policy.end_ids,
                    growing=GrowingText(decode),
                )
            )
    return rows


def _does_not_fit(policy: Policy, prompt: PromptRows, max_context: int) -> str:
    text = f"the prompt of {prompt.key} has {len(prompt.ids)} tokens, but "
    if 0 < max_context < policy.context_length:
        return f"{text}rollout.max_context is {max_context}; raise it or shorten the prompt"
    return (
        f"{text}the model takes 1 to {policy.context_length - 1}; shorten it or set "
        "task.max_prompt_tokens"
    )


@dataclass(slots=True, eq=False)
class _Absent:
    """A row that waits for its environment."""

    row: DecodingRow
    caches: Caches
    unread: tuple[int, ...]  # a last token that is not in the caches yet
    since: int  # the decode step after which it left
    is_late: bool = False  # the remaining rows no longer wait for it


class _Pending(NamedTuple):
    """The next tokens of the batch's rows, not read yet, and marks of earlier ones."""

    draw: Draw
    seen_BV: mx.array | None  # for the repetition penalty

    def select(self, indices: Sequence[int]) -> "_Pending":
        """The same of some rows."""
        index = mx.array(list(indices))
        selected: _Pending = tree_map(lambda a: None if a is None else a[index], self)
        return selected

    def join(self, new: "_Pending") -> "_Pending":
        """The same with more rows behind these."""
        joined: _Pending = tree_map(
            lambda a, b: None if a is None else mx.concatenate([a, b]), self, new
        )
        return joined


class _Decoding:
    """Rows that wait, the batch of those being decoded, and rows with their environments.

    `active` are the batch's rows, None where one has ended. Their next tokens are `pending`.
    """

    def __init__(
        self,
        policy: Policy,
        rows: list[DecodingRow],
        sampling: Sampling,
        dialogues: Dialogues | None,
        step: int,
    ) -> None:
        self.policy, self.rows, self.sampling = policy, rows, sampling
        self.dialogues, self.step = dialogues, step
        self.batch: GraphBatch = batch_for(policy)
        self.waiting = deque(row for row in rows if not has_failed(dialogues, row))
        self.active: list[DecodingRow | None] = []
        self.pending: _Pending | None = None
        self.prefilled: dict[tuple[int, ...], Prefilled] = {}
        self.max_rows = sampling.max_rows or len(rows)
        self.think_end: list[int] = []
        if sampling.think_budget:
            self.think_end = policy.tokenizer.encode(THINK_END, add_special_tokens=False)
        # The token after a think budget depends on the number of tokens before it.
        self.is_async = self.batch.is_async and not self.think_end
        self.steps = 0
        self.absent: dict[int, _Absent] = {}  # by the row's number
        self.replies: dict[int, EnvironmentReply] = {}
        # Rows to continue, with their caches and the tokens that follow.
        self.returning: deque[tuple[DecodingRow, Caches, tuple[int, ...]]] = deque()
        self.started = self.reported = time.monotonic()

    @property
    def has_work(self) -> bool:
        """Whether a row can be decoded now."""
        return bool(self.waiting or self.active or self.returning)

    @property
    def is_done(self) -> bool:
        return not (self.has_work or self.absent)

    def progress(self) -> RolloutsAdvanced:
        """The progress of the rows since the last report."""
        self.reported = time.monotonic()
        return progress_of(self.rows, self.step, self.reported - self.started)

    def admit(self) -> None:
        """Fill the batch: rows whose environment has replied first, then new ones."""
        free = self.max_rows - len(self.active)
        returning = [self.returning.popleft() for _ in range(min(len(self.returning), free))]
        free -= len(returning)
        fresh = [self.waiting.popleft() for _ in range(min(len(self.waiting), free))]
        if not returning and not fresh:
            return
        prompts = dict.fromkeys(row.prompt.ids for row in fresh)
        missing = [ids for ids in prompts if ids not in self.prefilled]
        self.prefilled |= zip(missing, self.batch.prefill(missing), strict=True)
        prefilled = [self.prefilled[row.prompt.ids] for row in fresh]
        prefilled += self.batch.extend(
            [caches for _, caches, _ in returning], [ids for _, _, ids in returning]
        )
        rows = [*fresh, *(row for row, _, _ in returning)]
        logits_BV = mx.stack([row.logits for row in prefilled])
        pending = self._draw(rows, logits_BV, self._seen_so_far(rows, logits_BV.shape[1]), unread=0)
        self.batch.add(prefilled)
        self.active += rows
        self.pending = pending if self.pending is None else self.pending.join(pending)
        prompts = dict.fromkeys(row.prompt.ids for row in self.waiting)
        self.prefilled = {ids: row for ids, row in self.prefilled.items() if ids in prompts}

    def advance(self) -> None:
        """Read one token of every active row, drop those whose turn has ended, draw the next."""
        pending, queued = self.pending, None
        assert pending is not None
        if self.is_async and any(row is not None and row.may_continue for row in self.active):
            queued = self._next(pending, unread=1)
        self._read(pending.draw)
        self._send_completions(is_run=queued is not None)
        self.steps += 1
        self.active = [None if row is None or row.is_done else row for row in self.active]
        remaining = [index for index, row in enumerate(self.active) if row is not None]
        latest = queued or pending
        if self._leave(len(remaining)):
            remaining = _fill_holes(remaining)
            self.batch.select(remaining)
            self.active = [self.active[index] for index in remaining]
            if remaining:
                latest = latest.select(remaining)
        if queued is None and self.active:
            latest = self._next(latest, unread=0)
        self.pending = latest if self.active else None

    def _leave(self, remaining: int) -> bool:
        """Whether rows that have ended leave the batch now."""
        ended = len(self.active) - remaining
        minimum = len(self.active) * LEAVING if self.is_async and remaining else 0
        return ended > 0 and ended >= minimum

    def _next(self, pending: _Pending, *, unread: int) -> _Pending:
        """Run the pending tokens and draw the next ones; `unread` of a row's are not read yet."""
        tokens, seen_BV = pending.draw.tokens, pending.seen_BV
        if seen_BV is not None:
            seen_BV = mx.put_along_axis(seen_BV, tokens[:, None], mx.array(True), axis=1)
        following = self._draw(self.active, self.batch.step(tokens), seen_BV, unread=unread)
        mx.async_eval(following.draw, [] if seen_BV is None else seen_BV)
        return following

    def _draw(
        self,
        rows: Sequence[DecodingRow | None],
        logits_BV: mx.array,
        seen_BV: mx.array | None,
        *,
        unread: int,
    ) -> _Pending:
        keys = token_keys(
            [0 if row is None else row.key for row in rows],
            [0 if row is None else len(row.ids) + unread for row in rows],
        )
        forced_B = None
        if any(row and row.to_force for row in rows):
            forced_B = mx.array([row.to_force[0] if row and row.to_force else -1 for row in rows])
        result = draw(
            logits_BV,
            self.sampling,
            keys,
            seen_BV=seen_BV,
            forced_B=forced_B,
            kernels=self.policy.kernels,
        )
        return _Pending(result, seen_BV)

    def _read(self, result: Draw) -> None:
        """Wait for the tokens and append them to their rows."""
        mx.eval(result)
        columns: Any = [column.tolist() for column in result]
        for row, token, logprob, raw_logprob in zip(self.active, *columns, strict=True):
            if row is not None:
                row.append(token, logprob, raw_logprob)
                row.settle(self.sampling, self.think_end)

    def expected(self) -> list[_Absent]:
        """The rows to wait for before the next token, for they may join the batch.

        Which ones depends only on the tokens so far and not on the clock, so that a resumed run
        has the same batches: every `JOIN_EVERY` tokens those that left that long ago, and all
        if no other row can go on. Late ones join when their reply has come.
        """
        absent = list(self.absent.values())
        if not self.has_work:
            return absent
        if self.steps % JOIN_EVERY:
            return []
        return [item for item in absent if self.steps - item.since >= JOIN_EVERY]

    def receive(self, seconds: float) -> None:
        """Collect the replies that have come; wait for one at most this long."""
        if self.dialogues is not None:
            self.replies |= dict(self.dialogues.episodes.replies(seconds))

    def join(self, expected: Sequence[_Absent]) -> None:
        """Give the expected rows their replies, in the rows' order; note which are late."""
        for item in sorted(expected, key=lambda item: item.row.number):
            row = item.row
            if row.number not in self.replies:
                item.is_late = True
                continue
            del self.absent[row.number]
            assert self.dialogues is not None
            tokens = add_reply(self.dialogues, row, self.replies.pop(row.number))
            if tokens is None:
                continue
            caches, piece = item.caches, (*item.unread, *tokens)
            # Without new tokens, or after a restart, the whole context gives the logits.
            if not piece or row.contexts[-1:] == [(row.begin - len(tokens), len(tokens))]:
                caches, piece = self.batch.empty(), tuple(row.context)
            self.returning.append((row, caches, piece))

    def _send_completions(self, *, is_run: bool) -> None:
        """Send completions to their environments; `is_run`: the caches hold the last token."""
        if self.dialogues is None:
            return
        ended = {
            index: row
            for index, row in enumerate(self.active)
            if row is not None and row.finish in ("stop", "stop_string")
        }
        for row, caches in zip(ended.values(), self.batch.copies(list(ended)), strict=True):
            unread = () if is_run else (row.ids[-1],)
            self.absent[row.number] = _Absent(row, caches, unread, self.steps)
            submit(self.dialogues, row)

    def _seen_so_far(self, rows: list[DecodingRow], vocabulary: int) -> mx.array | None:
        if self.sampling.repetition_penalty == 1:
            return None
        seen_BV = mx.zeros((len(rows), vocabulary), mx.bool_)
        for index, row in enumerate(rows):
            seen_BV[index, mx.array(sorted(set(row.context)))] = True
        return seen_BV


def progress_of(rows: Sequence[DecodingRow], step: int, seconds: float) -> RolloutsAdvanced:
    """The progress of the rows since the last such event."""
    tokens = sum(row.length for row in rows)
    return RolloutsAdvanced(
        step=step,
        tokens=tokens,
        rows=tuple(row.delta() for row in rows if row.has_grown),
        finished=sum(row.finish is not None for row in rows),
        total=len(rows),
        tokens_per_second=tokens / max(seconds, 1e-9),
    )


def has_failed(dialogues: Dialogues | None, row: DecodingRow) -> bool:
    """Whether the row's environment could not begin, which ends it."""
    if dialogues is None:
        return False
    begun = dialogues.episodes.last(row.number)
    row.limits = begun.limits
    if begun.error:
        row.end("environment_error", begun)
    return bool(begun.error)


def submit(dialogues: Dialogues, row: DecodingRow) -> None:
    """End the row's turn and send it to its environment."""
    completion = row.end_turn()
    if dialogues.read is not None:
        completion = dialogues.read(row.number, row.ids[row.begin :], completion)
    dialogues.episodes.submit(row.number, completion, row.usage)


def add_reply(
    dialogues: Dialogues, row: DecodingRow, reply: EnvironmentReply
) -> tuple[int, ...] | None:
    """Append a reply to its row; return its tokens, None if no turn follows."""
    if reply.error or reply.done or row.turn + 1 >= dialogues.max_turns:
        row.end("environment_error" if reply.error else "stop" if reply.done else "turns", reply)
        return None
    try:
        tokens = dialogues.tokens(row.number, reply)
    except Exception as error:  # A template may raise anything.
        error_text = f"the reply cannot be given to the model: {error}"
        row.end("environment_error", replace(reply, error=error_text))
        return None
    end, left = dialogues.end_token, row.max_tokens - len(row.ids)
    if reply.restarts:
        left += len(row.context)
    elif end is not None and row.ids[-1] != end:
        tokens = (end, *tokens)
    if row.length >= row.limit or len(tokens) >= left:
        row.end("length" if row.length >= row.limit else "context", reply)
        return None
    row.add_reply(reply, tokens)
    return tokens


def _decode(state: _Decoding, requests: Requests) -> Iterator[Event]:
    while not state.is_done:
        before = time.monotonic()
        yield from requests()
        state.started += time.monotonic() - before
        if state.absent:
            yield from _wait_for_environments(state, requests)
        if len(state.active) < state.max_rows:
            state.admit()
        if state.active:
            state.advance()
        if state.is_done or time.monotonic() - state.reported >= REPORT_EVERY:
            yield state.progress()


def _wait_for_environments(state: _Decoding, requests: Requests) -> Iterator[Event]:
    """Before a token: wait for the rows that may join, and let them join.

    While other rows can be decoded, a slow environment delays them for `PATIENCE` once. A wait of
    `REPORT_EVERY` is reported, for no token will.
    """
    expected, has_work = state.expected(), state.has_work
    begun = time.monotonic()
    while missing := [item for item in expected if item.row.number not in state.replies]:
        can_continue = has_work or len(missing) < len(expected)
        left = begun + PATIENCE - time.monotonic()
        if can_continue and (left <= 0 or all(item.is_late for item in missing)):
            break
        state.receive(min(max(left, 0), TICK) if can_continue else TICK)
        if time.monotonic() - begun >= REPORT_EVERY and any(row.has_grown for row in state.rows):
            yield state.progress()
        yield from requests()
    if expected:
        state.receive(0)
        state.join(expected)
    if not has_work and state.dialogues is not None:
        state.dialogues.waited += time.monotonic() - begun


def pause_or_stop(control: Control, step: int) -> Iterator[Event]:
    """Wait while the run is paused; raise `StopNow` to drop the step."""
    if control.paused:
        yield RunPaused(step=step)
        while control.wait_while_paused(0.2):
            pass
        yield RunResumed(step=step)
    if control.stop_now:
        raise StopNow


def _fill_holes(remaining: list[int]) -> list[int]:
    """The order in which remaining rows keep their index and the last ones fill the gaps."""
    unchanged, count = set(remaining), len(remaining)
    last = iter([index for index in remaining if index >= count])
    return [index if index in unchanged else next(last) for index in range(count)]
