"""Settings by the names of TRL's GRPOConfig: the inverse of `trl_config.translate`.

What TRL has no equivalent for is known from the way back: `translate` says what TRL would train,
and `differences` are the settings of which that is not true.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from grpo_engine.config.parse import build, flatten
from grpo_engine.config.recipes import Recipe, path_of, recipe, settings_read
from grpo_engine.config.settings import OPTIMIZER_OPTIONS, ROLLOUT_OPTIONS, RunConfig
from grpo_engine.config.trl_config import LOSSES, Tree, translate
from grpo_engine.config.trl_names import DEFAULTS, NO_CAP, PLAIN

ROWS = 8  # answers of a micro-batch where the settings leave it to the memory
LOSS_OF = {(trust, weight): loss for loss, (_, trust, weight) in LOSSES.items()}
SCALES = {"group_standard": "group", "batch_standard": "batch", "group_mean": "none"}
OPTIMIZERS = {"sgd": "sgd", "lion": "lion_32bit", "adafactor": "adafactor"}
# Names of `translate` that are no settings of GRPOConfig, but arguments of its trainer.
ARGUMENTS = (
    "model_name_or_path",
    "use_peft",
    "use_dora",
    "lora_r",
    "lora_alpha",
    "dataset_name",
    "reward_funcs",
)
OF_DATA = ("max_prompt_length", "dataset_train_split", "dataset_test_split")
# Values that leave a choice to the machine.
AUTOMATIC = {"optimizer.micro_rows": 0, "model.grad_checkpoint": "auto"}


def values_of(config: RunConfig) -> Tree:
    """The settings by TRL's names: GRPOConfig's, and those in ARGUMENTS."""
    recipe = config.algorithm.resolved()
    minibatches, updates = minibatches_of(config), minibatches_of(config) * recipe.passes
    settings = effective(config)
    plain = {name: settings.get(path) for name, path in PLAIN.items() if name not in OF_DATA}
    return {
        **{
            name: value
            for name, value in plain.items()
            if value or (value is not None and DEFAULTS.get(name) is not None)
        },
        "max_steps": config.steps * updates,
        **_batch(config, minibatches),
        **_algorithm(recipe),
        **_trust(recipe),
        **_importance(recipe),
        **_optimizer(config, updates),
        **_schedule(config),
        **_moments(config, updates),
        **_model(config),
        **_reference(config, updates),
        "dataset_name": config.task.name,
        "reward_funcs": list(config.rewards.functions),
        "reward_weights": list(config.rewards.weights) or None,
    }


def differences(config: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """Settings with an effect that TRL has no equivalent for: path, value, and value in TRL."""
    ours, theirs = effective(config), effective(build(translate(values_of(config))[0]))
    for path, value in ours.items():
        in_trl = theirs.get(path)
        is_automatic = path in AUTOMATIC and value == AUTOMATIC[path]
        if not (is_automatic or is_equal(value, in_trl) or is_unread(path, value, in_trl)):
            yield path, value, in_trl


def is_equal(value: Any, in_trl: Any) -> bool:
    """Whether two values are the same but for rounding, as of alpha = rank · scale."""
    if isinstance(value, float) and isinstance(in_trl, float):
        return math.isclose(value, in_trl, rel_tol=1e-9)
    return bool(value == in_trl)


def is_unread(path: str, value: Any, in_trl: Any) -> bool:
    """Whether it qualifies a choice that TRL lacks, and is as it is by default."""
    return in_trl is None and value == getattr(recipe("grpo"), path.rpartition(".")[2], None)


def effective(config: RunConfig) -> Tree:
    """Every setting that is read, by its path; those of the algorithm as they are resolved."""
    recipe = config.algorithm.resolved()
    settings = {p: v for p, v in flatten(config).items() if not p.startswith("algorithm.")}
    for section, options in (("optimizer", OPTIMIZER_OPTIONS), ("rollout", ROLLOUT_OPTIONS)):
        del settings[f"{section}.options"]
        values = getattr(config, section)
        settings |= {f"{section}.options.{name}": values.option(name) for name in options}
    read = settings_read(recipe)
    settings |= {path_of(name): value for name, value in asdict(recipe).items() if name in read}
    if not recipe.beta:
        settings["algorithm.anchor"] = "none"
    return settings


def minibatches_of(config: RunConfig) -> int:
    """Updates per pass; TRL's are of equally many answers."""
    rows, requested = config.rollout.rows, config.algorithm.resolved().minibatches
    return next(count for count in range(min(rows, requested), 0, -1) if rows % count == 0)


def _batch(config: RunConfig, minibatches: int) -> Tree:
    """For one process: a generation batch is a step's answers, each update a part of them."""
    per_update = config.rollout.rows // minibatches
    largest = min(config.optimizer.micro_rows or ROWS, per_update)
    rows = next(count for count in range(largest, 0, -1) if per_update % count == 0)
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": per_update // rows,
        "steps_per_generation": minibatches * (per_update // rows),
    }


def _algorithm(recipe: Recipe) -> Tree:
    """Loss, ratio, penalty and signal; where TRL has no such loss, the one most like it."""
    loss = LOSS_OF.get((recipe.trust, recipe.weight))
    if loss is None:
        gates = {"cispo", "sapo", "vespo"}
        loss = recipe.trust if recipe.trust in gates else LOSS_OF.get(("clip", recipe.weight))
    beta = recipe.beta if recipe.anchor_in_loss else 0.0
    adaptive = recipe.entropy_target is not None
    return {
        "loss_type": loss or "grpo",
        "num_iterations": recipe.passes,
        "beta": beta,
        **({"use_bias_correction_kl": recipe.reweights_anchor} if beta else {}),
        "importance_sampling_level": "sequence" if recipe.ratio == "sequence_mean" else "token",
        "scale_rewards": SCALES.get(recipe.signal, "group"),
        "multi_objective_aggregation": recipe.combine,
        "use_adaptive_entropy": adaptive,
        **({"entropy_target": recipe.entropy_target} if adaptive else {}),
    }


def _trust(recipe: Recipe) -> Tree:
    match recipe.trust:
        case "cispo":
            return {"epsilon_high": recipe.cispo_cap}
        case "sapo":
            return {
                "sapo_temperature_pos": recipe.sapo_tau_pos,
                "sapo_temperature_neg": recipe.sapo_tau_neg,
            }
        case "vespo":
            names = ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")
            return {name: getattr(recipe, name) for name in names}
    delta = {} if recipe.delta is None else {"delta": recipe.delta}
    return {"epsilon": recipe.clip_low, "epsilon_high": recipe.clip_high, **delta}


def _importance(recipe: Recipe) -> Tree:
    """The correction for the sampler, which TRL has where vLLM samples."""
    if not recipe.importance_cap:
        return {"use_vllm": False}
    cap = recipe.importance_cap
    return {
        "use_vllm": True,
        "vllm_importance_sampling_mode": recipe.importance_mode,
        "vllm_importance_sampling_clip_min": recipe.importance_floor or None,
        "vllm_importance_sampling_clip_max": None if cap == NO_CAP else cap,
    }


def _optimizer(config: RunConfig, updates: int) -> Tree:
    options = config.optimizer
    name = OPTIMIZERS.get(options.name, "adamw_torch")
    momentum = {"optim_args": f"momentum={options.option('beta1')}"} if name == "sgd" else {}
    return {
        "optim": name,
        **momentum,
        "adam_epsilon": options.option("epsilon"),
        "warmup_steps": options.warmup_steps * updates,
    }


def _schedule(config: RunConfig) -> Tree:
    options = config.optimizer
    share = options.option("final_share")
    match options.schedule:
        case "constant":
            name = "constant_with_warmup" if options.warmup_steps else "constant"
            return {"lr_scheduler_type": name}
        case "cosine" if share:
            rate = {"min_lr_rate": share}
            return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": rate}
        case "linear" if share:
            end = {"lr_end": share * options.learning_rate, "power": 1.0}
            return {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": end}
    return {"lr_scheduler_type": options.schedule}


def _moments(config: RunConfig, updates: int) -> Tree:
    """When it evaluates and saves; TRL counts updates."""
    evaluation, every = config.evaluation, config.checkpoint.every
    result: Tree = {"save_strategy": "steps", "save_steps": every * updates}
    if not every:
        result = {"save_strategy": "no"}
    if evaluates(config):
        samples, rows = evaluation.samples, config.optimizer.micro_rows or ROWS
        result |= {
            "eval_strategy": "steps",
            "eval_steps": (evaluation.every or config.steps) * updates,
            "eval_on_start": evaluation.before_and_after,
            "num_generations_eval": samples,
            "per_device_eval_batch_size": max(1, rows // samples) * samples,
        }
    return result


def evaluates(config: RunConfig) -> bool:
    """Whether there are evaluations that TRL has as well, which are sampled."""
    evaluation = config.evaluation
    return bool(evaluation.samples and (evaluation.every or evaluation.before_and_after))


def _model(config: RunConfig) -> Tree:
    model = config.model
    adapted = model.tuning != "full"
    result: Tree = {"model_name_or_path": model.path, "use_peft": adapted}
    if model.dtype != "auto":
        result["model_init_kwargs"] = {"dtype": model.dtype}
    usual = {"auto": DEFAULTS["gradient_checkpointing"], "on": True, "off": False}
    result["gradient_checkpointing"] = usual[model.grad_checkpoint]
    if adapted:
        alpha = model.lora_scale * model.lora_rank
        result |= {"lora_r": model.lora_rank, "lora_alpha": alpha}
        result["use_dora"] = model.tuning == "dora"
    return result


def _reference(config: RunConfig, updates: int) -> Tree:
    """A reference that follows the policy, which TRL refuses beside an adapter."""
    recipe = config.algorithm.resolved()
    if config.model.tuning != "full" or not (recipe.ref_refresh_every and recipe.anchor_in_loss):
        return {}
    return {
        "sync_ref_model": True,
        "ref_model_sync_steps": recipe.ref_refresh_every * updates,
        "ref_model_mixup_alpha": recipe.ref_mix,
    }
