"""Translates TRL's GRPOConfig into our settings, with a note for each thing that has no equivalent.

Reads YAML, JSON, or a Python file with a literal `GRPOConfig(…)` or `dict`, which is parsed, never
executed. Settings missing from the file get TRL's defaults, not ours, so that the run is the same.
"""

import ast
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from grpo_engine.config.parse import assign
from grpo_engine.config.recipes import SETTINGS, path_of
from grpo_engine.config.safe_json import parse_json, read_text
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.config.trl_names import (
    DEFAULTS,
    NO_CAP,
    PLAIN,
    REWARDS,
    SAMPLING,
    SCHEDULES,
    TRANSLATED,
    UNLIKE,
    UNNEEDED,
)
from grpo_engine.errors import ConfigError, nearest, quoted

Tree = dict[str, Any]


def translate(settings: Mapping[str, Any]) -> tuple[Tree, list[str]]:
    """Return the tree of settings, and notes on what was changed, dropped or needs a decision."""
    notes: list[str] = []
    names = {*TRANSLATED, *UNLIKE, *UNNEEDED}
    if settings and names.isdisjoint(settings):
        raise ConfigError("none of the names is a setting of TRL's GRPOConfig")
    values: Tree = {**DEFAULTS}
    for name, value in settings.items():
        if name not in names:
            hint = "" if isinstance(value, Mapping) else nearest(name, names, 1)  # not a section
            notes.append(f"{name}: not a known setting of TRL's GRPOConfig{hint}")
        is_text = isinstance(DEFAULTS.get(name, ""), str)
        values[name] = value if is_text else _number(value)
    parts = [{path: values.get(name) for name, path in PLAIN.items()}]
    for part in (
        _batch,
        _algorithm,
        _entropy,
        _mismatch,
        _optimizer,
        _schedule,
        _model,
        _reference,
        _rewards,
        _sampling,
        _task,
        _moments,
    ):
        parts.append(part(values, notes))
    tree: Tree = {}
    for path, value in (pair for part in parts for pair in part.items()):
        if value is not None:
            assign(tree, path, value)
    for name, value in settings.items():
        if name in UNLIKE and value not in (None, False):
            notes.append(f"{name}: {UNLIKE[name]}")
        elif name in UNNEEDED:
            notes.append(f"{name}: no equivalent, and none needed ({UNNEEDED[name]})")
    return tree, notes


def of_trainer(settings: Mapping[str, Any]) -> tuple[Tree, list[str]]:
    """As `translate`, for the run of a trainer: without what names objects of its process."""
    try:
        tree, notes = translate(settings)
    except ConfigError as error:
        return {}, [f"TRL's settings are not translated: {error}"]
    for section, name in (("rewards", "functions"), ("task", "name"), ("task", "max_turns")):
        tree.get(section, {}).pop(name, None)
    about_arguments = ("reward functions are", "reward_weights", "the data set is")
    return tree, [note for note in notes if not note.startswith(about_arguments)]


def read(path: Path) -> Tree:
    """Read the file into names and values."""
    text = read_text(path)
    try:
        if path.suffix == ".py":
            settings: Any = _python(text, path)
        else:
            settings = parse_json(text) if path.suffix == ".json" else parse_yaml(text)
    except (yaml.YAMLError, ValueError, SyntaxError, RecursionError) as error:
        language = {".py": "Python", ".json": "JSON"}.get(path.suffix, "YAML")
        raise ConfigError(f"{path} is not {language}: {error}") from error
    if not isinstance(settings, dict) or not settings:
        raise ConfigError(
            f"{path} holds no settings; give GRPOConfig's names and values as YAML, JSON, or a "
            "Python file with GRPOConfig(…)"
        )
    return settings


def _python(text: str, path: Path) -> Tree:
    """The literal keywords of the first GRPOConfig(…), else the first literal dict."""
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("GRPOConfig"):
            return _keywords(node, path)
    for node in nodes:
        if isinstance(node, ast.Dict):
            return Tree(ast.literal_eval(node))
    return {}


def _keywords(call: ast.Call, path: Path) -> Tree:
    values: Tree = {}
    for keyword in call.keywords:
        try:
            values[keyword.arg or "**"] = ast.literal_eval(keyword.value)
        except ValueError as error:
            raise ConfigError(
                f"{path}:{keyword.value.lineno}: {ast.unparse(keyword)[:80]} is not a literal; "
                "write the value itself"
            ) from error
    return values


def _number(value: Any) -> Any:
    """Parse a number in text: YAML reads 1e-5 as text because its floats need a point."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


# the recipe of a loss, with its rules of trust and weight
LOSSES = {
    "grpo": ("grpo", "clip", "per_sequence"),
    "dapo": ("grpo", "clip", "per_token"),
    "dr_grpo": ("dr-grpo", "clip", "constant"),
    "bnpo": ("bnpo", "clip", "per_batch_token"),
    "cispo": ("cispo", "cispo", "per_token"),
    "sapo": ("sapo", "sapo", "per_sequence"),
    "luspo": ("luspo", "clip", "per_completion"),
    "vespo": ("vespo", "vespo", "per_token"),
}


def _algorithm(values: Tree, notes: list[str]) -> Tree:
    """Loss, ratio and penalty."""
    loss = values["loss_type"]
    if loss not in LOSSES:
        notes.append(f"loss_type {loss}: no equivalent; translated as grpo, choose a recipe")
    recipe, trust, weight = LOSSES.get(loss, LOSSES["grpo"])
    reweighted = bool(values["beta"] and values["use_bias_correction_kl"])
    level = values["importance_sampling_level"]
    ratio = "sequence_mean" if level == "sequence" else "token"
    return {
        "algorithm.recipe": recipe,
        "algorithm.trust": trust,
        "algorithm.weight": weight,
        path_of("anchor_reweighted"): True if reweighted else None,
        # VESPO has its own ratio, of whole answers; TRL's level then applies to the KL alone
        "algorithm.ratio": "sequence_sum" if trust == "vespo" and not reweighted else ratio,
        "algorithm.anchor": "k3" if values["beta"] else "none",
        "algorithm.beta": values["beta"],
        "algorithm.passes": values["num_iterations"],
        **_signal(values),
        **_trust(values),
    }


def _signal(values: Tree) -> Tree:
    """What rewards are scaled by, and whether before or after they are summed."""
    scale = {True: "group", False: "none"}.get(values["scale_rewards"], values["scale_rewards"])
    signals = {"group": "group_standard", "batch": "batch_standard", "none": "group_mean"}
    if scale not in signals:
        raise ConfigError(f"scale_rewards must be group, batch or none, got {quoted(scale)}")
    combine = values["multi_objective_aggregation"]
    # TRL normalises each function by its group's deviation there, whatever scale_rewards says
    signal = signals["group" if combine == "normalize_then_sum" else scale]
    return {"algorithm.signal": signal, "algorithm.combine": combine}


def _entropy(values: Tree, notes: list[str]) -> Tree:
    """The controller of the entropy bonus, and means that TRL takes over micro-batches."""
    adaptive = values["use_adaptive_entropy"]
    if adaptive and values["updates"] > 1:
        notes.append(
            f"use_adaptive_entropy: the bonus is adjusted once per step, after "
            f"{values['updates']} updates; TRL adjusts it after each"
        )
    several = values["gradient_accumulation_steps"] > 1
    if several and (values["entropy_coef"] or adaptive):
        notes.append(
            "entropy_coef: the bonus is the mean over all tokens of an update; TRL takes the mean "
            "of each micro-batch, then of these, so tokens of short micro-batches count more there"
        )
    if several and values["top_entropy_quantile"] < 1:
        notes.append(
            "top_entropy_quantile: the quantile is that of all tokens of an update; TRL takes one "
            "of each micro-batch"
        )
    return {"algorithm.options.entropy_target": values["entropy_target"] if adaptive else None}


def _trust(values: Tree) -> Tree:
    """The bounds or the gate of the loss."""
    low, high = values["epsilon"], values["epsilon_high"]
    match values["loss_type"]:
        case "cispo":
            return {"algorithm.options.cispo_cap": high or low}
        case "vespo":
            names = ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")
            # TRL raises a smaller rate to the least that is allowed
            return {path_of(name): max(values[name], SETTINGS[name].ge or 0) for name in names}
        case "sapo":
            return {
                "algorithm.options.sapo_tau_pos": values["sapo_temperature_pos"],
                "algorithm.options.sapo_tau_neg": values["sapo_temperature_neg"],
            }
    return {
        "algorithm.clip_low": low,
        "algorithm.clip_high": low if high is None else high,
        "algorithm.delta": values["delta"],
    }


def _mismatch(values: Tree, notes: list[str]) -> Tree:
    """Importance correction, which TRL applies only when vLLM samples."""
    if not values["use_vllm"]:
        return {}
    notes.append("use_vllm: MLX samples in the same process; TRL's correction for it is kept")
    if not values["vllm_importance_sampling_correction"]:
        return {"algorithm.importance_cap": 0.0}
    cap = values["vllm_importance_sampling_cap"]
    cap = values["vllm_importance_sampling_clip_max"] if cap is None else cap
    return {
        "algorithm.importance_cap": NO_CAP if cap is None else cap,
        path_of("importance_mode"): values["vllm_importance_sampling_mode"],
        path_of("importance_floor"): values["vllm_importance_sampling_clip_min"],
    }


def _batch(values: Tree, notes: list[str]) -> Tree:
    """Prompts and minibatches; a step here is one generation batch with all its updates."""
    rows, accumulated = values["per_device_train_batch_size"], values["gradient_accumulation_steps"]
    generated = values["steps_per_generation"] or accumulated
    if values["generation_batch_size"]:
        generated = max(1, values["generation_batch_size"] // rows)
    if generated % accumulated:
        # an update of several generation batches, all sampled with the same weights
        rounded = -(-generated // accumulated) * accumulated
        notes.append(
            f"steps_per_generation {generated:g} is no multiple of gradient_accumulation_steps "
            f"{accumulated:g}: a step samples {rounded:g} x {rows:g} answers, for whole updates"
        )
        generated = rounded
    group = values["num_generations"]
    batch = rows * generated
    if batch % group:
        raise ConfigError(
            f"a generation batch of {batch} is not a multiple of num_generations {group}; "
            "TRL refuses it as well"
        )
    minibatches = generated // accumulated
    updates = values["updates"] = minibatches * values["num_iterations"]
    steps = None
    if values["max_steps"] and values["max_steps"] > 0:
        steps = -(-int(values["max_steps"]) // updates)
        if updates > 1:
            notes.append(
                f"max_steps: a step here is one generation batch with {updates} updates, so "
                f"{values['max_steps']} became {steps}"
            )
    else:
        notes.append(
            f"num_train_epochs {values['num_train_epochs']:g}: runs are counted in steps; set "
            f"steps to epochs x rows / {batch // group} prompts per step"
        )
    return {
        "rollout.prompts": batch // group,
        "optimizer.micro_rows": rows,
        "algorithm.minibatches": minibatches,
        "steps": steps,
    }


def _steps(values: Tree, name: str, updates: float, notes: list[str]) -> int:
    """A number of TRL's updates in steps, rounded up."""
    steps: int = math.ceil(updates / values["updates"])
    if steps * values["updates"] != updates:
        notes.append(
            f"{name}: {updates:g} updates became {steps} steps of {values['updates']} updates"
        )
    return steps


def _optimizer(values: Tree, notes: list[str]) -> Tree:
    """Optimiser and momentum; where its state is kept, or in how many bits, changes nothing."""
    name = str(values["optim"]).removeprefix("paged_").partition("_")[0]
    if name not in ("adamw", "adafactor", "sgd", "lion"):
        notes.append(f"optim {values['optim']}: no equivalent; adamw is used")
        name = "adamw"
    text = str(values.get("optim_args") or "").replace(" ", "")
    options = dict(part.split("=", 1) for part in text.split(",") if part)
    momentum = None
    if name == "sgd":
        momentum = _number(options.pop("momentum", 0.0))
        options.pop("weight_decay", None)  # transformers sets weight_decay for each weight
    if options:
        notes.append(f"optim_args {', '.join(options)}: no equivalent for {name}")
    return {
        "optimizer.name": name,
        "optimizer.options.epsilon": values["adam_epsilon"] if name == "adamw" else None,
        "optimizer.options.beta1": momentum,
    }


def _schedule(values: Tree, notes: list[str]) -> Tree:
    """Schedule and warm-up, which is from 0 in transformers; `constant` has none there."""
    name = str(values["lr_scheduler_type"])
    options = _mapping(values, "lr_scheduler_kwargs")
    peak = values["learning_rate"]
    final = 0.0
    if name == "cosine_with_min_lr" and peak:
        final = options.pop("min_lr_rate", None) or (options.pop("min_lr", None) or 0.0) / peak
    elif name == "polynomial" and peak and options.get("power", 1.0) == 1.0:
        final = options.pop("lr_end", 1e-7) / peak
        options.pop("power", None)
    shape = SCHEDULES.get(name)
    cycles = options.pop("num_cycles", None) if shape == "cosine" else None
    if cycles not in (None, 1 if name == "cosine_with_restarts" else 0.5):
        notes.append(f"lr_scheduler_kwargs num_cycles {cycles:g}: no equivalent; one fall is used")
    if shape is None or "power" in options:
        notes.append(f"lr_scheduler_type {name}: no equivalent; linear is used")
        shape = "linear"
    elif options:
        notes.append(f"lr_scheduler_kwargs {', '.join(options)}: no equivalent")
    return {
        "optimizer.schedule": shape,
        "optimizer.options.final_share": final or None,
        **_warmup(values, name, notes),
    }


def _warmup(values: Tree, schedule: str, notes: list[str]) -> Tree:
    warmup = values["warmup_steps"] or values.get("warmup_ratio") or 0
    if schedule == "constant" and warmup:
        notes.append("warmup_steps: transformers has no warm-up with constant; dropped")
        return {}
    if 0 < warmup < 1:
        if values["max_steps"] <= 0:
            notes.append(
                f"warm-up of {warmup:g} of the run: set optimizer.warmup_steps to its steps"
            )
            return {}
        warmup = math.ceil(warmup * values["max_steps"])
    if not warmup:
        return {}
    steps = _steps(values, "warmup_steps", int(warmup), notes)
    return {"optimizer.warmup_steps": steps, "optimizer.options.warmup_from_zero": True}


def _mapping(values: Tree, name: str) -> Tree:
    """A setting that is a dict, or JSON text of one; its numbers may be text."""
    mapping = values.get(name) or {}
    if isinstance(mapping, str):
        try:
            mapping = parse_json(mapping)
        except ValueError as error:
            raise ConfigError(f"{name} is not JSON: {error}") from error
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{name} must be a dict, got {type(mapping).__name__}")
    return {key: _number(value) for key, value in mapping.items()}


def _has_lora(values: Tree) -> bool:
    return any(values.get(name) for name in ("use_peft", "lora_r", "lora_alpha"))


def _model(values: Tree, notes: list[str]) -> Tree:
    """Number format, LoRA's rank, and alpha / r as the scale."""
    options = _mapping(values, "model_init_kwargs")
    format = options.pop("dtype", None) or options.pop("torch_dtype", None)
    trusted = options.pop("trust_remote_code", values["trust_remote_code"])
    ignored = UNNEEDED.keys() | {"device_map", "low_cpu_mem_usage"}
    if changing := sorted(options.keys() - ignored):
        notes.append(f"model_init_kwargs {', '.join(changing)}: no equivalent; see model.*")
    if not (path := values.get("model_name_or_path")):
        notes.append("the model is an argument in TRL: set model.path to a folder or hub id")
    tree = {
        # The run is refused if none is named: the default model was not meant.
        "model.path": path or "MODEL",
        "model.dtype": None if format is None else str(format).removeprefix("torch."),
        "model.trust_remote_code": trusted,
        "model.tuning": "full",
    }
    if not _has_lora(values):
        if "use_peft" not in values:
            notes.append(
                "no PEFT settings: all weights are trained; set model.tuning to lora for LoRA"
            )
        return tree
    if isinstance(values.get("lora_target_modules"), list):
        notes.append(
            "lora_target_modules: set model.lora_keys to mlx-lm's layer names, like "
            "self_attn.q_proj; all linear layers are used"
        )
    rank, alpha = values.get("lora_r") or 16, values.get("lora_alpha") or 32
    tuning = "dora" if values.get("use_dora") else "lora"
    lora = {"model.tuning": tuning, "model.lora_rank": rank, "model.lora_scale": alpha / rank}
    return tree | lora


def _reference(values: Tree, notes: list[str]) -> Tree:
    """A reference that is updated from the policy: copied for LoRA, mixed for full fine-tuning."""
    if not values["sync_ref_model"]:
        return {}
    if not values["beta"]:
        notes.append("sync_ref_model: without beta there is no reference; dropped")
        return {}
    share = values["ref_model_mixup_alpha"]
    if _has_lora(values) and share != 1:
        notes.append(
            f"ref_model_mixup_alpha {share}: LoRA's matrices cannot be "
            "mixed; the reference is replaced by the policy"
        )
    steps = _steps(values, "ref_model_sync_steps", values["ref_model_sync_steps"], notes)
    return {
        "algorithm.ref_refresh_every": steps,
        "algorithm.options.ref_mix": None if _has_lora(values) else share,
    }


def _rewards(values: Tree, notes: list[str]) -> Tree:
    """Reward functions by TRL's names or dotted paths."""
    functions = values.get("reward_funcs") or []
    functions = [functions] if isinstance(functions, str) else functions
    names = [
        name if ":" in name else REWARDS.get(name, ":".join(name.rsplit(".", 1)))
        for name in map(str, functions)
    ]
    if not names:
        notes.append("reward functions are arguments in TRL: set rewards.functions to yours")
    weights = values["reward_weights"] or []
    if weights and len(weights) != len(names):
        notes.append(
            f"reward_weights {weights}: set rewards.functions to your functions "
            "(file.py:function) and rewards.weights to these"
        )
        weights = []
    return {"rewards.functions": names or None, "rewards.weights": weights or None}


def _sampling(values: Tree, notes: list[str]) -> Tree:
    """`generation_kwargs`, which replace the settings of the same name, as in TRL."""
    options, tree = _mapping(values, "generation_kwargs"), Tree()
    options.pop("do_sample", None)
    for name, path in SAMPLING.items():
        value = options.pop(name, None)
        if value is None:
            continue
        tree[path] = [value] if path == "rollout.stop" and isinstance(value, str) else value
        if name == "temperature" and value != values["temperature"]:
            notes.append(
                f"generation_kwargs temperature {value:g}: log-probabilities are taken at it "
                f"as well; TRL keeps {values['temperature']:g} for them"
            )
    if options:
        notes.append(
            f"generation_kwargs {', '.join(options)}: no equivalent; rollout.* has what can be set"
        )
    return tree


def _moments(values: Tree, notes: list[str]) -> Tree:
    """When it evaluates and saves, which TRL counts in updates or gives as a share of the run."""
    last = max(0, int(values["max_steps"] or 0))
    tree: Tree = {
        "evaluation.samples": values.get("num_generations_eval"),
        "evaluation.before_and_after": values.get("eval_on_start"),
        "evaluation.greedy": False,
    }
    for name, path in (("eval_steps", "evaluation.every"), ("save_steps", "checkpoint.every")):
        updates = values.get(name)
        if updates and updates < 1:
            updates = math.ceil(updates * last)
        if updates:
            tree[path] = _steps(values, name, updates, notes)
    if last and (values.get("eval_steps") or 0) >= last:
        tree["evaluation.every"] = 0  # after the last step alone
    if values.get("save_strategy") == "no":
        tree["checkpoint.every"] = 0
    return tree


def _task(values: Tree, notes: list[str]) -> Tree:
    """The data set, with its subset after a colon."""
    name = values.get("dataset_name")
    if not name:
        notes.append("the data set is an argument in TRL: set task.name to a file or hub id")
    notes.append(
        f"max_completion_length {values['max_completion_length']}: with tools TRL counts their "
        "results too, rollout.max_new_tokens the model's tokens alone; rollout.max_context limits "
        "all, the prompt's included"
    )
    calls = values.get("max_tool_calling_iterations")
    return {
        "task.name": ":".join(filter(None, (name, values.get("dataset_config")))) if name else None,
        # the answer after the last call is a turn as well
        "task.max_turns": None if calls is None else int(calls) + 1,
    }
