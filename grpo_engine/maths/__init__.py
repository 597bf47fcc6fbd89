"""The maths of the GRPO family: arrays in, arrays out; no config, no model, no tokenizer.

`advantages` says what completions are worth, `policy_loss` what to minimise; both take a recipe,
one choice for each of six questions, and each question has its module:

    1 signal   signal.py (groups.py, process.py, critic.py), entry point advantage.py
    2 ratio    ratio.py
    3 trust    trust.py, target.py
    4 anchor   anchor.py
    5 weight   weight.py
    6 reuse    reuse.py
    around     around.py; parts of the loss: loss.py, terms.py, metrics.py
"""

from grpo_engine.maths.advantage import Advantages, advantages, reward_metrics
from grpo_engine.maths.around import (
    completion_lengths,
    entropy_control,
    overlong_penalty,
    without_truncated,
)
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.metrics import merged, metrics
from grpo_engine.maths.reuse import stop_reason
from grpo_engine.maths.target import Targets, targets_of
from grpo_engine.maths.terms import Loss, Terms
from grpo_engine.maths.weight import Totals, totals_of

__all__ = [
    "Advantages",
    "Loss",
    "Targets",
    "Terms",
    "Totals",
    "advantages",
    "completion_lengths",
    "entropy_control",
    "merged",
    "metrics",
    "overlong_penalty",
    "policy_loss",
    "reward_metrics",
    "stop_reason",
    "targets_of",
    "totals_of",
    "without_truncated",
]
