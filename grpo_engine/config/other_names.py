"""The settings here by the names that they have in other programs, for messages."""

from collections.abc import Iterable, Mapping
from typing import Final

from grpo_engine.config.trl_names import PLAIN
from grpo_engine.errors import nearest

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "steps": ("max_steps", "num_steps", "total_steps", "num_train_epochs", "max_iterations"),
    "seed": ("random_seed",),
    "model.path": ("model_name", "model_id", "base_model"),
    "model.lora_rank": ("r", "rank", "lora_r"),
    "model.lora_scale": ("alpha", "lora_alpha"),
    "model.lora_keys": ("target_modules", "lora_target_modules"),
    "model.dtype": ("torch_dtype", "precision"),
    "model.quantized": ("quantization", "load_in_4bit", "load_in_8bit"),
    "task.name": ("dataset", "dataset_name", "data"),
    "task.system_prompt": ("system", "system_message"),
    "task.target_column": ("answer_column", "label_column", "solution_column"),
    "rewards.functions": ("reward_funcs", "reward_functions", "reward"),
    "rewards.weights": ("reward_weights",),
    "rollout.prompts": (
        "batch_size", "train_batch_size", "per_device_train_batch_size", "rollout_batch_size",
        "prompts_per_step", "generation_batch_size",
    ),
    "rollout.group_size": (
        "generations", "n", "num_samples", "n_samples", "samples_per_prompt",
        "num_return_sequences", "rollouts_per_example",
    ),
    "rollout.max_new_tokens": (
        "max_tokens", "max_length", "max_response_length", "max_completion_tokens",
    ),
    "rollout.temperature": ("temp",),
    "algorithm.recipe": ("name", "loss_type", "loss", "algorithm"),
    "algorithm.signal": ("scale_rewards", "advantage", "advantage_estimator", "adv_estimator"),
    "algorithm.combine": ("multi_objective_aggregation",),
    "algorithm.ratio": ("importance_sampling_level",),
    "algorithm.clip_low": (
        "epsilon", "eps", "epsilon_low", "clip", "clip_range", "cliprange", "clip_eps",
        "clip_ratio", "clip_ratio_low",
    ),
    "algorithm.clip_high": ("epsilon_high", "eps_high", "clip_ratio_high"),
    "algorithm.beta": ("kl", "kl_beta", "kl_coef", "kl_coeff", "kl_weight", "kl_loss_coef"),
    "algorithm.passes": (
        "iterations", "num_iterations", "mu", "epochs", "num_epochs", "ppo_epochs",
        "num_ppo_epochs", "inner_epochs",
    ),
    "algorithm.minibatches": ("num_mini_batches", "num_minibatches", "mini_batch_size"),
    "algorithm.ref_refresh_every": ("sync_ref_model", "ref_model_sync_steps"),
    "algorithm.ref_mix": ("ref_model_mixup_alpha",),
    "algorithm.entropy_bonus": ("ent_coef", "entropy_coeff", "entropy_weight"),
    "algorithm.importance_cap": ("vllm_importance_sampling_clip_max",),
    "algorithm.refill_rounds": ("dynamic_sampling",),
    "optimizer.name": ("optim", "optimizer", "type"),
    "optimizer.learning_rate": ("lr", "step_size"),
    "optimizer.schedule": ("scheduler", "lr_scheduler", "lr_scheduler_type"),
    "optimizer.warmup_steps": ("warmup", "warmup_ratio"),
    "optimizer.epsilon": ("adam_epsilon",),
    "optimizer.max_grad_norm": ("clip_grad", "grad_clip", "gradient_clip", "max_norm"),
    "optimizer.micro_rows": ("micro_batch_size", "gradient_accumulation_steps"),
    "evaluation.every": ("eval_every", "eval_interval", "steps_per_eval"),
    "evaluation.samples": ("num_generations_eval",),
    "checkpoint.every": ("save_every", "save_interval", "steps_per_save"),
    "record.trackers": ("report_to", "tracker", "logger"),
}  # fmt: skip
MEANT: Final[Mapping[str, str]] = {
    **PLAIN, **{other: path for path, others in _NAMES.items() for other in others},
}  # fmt: skip


def meant(path: str, known: Iterable[str]) -> str:
    """The setting that a wrong path means, or those of a similar name, as the end of a sentence."""
    section, _, leaf = path.rpartition(".")
    alike = [name for name in known if name.rpartition(".")[2] == leaf]
    by_meaning = MEANT.get(leaf)
    if by_meaning is None:
        return nearest(path, known)
    alike = [name for name in alike if name != by_meaning and name.rpartition(".")[0] != section]
    in_section = by_meaning.startswith(f"{section}.") or not section
    names = [by_meaning, *alike] if in_section else [*alike, by_meaning]
    return f"; did you mean {' or '.join(names[:2])}?"
