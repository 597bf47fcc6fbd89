import json
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.settings import OPTIMIZER_OPTIONS
from grpo_engine.config.trl_config import read, translate
from grpo_engine.config.trl_names import DEFAULTS, NO_CAP, TRANSLATED, UNLIKE, UNNEEDED
from grpo_engine.errors import ConfigError
from grpo_engine.maths.arrays import MAX_RATIO
from grpo_engine.policy.embedded import local_folder

GRPOCONFIG = Path(__file__).parents[1] / "maths" / "data" / "grpoconfig.json"  # make_trl_cases.py


def config(**given: Any) -> Any:
    return build(translate(given)[0])


def test_what_the_file_leaves_out_is_as_trl_has_it() -> None:
    made = config(learning_rate=1e-5)
    recipe = made.algorithm.resolved()
    assert made.optimizer.learning_rate == 1e-5
    assert (made.optimizer.schedule, made.seed, made.rollout.max_new_tokens) == ("linear", 42, 512)
    assert (recipe.weight, recipe.beta, recipe.anchor) == ("per_token", 0.0, "none")
    assert (recipe.clip_low, recipe.clip_high, recipe.refill_rounds) == (0.2, 0.2, 0)
    assert (made.rollout.prompts, made.rollout.group_size) == (1, 8)


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
    recipe = config(loss_type=loss, scale_rewards=scale, epsilon_high=0.3).algorithm.resolved()
    assert (recipe.weight, recipe.trust) == (weight, trust)
    signals = {"group": "group_standard", "batch": "batch_standard", "none": "group_mean"}
    assert recipe.signal == signals[{True: "group", False: "none"}.get(scale, scale)]


@pytest.mark.parametrize("scale", ["group", "batch", "none", True, False])
def test_rewards_normalised_before_the_sum_are_so_by_group_whatever_the_scaling(scale: Any) -> None:
    given = {"scale_rewards": scale, "multi_objective_aggregation": "normalize_then_sum"}
    recipe = config(**given).algorithm.resolved()
    assert (recipe.signal, recipe.combine) == ("group_standard", "normalize_then_sum")


def test_batches_become_prompts_minibatches_and_steps() -> None:
    # 4 rows x 8 steps per generation = 32 rows = 4 groups of 8; 8 / 2 = 4 updates per pass, twice
    tree, notes = translate(
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 8,
            "num_generations": 8,
            "num_iterations": 2,
            "max_steps": 100,
        }
    )
    made = build(tree)
    assert made.rollout.prompts == 4
    assert (made.algorithm.minibatches, made.algorithm.passes) == (4, 2)
    assert made.steps == 13  # 100 updates of 8 per step
    assert any(note.startswith("max_steps: a step here") for note in notes)


def test_lora_alpha_becomes_the_scale_that_multiplies_directly() -> None:
    made = config(use_peft=True, lora_r=16, lora_alpha=32, model_name_or_path="org/m")
    assert (made.model.tuning, made.model.lora_rank, made.model.lora_scale) == ("lora", 16, 2.0)
    assert made.model.path == "org/m"


def test_rewards_and_data_of_trls_command_line_carry_over() -> None:
    made = config(
        reward_funcs=["accuracy_reward", "my.rewards.brevity"],
        reward_weights=[1.0, 0.5],
        dataset_name="openai/gsm8k",
        dataset_config="main",
    )
    assert made.rewards.functions == ("math_equal", "my.rewards:brevity")
    assert made.rewards.weights == (1.0, 0.5)
    assert made.task.name == "openai/gsm8k:main"


def test_a_reference_that_follows_is_mixed_for_full_tuning_and_copied_for_lora() -> None:
    given = {"beta": 0.04, "sync_ref_model": True, "ref_model_sync_steps": 64}
    full, lora = config(**given), config(**given, use_peft=True)
    assert (full.algorithm.ref_refresh_every, full.algorithm.options["ref_mix"]) == (64, 0.6)
    assert lora.algorithm.resolved().ref_mix == 1.0


def test_what_has_no_equivalent_is_listed_once_with_what_to_do() -> None:
    _, notes = translate(
        {
            "use_vllm": True,
            "bf16": True,
            "entropy_coef_max": 3.0,
            "num_generatons": 8,
            "vllm_server_prt": 8000,
            "loss_type": "other",
        }
    )
    text = "\n".join(notes)
    assert text.count("use_vllm: MLX samples in the same process") == 1
    assert "bf16: no equivalent, and none needed" in text
    assert "entropy_coef_max: always 1 here" in text
    assert "did you mean num_generations?" in text
    assert "did you mean vllm_server_port?" in text
    assert "loss_type other: no equivalent; translated as grpo" in text


def test_vespo_takes_its_four_numbers_and_its_own_ratio() -> None:
    numbers = {"k_pos": 1.0, "lambda_pos": 1.5, "k_neg": 2.5, "lambda_neg": 0.5}
    given = {f"vespo_{name}": value for name, value in numbers.items()}
    for level in ("token", "sequence"):
        made = config(loss_type="vespo", importance_sampling_level=level, **given)
        recipe = made.algorithm.resolved()
        assert {name: getattr(recipe, f"vespo_{name}") for name in numbers} == numbers
        assert recipe.ratio == "sequence_sum"


@pytest.mark.parametrize("loss", ["grpo", "dapo", "cispo", "sapo", "luspo", "vespo"])
@pytest.mark.parametrize(("level", "ratio"), [("token", "token"), ("sequence", "sequence_mean")])
def test_a_corrected_kl_is_reweighted_by_the_ratio_of_trls_level(
    loss: str, level: str, ratio: str
) -> None:
    given = {"loss_type": loss, "importance_sampling_level": level}
    recipe = config(**given, beta=0.1).algorithm.resolved()  # TRL corrects unless told otherwise
    assert (recipe.anchor_reweighted, recipe.ratio, recipe.beta) == (True, ratio, 0.1)
    plain = config(**given, beta=0.1, use_bias_correction_kl=False).algorithm.resolved()
    assert (plain.anchor_reweighted, plain.beta) == (False, 0.1)
    assert not config(**given, use_bias_correction_kl=True).algorithm.resolved().anchor_reweighted


def test_the_names_and_defaults_are_those_of_trls_own_grpoconfig() -> None:
    theirs = json.loads(GRPOCONFIG.read_text(encoding="utf-8"))
    assert not theirs.keys() - TRANSLATED - UNLIKE.keys() - UNNEEDED.keys()
    assert {name: theirs[name] for name in DEFAULTS} == dict(DEFAULTS)


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_8bit", "sgd", "unknown"])
def test_adams_epsilon_carries_over_to_the_optimisers_that_read_it(optim: str) -> None:
    made = config(optim=optim, adam_epsilon=1e-5).optimizer
    assert made.option("epsilon") == (1e-8 if optim == "sgd" else 1e-5)


@pytest.mark.parametrize(
    ("given", "expected", "told"),
    [
        ({"optim": "sgd"}, {"name": "sgd", "beta1": 0.0}, ""),
        ({"optim": "sgd", "optim_args": "momentum=0.8, nesterov=true"}, {"beta1": 0.8}, "nesterov"),
        ({"optim": "paged_adamw_8bit"}, {"name": "adamw", "beta1": 0.9}, ""),
        ({"optim": "lion_32bit"}, {"name": "lion"}, ""),
        ({"optim": "rmsprop"}, {"name": "adamw"}, "optim rmsprop: no equivalent"),
        ({"optim_args": "rank=8"}, {"name": "adamw"}, "optim_args rank: no equivalent for adamw"),
    ],
)
def test_an_optimiser_comes_with_the_momentum_that_it_has_in_transformers(
    given: dict[str, Any], expected: dict[str, Any], told: str
) -> None:
    tree, notes = translate(given)
    made = build(tree).optimizer
    options = {name: made.option(name) for name in OPTIMIZER_OPTIONS}
    found = {**made.model_dump(), **options}
    assert {name: found[name] for name in expected} == expected
    assert any(told in note for note in notes if note.startswith("optim")) == bool(told)


@pytest.mark.parametrize(
    ("given", "expected", "told"),
    [
        ({"warmup_steps": 4}, ("linear", 4, True, 0.0), ""),
        ({"lr_scheduler_type": "cosine"}, ("cosine", 0, False, 0.0), ""),
        # a constant rate has no warm-up in transformers
        ({"lr_scheduler_type": "constant", "warmup_steps": 4}, ("constant", 0, False, 0.0), "drop"),
        (
            {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4},
            ("constant", 4, True, 0.0),
            "",
        ),
        # 20 updates, of which a tenth, rounded up, is 2: one step of 4 updates
        (
            {"warmup_steps": 0.1, "max_steps": 20, "num_iterations": 4},
            ("linear", 1, True, 0.0),
            "2 updates became 1 steps of 4 updates",
        ),
        ({"warmup_ratio": 0.1}, ("linear", 0, False, 0.0), "warm-up of 0.1 of the run"),
        (
            {
                "lr_scheduler_type": "cosine_with_min_lr",
                "learning_rate": 0.1,
                "lr_scheduler_kwargs": {"min_lr": 0.02},
            },
            ("cosine", 0, False, 0.2),
            "",
        ),
        (
            {
                "lr_scheduler_type": "cosine_with_min_lr",
                "lr_scheduler_kwargs": '{"min_lr_rate": "1e-1"}',
            },
            ("cosine", 0, False, 0.1),
            "",
        ),
        (
            {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 2}},
            ("cosine", 0, False, 0.0),
            "num_cycles 2: no equivalent",
        ),
        ({"lr_scheduler_type": "inverse_sqrt"}, ("linear", 0, False, 0.0), "inverse_sqrt: no"),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2}},
            ("linear", 0, False, 0.0),
            "polynomial: no equivalent",
        ),
    ],
)
def test_a_schedule_falls_and_warms_up_as_in_transformers(
    given: dict[str, Any], expected: tuple[Any, ...], told: str
) -> None:
    tree, notes = translate(given)
    made = build(tree).optimizer
    found = (
        made.schedule,
        made.warmup_steps,
        *map(made.option, ("warmup_from_zero", "final_share")),
    )
    assert found == pytest.approx(expected)
    about = [note for note in notes if note.startswith(("warm", "lr_scheduler"))]
    assert any(told in note for note in about) == bool(told)


def test_what_generation_and_the_model_are_given_beside_their_settings_carries_over() -> None:
    tree, notes = translate(
        {
            "top_p": 0.5,
            "generation_kwargs": {"top_p": 0.9, "temperature": 0.7, "stop": "###", "num_beams": 2},
            "model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "sdpa", "x": 1},
            "num_generations_eval": 4,
        }
    )
    made = build(tree)
    assert (made.rollout.top_p, made.rollout.temperature, made.rollout.stop) == (0.9, 0.7, ("###",))
    assert (made.model.dtype, made.evaluation.samples) == ("bfloat16", 4)
    text = "\n".join(notes)
    assert "generation_kwargs temperature 0.7: log-probabilities are taken at it as well" in text
    assert "generation_kwargs num_beams: no equivalent" in text
    assert "model_init_kwargs x: no equivalent" in text
    with pytest.raises(ConfigError, match="lr_scheduler_kwargs is not JSON"):
        translate({"lr_scheduler_kwargs": "{"})


def test_what_grpotrainer_itself_does_not_read_is_said_to_need_no_equivalent() -> None:
    _, notes = translate({"data_seed": 3, "label_smoothing_factor": 0.1, "auto_find_batch_size": 1})
    for name in ("data_seed", "label_smoothing_factor"):
        assert f"{name}: no equivalent, and none needed (GRPOTrainer does not read it)" in notes
    assert any(note.startswith("auto_find_batch_size: TRL refuses it") for note in notes)


def test_an_update_of_several_generations_is_a_step_that_samples_them_all() -> None:
    """4 micro-batches of 8 answers make one update: four groups, though each was sampled alone."""
    tree, notes = translate({"gradient_accumulation_steps": 4, "steps_per_generation": 1})
    assert (tree["rollout"]["prompts"], tree["algorithm"]["minibatches"]) == (4, 1)
    assert any(note.startswith("steps_per_generation 1 is no multiple") for note in notes)


def test_a_reference_is_synced_after_as_many_updates_as_in_trl() -> None:
    given = {"beta": 0.04, "sync_ref_model": True, "num_iterations": 4}
    made = config(**given, ref_model_sync_steps=8).algorithm
    assert made.ref_refresh_every == 2


@pytest.mark.parametrize(
    ("given", "cap", "floor", "mode"),
    [
        ({}, 3.0, 0.0, "sequence_mask"),
        ({"clip_max": 2.0, "clip_min": 0.5, "mode": "token_truncate"}, 2.0, 0.5, "token_truncate"),
        ({"clip_max": None, "clip_min": 0.5, "mode": "token_mask"}, NO_CAP, 0.5, "token_mask"),
        ({"cap": 1.5, "mode": "sequence_truncate"}, 1.5, 0.0, "sequence_truncate"),
        ({"correction": False, "mode": "token_mask"}, 0.0, 0.0, "token_truncate"),
    ],
)
def test_vllms_importance_sampling_is_our_correction_for_the_sampler(
    given: dict[str, Any], cap: float, floor: float, mode: str
) -> None:
    names = {f"vllm_importance_sampling_{name}": value for name, value in given.items()}
    made = config(**names, use_vllm=True).algorithm
    recipe = made.resolved()
    assert made.importance_cap == cap  # chosen by the user, so no note is added if formats differ
    assert (recipe.importance_cap, recipe.importance_floor) == (cap, floor)
    assert recipe.importance_mode == mode
    assert config(**names).algorithm.importance_cap is None  # TRL reads them only with vLLM


def test_the_off_policy_mask_carries_over_with_or_without_vllm() -> None:
    for use in (False, True):
        made = config(off_policy_mask_threshold=0.5, use_vllm=use).algorithm
        assert made.resolved().off_policy_mask == 0.5
    assert config().algorithm.resolved().off_policy_mask == 0


def test_a_cap_that_none_reaches_changes_no_weight() -> None:
    assert NO_CAP > MAX_RATIO


def test_the_same_settings_are_read_from_yaml_json_and_python(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("learning_rate: 1e-5\nnum_generations: 4\n")
    (tmp_path / "a.json").write_text(json.dumps({"learning_rate": 1e-5, "num_generations": 4}))
    (tmp_path / "a.py").write_text(
        "import os\nargs = trl.GRPOConfig(\n    learning_rate=1e-5,\n    num_generations=4,\n)\n"
    )
    trees = [translate(read(tmp_path / name))[0] for name in ("a.yaml", "a.json", "a.py")]
    assert trees[0] == trees[1] == trees[2]
    assert trees[0]["rollout"]["group_size"] == 4


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
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        translate(read(tmp_path / name))
    assert message in str(caught.value)


def test_a_python_file_is_parsed_and_never_run(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"open({str(tmp_path / 'made')!r}, 'w')\nGRPOConfig(beta=0.1)\n")
    assert translate(read(path))[0]["algorithm"]["beta"] == 0.1
    assert not (tmp_path / "made").exists()


def test_a_limit_that_counts_tool_tokens_is_told_and_one_of_calls_becomes_one_of_turns() -> None:
    """Three rounds of calls are followed by an answer: four turns."""
    tree, notes = translate({"max_completion_length": 300, "max_tool_calling_iterations": 3})
    assert tree["rollout"]["max_new_tokens"] == 300
    assert tree["task"]["max_turns"] == 4
    (told,) = [note for note in notes if note.startswith("max_completion_length 300: ")]
    assert "counts their results too" in told
    assert "rollout.max_context" in told
    assert "max_turns" not in translate({"max_tool_calling_iterations": None})[0]["task"]


def test_a_file_of_other_settings_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of the names is a setting of TRL's GRPOConfig"):
        translate({"task": {"name": "arithmetic"}, "steps": 3})
    _, notes = translate({"task": {"name": "arithmetic"}, "beta": 0.1})
    assert notes[0] == "task: not a known setting of TRL's GRPOConfig"


def test_a_file_without_a_model_says_so_and_trains_none() -> None:
    """TRL takes the model as an argument, or as `model_name_or_path` from its command line."""
    tree, notes = translate({"beta": 0.1})
    assert "the model is an argument in TRL: set model.path to a folder or hub id" in notes
    assert local_folder(tree["model"]["path"]) is None
    tree, notes = translate({"beta": 0.1, "model_name_or_path": "Qwen/Qwen3-0.6B"})
    assert tree["model"]["path"] == "Qwen/Qwen3-0.6B"
    assert not any("model" in note.partition(":")[0] for note in notes)
