"""Tries each architecture of the installed mlx-lm as a tiny random model.

usage: python -m benchmarks.models [NAME ...]    (names write their rows anew; none, all)

It writes docs/models.csv and, from it, docs/models.md.

`grpo-tui train` runs two steps of each, with its self-check. Then each is trained for two steps of
SGD as LoRA in float32 and bfloat16, in full, and with 4 bits, and compared with the plain model on
one row at a time: log-probabilities of the old policy and of the sampler, and the gradient by plain
autodiff. Each runs in a process of its own, for some crash.
"""

import csv
import io
import math
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from mlx_lm import convert

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu import blas
from grpo_engine.errors import EngineError, ModelError
from grpo_engine.policy.checkpointing import checkpoint_layers
from grpo_engine.policy.load import load_policy
from grpo_engine.rollouts.batches import batch_for
from grpo_tui.app.cli.main import main as grpo_tui
from tests.engine.policy.helpers import (
    largest_difference,
    made_up_rows,
    move_weights,
    weighted_loss,
)
from tests.engine.policy.oracle import oracle_loss
from tests.engine.tiny import write_config

FAMILIES = Path(mlx_lm.models.__path__[0])
EXPERTS = "its experts' products are in float32 on this device"
PAGE = Path(__file__).parents[1] / "docs" / "models.md"
DATA = PAGE.with_suffix(".csv")
SAMPLE = (
    "deepseek_v3",
    "falcon_h1",
    "gemma3_text",
    "gemma4",
    "gpt_oss",
    "lfm2",
    "llama",
    "mamba2",
    "mistral3",
    "qwen3",
    "qwen3_5",
    "qwen3_next",
)
VARIANTS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "bfloat16": {"dtype": "bfloat16"},
    "full": {"tuning": "full"},
    "4 bits": {"quantized": "keep"},
}
TOLERANCES = {"LoRA": (1e-4, 1e-3), "bfloat16": (6e-2, 0.1)}  # log-probabilities, gradient
SECONDS = 600
PROCESSES = 2
SIXTEEN = "16 bits"
GPU_KERNELS = {
    "kernel": "mlx-lm has a Metal kernel",
    "kernel, not in training": "mlx-lm has a Metal kernel for sampling alone",
}
REWARD = """def score(completions, **_):
    return [sum(map(ord, str(completion))) % 7 / 7 for completion in completions]
"""
SETTINGS = (
    "rollout.prompts=2",
    "rollout.group_size=3",
    "rollout.max_new_tokens=24",
    "evaluation.before_and_after=false",
    "evaluation.pinned=0",
    "algorithm.beta=0.04",
    "task.name=arithmetic",
)

# Every model takes those that it knows.
COMMON: dict[str, Any] = {
    "vocab_size": 261, "max_position_embeddings": 256, "model_max_length": 256, "n_positions": 256,
    "n_ctx": 256, "block_size": 256, "tie_word_embeddings": False, "eos_token_id": [257, 258],
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "hidden_dim", "block_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads"), 2),
    **dict.fromkeys((
        "intermediate_size", "n_inner", "ffn_hidden_size", "intermediate_size_mlp", "block_ff_dim",
        "moe_intermediate_size", "shared_intermediate_size", "shared_expert_intermediate_size",
        "expert_ffn_hidden_size",
    ), 128),
    **dict.fromkeys((
        "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps",
    ), 1e-5),
    "head_dim": 16, "rope_theta": 1e4, "rotary_emb_base": 10000, "rotary_pct": 0.5,
    "partial_rotary_factor": 0.5, "rotary_dim": 16, "hidden_act": "silu", "dim_model_base": 32,
    # attention
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "index_head_dim": 32, "index_n_heads": 2, "index_topk": 4,
    "sliding_window": 8, "sliding_window_size": 8, "sliding_window_pattern": 2,
    "attention_window_size": 8, "window_size": 8, "loop_window_size": 8,
    "layer_types": ["sliding_attention", "full_attention"], "attention_method": "MLA",
    "use_qk_norm": True, "qk_norm": True, "use_cla": True, "cla_share_factor": 2,
    "post_norm": True, "no_rope_layers": [1, 0], "attention_multiplier": 0.25,
    "full_attention_interval": 2, "layer_group_size": 2, "group_norm_size": 1,
    # experts
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys((
        "num_shared_experts", "n_shared_experts", "num_shared_expert", "moe_num_shared_experts",
    ), 1),
    **dict.fromkeys(("n_group", "num_expert_group"), 2),
    **dict.fromkeys(("topk_group", "moe_layer_freq", "decoder_sparse_step"), 1),
    "moe_shared_expert_intermediate_size": 64, "moe_latent_size": 32,
    "first_k_dense_replace": 1, "num_dense_layers": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.5, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "mlp_only_layers": [], "is_moe_layer": [False, True], "use_mixed_mlp_moe": True,
    "use_expert_bias": True, "zero_expert_type": "identity", "zero_expert_num": 2,
    # recurrent layers
    "state_size": 8, "ssm_state_size": 8, "conv_kernel": 4, "time_step_rank": 4, "n_groups": 1,
    "time_step_limit": [0.001, 10.0], "conv_L_cache": 3, "block_multiple_of": 4,
    "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "mamba_num_heads": 4,
    "mamba_head_dim": 16, "mamba_d_conv": 4, "mamba_d_state": 8, "mamba_expand": 2,
    "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1,
    "expert_layer_period": 2,
    # scales and biases
    **dict.fromkeys((
        "logits_scaling", "embedding_multiplier", "residual_multiplier", "scale_depth", "scale_emb",
    ), 1.5),
    **dict.fromkeys((
        "attention_bias", "mlp_bias", "use_bias", "conv_bias", "mamba_proj_bias",
    ), False),
    "use_conv_bias": True, "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
}  # fmt: skip
LINEAR_ATTENTION = {
    "linear_attn_config": {
        "num_heads": 2,
        "head_dim": 32,
        "kda_layers": [1],
        "full_attn_layers": [2],
        "short_conv_kernel_size": 4,
    }
}
# What differs for one architecture; a text_config is completed by COMMON too.
YARN = {
    "type": "yarn",
    "factor": 4,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "rope_theta": 1e4,
    "llama_4_scaling_beta": 0.1,
}
ROPES = {
    attention: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    for attention in ("full_attention", "sliding_attention")
}
CHANGES: dict[str, dict[str, Any]] = {
    "afm7": {
        "num_layers": 4, "num_hidden_layers": 4, "num_kv_reuse_layers": 2,
    },
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
    },
    "deepseek_v2": {
        "rope_scaling": YARN, "topk_method": "group_limited_greedy", "scoring_func": "softmax",
    },
    "deepseek_v3": {"rope_scaling": YARN},
    "deepseek_v32": {"rope_scaling": YARN},
    "exaone4": {
        "sliding_window_pattern": "LG", "rope_scaling": None,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma3n": {"text_config": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 261,
        "rope_local_base_freq": 1e4, "final_logit_softcapping": 5.0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.5] * 4, "hidden_size_per_layer_input": 64,
        "altup_num_inputs": 2, "altup_coef_clip": 1.0, "altup_correct_scale": True,
        "altup_active_idx": 0, "laurel_rank": 8, "model_type": "gemma3n",
    }},
    "gemma4": {"text_config": {  # of 26B; gemma4_text is of E2B
        "num_hidden_layers": 2, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
        "num_experts": 4, "enable_moe_block": True, "top_k_experts": 2, "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    }},
    "gemma4_text": {
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "global_head_dim": 32, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 261, "num_experts": 0,
    },
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 32,
        "mamba_n_groups": 1, "mamba_proj_bias": False, "mamba_conv_bias": True,
        "position_embedding_type": "rope", "shared_intermediate_size": 128,
    },
    "gear": {"layer_types": ["sliding_attention", "full_attention"]},
    "hunyuan": {"rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
    "kimi_k3": {"text_config": {
        "linear_attn_config": {
            **LINEAR_ATTENTION["linear_attn_config"], "kda_layers": [1, 3],
            "full_attn_layers": [2, 4], "gate_lower_bound": -5.0, "use_full_rank_gate": True,
        },
        "hidden_act": "situ", "num_experts_per_token": 2, "num_hidden_layers": 4,
        "activation_situ_beta": 1.0, "activation_situ_linear_beta": 1.0, "attn_res_block_size": 2,
        "mla_use_output_gate": True, "routed_expert_hidden_size": 32, "latent_moe_use_norm": True,
    }},
    "kimi_linear": LINEAR_ATTENTION,
    "laguna": {
        "mlp_layer_types": ["dense", "sparse"], "num_attention_heads_per_layer": [4, 4],
        "rope_parameters": ROPES,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama": {
        "layer_types": ["full_attention"] * 2, "sliding_window": None,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama4_text": {
        "attention_chunk_size": 8, "interleave_moe_layer_step": 2, "rope_scaling": None,
        "num_experts_per_tok": 1, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0],
    },
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mellum": {"rope_parameters": ROPES},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1], "swa_rope_theta": 1e4,
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16,
        "swa_v_head_dim": 16,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "moe"],
        "layer_types": ["mamba", "attention", "moe"], "num_hidden_layers": 3,
        "moe_shared_expert_intermediate_size": 64,
    },
    "olmo": {"mlp_hidden_size": 128, "embedding_size": 261},
    "olmo_hybrid": {
        "layer_types": ["linear_attention", "full_attention"], "linear_allow_neg_eigval": True,
    },
    "openelm": {
        "num_transformer_layers": 2, "model_dim": 64, "ffn_dim_divisor": 16,
        "num_query_heads": [4, 4], "num_kv_heads": [2, 2], "ffn_multipliers": [2.0, 2.0],
    },
    "phi3small": {
        "dense_attention_every_n_layers": 2, "ff_intermediate_size": 128, "gegelu_limit": 20.0,
    },
    "minicpm3": {"rope_scaling": {
        "original_max_position_embeddings": 256, "short_factor": 1.0, "long_factor": 1.0,
    }},
    "minimax_m3_vl": {"text_config": {
        "dense_intermediate_size": 128, "moe_layer_freq": [0, 1, 1, 1], "num_hidden_layers": 4,
        "layer_types": None, "sparse_attention_config": {
            "sparse_attention_freq": [0, 0, 1, 1],
            "sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_block_size": 4,
            "sparse_topk_blocks": 2,
        },
    }},
    "ministral3": {"rope_parameters": YARN},
    "mistral4": {"rope_parameters": YARN},
    "muse_spark": {"text_config": {
        "post_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 1e4}, "moe_hidden_size": 64,
        "layer_rope_theta": [1e4, 0], "final_logit_softcapping": 5.0, "output_multiplier": 1.0,
        "num_shared_experts": 0, "vision_config": {},
    }},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {"block_configs": [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
        {"attention": {"no_op": True}, "ffn": {"replace_with_linear": True}},
    ]},
    "phixtral": {"num_vocab": 261, "model_dim": 64},
    "plamo": {"n_shared_head": 2},
    "qwen": {"kv_channels": 16},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [{
            "path": "model.layers.0.mlp.down_proj", "embedding": False, "dtype": "float16",
            "block": 0,
        }],
    },
    "qwen3_5": {"num_experts": 0},
    "qwen3_5_moe": {"text_config": {"num_experts": 4, "model_type": "qwen3_5_moe_text"}},
    "recurrent_gemma": {
        "conv1d_width": 4, "logits_soft_cap": 5.0, "attention_window_size": 8, "lru_width": 64,
        "block_types": ["recurrent", "attention"],
    },
    "step3p5": {
        "num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2, "share_expert_dim": 128,
        "moe_layers_enum": "1", "swiglu_limits": [0, 7.0], "rope_theta": 1e4,
    },
    "rwkv7": dict.fromkeys(
        ("a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim", "decay_low_rank_dim"), 16
    ),
}  # fmt: skip
CHANGES["smollm3"] = {
    name: COMMON[name]
    for name in (
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "head_dim",
        "rope_theta",
    )
}
CHANGES["spark2_5"] = {"rope_parameters": ROPES, "hidden_act": "gelu"}
CHANGES["stablelm"] = {"use_qkv_bias": False, "use_parallel_residual": False, "qk_layernorm": False}
TEXT_OF = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "lfm2-vl": "lfm2",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3",
    "mistral3": "ministral3",
    "muse_spark": "muse_spark_text",
    "pixtral": "llama",
    "prism_hadamard_qwen35": "qwen3_5",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}


def architectures() -> list[str]:
    """The names of all architectures, read from their files: importing some ends the program."""
    return [
        file.stem
        for file in sorted(FAMILIES.glob("*.py"))
        if re.search(r"^class Model\(|import Model\b", file.read_text(), re.MULTILINE)
        and "class ModelArgs" in file.read_text()
    ]


def tiny_config(name: str) -> dict[str, Any]:
    """A `config.json` of a few thousand weights."""
    changes = dict(CHANGES.get(name, {}))
    text = changes.pop("text_config", {})
    config = {**_common(name), **changes, "model_type": name}
    if text_type := TEXT_OF.get(name, name if text else ""):
        text = {**_common(name), **_common(text_type), **CHANGES.get(text_type, {}), **text}
        config["text_config"] = {"model_type": text_type, **text}
    return config


def _common(name: str) -> dict[str, Any]:
    """The settings that a model's source declares."""
    file = FAMILIES / f"{name}.py"
    declared = re.findall(r"^    (\w+):", file.read_text() if file.exists() else "", re.MULTILINE)
    names = {*declared, "vocab_size", "eos_token_id", "max_position_embeddings"}
    return {key: value for key, value in COMMON.items() if key in names}


@dataclass(slots=True)
class Result:
    """What was measured of one architecture; `errors` holds a sentence per variant that failed."""

    name: str
    logprobs: dict[str, float] = field(default_factory=dict)  # largest difference, per variant
    gradients: dict[str, float] = field(default_factory=dict)  # relative to the largest entry
    errors: dict[str, str] = field(default_factory=dict)
    shared: bool = False
    decoding: str = ""
    kernels: bool = False

    @property
    def trains(self) -> bool:
        """Whether LoRA in float32 is exact."""
        return self.is_exact("LoRA")

    def is_exact(self, variant: str) -> bool:
        """Whether a variant has the plain model's numbers, to the rounding of its format."""
        logprobs, gradients = TOLERANCES.get(variant, TOLERANCES["LoRA"])
        return (
            self.logprobs.get(variant, math.inf) <= logprobs
            and self.gradients[variant] <= gradients
        )

    def numbers(self, variant: str) -> str:
        """Differences of log-probabilities and gradient; marked if they are too large."""
        if variant not in self.logprobs:
            return ""
        text = f"{self.logprobs[variant]:.0e} {self.gradients[variant]:.0e}"
        return text if self.is_exact(variant) else f"{text} (too large)"


def by_command(folder: Path) -> None:
    """Train the model in `folder` by `grpo-tui train`; raise what it says on failure."""
    (folder / "rewards.py").write_text(REWARD)
    sets = (
        f"model.path={folder / 'whole'}",
        f"rewards.functions=[{folder / 'rewards.py'}:score]",
        *SETTINGS,
    )
    argv = ["train", "--no-store", str(folder / "run"), "--steps", "2"]
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = grpo_tui([*argv, *(argument for text in sets for argument in ("--set", text))])
    if status:
        text = printed.getvalue().strip().splitlines()[-1]
        failure = (
            ModelError if text.startswith("grpo-tui: ") else RuntimeError
        )  # before, or in a step
        raise failure(text.removeprefix("grpo-tui: ").removeprefix("model.path: "))


def try_architecture(
    name: str, variants: Sequence[str] = tuple(VARIANTS), *, command: bool = False
) -> Result:
    """Train a tiny model of an architecture, by the command line as well if wanted."""
    result = Result(name)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        for variant in variants:
            options = VARIANTS[variant]
            try:
                if command and variant == "LoRA":
                    _write(result, Path(folder) / "whole")
                    by_command(Path(folder))
                _try_variant(result, Path(folder), variant, options)
            except EngineError as error:
                result.errors[variant] = f"refused: {error}".replace(f"in {folder}/whole ", "")
            except (Exception, SystemExit) as error:
                result.errors[variant] = f"{type(error).__name__}: {error}"
            if "LoRA" in result.errors:
                break
    return result


def _try_variant(result: Result, folder: Path, variant: str, options: dict[str, Any]) -> None:
    path = folder / "whole"
    if not path.exists():
        _write(result, path)
    if variant == "4 bits":
        path = folder / "packed"
        try:
            convert(str(folder / "whole"), str(path), quantize=True, q_group_size=32, q_bits=4)
        except TypeError as error:
            raise ModelError(f"mlx-lm cannot quantise it: {error}") from error
    policy = load_policy(ModelConfig(path=str(path), **options), seed=0)
    move_weights(policy, 0.02)
    rows = made_up_rows([(9, (6, 3)), (5, (7, 2))])
    losses, gradients = [], []
    for _ in range(2):
        expected, expected_gradient = oracle_loss(policy, rows)
        value, gradient = weighted_loss(policy, rows)
        losses.append(abs(value - expected) / sum(len(row.ids) for row in rows))
        gradients.append(largest_difference(gradient, expected_gradient))
        weights = policy.snapshot()
        policy.load_trainable(
            {key: weights[key] - 1e-3 * gradient[f"model.{key}"] for key in weights}
        )
    if variant == "LoRA":
        value, gradient = weighted_loss(policy, rows)
        checkpoint_layers(policy.model)
        gradients.append(largest_difference(weighted_loss(policy, rows)[1], gradient))
    result.gradients[variant] = max(gradients)
    sampled = [_sampler_difference(policy, row) for row in rows[:2]]
    result.logprobs[variant] = max(*losses, *sampled)
    mx.clear_cache()
    if variant == "LoRA":
        result.shared = policy.shares_prompts
        result.decoding = "kernels" if policy.kernels else policy.batching or ""
        result.kernels = policy.training_kernels is not None


def _write(result: Result, path: Path) -> None:
    try:
        write_config(path, tiny_config(result.name), scale=1.0)
    except SystemExit:  # a package is missing; opening the model says which
        mx.save_safetensors(str(path / "model.safetensors"), {"weight": mx.zeros(1)})


def _sampler_difference(policy: Any, row: Any) -> float:
    """The largest difference of the sampler's log-probabilities from a plain forward's."""
    policy.module.eval()
    batch = batch_for(policy)
    batch.add(batch.prefill([row.prompt_ids[:-1]] * 2))
    steps = [batch.step(mx.array([token] * 2))[1] for token in (row.prompt_ids[-1], *row.ids[:-1])]
    plain = policy.model(mx.array([[*row.prompt_ids, *row.ids[:-1]]]))[0, len(row.prompt_ids) - 1 :]
    logs = [nn.log_softmax(x.astype(mx.float32)) for x in (mx.stack(steps), plain)]
    chosen = [mx.take_along_axis(x, mx.array(row.ids)[:, None], axis=1) for x in logs]
    return float(mx.abs(chosen[0] - chosen[1]).max())


def in_a_process(name: str) -> Result:
    """Try an architecture where a crash ends only its own process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.models", "grpo_engine.api.policy"])
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(name, sender))
    child.start()
    sender.close()
    try:
        if receiver.poll(SECONDS):
            result: Result = receiver.recv()
            return result
        return Result(name, errors={"LoRA": f"not ready after {SECONDS} s"})
    except EOFError:
        child.join()
        return Result(name, errors={"LoRA": f"its process ended with {child.exitcode}"})
    finally:
        child.kill()


def _child(name: str, sender: Any) -> None:
    blas.ensure()
    sender.send(try_architecture(name, command=True))


def on_a_gpu(name: str) -> str:
    """What the model's source does otherwise on a GPU."""
    source = (FAMILIES / f"{name}.py").read_text()
    if "metal_kernel" not in source:
        return ""
    return "kernel, not in training" if "self.training" in source else "kernel"


def row_of(result: Result) -> dict[str, str]:
    """The line of docs/models.csv."""
    texts = (re.sub(r"\s+", " ", text) for text in result.errors.values())
    reasons = dict.fromkeys(
        SIXTEEN if EXPERTS in text else text.removeprefix("refused: ")[:160] for text in texts
    )
    return {
        "mlx-lm": metadata.version("mlx-lm"),
        "model": result.name,
        "trains": "yes" if result.trains else "no",
        **{variant: result.numbers(variant) for variant in VARIANTS},
        "shared prompts": "yes" if result.shared else "no",
        "decoding": result.decoding,
        "kernels": "yes" if result.kernels else "no",
        "on a GPU": on_a_gpu(result.name),
        "refused": "; ".join(reasons),
    }


def page(rows: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """The lines of docs/models.md."""
    rows = list(rows)
    trained = [row for row in rows if row["trains"] == "yes"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in trained:
        sixteen = "no" if SIXTEEN in row["refused"] else "yes"
        columns = (row["decoding"], row["shared prompts"], sixteen)
        groups.setdefault(columns, []).append(f"`{row['model']}`")
    yield from (
        "# Models",
        "",
        f"All {len(rows)} architectures of mlx-lm {metadata.version('mlx-lm')} were tried on a "
        f"processor, as tiny random models: {len(trained)} train exactly. "
        "`python -m benchmarks.models` tries what is installed and writes this page.",
        "",
        "*Exactly* means that two steps of `grpo-tui train` pass the self-check, and that "
        "log-probabilities differ from those of the plain model, one row at a time, by at most "
        "1e-4, gradients by 1e-3 of the largest entry, with LoRA in float32, also with recomputed "
        "layers. [models.csv](models.csv) has the largest differences of each architecture, with "
        "LoRA, in full, in bfloat16 and with 4 bits.",
        "",
        "- **Decoding**: `kernels` are compiled for processors, and compute the update too; "
        "`graph` is one batch of all rows; `unpadded` a batch for each length of prompts; "
        "`separate` row by row.",
        "- **Prompt once**: a group's prompt is run once for all its answers, not once per row.",
        "- **16 bits**: *no* where mlx-lm computes the experts' products in float32 on a "
        "processor; there `model.dtype` must be float32.",
        "",
        "| decoding | prompt once | 16 bits | architectures |",
        "|---|---|---|---|",
        *(
            f"| {' | '.join(columns)} | {', '.join(names)} |"
            for columns, names in sorted(groups.items(), key=lambda item: -len(item[1]))
        ),
        "",
        *exceptions(rows),
    )


def exceptions(rows: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """What is refused beside 16 bits, and what only a GPU would try."""
    rows = list(rows)
    for row in rows:
        reason = row["refused"].removeprefix(SIXTEEN).removeprefix("; ")
        reason = reason.removeprefix(f"mlx-lm's model {row['model']} ")
        if reason:
            yield f"- `{row['model']}`: {reason.removesuffix('; choose another model')}."
    for kernel, text in GPU_KERNELS.items():
        names = ", ".join(f"`{row['model']}`" for row in rows if row["on a GPU"] == kernel)
        if names:
            yield f"- {text}, which a processor does not try: {names}."


def written() -> dict[str, dict[str, str]]:
    """The rows of docs/models.csv that are of the installed mlx-lm, by architecture."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row["model"]: row for row in rows if row["mlx-lm"] == metadata.version("mlx-lm")}


def write(rows: Iterable[dict[str, str]]) -> None:
    """Write the data and the page that is made of it."""
    rows = sorted(rows, key=itemgetter("model"))
    with DATA.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    PAGE.write_text("\n".join(page(rows)) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Try the architectures and write what was seen."""
    rows = written() if names else {}
    with ThreadPoolExecutor(PROCESSES) as pool:
        for result in pool.map(in_a_process, names or architectures()):
            rows[result.name] = row_of(result)
            print(*rows[result.name].values(), sep=", ", flush=True)
            if names or len(rows) == len(architectures()):
                write(rows.values())


if __name__ == "__main__":
    main(sys.argv[1:])
