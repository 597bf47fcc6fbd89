"""Self-check before the first step: tests identities that must hold by construction.

A few answers are sampled without truncation, with an adapter moved off zero, because a new one adds
nothing and would hide errors. The sampler's log-probabilities must equal those of a forward pass
over the same ids, with the sampler's weights and with the trainer's. Then, with the unchanged
policy, the ratio of two passes must be 1, and the KL to the reference, which equals the policy,
must be 0.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial

import mlx.core as mx

from grpo_engine.config.mismatch import CACHED, Gap
from grpo_engine.errors import SelfCheckError
from grpo_engine.events import Event, NoteWritten, PhaseStarted
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import SampleRows
from grpo_engine.rollouts.types import PromptRows, Trajectory
from grpo_engine.run.recovery import fewer_sampled, repeated
from grpo_engine.run.requests import step_context
from grpo_engine.run.session import EngineRun
from grpo_engine.training.drawing import Drawing
from grpo_engine.training.logprobs import score_tokens
from grpo_engine.training.samples import gather_rollouts
from grpo_engine.training.sampling import FIXED_STEP

PROMPTS, ROWS, TOKENS = 2, 2, 16
MOVED = 0.05  # standard deviation of the noise added to scale * B


# bfloat16 rounds each logit to about 2^-8 of its size, float16 to 2^-11. On a GPU, products of
# different shapes may round differently; on the CPU they agree.
LIMITS = {
    "float32": Gap(1e-4, 1e-3),
    "bfloat16": Gap(0.02, 0.25),
    "float16": Gap(0.005, 0.1),
}
EXACT = LIMITS["float32"]  # equal products on equal ids, in any format


def check_itself(run: EngineRun) -> Iterator[Event]:
    """Sample a few answers and compare; raise SelfCheckError with the first difference."""
    yield PhaseStarted(step=0, phase="logprobs", detail="self-check")
    policy, moved = run.policy, moved_adapter(run.policy)
    rollouts = yield from _sampled(run, moved)
    trained = yield from score_tokens(run, 0, rollouts, under=partial(policy.using, moved))
    sampled = yield from score_tokens(run, 0, rollouts, under=partial(policy.for_sampling, moved))
    first = yield from score_tokens(run, 0, rollouts)
    second = yield from score_tokens(run, 0, rollouts)
    mask, sampler = gather_rollouts(rollouts)
    limit = LIMITS[policy.dtype]
    gaps = {
        "the sampler's log-probabilities and the trainer's": (
            trained.logprobs - sampler,
            max(limit, CACHED[policy.config.cache_bits]),
        ),
        "the weights that answers are sampled with and those that are trained": (
            trained.logprobs - sampled.logprobs,
            EXACT if policy.has_weights else limit,
        ),
        "two forward passes over the same answers (ratio 1)": (
            first.logprobs - second.logprobs,
            limit,
        ),
    }
    if run.has_reference:
        reference = yield from score_tokens(run, 0, rollouts, under=policy.as_reference)
        gaps["the policy and its reference (KL 0)"] = (first.logprobs - reference.logprobs, limit)
    worst = 0.0
    for name, (values, limit) in gaps.items():
        gap = _gap(values, mask)
        if not (gap.mean <= limit.mean and gap.max <= limit.max):
            raise SelfCheckError(
                f"before step 1 {name} differ by {gap.mean:.3g} nats on average and "
                f"{gap.max:.3g} at most, more than {limit.mean:g} and {limit.max:g}: this model "
                f"is not trained as it is sampled. {policy.gap_remedy}"
            )
        worst = max(worst, gap.max)
    yield NoteWritten(step=0, text=f"self-check passed: largest difference {worst:.1e} nats")


def _sampled(
    run: EngineRun, moved: dict[str, mx.array] | None
) -> Generator[Event, None, list[Trajectory]]:
    """A few answers of the adapter that was moved, drawn from the full distribution."""
    sampling = replace(
        run.sampling,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        stop=(),
        think_budget=0,
        max_new_tokens=min(TOKENS, run.config.rollout.max_new_tokens),
    )
    prompt_rows = [
        PromptRows(
            key=example.key, group=group, ids=run.part_of(example).render(example).ids, rows=ROWS
        )
        for group, example in enumerate(Drawing(run).take(PROMPTS))
    ]

    def sample() -> Generator[Event, None, list[Trajectory]]:
        rows = SampleRows(
            prompts=prompt_rows,
            sampling=replace(sampling, max_rows=run.sampling.max_rows),
            seed=run.config.seed,
            noise_step=FIXED_STEP,
            weights=moved,
        )
        return (yield from run.backend.sample(rows, step_context(run, 0)))

    return (yield from repeated(run, 0, sample, partial(fewer_sampled, run, PROMPTS * ROWS)))


def moved_adapter(policy: Policy) -> dict[str, mx.array] | None:
    """The adapter's weights with fixed noise added to each B; None without an adapter."""
    weights = policy.snapshot()
    if not any(name.endswith("lora_b") for name in weights):
        return None
    scale = float(policy.adapter["lora_parameters"]["scale"])
    return {
        name: value + MOVED / scale * mx.random.normal(value.shape, key=mx.random.key(index))
        if name.endswith("lora_b")
        else value
        for index, (name, value) in enumerate(weights.items())
    }


def _gap(values: mx.array, mask: mx.array) -> Gap:
    sizes = mx.abs(values * mask)
    return Gap(float(sizes.sum() / mask.sum()), float(sizes.max()))
