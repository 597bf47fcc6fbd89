"""Makes `data/trl_cases.npz` with TRL's own loss; needs torch and trl==1.16.0, the tests do not.

Run it as `python tests/engine/maths/make_trl_cases.py [FILE [REPEATS]]` with an interpreter that
has both. TRL's `GRPOTrainer._compute_loss` is called on a stand-in for the trainer that returns
given log-probabilities in place of a model's.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import trl
from trl import GRPOTrainer, RLOOTrainer

OUT = Path(__file__).parent / "data" / "trl_cases.npz"
LOSS_TYPES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo")
METRICS = (
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_max",
    "cispo_clip_ratio",
)


def settings() -> list[dict[str, Any]]:
    """Every loss type at both levels, with and without beta, and each switch that TRL has."""
    cases: list[dict[str, Any]] = []
    for loss_type in LOSS_TYPES:
        for level in ("token", "sequence"):
            for beta in (0.0, 0.04):
                cases.append({"loss_type": loss_type, "level": level, "beta": beta})
    clipped = ("grpo", "dapo", "bnpo", "dr_grpo")
    cases += [{"loss_type": kind, "low": 0.1, "high": 0.28} for kind in clipped]
    cases += [{"loss_type": kind, "delta": 1.5, "beta": 0.1} for kind in clipped]
    cases += [
        {"loss_type": "grpo", "level": "sequence", "low": 3e-4, "high": 4e-4},
        {"loss_type": "grpo", "level": "sequence", "low": 0.05, "high": 0.1, "delta": 1.3},
        {"loss_type": "grpo", "delta": 1.1},
        {"loss_type": "grpo", "old": False, "beta": 0.04},
        {"loss_type": "dapo", "old": False},
        {"loss_type": "cispo", "old": False},
        {"loss_type": "sapo", "old": False},
        {"loss_type": "cispo", "high": 1.2},
        {"loss_type": "cispo", "high": 1.2, "level": "sequence"},
        {"loss_type": "sapo", "tau_pos": 2.0, "tau_neg": 3.0},
        {"loss_type": "grpo", "per_token": True},
        {"loss_type": "grpo", "per_token": True, "level": "sequence"},
        {"loss_type": "dapo", "accumulation": 4, "items": 100.0},
        {"loss_type": "grpo", "accumulation": 4},
        {"loss_type": "bnpo", "accumulation": 4},
        {"loss_type": "dr_grpo", "accumulation": 4},
        {"loss_type": "grpo", "quantile": 0.2, "beta": 0.04},
        {"loss_type": "dapo", "quantile": 0.5},
        {"loss_type": "grpo", "entropy_coef": 0.01},
        {"loss_type": "dapo", "entropy_coef": 0.02, "quantile": 0.4, "beta": 0.01},
        {"loss_type": "grpo", "importance": True, "beta": 0.04},
        {"loss_type": "rloo", "low": 0.2, "high": 0.3},
        {"loss_type": "rloo"},
    ]
    return cases


def inputs(rng: np.random.Generator, case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random completions of two groups, one of them empty, drifted from old and reference."""
    rows, columns = 8, 7
    drift = 0.03 if case.get("high", 1) < 0.01 else 0.35
    new = -rng.exponential(1.0, (rows, columns))
    length = rng.integers(1, columns + 1, rows)
    length[3] = 0 if case["loss_type"] != "rloo" else 1
    shape = (rows, columns) if case.get("per_token") else (rows,)
    worth = rng.normal(size=shape)
    worth[5] = 0.0
    made = {
        "new": new,
        "old": new + drift * rng.normal(size=new.shape),
        "ref": new + 0.5 * rng.normal(size=new.shape),
        "advantages": worth,
        "mask": np.arange(columns)[None, :] < length[:, None],
        "entropy": rng.exponential(1.0, new.shape),
        "sampler": new + 0.6 * rng.normal(size=new.shape),
    }
    return {k: v if v.dtype == bool else v.astype(np.float32) for k, v in made.items()}


class Accelerator:
    """One process: gathering and reducing give back what they got."""

    num_processes = 1
    sync_gradients = True

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def reduce(self, value: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        return value

    def pad_across_processes(self, value: torch.Tensor, dim: int, pad_index: float) -> torch.Tensor:
        assert dim == 0
        assert pad_index < 0
        return value


def trainer(case: dict[str, Any], logps: torch.Tensor, entropies: torch.Tensor) -> Any:
    """What `_compute_loss` reads of a trainer, with a model that is these log-probabilities."""
    accumulation = case.get("accumulation", 1)
    made = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_a, **_k: (logps, entropies, None),
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        top_entropy_quantile=case.get("quantile", 1.0),
        off_policy_mask_threshold=None,
        importance_sampling_level=case.get("level", "token"),
        loss_type=case["loss_type"],
        beta=case.get("beta", 0.0),
        epsilon_low=case.get("low", 0.2),
        epsilon_high=case.get("high", 5.0 if case["loss_type"] == "cispo" else 0.2),
        use_vllm=bool(case.get("importance")),
        vllm_importance_sampling_correction=True,
        max_completion_length=11,
        current_gradient_accumulation_steps=accumulation,
        _entropy_bonus_enabled="entropy_coef" in case,
        use_adaptive_entropy=False,
        entropy_coef=case.get("entropy_coef", 0.0),
        _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(
            delta=case.get("delta"),
            sapo_temperature_pos=case.get("tau_pos", 1.0),
            sapo_temperature_neg=case.get("tau_neg", 1.05),
            use_bias_correction_kl=False,
            steps_per_generation=accumulation,
        ),
    )
    made.get_high_entropy_mask = lambda *given: GRPOTrainer.get_high_entropy_mask(made, *given)
    return made


def solve(case: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Loss, gradients and metrics as TRL computes them."""
    arrays = {name: torch.tensor(value) for name, value in given.items()}
    logps = arrays["new"].clone().requires_grad_()
    entropies = arrays["entropy"].clone().requires_grad_("entropy_coef" in case)
    mask = arrays["mask"].float()
    items = torch.tensor(case.get("items", float(mask.sum())))
    batch = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "completion_mask": mask,
        "advantages": arrays["advantages"],
        "ref_per_token_logps": arrays["ref"],
        "num_items_in_batch": items,
        "old_logps": (arrays["old"] * mask).sum(1),
    }
    if case.get("old", True):
        batch["old_per_token_logps"] = arrays["old"]
    if case.get("importance"):
        ratio = torch.exp((arrays["old"] - arrays["sampler"]) * mask)
        batch["importance_sampling_ratio"] = torch.clamp(ratio, max=2.0)
    stand_in = trainer(case, logps, entropies)
    kind = RLOOTrainer if case["loss_type"] == "rloo" else GRPOTrainer
    loss = kind._compute_loss(stand_in, None, batch)
    loss.backward()
    found = {
        "loss": loss.detach().numpy(),
        "gradient": logps.grad.numpy(),
        "entropy_gradient": np.zeros_like(given["new"]),
    }
    if entropies.grad is not None:
        found["entropy_gradient"] = entropies.grad.numpy()
    for name in METRICS:
        measured = stand_in._metrics["train"].get(name, [np.nan])[0]
        found["metric:" + name] = np.array(measured, dtype=np.float32)
    return found


def main(out: Path = OUT, repeats: int = 1) -> None:
    assert trl.__version__ == "1.16.0", trl.__version__
    rng = np.random.default_rng(20260101)
    cases = settings() * repeats
    columns = defaultdict(list)
    for case in cases:
        given = inputs(rng, case)
        found = solve(case, given)
        given["advantages"] = np.broadcast_to(
            given["advantages"].reshape(len(given["new"]), -1), given["new"].shape
        )
        for name, value in (given | found).items():
            columns[name].append(value)
    out.parent.mkdir(exist_ok=True)
    packed: dict[str, Any] = {name: np.stack(values) for name, values in columns.items()}
    np.savez_compressed(out, cases=np.array(json.dumps(cases)), **packed)
    print(f"{len(cases)} cases in {out}")


if __name__ == "__main__":
    asked = sys.argv[1:]
    main(Path(asked[0]) if asked else OUT, int(asked[1]) if len(asked) > 1 else 1)
