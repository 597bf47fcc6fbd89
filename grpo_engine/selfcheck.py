"""The engine's check of itself before the first step: what must hold by construction, does.

A few answers are sampled without truncation; the sampler's log-probabilities must equal those of a
forward pass over the same ids, the ratio of two such passes must be 1, and the KL to the reference,
which is the policy itself, must be 0.
"""

from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx

from grpo_engine.collect import FIXED_STEP
from grpo_engine.errors import SelfCheckError
from grpo_engine.events import Event, NoteWritten, PhaseStarted
from grpo_engine.logprobs import score_tokens
from grpo_engine.rollouts import PromptRows, sample_groups
from grpo_engine.safe_points import relay
from grpo_engine.samples import as_float, gather_rollouts
from grpo_engine.session import Run
from grpo_engine.tasks.base import draw

PROMPTS, ROWS, TOKENS = 2, 2, 16
# a forward in half precision rounds each logit to about 2^-8 of its size
LIMITS = {"float32": 1e-3}
HALF_LIMIT = 0.25


def limit_of(dtype: str) -> float:
    """The largest difference between two log-probabilities of the same token, in nats."""
    return LIMITS.get(dtype, HALF_LIMIT)


def check_itself(run: Run) -> Iterator[Event]:
    """Sample a little and compare; raise where something differs, and say what."""
    yield PhaseStarted(step=0, phase="logprobs", detail="self-check")
    sampling = replace(
        run.sampling, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, stop=(),
        think_budget=0, max_new_tokens=min(TOKENS, run.config.rollout.max_new_tokens),
    )  # fmt: skip
    asked = [
        PromptRows(key=example.key, group=group, ids=run.render(example).ids, rows=ROWS)
        for group, example in enumerate(draw(run.task, run.config.seed, 0, PROMPTS))
    ]
    rollouts = yield from relay(
        run,
        0,
        sample_groups(
            run.policy, asked, sampling, seed=run.config.seed, step=FIXED_STEP,
            control=run.control,
        ),
    )  # fmt: skip
    first = yield from score_tokens(run, 0, rollouts)
    second = yield from score_tokens(run, 0, rollouts)
    mask, sampler = gather_rollouts(rollouts)
    gaps = {
        "the sampler's log-probabilities and the trainer's": first.logprobs - sampler,
        "two forward passes over the same answers (ratio 1)": first.logprobs - second.logprobs,
    }
    if run.has_reference:
        reference = yield from score_tokens(run, 0, rollouts, reference=True)
        gaps["the policy and its reference (KL 0)"] = first.logprobs - reference.logprobs
    limit = limit_of(run.policy.dtype)
    found = {what: as_float(mx.abs(gap * mask).max()) for what, gap in gaps.items()}
    for what, size in found.items():
        if not size <= limit:
            raise SelfCheckError(
                f"before step 1 {what} differ by {size:.3g} nats, more than {limit:g}: this model "
                "is not trained as it is sampled. Set model.shared_prefix=false or model.dtype="
                "float32; if it stays, the model's code keeps state that the engine does not know"
            )
    worst = max(found.values())
    yield NoteWritten(step=0, text=f"self-check passed: largest difference {worst:.1e} nats")
