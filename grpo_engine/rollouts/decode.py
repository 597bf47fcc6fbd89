"""Batched decoding of groups, as a generator of progress events."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from grpo_engine.control import Control, StopNow
from grpo_engine.errors import DataError
from grpo_engine.events import Event, NoteWritten, RolloutsAdvanced, RunPaused, RunResumed
from grpo_engine.policy.policy import Policy, Weights
from grpo_engine.rollouts.batch import Batch, Cached, Prefilled
from grpo_engine.rollouts.batches import batch_for
from grpo_engine.rollouts.dialogue import Dialogues, EnvironmentReply
from grpo_engine.rollouts.noise import row_key, token_keys
from grpo_engine.rollouts.row import THINK_END, Row, decoder
from grpo_engine.rollouts.sampler import Drawn, draw
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling

SLOW = (
    "rows are decoded one after another: batching would change this model's results, so "
    "sampling time grows with the number of rows"
)
REPORT_EVERY = 0.08  # seconds between progress events
LEAVING = 0.25  # of a batch that runs ahead, from which those that have ended leave it
JOIN_EVERY = 8  # tokens between the moments at which rows come back from their environments
PATIENCE = 1.0  # seconds for which a slow environment may hold up other rows, once per turn
TICK = 0.05  # seconds between looks at the user's requests


def sample_groups(
    policy: Policy,
    prompts: Sequence[PromptRows],
    sampling: Sampling,
    *,
    seed: int,
    step: int,
    control: Control | None = None,
    weights: Weights | None = None,
    dialogues: Dialogues | None = None,
) -> Generator[Event, None, list[Rollout]]:
    """Sample all rows, yield `RolloutsAdvanced`, return the rollouts in the order of `prompts`.

    A pause yields `RunPaused` and `RunResumed`; `control.stop_now` raises `StopNow`. `weights`
    are the sampler's if it lags behind the policy.
    """
    most = dialogues.max_context if dialogues is not None else 0
    rows = make_rows(policy, prompts, sampling, seed=seed, step=step, max_context=most)
    with policy.for_sampling(weights):
        batch = batch_for(policy)
        if policy.batching == "separate":
            yield NoteWritten(step=step, text=SLOW, severity="warning")
        state = _Decoding(policy, rows, sampling, batch, dialogues)
        yield from _decode(state, step=step, control=control)
    return [row.rollout(policy.end_ids, has_environment=dialogues is not None) for row in rows]


def make_rows(
    policy: Policy,
    prompts: Sequence[PromptRows],
    sampling: Sampling,
    *,
    seed: int,
    step: int,
    max_context: int = 0,
) -> list[Row]:
    """One row per answer, each with its noise and its limits."""
    decode = decoder(policy)
    rows: list[Row] = []
    for prompt in prompts:
        room = (max_context or policy.context_length) - len(prompt.ids)
        room = min(room, policy.context_length - len(prompt.ids))
        if not prompt.ids or room < 1:
            raise DataError(_does_not_fit(policy, prompt, max_context))
        for index in range(prompt.rows):
            key = row_key(
                seed=seed, step=step, prompt=prompt.key, attempt=prompt.attempt, index=index,
                occurrence=prompt.occurrence,
            )  # fmt: skip
            rows.append(
                Row(
                    prompt=prompt, index=index, key=key, limit=min(sampling.max_new_tokens, room),
                    room=room, decode=decode, place=len(rows),
                )
            )  # fmt: skip
    return rows


def _does_not_fit(policy: Policy, prompt: PromptRows, max_context: int) -> str:
    said = f"the prompt of {prompt.key} has {len(prompt.ids)} tokens, but "
    if 0 < max_context < policy.context_length:
        return f"{said}rollout.max_context is {max_context}; raise it or shorten the prompt"
    return (
        f"{said}the model takes 1 to {policy.context_length - 1}; shorten it or set "
        "task.max_prompt_tokens"
    )


@dataclass(slots=True, eq=False)
class _Asked:
    """A row whose environment answers."""

    row: Row
    cached: Cached
    unread: tuple[int, ...]  # its last token, if that is not in the caches
    since: int  # the decode step after which it left
    is_late: bool = False  # others did not wait for it any longer


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """Tokens that were drawn for the rows of the batch, but not read; and marks of earlier ones."""

    drawn: Drawn
    seen: mx.array | None  # [n, V], for the repetition penalty

    def keep(self, indices: Sequence[int]) -> "_Pending":
        """Those of some rows."""
        chosen = mx.array(list(indices))
        seen = None if self.seen is None else self.seen[chosen]
        return _Pending(Drawn(*(column[chosen] for column in self.drawn)), seen)

    def join(self, new: "_Pending") -> "_Pending":
        """Those of more rows behind these."""
        pairs = zip(self.drawn, new.drawn, strict=True)
        seen = None
        if self.seen is not None and new.seen is not None:
            seen = mx.concatenate([self.seen, new.seen])
        return _Pending(Drawn(*(mx.concatenate(list(pair)) for pair in pairs)), seen)


class _Decoding:
    """Waiting rows, the batch of those being decoded, and rows with their environments.

    `active` are the batch's rows, None where one has ended. Their next tokens are `pending`.
    """

    def __init__(
        self,
        policy: Policy,
        rows: list[Row],
        sampling: Sampling,
        batch: Batch,
        dialogues: Dialogues | None = None,
    ) -> None:
        self.policy = policy
        self.sampling = sampling
        self.rows = rows
        self.batch = batch
        self.dialogues = dialogues
        self.waiting = deque(row for row in rows if not self._has_failed(row))
        self.active: list[Row | None] = []
        self.pending: _Pending | None = None
        self.prefilled: dict[tuple[int, ...], Prefilled] = {}
        self.max_rows = sampling.max_rows or len(rows)
        self.think_end = _think_end(policy) if sampling.think_budget else []
        # the token after a think budget depends on how many came before it
        self.runs_ahead = batch.runs_ahead and not self.think_end
        self.steps = 0
        self.asked: dict[int, _Asked] = {}  # by the row's place
        self.replies: dict[int, EnvironmentReply] = {}
        self.back: deque[tuple[_Asked, tuple[int, ...]]] = deque()  # with what follows its caches

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.active or self.asked or self.back)

    def admit(self) -> None:
        """Fill free places: rows whose environment has replied first, then new ones."""
        room = self.max_rows - len(self.active)
        back = [self.back.popleft() for _ in range(min(len(self.back), room))]
        fresh = [self.waiting.popleft() for _ in range(min(len(self.waiting), room - len(back)))]
        if not back and not fresh:
            return
        new = dict.fromkeys(row.prompt.ids for row in fresh)
        missing = [ids for ids in new if ids not in self.prefilled]
        self.prefilled |= zip(missing, self.batch.prefill(missing), strict=True)
        chosen = [self.prefilled[row.prompt.ids] for row in fresh]
        chosen += self.batch.extend([one.cached for one, _ in back], [ids for _, ids in back])
        rows = [*fresh, *(one.row for one, _ in back)]
        logits = mx.stack([row.logits for row in chosen])
        drawn = self._draw(rows, logits, self._seen_so_far(rows, logits.shape[1]), ahead=0)
        self.batch.add(chosen)
        self.active += rows
        self.pending = drawn if self.pending is None else self.pending.join(drawn)
        ahead = {row.prompt.ids for row in self.waiting}
        self.prefilled = {ids: kept for ids, kept in self.prefilled.items() if ids in ahead}

    def advance(self) -> None:
        """Read one token of every active row, drop those whose turn has ended, draw the next."""
        pending, queued = self.pending, None
        assert pending is not None
        if self.runs_ahead and any(row is not None and _goes_on(row) for row in self.active):
            queued = self._next(pending, ahead=1)
        self._read(pending.drawn)
        self._ask(is_run=queued is not None)
        self.steps += 1
        stay = [i for i, row in enumerate(self.active) if row is not None and not row.is_done]
        self.active = [None if row is None or row.is_done else row for row in self.active]
        if self._leave(len(stay)):
            stay = _fill_holes(stay)
            self.batch.keep(stay)
            self.active = [self.active[i] for i in stay]
            kept = queued if queued is not None else pending
            pending = kept.keep(stay) if stay else kept
            queued = None if queued is None else pending
        if not self.active:
            self.pending = None
        elif queued is not None:
            self.pending = queued
        else:
            self.pending = self._next(pending, ahead=0)

    def _leave(self, stay: int) -> bool:
        """Whether rows that have ended leave the batch now."""
        ended = len(self.active) - stay
        least = len(self.active) * LEAVING if self.runs_ahead and stay else 0
        return ended > 0 and ended >= least

    def _next(self, pending: _Pending, *, ahead: int) -> _Pending:
        """Run the tokens drawn last and draw the next ones; `ahead` of a row's are unread."""
        tokens, seen = pending.drawn.tokens, pending.seen
        if seen is not None:
            seen = mx.put_along_axis(seen, tokens[:, None], mx.array(True), axis=1)
        drawn = self._draw(self.active, self.batch.step(tokens), seen, ahead=ahead)
        mx.async_eval(drawn.drawn, [] if seen is None else seen)
        return drawn

    def _draw(
        self, rows: Sequence[Row | None], logits: mx.array, seen: mx.array | None, *, ahead: int
    ) -> _Pending:
        positions = [0 if row is None else len(row.ids) + ahead for row in rows]
        keys = token_keys([0 if row is None else row.key for row in rows], positions)
        forced = None
        if any(row is not None and row.to_force for row in rows):
            forced = mx.array(
                [-1 if row is None else row.next_forced for row in rows], dtype=mx.int32
            )
        drawn = draw(
            logits, self.sampling, keys, seen=seen, forced=forced,
            kernels=self.policy.kernels,
        )  # fmt: skip
        return _Pending(drawn, seen)

    def _read(self, drawn: Drawn) -> None:
        """Wait for the tokens and append them to their rows."""
        mx.eval(drawn)
        tokens, logprobs, raws = (np.array(column) for column in drawn)
        for index, row in enumerate(self.active):
            if row is not None:
                row.take(int(tokens[index]), float(logprobs[index]), float(raws[index]))
                row.settle(self.sampling, self.policy.end_ids, self.think_end)

    def expected(self) -> list[_Asked]:
        """The rows to wait for before the next token, for they may join the batch.

        Which ones depends only on the tokens so far and not on the clock, so that a resumed run
        has the same batches: every `JOIN_EVERY` tokens those that left that long ago, and all
        if no other row can go on. Late ones join when their reply has come.
        """
        if self.active or self.back or self.waiting:
            if self.steps % JOIN_EVERY:
                return []
            return [one for one in self.asked.values() if self.steps - one.since >= JOIN_EVERY]
        return list(self.asked.values())

    def receive(self, seconds: float) -> None:
        """Take the replies that have come; wait for one at most this long."""
        if self.dialogues is not None:
            self.replies |= dict(self.dialogues.episodes.replies(seconds))

    def join(self, expected: Sequence[_Asked]) -> None:
        """Hand the expected rows their replies, in the rows' order; note who is late."""
        for one in sorted(expected, key=lambda one: one.row.place):
            if one.row.place not in self.replies:
                one.is_late = True
                continue
            reply = self.replies.pop(one.row.place)
            del self.asked[one.row.place]
            tokens = self._hear(one.row, reply)
            if tokens is None:
                continue
            piece = (*one.unread, *tokens)
            if not piece:  # a template that adds nothing: its last token gives the logits
                *before, last = (*one.row.prompt.ids, *one.row.ids)
                (one.cached,), piece = self.batch.prefill([tuple(before)]), (last,)
            self.back.append((one, piece))

    def _hear(self, row: Row, reply: EnvironmentReply) -> tuple[int, ...] | None:
        """Append a reply; return its tokens, None if no turn follows."""
        assert self.dialogues is not None
        if reply.error or reply.done or row.turn + 1 >= self.dialogues.max_turns:
            row.hear(reply)
            row.finish = "environment_error" if reply.error else "stop" if reply.done else "turns"
            return None
        try:
            tokens = self.dialogues.tokens(reply.messages)
        except Exception as error:  # a template may raise anything
            row.hear(replace(reply, error=f"the reply cannot be given to the model: {error}"))
            row.finish = "environment_error"
            return None
        end = self.dialogues.end_token
        if end is not None and row.ids[-1] != end:
            tokens = (end, *tokens)
        if len(row.ids) + len(tokens) >= row.room or row.length >= row.limit:
            row.hear(reply)
            row.finish = "length" if row.length >= row.limit else "context"
            return None
        row.hear(reply, tokens)
        return tokens

    def _has_failed(self, row: Row) -> bool:
        """Whether the row's environment could not begin, which ends it."""
        if self.dialogues is None:
            return False
        failure = self.dialogues.episodes.failure(row.place)
        if failure is None:
            return False
        row.hear(failure)
        row.finish = "environment_error"
        return True

    def _ask(self, *, is_run: bool) -> None:
        """Give answers that have ended to their environments; `is_run`: so is the last token."""
        if self.dialogues is None:
            return
        ended = [
            (index, row) for index, row in enumerate(self.active)
            if row is not None and row.finish in ("stop", "stop_string")
        ]  # fmt: skip
        taken = self.batch.take([index for index, _ in ended])
        for (_, row), cached in zip(ended, taken, strict=True):
            unread = () if is_run else (row.ids[-1],)
            answer = row.ask(self.policy.end_ids)
            if self.dialogues.read is not None:
                before = [*row.prompt.ids, *row.ids[: row.begin]]
                answer = self.dialogues.read(row.place, before, row.ids[row.begin :], answer)
            self.asked[row.place] = _Asked(row, cached, unread, self.steps)
            self.dialogues.episodes.ask(row.place, answer)

    def _seen_so_far(self, rows: list[Row], vocabulary: int) -> mx.array | None:
        if self.sampling.repetition_penalty == 1:
            return None
        marks = mx.zeros((len(rows), vocabulary), mx.bool_)
        for place, row in enumerate(rows):
            marks[place, mx.array(sorted({*row.prompt.ids, *row.ids}))] = True
        return marks


def _decode(state: _Decoding, *, step: int, control: Control | None) -> Iterator[Event]:
    started = reported = time.monotonic()

    def report() -> Iterator[Event]:
        nonlocal reported
        reported = time.monotonic()
        yield _progress(state.rows, state.policy, step, reported - started)

    while not state.is_done:
        if control is not None:
            paused = time.monotonic()
            yield from pause_or_stop(control, step)
            started += time.monotonic() - paused
        if state.asked:
            yield from _wait_for_environments(state, step, control, report)
        if len(state.active) < state.max_rows:
            state.admit()
        if state.active:
            state.advance()
        # the receiver of the event writes a requested checkpoint
        requested = control is not None and control.wants_checkpoint
        if state.is_done or requested or time.monotonic() - reported >= REPORT_EVERY:
            yield from report()


def _wait_for_environments(
    state: _Decoding, step: int, control: Control | None, report: Callable[[], Iterator[Event]]
) -> Iterator[Event]:
    """Before a token: wait for the rows that may join, and let them join.

    While other rows can be decoded, a slow environment holds them up for `PATIENCE` once. A wait of
    `REPORT_EVERY` is reported, since no token will tell who waits.
    """
    expected = state.expected()
    others = bool(state.active or state.back or state.waiting)
    begun = time.monotonic()
    while missing := [one for one in expected if one.row.place not in state.replies]:
        some = others or len(missing) < len(expected)
        left = begun + PATIENCE - time.monotonic()
        if some and (left <= 0 or all(one.is_late for one in missing)):
            break
        state.receive(min(max(left, 0), TICK) if some else TICK)
        if time.monotonic() - begun >= REPORT_EVERY and any(row.has_grown for row in state.rows):
            yield from report()
        if control is not None:
            yield from pause_or_stop(control, step)
    if expected:
        state.receive(0)
        state.join(expected)
    if not others and state.dialogues is not None:
        state.dialogues.waited += time.monotonic() - begun


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
    grown = [row for row in rows if row.has_grown]
    tokens = sum(row.length for row in rows)
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


def _goes_on(row: Row) -> bool:
    """Whether a token may follow the one that is pending."""
    return row.length + 1 < row.limit and len(row.ids) + 1 < row.room


def _think_end(policy: Policy) -> list[int]:
    ids: list[int] = policy.tokenizer.encode(THINK_END, add_special_tokens=False)
    return ids
