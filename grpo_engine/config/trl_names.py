"""The names of TRL's GRPOConfig (1.16): defaults, equivalents here, and names without one."""

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
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "load_best_model_at_end": "checkpoint.best",
}

# Names that are read together with others, from TRL's command line and from earlier versions.
ALIASES: Final = (
    "warmup_ratio", "use_peft", "lora_r", "lora_alpha", "lora_target_modules", "dataset_name",
    "dataset_config", "reward_funcs",
)  # fmt: skip

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

# Settings that change a run and have no equivalent, with what to do about each.
UNLIKE: Final[Mapping[str, str]] = {
    "vespo_k_pos": "no equivalent; there is no VESPO recipe",
    "vespo_lambda_pos": "no equivalent; there is no VESPO recipe",
    "vespo_k_neg": "no equivalent; there is no VESPO recipe",
    "vespo_lambda_neg": "no equivalent; there is no VESPO recipe",
    "entropy_coef_min": "no equivalent; the controller of algorithm.entropy_target has no bounds",
    "entropy_coef_max": "no equivalent; the controller of algorithm.entropy_target has no bounds",
    "entropy_coef_delta": "no equivalent; the controller has its own step",
    "use_bias_correction_kl": "no equivalent; the KL terms are k1, k2 and k3 (algorithm.anchor)",
    "adam_epsilon": "no equivalent; the optimiser's own 1e-8 is used",
    "generation_kwargs": "no equivalent; set rollout.* one by one",
    "max_tool_calling_iterations": "no equivalent; tools are not called",
    "router_aux_loss_coef": "no equivalent; MoE routers get no extra loss",
    "neftune_noise_alpha": "no equivalent",
    "label_smoothing_factor": "no equivalent",
    "lr_scheduler_kwargs": "no equivalent; see optimizer.final_share",
    "num_generations_eval": "set evaluation.samples",
    "vllm_structured_outputs_regex": "no equivalent; score the form with the reward regex",
    "model_init_kwargs": "no equivalent; see model.dtype and model.quantized",
    "data_seed": "no equivalent; the run's seed orders the data",
    "optim_args": "no equivalent",
    "auto_find_batch_size": "no equivalent; a memory estimate is made before the run",
}

_FILES, _TORCH, _LOG = "files go to the run's folder", "of PyTorch or its devices", "all is logged"

# Settings for the machine, files and logging that a run here does not need.
MACHINE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("output_dir", "save_strategy", "save_only_model", "overwrite_output_dir",
                     "resume_from_checkpoint"), _FILES),
    **dict.fromkeys((
        "bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval", "torch_dtype", "dtype",
        "torch_compile", "torch_compile_backend", "torch_compile_mode", "use_liger_kernel",
        "liger_kernel_config", "use_cache", "deepspeed", "fsdp", "fsdp_config", "use_cpu",
        "ddp_backend", "ddp_timeout", "ddp_find_unused_parameters", "local_rank",
        "cast_lm_head_to_fp32",
        "attn_implementation", "load_in_4bit", "load_in_8bit", "gradient_checkpointing_kwargs",
        "activation_checkpointing", "ds3_gather_for_generation", "pad_to_multiple_of",
        "dataloader_num_workers", "dataloader_pin_memory", "dataloader_drop_last",
        "cache_implementation", "torch_empty_cache_steps", "disable_dropout", "accelerator_config",
        "parallelism_config", "full_determinism", "use_transformers_paged",
        "use_transformers_continuous_batching", "transformers_continuous_batching_config",
        "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_server_base_url",
        "vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_group_port",
        "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size",
        "average_tokens_across_devices", "skip_memory_metrics", "remove_unused_columns",
    ), _TORCH),
    **dict.fromkeys((
        "logging_steps", "logging_strategy", "logging_first_step", "logging_dir", "report_to",
        "log_completions", "num_completions_to_print", "log_unique_prompts", "log_multimodal",
        "log_completions_hub_repo", "log_level", "disable_tqdm", "project", "trackio_space_id",
        "push_to_hub", "hub_model_id", "hub_token", "hub_private_repo", "hub_strategy",
    ), _LOG),
    **dict.fromkeys(("do_train", "do_eval", "do_predict", "eval_strategy", "eval_on_start",
                     "per_device_eval_batch_size", "metric_for_best_model", "greater_is_better"),
                    "evaluation.* says when and how"),
}  # fmt: skip
