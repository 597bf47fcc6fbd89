"""Generate `data/trl_cases.npz` with TRL's own loss, and `data/grpoconfig.json`.

Needs torch and trl==1.16.0, the tests do not.

Run it as `python tests/engine/maths/make_trl_cases.py [FILE [REPEATS]]` with an interpreter that
has both. TRL's `GRPOTrainer._compute_loss` is called on a stub trainer that returns given
log-probabilities in place of a model's. The weights for the sampler are computed by statements
copied unchanged from `_generate_and_score_completions` at run time.
"""

import ast
import inspect
import json
import sys
import textwrap
from collections import defaultdict
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import trl
from trl import GRPOConfig, GRPOTrainer, RLOOTrainer
from trl.trainer import grpo_trainer

OUT = Path(__file__).parent / "data" / "trl_cases.npz"
CONFIG = Path(__file__).parent / "data" / "grpoconfig.json"
LOSS_TYPES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo")
LATER = ("luspo", "vespo")  # in TRL's order of appearance; cases of earlier types come first
METRICS = (
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_max",
    "cispo_clip_ratio",
    "vespo/phi_seq_mean",
    "sampling/importance_sampling_ratio/min",
    "sampling/importance_sampling_ratio/mean",
    "sampling/importance_sampling_ratio/max",
)


def settings() -> list[dict[str, Any]]:
    """Every loss type at both levels, with and without beta, and each of TRL's switches."""
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
        {"loss_type": "grpo", "mode": "token_truncate", "cap": 2.0, "beta": 0.04},
        {"loss_type": "rloo", "low": 0.2, "high": 0.3},
        {"loss_type": "rloo"},
    ]
    return cases + mismatched() + weighted() + corrected() + with_tools()


def mismatched() -> list[dict[str, Any]]:
    """Each sampler correction, with every loss type and with other settings that affect it."""
    modes = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    cases = [
        {"loss_type": kind, "mode": mode, "cap": 1.5, "floor": 0.6, "beta": 0.04}
        for kind in LOSS_TYPES
        for mode in modes
    ]
    cases += [{"loss_type": "grpo", "mode": mode, "cap": 3.0} for mode in modes]
    cases += [{"loss_type": "dapo", "mode": mode, "cap": None, "floor": 0.9} for mode in modes]
    cases += [{"loss_type": "grpo", "level": "sequence", "mode": m, "cap": 1.2} for m in modes]
    cases += [
        {"loss_type": "grpo", "per_token": True, "mode": "sequence_mask", "cap": 3.0},
        {"loss_type": "dapo", "quantile": 0.5, "mode": "token_mask", "cap": 1.2, "delta": 1.5},
    ]
    far = {"off_policy": 0.05}
    cases += [{"loss_type": kind, "beta": 0.04, **far} for kind in LOSS_TYPES]
    cases += [
        {"loss_type": "grpo", "sampler": True, **far},
        {"loss_type": "grpo", "sampler": True, "per_token": True, **far},
        {"loss_type": "dapo", "sampler": True, "level": "sequence", "off_policy": 0.3},
        {"loss_type": "grpo", "mode": "sequence_mask", "cap": 3.0, "floor": 0.3, **far},
        {"loss_type": "dapo", "mode": "token_mask", "cap": 1.5, "quantile": 0.4, **far},
    ]
    return cases


def weighted() -> list[dict[str, Any]]:
    """LUSPO and VESPO with each switch that the other loss types have."""
    cases: list[dict[str, Any]] = [
        {"loss_type": kind, "level": level, "beta": beta}
        for kind in LATER
        for level in ("token", "sequence")
        for beta in (0.0, 0.04)
    ]
    cases += [{"loss_type": kind, "old": False} for kind in LATER]
    cases += [{"loss_type": kind, "per_token": True} for kind in LATER]
    cases += [{"loss_type": kind, "accumulation": 4, "items": 100.0} for kind in LATER]
    cases += [{"loss_type": kind, "quantile": 0.4, "entropy_coef": 0.02} for kind in LATER]
    cases += [{"loss_type": kind, "off_policy": 0.05, "sampler": True} for kind in LATER]
    token, every = ("token_truncate", "token_mask"), ("sequence_truncate", "sequence_mask")
    cases += [
        {"loss_type": kind, "mode": mode, "cap": 1.5, "floor": 0.6, "beta": 0.04}
        for kind, modes in (("luspo", token + every), ("vespo", token))
        for mode in modes
    ]
    cases += [{"loss_type": "vespo", "mode": mode, "cap": 3.0} for mode in token]
    numbers = {"k_pos": 1.0, "lambda_pos": 0.5, "k_neg": 0.5, "lambda_neg": 1.5}
    cases += [
        {"loss_type": "luspo", "level": "sequence", "low": 2e-3, "high": 2.5e-3},
        {"loss_type": "luspo", "level": "sequence", "low": 0.1, "high": 0.3, "delta": 1.3},
        {"loss_type": "luspo", "level": "sequence", "per_token": True, "beta": 0.1},
        {"loss_type": "vespo", **numbers},
        {"loss_type": "vespo", **numbers, "per_token": True, "mode": "token_truncate", "cap": 2.0},
        {"loss_type": "vespo", **numbers, "mode": "token_mask", "cap": 1.5, "floor": 0.7},
        {"loss_type": "vespo", "k_pos": 60.0, "lambda_pos": 1e-5, "k_neg": 60.0},
    ]
    return cases


def corrected() -> list[dict[str, Any]]:
    """The KL times the ratio, for every loss type and level, and with what changes the ratio."""
    kl = {"beta": 0.1, "bias_correction_kl": True}
    cases: list[dict[str, Any]] = [
        {"loss_type": kind, "level": level, **kl}
        for kind in LOSS_TYPES + LATER
        for level in ("token", "sequence")
    ]
    return [
        *cases,
        {"loss_type": "grpo", "old": False, **kl},
        {"loss_type": "grpo", "delta": 1.1, **kl},
        {"loss_type": "grpo", "quantile": 0.3, **kl},
        {"loss_type": "dapo", "off_policy": 0.05, "accumulation": 4, "items": 90.0, **kl},
        {"loss_type": "vespo", "mode": "token_mask", "cap": 1.5, **kl},
    ]


def with_tools() -> list[dict[str, Any]]:
    """Completions with the results of tools inside, which are not trained."""
    tools = {"tools": True}
    cases: list[dict[str, Any]] = [
        {"loss_type": kind, "level": level, "beta": beta, **tools}
        for kind in LOSS_TYPES + LATER
        for level in ("token", "sequence")
        for beta in (0.0, 0.04)
    ]
    modes = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    cases += [
        {"loss_type": "grpo", "mode": mode, "cap": 1.5, "beta": 0.1, **tools} for mode in modes
    ]
    return [
        *cases,
        {"loss_type": "grpo", "quantile": 0.3, "entropy_coef": 0.02, "beta": 0.04, **tools},
        {"loss_type": "dapo", "off_policy": 0.05, "sampler": True, **tools},
        {"loss_type": "dapo", "accumulation": 4, "items": 80.0, "per_token": True, **tools},
        {"loss_type": "dr_grpo", "delta": 1.3, "bias_correction_kl": True, "beta": 0.1, **tools},
        {"loss_type": "vespo", "mode": "token_mask", "cap": 1.5, **tools},
        {"loss_type": "vespo", "per_token": True, **tools},
    ]


def inputs(rng: np.random.Generator, case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random completions of two groups, one completion empty, with drift from old and reference.

    `tool_mask` is 0 on the results of tools; the completion's own mask includes them.
    """
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
    made["tool_mask"] = np.ones((rows, columns), bool)
    if case.get("tools"):
        made["tool_mask"] = rng.random((rows, columns)) > 0.35
        made["tool_mask"][6] = False  # nothing of this completion is the model's
    return {k: v if v.dtype == bool else v.astype(np.float32) for k, v in made.items()}


class Accelerator:
    """A single process: gathering and reducing return their input."""

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
    """What `_compute_loss` reads of a trainer, with a model that returns these logps."""
    accumulation = case.get("accumulation", 1)
    made = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_a, **_k: (logps, entropies, None),
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        top_entropy_quantile=case.get("quantile", 1.0),
        off_policy_mask_threshold=case.get("off_policy"),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        importance_sampling_level=case.get("level", "token"),
        loss_type=case["loss_type"],
        beta=case.get("beta", 0.0),
        epsilon_low=case.get("low", 0.2),
        epsilon_high=case.get("high", 5.0 if case["loss_type"] == "cispo" else 0.2),
        use_vllm="mode" in case,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=case.get("mode"),
        vllm_importance_sampling_clip_max=case.get("cap"),
        vllm_importance_sampling_clip_min=case.get("floor"),
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
            vespo_k_pos=case.get("k_pos", 2.0),
            vespo_lambda_pos=case.get("lambda_pos", 3.0),
            vespo_k_neg=case.get("k_neg", 3.0),
            vespo_lambda_neg=case.get("lambda_neg", 2.0),
            use_bias_correction_kl=case.get("bias_correction_kl", False),
            steps_per_generation=accumulation,
        ),
    )
    made.get_high_entropy_mask = lambda *given: GRPOTrainer.get_high_entropy_mask(made, *given)
    return made


def importance(
    stand_in: Any, arrays: dict[str, torch.Tensor], tool_mask: torch.Tensor | None
) -> torch.Tensor:
    """The weights for the sampler by TRL's own statements; their metrics go to `stand_in`."""
    source = textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions))
    asked = "self.use_vllm and self.vllm_importance_sampling_correction"
    blocks = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == asked
        and "vllm_importance_sampling_ratio" in ast.unparse(node)
        and len(node.body) > 1
    ]
    assert len(blocks) == 2, [block.lineno for block in blocks]
    space = vars(grpo_trainer) | {
        "self": stand_in,
        "mode": "train",
        "device": "cpu",
        "tool_mask": tool_mask,
        "completion_mask": arrays["mask"].float(),
        "old_per_token_logps": arrays["old"],
        "sampling_per_token_logps": arrays["sampler"],
    }
    for block in sorted(blocks, key=lambda node: node.lineno):
        exec(compile(ast.Module([block], []), "trl", "exec"), space)
    made: torch.Tensor = space["vllm_importance_sampling_ratio"]
    return made


def solve(case: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Loss, gradients and metrics as TRL computes them."""
    arrays = {name: torch.tensor(value) for name, value in given.items()}
    logps = arrays["new"].clone().requires_grad_()
    entropies = arrays["entropy"].clone().requires_grad_("entropy_coef" in case)
    mask, tool_mask = arrays["mask"].float(), None
    if case.get("tools"):
        tool_mask = arrays["tool_mask"].float()
    trained = mask if tool_mask is None else mask * tool_mask
    items = torch.tensor(case.get("items", float(trained.sum())))
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
    stand_in = trainer(case, logps, entropies)
    if tool_mask is not None:
        batch["tool_mask"] = tool_mask
    if "mode" in case:
        batch["importance_sampling_ratio"] = importance(stand_in, arrays, tool_mask)
    if "mode" in case or case.get("sampler"):
        batch["sampling_per_token_logps"] = arrays["sampler"]
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


def write_config(out: Path = CONFIG) -> None:
    """The names of GRPOConfig and those of its defaults that JSON can hold; others as text."""
    made = {
        field.name: field.default
        if field.default is not MISSING
        else field.default_factory()
        if field.default_factory is not MISSING
        else None
        for field in fields(GRPOConfig)
    }
    out.write_text(json.dumps(made, indent=0, sort_keys=True, default=str) + "\n")


if __name__ == "__main__":
    asked = sys.argv[1:]
    main(Path(asked[0]) if asked else OUT, int(asked[1]) if len(asked) > 1 else 1)
    if not asked:
        write_config()
