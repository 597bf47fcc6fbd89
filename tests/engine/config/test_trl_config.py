"""TRL's GRPOConfig as our settings: the same run, and a note on each thing that differs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build, flatten
from grpo_engine.config.settings import OPTIMIZER_OPTIONS, RunConfig
from grpo_engine.config.trl_config import read, translate
from grpo_engine.config.trl_names import DEFAULTS, NO_CAP, TRANSLATED, UNLIKE, UNNEEDED
from grpo_engine.errors import ConfigError
from grpo_engine.policy.embedded import local_folder

GRPOCONFIG = Path(__file__).parents[1] / "maths" / "data" / "grpoconfig.json"  # make_trl_cases.py
Tree = dict[str, Any]


def values(config: RunConfig) -> Tree:
    """Settings by path, with options of the optimiser, and those of the recipe by name."""
    options = {f"optimizer.{name}": config.optimizer.option(name) for name in OPTIMIZER_OPTIONS}
    return flatten(config) | options | asdict(config.algorithm.resolved())


SYNCED = {"beta": 0.04, "sync_ref_model": True}
GATE = {"vespo_k_pos": 1.0, "vespo_lambda_pos": 1.5, "vespo_k_neg": 2.5, "vespo_lambda_neg": 0.5}
WHOLE = {"ratio": "sequence_sum"}
COSINE = {"lr_scheduler_type": "cosine_with_min_lr"}
VLLM = "vllm_importance_sampling_"
CORRECTION = ("importance_cap", "importance_floor", "importance_mode")
CARRIED_OVER: list[tuple[Tree, Tree]] = [
    (
        {"learning_rate": 1e-5},  # the rest is as TRL has it
        {
            "optimizer.learning_rate": 1e-5,
            "optimizer.schedule": "linear",
            "seed": 42,
            "rollout.max_new_tokens": 512,
            "rollout.prompts": 1,
            "rollout.group_size": 8,
            "weight": "per_token",
            "beta": 0.0,
            "anchor": "none",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "refill_rounds": 0,
            "off_policy_mask": 0.0,
        },
    ),
    (
        {"use_peft": True, "lora_r": 16, "lora_alpha": 32, "model_name_or_path": "org/m"},
        {
            "model.tuning": "lora",
            "model.lora_rank": 16,
            "model.lora_scale": 2.0,
            "model.path": "org/m",
        },
    ),
    (
        {
            "reward_funcs": ["accuracy_reward", "my.rewards.brevity"],
            "reward_weights": [1.0, 0.5],
            "dataset_name": "openai/gsm8k",
            "dataset_config": "main",
        },
        {
            "rewards.functions": ["math_equal", "my.rewards:brevity"],
            "rewards.weights": [1.0, 0.5],
            "task.name": "openai/gsm8k:main",
        },
    ),
    # a reference that follows is mixed for full tuning and copied for LoRA, after as many updates
    ({**SYNCED, "ref_model_sync_steps": 64}, {"ref_refresh_every": 64, "ref_mix": 0.6}),
    ({**SYNCED, "ref_model_sync_steps": 64, "use_peft": True}, {"ref_mix": 1.0}),
    (
        {**SYNCED, "ref_model_sync_steps": 8, "num_iterations": 4},
        {"ref_refresh_every": 2},
    ),
    *(
        ({"loss_type": "vespo", "importance_sampling_level": level, **GATE}, GATE | WHOLE)
        for level in ("token", "sequence")
    ),
    *(
        (
            {"off_policy_mask_threshold": 0.5, "use_vllm": use},
            {"off_policy_mask": 0.5},
        )
        for use in (True, False)
    ),
    *(
        (
            {"scale_rewards": scale, "multi_objective_aggregation": "normalize_then_sum"},
            {"signal": "group_standard", "combine": "normalize_then_sum"},
        )
        for scale in ("group", "batch", False)
    ),
    # vLLM's importance sampling is our correction for the sampler
    *(
        (
            {"use_vllm": True, **{f"{VLLM}{name}": value for name, value in given.items()}},
            dict(zip(CORRECTION, expected, strict=True)),
        )
        for given, expected in (
            ({}, (3.0, 0.0, "sequence_mask")),
            (
                {"clip_max": 2.0, "clip_min": 0.5, "mode": "token_truncate"},
                (2.0, 0.5, "token_truncate"),
            ),
            (
                {"clip_max": None, "clip_min": 0.5, "mode": "token_mask"},
                (NO_CAP, 0.5, "token_mask"),
            ),
            ({"cap": 1.5, "mode": "sequence_truncate"}, (1.5, 0.0, "sequence_truncate")),
            ({"correction": False, "mode": "token_mask"}, (0.0, 0.0, "token_truncate")),
        )
    ),
    ({"num_generations_eval": 4}, {"evaluation.samples": 4}),
    ({f"{VLLM}cap": 1.5}, {"algorithm.importance_cap": None}),  # TRL reads it only with vLLM
    ({"adam_epsilon": 1e-5, "optim": "adamw_8bit"}, {"optimizer.epsilon": 1e-5}),
    ({"adam_epsilon": 1e-5, "optim": "sgd"}, {"optimizer.epsilon": 1e-8}),
    ({"optim": "sgd"}, {"optimizer.name": "sgd", "optimizer.beta1": 0.0}),
    ({"optim": "paged_adamw_8bit"}, {"optimizer.name": "adamw", "optimizer.beta1": 0.9}),
    ({"optim": "lion_32bit"}, {"optimizer.name": "lion"}),
    ({"warmup_steps": 4}, {"optimizer.warmup_steps": 4, "optimizer.warmup_from_zero": True}),
    (
        {"lr_scheduler_type": "cosine"},
        {"optimizer.schedule": "cosine", "optimizer.warmup_steps": 0},
    ),
    (
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4},
        {"optimizer.schedule": "constant", "optimizer.warmup_steps": 4},
    ),
    (
        {**COSINE, "learning_rate": 0.1, "lr_scheduler_kwargs": {"min_lr": 0.02}},
        {"optimizer.schedule": "cosine", "optimizer.final_share": pytest.approx(0.2)},
    ),
    (
        {**COSINE, "lr_scheduler_kwargs": '{"min_lr_rate": "1e-1"}'},
        {"optimizer.final_share": 0.1},
    ),
]
NOTED: list[tuple[Tree, Tree, str]] = [
    # 4 rows x 8 steps per generation = 32 rows = 4 groups of 8; 8 / 2 = 4 updates a pass, twice
    (
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 8,
            "num_iterations": 2,
            "max_steps": 100,
        },
        {"rollout.prompts": 4, "minibatches": 4, "passes": 2, "steps": 13},  # 8 updates a step
        "max_steps: a step here",
    ),
    # 4 micro-batches of 8 answers make one update: four groups, though each was sampled alone
    (
        {"gradient_accumulation_steps": 4, "steps_per_generation": 1},
        {"rollout.prompts": 4, "minibatches": 1},
        "steps_per_generation 1 is no multiple",
    ),
    (
        {"optim": "sgd", "optim_args": "momentum=0.8, nesterov=true"},
        {"optimizer.beta1": 0.8},
        "optim_args nesterov",
    ),
    ({"optim": "rmsprop"}, {"optimizer.name": "adamw"}, "optim rmsprop: no equivalent"),
    ({"optim_args": "rank=8"}, {}, "optim_args rank: no equivalent for adamw"),
    # a constant rate has no warm-up in transformers
    (
        {"lr_scheduler_type": "constant", "warmup_steps": 4},
        {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0},
        "warmup_steps: transformers has no warm-up with constant; dropped",
    ),
    # 20 updates, of which a tenth, rounded up, is 2: one step of 4 updates
    (
        {"warmup_steps": 0.1, "max_steps": 20, "num_iterations": 4},
        {"optimizer.warmup_steps": 1},
        "warmup_steps: 2 updates became 1 steps of 4 updates",
    ),
    ({"warmup_ratio": 0.1}, {"optimizer.warmup_steps": 0}, "warm-up of 0.1 of the run"),
    (
        {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 2}},
        {"optimizer.schedule": "cosine"},
        "lr_scheduler_kwargs num_cycles 2: no equivalent",
    ),
    (
        {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2}},
        {"optimizer.schedule": "linear"},
        "lr_scheduler_type polynomial: no equivalent",
    ),
    (
        {"generation_kwargs": {"top_p": 0.9, "temperature": 0.7, "stop": "###"}, "top_p": 0.5},
        {"rollout.top_p": 0.9, "rollout.temperature": 0.7, "rollout.stop": ["###"]},
        "generation_kwargs temperature 0.7: log-probabilities are taken at it as well",
    ),
    ({"generation_kwargs": {"num_beams": 2}}, {}, "generation_kwargs num_beams: no equivalent"),
    (
        {"model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "sdpa", "x": 1}},
        {"model.dtype": "bfloat16"},
        "model_init_kwargs x: no equivalent",
    ),
    ({"use_vllm": True}, {}, "use_vllm: MLX samples in the same process"),
    ({"bf16": True}, {}, "bf16: no equivalent, and none needed"),
    ({"data_seed": 3}, {}, "data_seed: no equivalent, and none needed (GRPOTrainer does not read"),
    ({"auto_find_batch_size": 1}, {}, "auto_find_batch_size: TRL refuses it"),
    ({"entropy_coef_max": 3.0}, {}, "entropy_coef_max: always 1 here"),
    ({"beta": 0, "num_generatons": 8}, {}, "num_generatons: not a known setting of TRL's GRPO"),
    ({"loss_type": "other"}, {"weight": "per_sequence"}, "loss_type other: no equivalent"),
    ({"beta": 0.1, "task": {"name": "x"}}, {"beta": 0.1}, "task: not a known setting of TRL's"),
    # three rounds of calls are followed by an answer: four turns
    (
        {"max_completion_length": 300, "max_tool_calling_iterations": 3},
        {"rollout.max_new_tokens": 300, "task.max_turns": 4},
        "max_completion_length 300: with tools TRL counts their results too",
    ),
]


@pytest.mark.parametrize(("given", "expected"), CARRIED_OVER, ids=str)
def test_what_trl_has_carries_over(given: Tree, expected: Tree) -> None:
    made = values(build(translate(given)[0]))
    assert {path: made[path] for path in expected} == expected


@pytest.mark.parametrize(("given", "expected", "note"), NOTED, ids=str)
def test_what_differs_is_noted_once(given: Tree, expected: Tree, note: str) -> None:
    tree, notes = translate(given)
    made = values(build(tree))
    assert {path: made[path] for path in expected} == expected
    assert sum(text.startswith(note) for text in notes) == 1


@pytest.mark.parametrize(
    ("loss", "weight", "trust"),
    [
        ("grpo", "per_sequence", "clip"),
        ("dapo", "per_token", "clip"),
        ("dr_grpo", "constant", "clip"),
        ("bnpo", "per_batch_token", "clip"),
        ("cispo", "per_token", "cispo"),
        ("sapo", "per_sequence", "sapo"),
        ("luspo", "per_completion", "clip"),
        ("vespo", "per_token", "vespo"),
    ],
)
@pytest.mark.parametrize("scale", ["group", "batch", "none", True, False])
def test_every_loss_and_scaling_is_a_legal_recipe(
    loss: str, weight: str, trust: str, scale: Any
) -> None:
    given = {"loss_type": loss, "scale_rewards": scale, "epsilon_high": 0.3}
    recipe = build(translate(given)[0]).algorithm.resolved()
    assert (recipe.weight, recipe.trust) == (weight, trust)
    signals = {"group": "group_standard", "batch": "batch_standard", "none": "group_mean"}
    assert recipe.signal == signals[{True: "group", False: "none"}.get(scale, scale)]


@pytest.mark.parametrize("loss", ["grpo", "cispo", "sapo", "vespo"])
@pytest.mark.parametrize(("level", "ratio"), [("token", "token"), ("sequence", "sequence_mean")])
def test_a_corrected_kl_is_reweighted_by_the_ratio_of_trls_level(
    loss: str, level: str, ratio: str
) -> None:
    def recipe(**given: Any) -> Any:
        given |= {"loss_type": loss, "importance_sampling_level": level}
        return build(translate(given)[0]).algorithm.resolved()

    made = recipe(beta=0.1)  # TRL corrects unless told otherwise
    assert (made.anchor_reweighted, made.ratio, made.beta) == (True, ratio, 0.1)
    assert not recipe(beta=0.1, use_bias_correction_kl=False).anchor_reweighted
    assert not recipe(use_bias_correction_kl=True).anchor_reweighted


def test_the_names_and_defaults_are_those_of_trls_own_grpoconfig() -> None:
    theirs = json.loads(GRPOCONFIG.read_text(encoding="utf-8"))
    assert not theirs.keys() - TRANSLATED - UNLIKE.keys() - UNNEEDED.keys()
    assert {name: theirs[name] for name in DEFAULTS} == dict(DEFAULTS)


def test_the_same_settings_are_read_from_yaml_json_and_python_which_is_never_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.yaml").write_text("learning_rate: 1e-5\nnum_generations: 4\n")
    (tmp_path / "a.json").write_text(json.dumps({"learning_rate": 1e-5, "num_generations": 4}))
    (tmp_path / "a.py").write_text(
        f"open({str(tmp_path / 'made')!r}, 'w')\n"
        "args = trl.GRPOConfig(\n    learning_rate=1e-5,\n    num_generations=4,\n)\n"
    )
    trees = [translate(read(tmp_path / name))[0] for name in ("a.yaml", "a.json", "a.py")]
    assert trees[0] == trees[1] == trees[2]
    assert trees[0]["rollout"]["group_size"] == 4
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "c = GRPOConfig(beta=compute())", "a.py:1: beta=compute() is not a literal"),
        ("a.py", "c = GRPOConfig(**x)", "a.py:1: **x is not a literal"),
        ("a.py", "x = 1", "holds no settings"),
        ("a.py", "x = (", "a.py is not Python"),
        ("a.json", "{", "a.json is not JSON"),
        ("a.yaml", "a: [", "a.yaml is not YAML"),
        ("a.yaml", "scale_rewards: everything", "scale_rewards must be group, batch or none"),
        ("a.yaml", "num_generations: 7", "is not a multiple of num_generations 7"),
        ("a.yaml", "lr_scheduler_kwargs: '{'", "lr_scheduler_kwargs is not JSON"),
        ("a.yaml", "{task: {name: x}, steps: 3}", "none of the names is a setting of TRL's GRPO"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        translate(read(tmp_path / name))
    assert message in str(caught.value)


def test_a_misspelt_name_is_told_the_nearest() -> None:
    text = "\n".join(translate({"beta": 0, "num_generatons": 8, "vllm_server_prt": 8000})[1])
    assert "did you mean num_generations?" in text
    assert "did you mean vllm_server_port?" in text


def test_a_file_without_a_model_says_so_and_trains_none() -> None:
    """TRL takes the model as an argument, or as `model_name_or_path` from its command line."""
    tree, notes = translate({"beta": 0.1})
    assert "the model is an argument in TRL: set model.path to a folder or hub id" in notes
    assert local_folder(tree["model"]["path"]) is None
    _, notes = translate({"beta": 0.1, "model_name_or_path": "Qwen/Qwen3-0.6B"})
    assert not any("model" in note.partition(":")[0] for note in notes)
