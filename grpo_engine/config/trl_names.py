"""The names of TRL's GRPOConfig (1.16): defaults, equivalents here, and names without one."""

import re
from collections.abc import Mapping
from typing import Any, Final

# TRL's defaults for the translated settings.
DEFAULTS: Final[Mapping[str, Any]] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "optim": "adamw_torch_fused",
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "seed": 42,
    "num_generations": 8,
    "max_completion_length": 512,
    "generation_batch_size": None,
    "steps_per_generation": None,
    "shuffle_dataset": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "beta": 0.0,
    "num_iterations": 1,
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "sapo_temperature_neg": 1.05,
    "sapo_temperature_pos": 1.0,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "use_bias_correction_kl": True,
    "importance_sampling_level": "token",
    "reward_weights": None,
    "multi_objective_aggregation": "sum_then_normalize",
    "scale_rewards": "group",
    "loss_type": "dapo",
    "mask_truncated_completions": False,
    "sync_ref_model": False,
    "ref_model_mixup_alpha": 0.6,
    "ref_model_sync_steps": 512,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "entropy_target": 0.2,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_cap": None,
    "off_policy_mask_threshold": None,
    "gradient_checkpointing": True,
    "trust_remote_code": False,
}

NO_CAP: Final = 1e30  # larger than any possible weight; TRL's clip_max=None

# Names whose values carry over unchanged.
PLAIN: Final[Mapping[str, str]] = {
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "max_grad_norm": "optimizer.max_grad_norm",
    "seed": "seed",
    "run_name": "name",
    "num_generations": "rollout.group_size",
    "max_completion_length": "rollout.max_new_tokens",
    "max_prompt_length": "task.max_prompt_tokens",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "min_p": "rollout.min_p",
    "repetition_penalty": "rollout.repetition_penalty",
    "shuffle_dataset": "task.shuffle",
    "chat_template_kwargs": "task.chat_template_kwargs",
    "mask_truncated_completions": "algorithm.mask_truncated",
    "top_entropy_quantile": "algorithm.entropy_top_quantile",
    "entropy_coef": "algorithm.entropy_bonus",
    "off_policy_mask_threshold": "algorithm.off_policy_mask",
    "gradient_checkpointing": "model.grad_checkpoint",
    "trust_remote_code": "model.trust_remote_code",
    "model_name_or_path": "model.path",
    "dataset_train_split": "task.split",
    "dataset_test_split": "task.held_out_split",
    "eval_steps": "evaluation.every",
    "num_generations_eval": "evaluation.samples",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "load_best_model_at_end": "checkpoint.best",
}

# Names that are read together with others, from TRL's command line and from earlier versions.
ALIASES: Final = (
    "warmup_ratio", "use_peft", "lora_r", "lora_alpha", "lora_target_modules", "dataset_name",
    "dataset_config", "reward_funcs", "max_tool_calling_iterations", "generation_kwargs",
    "lr_scheduler_kwargs", "optim_args", "model_init_kwargs",
)  # fmt: skip

TRANSLATED: Final = frozenset({*DEFAULTS, *ALIASES, *PLAIN})

# Schedules of transformers, and ours of the same shape; others are in `lr_scheduler_kwargs`.
SCHEDULES: Final[Mapping[str, str]] = {
    "linear": "linear",
    "polynomial": "linear",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}

# What `generation_kwargs` may hold, by the names of transformers and of vLLM.
SAMPLING: Final[Mapping[str, str]] = {
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "min_p": "rollout.min_p",
    "repetition_penalty": "rollout.repetition_penalty",
    "max_new_tokens": "rollout.max_new_tokens",
    "max_tokens": "rollout.max_new_tokens",
    "stop_strings": "rollout.stop",
    "stop": "rollout.stop",
    "ignore_eos": "rollout.ignore_end",
}

# TRL's own reward functions and ours.
REWARDS: Final[Mapping[str, str]] = {
    "accuracy_reward": "math_equal",
    "trl.rewards.accuracy_reward": "math_equal",
    "think_format_reward": "think_format",
    "trl.rewards.think_format_reward": "think_format",
    "get_soft_overlong_punishment": "soft_overlong",
    "trl.rewards.get_soft_overlong_punishment": "soft_overlong",
    "get_repetition_penalty_reward": "repetition",
    "trl.rewards.get_repetition_penalty_reward": "repetition",
}

# Settings that change a run and have no equivalent, with the reason.
UNLIKE: Final[Mapping[str, str]] = {
    "entropy_coef_min": "always 0 here; see algorithm.entropy_target",
    "entropy_coef_max": "always 1 here; see algorithm.entropy_target",
    "entropy_coef_delta": "always 0.005 here; see algorithm.entropy_target",
    "router_aux_loss_coef": "no equivalent; routers of mixture-of-experts models get no extra loss",
    "neftune_noise_alpha": "no equivalent; with noise on embeddings the ratio of fresh samples "
    "would not be 1",
    "vllm_structured_outputs_regex": "no equivalent; answers are sampled freely, so score the form "
    "with the reward regex",
    "optim_target_modules": "no equivalent; only GaLore and APOLLO read it",
    "auto_find_batch_size": "TRL refuses it for GRPO; set optimizer.micro_rows to 0 to choose by "
    "memory",
}

# Names of settings for the machine, files and logging that a run here does not need.
UNNEEDED: Final[Mapping[str, re.Pattern[str]]] = {
    "GRPOTrainer does not read it": re.compile("data_seed|label_smoothing_factor"),
    "files go to the run's folder": re.compile(
        r"output_dir|save_\w+|overwrite_output_dir|resume_from_checkpoint|enable_jit_checkpoint|"
        "ignore_data_skip|restore_callback_states_from_checkpoint"
    ),
    "of PyTorch or its devices": re.compile(
        r"(?:bf16|fp16|tf32|torch|use_liger|liger|deepspeed|ds3|fsdp|ddp|load_in|vllm|dataloader|"
        r"activation_checkpointing|gradient_checkpointing|use_transformers|transformers)\w*|dtype|"
        "use_cache|use_cpu|local_rank|cast_lm_head_to_fp32|attn_implementation|pad_to_multiple_of|"
        "cache_implementation|disable_dropout|accelerator_config|parallelism_config|"
        "full_determinism|average_tokens_across_devices|skip_memory_metrics|remove_unused_columns|"
        "label_names|length_column_name|train_sampling_strategy"
    ),
    "all is logged": re.compile(
        r"(?:logging|log|push_to_hub|hub|trackio|include)_\w+|report_to|num_completions_to_print|"
        "disable_tqdm|project|push_to_hub|debug"
    ),
    "evaluation.* says when and how": re.compile(
        r"do_(?:train|eval|predict)|(?:per_device_|batch_)?eval_\w+|metric_for_best_model|"
        "greater_is_better|prediction_loss_only"
    ),
}


def unneeded(name: str) -> str:
    """Why a setting of TRL has no equivalent and needs none; empty for any other name."""
    if name in TRANSLATED or name in UNLIKE:
        return ""
    return next((why for why, names in UNNEEDED.items() if names.fullmatch(name)), "")
