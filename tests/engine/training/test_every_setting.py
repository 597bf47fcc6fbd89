"""Every setting has an effect: on a small run here, or in a test of its own."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build, merge, settings
from grpo_engine.config.settings import (
    COLUMNS,
    EVALUATION_SAMPLING,
    OPTIMIZER_OPTIONS,
    OPTIONS,
    PASS_RATES,
    ROLLOUT_OPTIONS,
    SPLITS,
    AlertsConfig,
)
from grpo_engine.events import (
    CheckpointSaved,
    EvaluationFinished,
    Event,
    GroupScored,
    PassFinished,
    RunFailed,
    StepFinished,
    TokensScored,
)
from tests.engine.runs import events_of, mixture, write_world
from tests.engine.runs import settings as run_settings
from tests.engine.tiny import write_model

Tree = dict[str, Any]
ENTRIES = {
    "rollout.options": ROLLOUT_OPTIONS,
    "algorithm.options": OPTIONS,
    "optimizer.options": OPTIMIZER_OPTIONS,
    "evaluation.sampling": EVALUATION_SAMPLING,
    "task.columns": COLUMNS,
    "task.splits": SPLITS,
    "task.pass_rate_range": PASS_RATES,
}
KINDS = (
    CheckpointSaved,
    EvaluationFinished,
    GroupScored,
    PassFinished,
    RunFailed,
    StepFinished,
    TokensScored,
)
UNTIMED = ("elapsed", "path", "seconds", "traceback")


def recipe(name: str, **changes: Any) -> Tree:
    return {"algorithm": {"recipe": name, **changes}}


# what the setting is compared in, where the run of two steps of GRPO does not show it
TWICE, THRICE = recipe("grpo", passes=2), recipe("grpo", passes=3)
PULLED = recipe("grpo", passes=2, beta=0.5)
REFRESHED = recipe("grpo", passes=2, beta=0.5, ref_refresh_every=1)
PPO = recipe("ppo", passes=2)
TAUGHT = {**recipe("distill"), "teacher": {"path": "{world}/other"}}
DEMONSTRATED = {
    **recipe("sft"),
    "task": {"columns": {"completion": "answer"}, "options": {"chat": False}},
}
PLAIN = {"task": {"chat_template": "plain", "system_prompt": "be brief"}}
STOPPED = {"rollout": {"stop": ["e", "a", "o"]}}
# which problems are drawn depends on the path of their file: enough that some differ
DRAWN = {"steps": 8, "rollout": {"prompts": 6}}
RATES = {"task": {"pass_rates": "{world}/rates.json", "train_size": 8}, **DRAWN}
EVALUATED = {"evaluation": {"every": 1, "pinned": 0}}
MORE = {"task": {"name": "{world}/splits"}, **EVALUATED}
BEST = {**EVALUATED, "checkpoint": {"every": 0}, "steps": 3}
REFILLED = {
    **recipe("grpo", refill_rounds=2),
    "rollout": {"group_size": 2},
    "rewards": {"functions": ["{world}/rewards.py:accuracy"]},
}

# a value of each setting, and the run that shows its effect
SHOWN: dict[str, tuple[Any, Tree]] = {
    "seed": (6, {}),
    "steps": (3, {}),
    "stop_when": ("reward >= 0", {}),
    "model.path": ("{world}/other", {}),
    "model.tuning": ("full", {}),
    "model.lora_rank": (2, {}),
    "model.lora_layers": (1, {}),
    "model.lora_scale": (4.0, {}),
    "model.lora_keys": (["self_attn.q_proj"], {}),
    "model.dtype": ("bfloat16", {}),
    "task.name": ("{world}/other.jsonl", {}),
    "task.prefill": ("a", {}),
    "task.train_size": (5, {}),
    "task.held_out_size": (9, {}),
    "task.columns.prompt": ("question", {}),
    "task.columns.answer": ("other", {"rewards": {"functions": ["contains"]}}),
    "task.columns.completion": ("other", DEMONSTRATED),
    "task.splits.train": ("more", MORE),
    "task.splits.held_out": ("more", MORE),
    "task.max_prompt_tokens": (3, {}),
    "task.system_prompt": ("be good", PLAIN),
    "task.chat_template": ("chatml", PLAIN),
    "task.shuffle": (False, {}),
    "task.others": ({"more": {"name": "{world}/other.jsonl", "held_out_size": 3}}, {"steps": 4}),
    "task.curriculum": ("hardest", {"task": {"pass_rates": "{world}/rates.json"}, **DRAWN}),
    "task.pass_rates": ("{world}/rates.json", {"task": {"curriculum": "hardest"}, **DRAWN}),
    "task.pass_rate_range.lowest": (0.3, RATES),
    "task.pass_rate_range.highest": (0.7, RATES),
    "rewards.functions": (["{world}/rewards.py:letters"], {}),
    "rewards.weights": ([1.0, 2.0], {}),
    "rollout.prompts": (3, {}),
    "rollout.group_size": (3, {}),
    "rollout.max_new_tokens": (9, {}),
    "rollout.temperature": (0.5, {}),
    "rollout.top_p": (0.3, {}),
    "rollout.top_k": (2, {}),
    "rollout.options.min_p": (0.5, {}),
    "rollout.options.repetition_penalty": (3.0, {}),
    "rollout.stop": (["e", "a", "o"], {}),
    "algorithm.recipe": ("rloo", {}),
    "algorithm.signal": ("group_mean", {}),
    "algorithm.teacher_weight": (0.5, TAUGHT | recipe("grpo", teacher_weight=1.0)),
    "teacher.path": ("{world}/model", TAUGHT),
    "algorithm.combine": ("normalize_then_sum", {}),
    "algorithm.ratio": ("sequence_mean", TWICE),
    "algorithm.trust": ("none", THRICE),
    "algorithm.clip_low": (1e-4, THRICE),
    "algorithm.clip_high": (1e-4, THRICE),
    "algorithm.delta": (1.0001, THRICE),
    "algorithm.anchor": ("k2", PULLED),
    "algorithm.beta": (0.5, TWICE),
    "algorithm.anchor_place": ("reward", PULLED),
    "algorithm.options.anchor_reweighted": (True, PULLED),
    "algorithm.ref_refresh_every": (1, PULLED),
    "algorithm.weight": ("constant", STOPPED),
    "algorithm.passes": (2, {}),
    "algorithm.minibatches": (2, {}),
    "algorithm.stop": ("kl", THRICE),
    "algorithm.refill_rounds": (2, {**REFILLED, **recipe("grpo")}),
    "algorithm.options.refill_on": (
        "total",
        REFILLED
        | {"rewards": {"functions": ["{world}/rewards.py:letters", "{world}/rewards.py:accuracy"]}},
    ),
    "algorithm.overlong_buffer": (0.5, {}),
    "algorithm.mask_truncated": (True, STOPPED),
    "algorithm.entropy_bonus": (0.5, {}),
    "algorithm.options.entropy_target": (9.0, {}),
    "algorithm.entropy_top_quantile": (0.2, {}),
    "algorithm.options.std": ("population", {}),
    "algorithm.options.signal_eps": (0.5, {}),
    "algorithm.options.cispo_cap": (1.0001, recipe("cispo", passes=3)),
    "algorithm.options.sapo_tau_pos": (3.0, recipe("sapo", passes=3)),
    "algorithm.options.sapo_tau_neg": (3.0, recipe("sapo", passes=3)),
    "algorithm.options.vespo_k_pos": (1.0, recipe("vespo", passes=2)),
    "algorithm.options.vespo_lambda_pos": (1.0, recipe("vespo", passes=2)),
    "algorithm.options.vespo_k_neg": (1.0, recipe("vespo", passes=2)),
    "algorithm.options.vespo_lambda_neg": (1.0, recipe("vespo", passes=2)),
    "algorithm.options.target_tolerance": (1.0, recipe("how-much")),
    "algorithm.options.anchor_level": ("sequence", PULLED),
    "algorithm.options.ref_mix": (0.5, {**REFRESHED, "model": {"tuning": "full"}}),
    "algorithm.options.stop_share": (
        0.01,
        recipe("grpo", passes=3, stop="all_at_bound", clip_low=1e-4, clip_high=1e-4),
    ),
    "algorithm.options.stop_kl": (1e-9, recipe("grpo", passes=3, stop="kl")),
    "algorithm.options.stop_plateau": (10.0, recipe("grpo", passes=3, stop="plateau")),
    "algorithm.options.sampler_sync_every": (3, {"steps": 3}),
    "algorithm.options.gamma": (0.5, PPO),
    "algorithm.options.lam": (0.1, PPO),
    "algorithm.options.value_clip": (1e-4, PPO),
    "algorithm.options.value_coefficient": (5.0, PPO),
    "algorithm.options.whiten": (False, PPO),
    "optimizer.name": ("sgd", {}),
    "optimizer.learning_rate": (1e-3, {}),
    "optimizer.schedule": ("linear", {}),
    "optimizer.warmup_steps": (2, {}),
    "optimizer.weight_decay": (0.5, {}),
    "optimizer.max_grad_norm": (1e-3, {"optimizer": {"name": "sgd"}}),
    "optimizer.options.critic_learning_rate": (0.1, PPO),
    "optimizer.options.beta1": (0.1, {"steps": 3}),
    "optimizer.options.beta2": (0.5, {"steps": 3}),
    "optimizer.options.epsilon": (1.0, {}),
    "optimizer.options.final_share": (0.5, {"optimizer": {"schedule": "linear"}}),
    "optimizer.options.warmup_from_zero": (True, {"optimizer": {"warmup_steps": 2}}),
    "evaluation.accuracy": ("letters >= 0.5", EVALUATED),
    "evaluation.every": (1, {}),
    "evaluation.before_and_after": (True, {}),
    "evaluation.problems": (3, EVALUATED),
    "evaluation.greedy": (False, EVALUATED),
    "evaluation.samples": (2, EVALUATED),
    "evaluation.sampling.temperature": (0.3, EVALUATED),
    "evaluation.sampling.top_p": (0.3, EVALUATED),
    "evaluation.sampling.top_k": (2, EVALUATED),
    "evaluation.pinned": (2, {}),
    "evaluation.pinned_every": (1, {}),
    "checkpoint.every": (1, {}),
    "checkpoint.best_by": ("none", BEST),
    "record.tokens": ("none", {}),
    "record.kl": (True, recipe("dr-grpo")),
}

# settings whose effect is no number of a run: their own tests show it
TESTED = {
    "name",
    "model.adapter",
    "model.quantized",
    "model.compute",
    "model.kv_bits",
    "model.grad_checkpoint",
    "model.trust_remote_code",
    "task.options",
    "task.chat_template_kwargs",
    "task.bad_rows",
    "task.tools",
    "task.environment",
    "task.interpreter",
    "task.max_turns",
    "rewards.time_limit",
    "rewards.on_failure",
    "rewards.options",
    "rewards.completions",
    "rollout.think_budget",
    "rollout.max_context",
    "rollout.max_rows",
    "rollout.options.ignore_end",
    "algorithm.importance_cap",
    "algorithm.options.importance_floor",
    "algorithm.options.importance_mode",
    "algorithm.options.off_policy_mask",
    "optimizer.micro_rows",
    "optimizer.start",
    "checkpoint.keep",
    "record.trackers",
    "sandbox.environment",
    "remote.url",
    "remote.model",
    "remote.key_env",
    "remote.insecure",
    *(f"alerts.{name}" for name in AlertsConfig.model_fields),
}


def put(tree: Tree, path: str, value: Any) -> Tree:
    section, _, rest = path.partition(".")
    return {**tree, section: put(tree.get(section) or {}, rest, value) if rest else value}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    mixture(folder)  # the other task, and pass rates
    write_model(folder / "other", seed=4)
    rows = [
        {"prompt": f"say {n}: ", "question": f"ask {n}: ", "answer": "e", "other": "a"}
        for n in range(40)
    ]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "splits").mkdir()
    for name in ("train", "valid", "more"):
        rows = [{"prompt": f"{name} {n}: ", "answer": "e"} for n in range(20)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "splits" / f"{name}.jsonl").write_text(text)
    return folder


def numbers(tree: Tree, folder: Path) -> str:
    """What a run did, without its times, memory and paths."""
    return json.dumps(
        [_untimed(asdict(event)) for event in _events(tree, folder) if isinstance(event, KINDS)]
    )


def _events(tree: Tree, folder: Path) -> list[Event]:
    return events_of(build(tree), folder)


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _untimed(item)
            for name, item in value.items()
            if name not in UNTIMED
            and not str(name).startswith(("time/", "memory/", "step_time", "tokens_per_second"))
        }
    return [_untimed(item) for item in value] if isinstance(value, list | tuple) else value


def test_every_setting_is_shown_here_or_has_a_test_of_its_own() -> None:
    entries = {f"{path}.{name}" for path, names in ENTRIES.items() for name in names}
    assert SHOWN.keys() | TESTED == settings().keys() - ENTRIES.keys() | entries
    assert not SHOWN.keys() & TESTED


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run of these settings does; each is run once."""

    @cache
    def run(text: str) -> str:
        return numbers(json.loads(text), tmp_path_factory.mktemp("usual"))

    return run


def test_equal_settings_give_equal_runs(world: Path, usual: Any, tmp_path: Path) -> None:
    tree = of(world, {})
    assert numbers(tree, tmp_path) == usual(json.dumps(tree))


def test_code_of_a_model_runs_only_if_it_is_trusted(world: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "remote")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_file": "custom.py"}))
    (model / "custom.py").write_text("from mlx_lm.models.llama import Model, ModelArgs\n")
    tree = of(world, {"steps": 1, "model": {"path": str(model)}})
    assert "trust_remote_code" in numbers(tree, tmp_path / "refused")
    trusted = put(tree, "model.trust_remote_code", True)
    assert '"error"' not in numbers(trusted, tmp_path / "trusted")


def of(world: Path, changes: Tree) -> Tree:
    text = json.dumps(changes).replace("{world}", str(world))
    made = run_settings(world, **{"steps": 2, "record": {"tokens": "all"}})
    return merge(made.model_dump(mode="json", exclude_unset=True), json.loads(text))


@pytest.mark.slow
@pytest.mark.parametrize("path", SHOWN)
def test_a_setting_changes_what_a_run_does(
    path: str, world: Path, usual: Any, tmp_path: Path
) -> None:
    value, base = SHOWN[path]
    before = usual(json.dumps(of(world, base)))
    assert numbers(of(world, put(base, path, value)), tmp_path) != before
    assert '"error"' not in before
