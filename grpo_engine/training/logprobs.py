"""Log-probabilities of sampled completions without a gradient, micro-batch by micro-batch."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from grpo_engine.events import Event, PhaseAdvanced
from grpo_engine.policy.batch import TokenBatch, micro_batches
from grpo_engine.policy.forward import TokenScores
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.run.backend import Reads
from grpo_engine.run.local import forward
from grpo_engine.run.recovery import fewer_scored, repeated
from grpo_engine.run.requests import handle_requests, step_context
from grpo_engine.run.session import EngineRun
from grpo_engine.training.samples import assembled


def score_tokens(
    run: EngineRun,
    step: int,
    rollouts: Sequence[Trajectory],
    *,
    rows: Sequence[int] | None = None,
    under: Callable[[], AbstractContextManager[None]] = nullcontext,
    entropy: bool = False,
    values: bool = False,
    model: Policy | None = None,
) -> Generator[Event, None, TokenScores]:
    """Score completions with the policy, in a context such as `policy.using`, or with a `model`.

    Rows that are not scored are 0.
    """
    rows = range(len(rollouts)) if rows is None else rows
    reads = Reads(temperature=run.config.training.temperature, entropy=entropy, values=values)

    def scored_batches() -> Generator[Event, None, list[tuple[TokenBatch, TokenScores]]]:
        assigned = run.ranks.assigned(batches_of(run, rollouts, rows))
        scored: list[tuple[TokenBatch, TokenScores]] = []
        for done, (_, batch) in enumerate(assigned, 1):
            with under():
                if model is not None:
                    scores = forward(model, batch, reads)
                else:
                    scores = yield from run.backend.scores(batch, reads, step_context(run, step))
            scored.append((batch, scores))
            yield PhaseAdvanced(step=step, phase="logprobs", done=done, total=len(assigned))
            yield from handle_requests(run)
        return scored

    scored = yield from repeated(run, step, scored_batches, partial(fewer_scored, run))
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    arrays = {
        name: assembled(
            [(batch, getattr(scores, name)) for batch, scores in scored], len(rollouts), width
        )
        for name, is_read in (("logprobs", True), ("entropy", entropy), ("values", values))
        if is_read and all(getattr(scores, name) is not None for _, scores in scored)
    }
    return TokenScores(**run.ranks.sum(arrays))


def batches_of(
    run: EngineRun, rollouts: Sequence[Trajectory], rows: Sequence[int]
) -> list[TokenBatch]:
    """The micro-batches of some rows.

    Rows without a token are left out: MLX ends the process on some products of empty arrays.
    """
    return micro_batches(
        rollouts,
        max_rows=run.plan.micro_rows,
        pad_id=run.policy.pad_id,
        only=[row for row in rows if rollouts[row].length],
    )
