"""Samples rollouts and dialogues on a server, many requests at a time."""

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from grpo_engine.events import Event, RolloutsAdvanced
from grpo_engine.frozen import frozen
from grpo_engine.remote.calls import POLL_S, Awaited, Calls
from grpo_engine.remote.protocol import (
    UNDER_WAY,
    Prompt,
    Sample,
    Service,
    ServiceRefusedError,
    ServiceUnavailableError,
)
from grpo_engine.rollouts.decode import (
    REPORT_EVERY,
    SampleRows,
    add_reply,
    has_failed,
    progress_of,
    submit,
)
from grpo_engine.rollouts.row import DecodingRow
from grpo_engine.rollouts.types import Sampling
from grpo_engine.run.backend import StepContext

SEEDS = 2**31 - 1


@frozen
class Request:
    """The next turn of some rows with the same tokens so far."""

    rows: tuple[DecodingRow, ...]

    def prompt(self, sampling: Sampling) -> Prompt:
        """What the server is asked for."""
        row, count = self.rows[0], len(self.rows)
        left = [row.limit - row.length, row.max_tokens - len(row.ids)]
        return Prompt(
            ids=tuple(row.context),
            count=count,
            max_tokens=min([*left, row.limits.tokens] if row.limits.tokens else left),
            stop_ids=tuple(sorted(row.end_ids)),
            # the server adds the index of each sample
            seed=(row.key + row.turn) % (SEEDS // count) * count,
            temperature=sampling.temperature,
        )


class Sampler:
    """Rows to be sampled, the requests under way, and rows with their environments."""

    def __init__(
        self,
        service: Service,
        rows: Sequence[DecodingRow],
        sample_rows: SampleRows,
        step: int,
    ) -> None:
        self.service, self.rows, self.step = service, rows, step
        self.sampling, self.dialogues = sample_rows.sampling, sample_rows.dialogues
        self.under_way: dict[Future[list[Sample]], Request] = {}
        self.absent = 0  # rows that wait for their environments
        self.started = self.reported = time.monotonic()
        by_prompt: dict[tuple[object, ...], list[DecodingRow]] = {}
        for row in rows:
            if not has_failed(self.dialogues, row):
                key = (row.prompt.group, row.prompt.attempt, row.prompt.ids, row.limits)
                by_prompt.setdefault(key, []).append(row)
        self.waiting = deque(Request(rows=tuple(group)) for group in by_prompt.values())

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.under_way or self.absent)

    def progress(self) -> RolloutsAdvanced:
        """The progress of the rows since the last report."""
        self.reported = time.monotonic()
        return progress_of(self.rows, self.step, self.reported - self.started)

    def send(self) -> None:
        """Send requests, as many as may be under way."""
        while self.waiting and len(self.under_way) < UNDER_WAY:
            request = self.waiting.popleft()
            self.under_way[self.service.sample(request.prompt(self.sampling))] = request

    def receive(self) -> tuple[int, ServiceUnavailableError | None]:
        """Take the answers that have come: how many, and why some must be asked for again."""
        if not self.under_way:
            return 0, None
        done, failure, answered = wait(self.under_way, POLL_S, FIRST_COMPLETED).done, None, 0
        for future in done:
            request = self.under_way.pop(future)
            try:
                samples = future.result()
            except ServiceUnavailableError as error:
                failure = error
                self.waiting.appendleft(request)
                continue
            answered += 1
            for row, sample in zip(request.rows, samples, strict=True):
                self._read(row, sample)
        return answered, failure

    def _read(self, row: DecodingRow, sample: Sample) -> None:
        """Append a sample to its row, up to where its turn ends."""
        for token, logprob in zip(sample.ids, sample.logprobs, strict=True):
            row.append(token, logprob, logprob)
            row.settle(self.sampling, [])
            if row.finish is not None:
                break
        if row.finish is None:
            raise ServiceRefusedError(
                f"the server ended an answer to {row.prompt.key} after {len(sample.ids)} tokens "
                "without an end token, and before the limit that it was given"
            )
        if self.dialogues is not None and row.finish in ("stop", "stop_string"):
            submit(self.dialogues, row)
            self.absent += 1

    def join(self) -> None:
        """Give rows the replies of their environments, and ask for their next turns."""
        if self.dialogues is None or not self.absent:
            return
        begun = time.monotonic()
        replies = self.dialogues.episodes.replies(0 if self.under_way else POLL_S)
        if not (self.under_way or self.waiting):
            self.dialogues.waited += time.monotonic() - begun
        for number, reply in replies:
            self.absent -= 1
            row = self.rows[number]
            if add_reply(self.dialogues, row, reply) is not None:
                self.waiting.append(Request(rows=(row,)))

    def cancel(self) -> None:
        """Give up the requests under way."""
        for future in self.under_way:
            future.cancel()


def sample_rows(
    sampler: Sampler, calls: Calls, context: StepContext
) -> Generator[Event, None, None]:
    """Sample until every row has ended."""
    awaited = Awaited(context.step)
    try:
        while not sampler.is_done:
            sampler.send()
            answered, failure = sampler.receive()
            if answered:
                calls.attempts = 0
            if answered or not sampler.under_way:
                yield from awaited.answered()
            yield from awaited.report()
            if failure is not None:
                yield from calls.wait(failure, context)
            sampler.join()
            yield from _reported(sampler)
            yield from context.requests()
    finally:
        sampler.cancel()


def _reported(sampler: Sampler) -> Iterator[Event]:
    if sampler.is_done or time.monotonic() - sampler.reported >= REPORT_EVERY:
        yield sampler.progress()
