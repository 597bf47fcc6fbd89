"""What a recipe is made of: the choices of each question, and the settings they read."""

from dataclasses import dataclass
from typing import Literal, get_args

Signal = Literal[
    "return",
    "minus_batch_mean",
    "group_mean",
    "group_standard",
    "leave_one_out",
    "batch_standard",
    "group_sign",
    "process",
    "gae",
]
Std = Literal["sample", "population"]
Combine = Literal["sum_then_normalize", "normalize_then_sum"]
Ratio = Literal["none", "token", "sequence_mean", "sequence_sum"]
Trust = Literal["none", "clip", "cispo", "sapo", "target"]
Anchor = Literal["none", "k1", "k2", "k3"]
AnchorLevel = Literal["token", "sequence"]
AnchorPlace = Literal["loss", "reward"]
Weight = Literal[
    "per_sequence", "per_completion", "per_token", "per_batch_token", "constant", "sum"
]
Stop = Literal["never", "all_at_bound", "plateau", "kl", "target"]
ImportanceMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One answer to each of the six questions; the defaults are those of `grpo`."""

    name: str

    # 1. Signal: what is a completion worth?
    signal: Signal = "group_standard"
    std: Std = "sample"  # divide by G-1, or by G
    signal_eps: float = 1e-4  # added to the standard deviation
    combine: Combine = "sum_then_normalize"  # several reward functions

    # 2. Ratio: how is old data re-weighted?
    ratio: Ratio = "token"

    # 3. Trust: when does the push stop?
    trust: Trust = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    delta: float | None = None  # ceiling on the raw ratio, None = off
    cispo_cap: float = 5.0
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    target_tolerance: float = 0.02

    # 4. Anchor: distance to the reference policy
    anchor: Anchor = "k3"
    beta: float = 0.04  # 0 = off
    anchor_level: AnchorLevel = "token"
    anchor_place: AnchorPlace = "loss"
    ref_refresh_every: int = 0  # steps, 0 = never
    ref_mix: float = 1.0  # share of the policy in a refreshed reference, 1 = copy

    # 5. Weight: how are tokens averaged?
    weight: Weight = "per_sequence"

    # 6. Reuse: how often are the same rollouts used?
    passes: int = 1
    minibatches: int = 1
    stop: Stop = "never"
    stop_share: float = 0.99  # of the pushed tokens
    stop_kl: float = 0.05  # nats per token to the sampling policy
    stop_plateau: float = 1e-3  # least relative improvement of the objective
    drop_at_bound: bool = False  # tokens at their bound leave the loss

    # Around them
    sampler_sync_every: int = 1  # steps between copies of the policy to the sampler
    refill_rounds: int = 0  # dynamic sampling, 0 = off
    overlong_buffer: float = 0.0  # share of the maximum length with a length penalty, 0 = off
    mask_truncated: bool = False  # completions cut by the length limit leave the loss
    entropy_bonus: float = 0.0
    entropy_target: float | None = None  # nats per token at which the bonus holds the entropy
    entropy_top_quantile: float = 1.0  # share of tokens, by entropy, that are updated
    importance_cap: float = 0.0  # cap on pi_old / sampler, 0 = no correction
    importance_floor: float = 0.0  # lower cap
    importance_mode: ImportanceMode = "token_truncate"  # beyond a cap: hold there, or leave out
    off_policy_mask: float = 0.0  # nats per token from the sampler, 0 = off

    # For the critic of `gae`
    gamma: float = 1.0
    lam: float = 0.95
    value_clip: float = 0.2  # 0 = off
    value_coefficient: float = 0.1
    whiten: bool = True

    @property
    def reads_sampler(self) -> bool:
        """Whether the loss reads what the sampler gave the tokens."""
        return self.importance_cap > 0 or self.off_policy_mask > 0


CHOICES: dict[str, tuple[str, ...]] = {
    "signal": get_args(Signal),
    "std": get_args(Std),
    "combine": get_args(Combine),
    "ratio": get_args(Ratio),
    "trust": get_args(Trust),
    "anchor": get_args(Anchor),
    "anchor_level": get_args(AnchorLevel),
    "anchor_place": get_args(AnchorPlace),
    "weight": get_args(Weight),
    "stop": get_args(Stop),
    "importance_mode": get_args(ImportanceMode),
}
