"""Settings by TRL's names, and back: what TRL knows returns, and what it lacks is named."""

import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.config.parse import build, flatten
from grpo_engine.config.recipes import RECIPES, settings_read
from grpo_engine.config.settings import OPTIMIZER_OPTIONS, ROLLOUT_OPTIONS, RunConfig
from grpo_engine.config.trl_config import translate
from grpo_engine.config.trl_export import differences, minibatches_of, values_of

Tree = dict[str, Any]
# Recipes whose losses TRL has; it has none of DAPO's refills and of its soft length penalty.
KNOWN = {
    **{name: {} for name in ("grpo", "dr-grpo", "gspo", "luspo", "cispo", "sapo", "vespo", "bnpo")},
    "dapo": {"refill_rounds": 0, "overlong_buffer": 0.0},
}


def numbers(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most, allow_subnormal=False)


def some(**entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Tree]:
    return st.fixed_dictionaries({}, optional=entries)


@st.composite
def algorithms(draw: st.DrawFn, *, tuned: bool) -> Tree:
    """Algorithms that TRL knows; a reference that follows only if all weights are tuned."""
    name = draw(st.sampled_from(sorted(KNOWN)))
    trust = RECIPES[name].trust
    reweighted, anchored = draw(st.booleans()), draw(st.booleans())
    tree: Tree = {"recipe": name, **KNOWN[name], "minibatches": draw(st.sampled_from([1, 2, 4]))}
    tree |= draw(
        some(
            signal=st.sampled_from(["group_standard", "batch_standard", "group_mean"]),
            passes=st.integers(1, 3),
            mask_truncated=st.booleans(),
            entropy_bonus=numbers(0.001, 0.1),
            entropy_top_quantile=numbers(0.1, 1),
            importance_cap=numbers(1.5, 5),
        )
    )
    if trust == "clip":
        bounds = {"clip_low": numbers(0.01, 0.5), "clip_high": numbers(0.01, 0.5)}
        tree |= draw(some(**bounds, delta=numbers(2, 9)))
    if trust != "vespo" or (reweighted and anchored):  # else the ratio is that of whole answers
        tree["ratio"] = draw(st.sampled_from(["token", "sequence_mean"]))
    options = draw(some(off_policy_mask=numbers(0.1, 2), entropy_target=numbers(0.1, 1)))
    for setting in ("cispo_cap", "sapo_tau_pos", "sapo_tau_neg", "vespo_k_pos", "vespo_lambda_neg"):
        if setting.startswith(trust):
            options |= draw(some(**{setting: numbers(0.5, 4)}))
    if "importance_cap" in tree:
        modes = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
        options["importance_mode"] = draw(st.sampled_from(modes))
        options |= draw(some(importance_floor=numbers(0.1, 0.9)))
    tree |= {"anchor": "none", "beta": 0.0}
    if anchored:
        tree |= {"anchor": "k3", "beta": draw(numbers(0.001, 0.2))}
        options["anchor_reweighted"] = reweighted
        if tuned and draw(st.booleans()):
            tree["ref_refresh_every"] = draw(st.integers(1, 9))
            options["ref_mix"] = draw(numbers(0.1, 1))
    return {**tree, "options": options}


@st.composite
def optimizers(draw: st.DrawFn, micro_rows: int) -> Tree:
    name = draw(st.sampled_from(["adamw", "sgd", "lion", "adafactor"]))
    schedule = draw(st.sampled_from(["constant", "linear", "cosine"]))
    warmup = draw(st.integers(0, 5))
    options = draw(some(beta1=numbers(0, 0.99), beta2=numbers(0, 0.99)))
    if name == "adamw":
        options |= draw(some(epsilon=numbers(1e-9, 1e-4)))
    if schedule != "constant":
        options |= draw(some(final_share=numbers(0.01, 1)))
    if warmup:
        options["warmup_from_zero"] = True
    return {
        "name": name,
        "schedule": schedule,
        "warmup_steps": warmup,
        "micro_rows": micro_rows,
        "learning_rate": draw(numbers(1e-6, 1e-2)),
        **draw(some(weight_decay=numbers(0, 0.1), max_grad_norm=numbers(0, 3))),
        "options": options,
    }


MODELS = some(
    dtype=st.sampled_from(["float32", "bfloat16"]),
    grad_checkpoint=st.sampled_from(["on", "off"]),
    trust_remote_code=st.booleans(),
)
ADAPTERS = some(lora_rank=st.integers(1, 64), lora_scale=numbers(0.1, 8))
REWARDS: list[Tree] = [
    {},
    {"functions": ["math_equal", "mine.py:f"], "weights": [1.0, 0.5]},
    {"functions": ["pack.mod:f"]},
]
ROLLOUTS = some(
    max_new_tokens=st.integers(1, 300),
    temperature=numbers(0.1, 2),
    top_p=numbers(0.1, 1),
    top_k=st.integers(0, 50),
    options=some(min_p=numbers(0.01, 0.5), repetition_penalty=numbers(1, 2)),
)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    """Settings that TRL has an equivalent for."""
    tuning = draw(st.sampled_from(["full", "lora", "dora"]))
    algorithm = draw(algorithms(tuned=tuning == "full"))
    group = draw(st.sampled_from([2, 4, 6]))
    prompts = draw(st.integers(1, 4)) * algorithm["minibatches"]
    micro_rows = draw(st.sampled_from([n for n in (1, 2, 3) if group % n == 0]))
    model = {"path": "org/model", "tuning": tuning, **draw(MODELS)}
    return build(
        {
            "name": draw(st.sampled_from(["", "mine"])),
            "seed": draw(st.integers(0, 99)),
            "steps": draw(st.integers(6, 60)),
            "model": model if tuning == "full" else model | draw(ADAPTERS),
            "task": {"name": draw(st.sampled_from(["arithmetic", "org/data:main", "data.jsonl"]))},
            "rewards": draw(st.sampled_from(REWARDS)),
            "rollout": {"prompts": prompts, "group_size": group, **draw(ROLLOUTS)},
            "algorithm": algorithm,
            "optimizer": draw(optimizers(micro_rows)),
            "evaluation": draw(
                some(
                    every=st.integers(0, 5),
                    before_and_after=st.just(True),
                    samples=st.integers(1, 4),
                )
            )
            | {"greedy": False},
            "checkpoint": draw(some(every=st.integers(0, 9), keep=st.integers(1, 9))),
        }
    )


def everything(config: RunConfig) -> Tree:
    """All settings, with all options; those of the algorithm that the recipe reads."""
    recipe = config.algorithm.resolved()
    options = {name: config.optimizer.option(name) for name in OPTIMIZER_OPTIONS}
    options |= {name: config.rollout.option(name) for name in ROLLOUT_OPTIONS}
    flat = {
        path: value
        for path, value in flatten(config).items()
        if not path.startswith("algorithm.") and not path.endswith(".options")
    }
    read = {name: value for name, value in asdict(recipe).items() if name in settings_read(recipe)}
    return flat | options | read


@settings(deadline=None, max_examples=80)
@given(configs())
def test_what_trl_has_is_the_same_after_both_translations(config: RunConfig) -> None:
    back = everything(build(translate(values_of(config))[0]))
    wanted = everything(config)
    if config.model.grad_checkpoint == "auto":  # TRL has no such choice
        wanted["model.grad_checkpoint"] = back["model.grad_checkpoint"]
    assert back.keys() == wanted.keys()
    unequal = {
        path: (value, back[path])
        for path, value in wanted.items()
        if value != back[path]
        and not (isinstance(value, float) and math.isclose(value, back[path], rel_tol=1e-12))
    }
    assert unequal == {}
    assert list(differences(config)) == []


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"algorithm": {"recipe": "grpo"}}, {}),
        (
            {"algorithm": {"recipe": "dapo"}},
            {"algorithm.refill_rounds": (4, 0), "algorithm.overlong_buffer": (0.2, 0.0)},
        ),
        (
            {"algorithm": {"recipe": "rloo"}},
            {
                "algorithm.signal": ("leave_one_out", "group_standard"),
                "algorithm.ratio": ("sequence_sum", "token"),
                "algorithm.anchor": ("k1", "none"),
                "algorithm.beta": (0.05, None),
                "algorithm.anchor_place": ("reward", None),
            },
        ),
        ({"model": {"adapter": "folder"}}, {"model.adapter": ("folder", None)}),
        ({"rollout": {"stop": ["x"]}}, {"rollout.stop": (["x"], [])}),
        (
            {"optimizer": {"name": "muon"}, "stop_when": "kl > 1"},
            {"stop_when": ("kl > 1", ""), "optimizer.name": ("muon", "adamw")},
        ),
        # 3 · 4 answers are not 5 updates of equally many: 4
        (
            {"rollout": {"prompts": 3, "group_size": 4}, "algorithm": {"minibatches": 5}},
            {"algorithm.minibatches": (5, 4)},
        ),
    ],
)
def test_what_trl_lacks_is_a_difference(tree: Tree, expected: Tree) -> None:
    config = build(tree | {"evaluation": {"greedy": False}})
    assert {path: pair for path, *pair in differences(config)} == {
        path: list(pair) for path, pair in expected.items()
    }


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_has_values_that_trl_takes(name: str) -> None:
    values = values_of(build({"algorithm": {"recipe": name}}))
    made = build(translate(values)[0])
    assert made.algorithm.resolved().minibatches == minibatches_of(made)
