"""The terms that Rollouts shows of a run that was really trained add up to its recorded loss."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from grpo_engine.config.recipes import RECIPES, recipe
from grpo_engine.control import Control
from grpo_engine.errors import RecipeError
from grpo_engine.events import PassFinished, RunFinished
from grpo_engine.trainer import run
from grpo_tui.app.inspector.explain import arithmetic
from grpo_tui.app.inspector.losses import TokenLoss, loss_mask, token_losses
from grpo_tui.app.inspector.stored import GroupDetail, load_group, load_step, run_info
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.recorded_events import events_of_step
from tests.engine.runs import settings as run_settings
from tests.engine.tiny import write_model

SWITCHES: dict[str, list[Any]] = {
    "weight": ["per_sequence", "per_completion", "per_token", "per_batch_token", "constant", "sum"],
    "ratio": ["token", "sequence_mean", "sequence_sum"],
    "trust": ["none", "clip", "cispo", "sapo", "vespo"],
    "clip_low": [0.01, 0.3],
    "delta": [1.1],
    "beta": [0.0, 0.3],
    "anchor": ["k1", "k2", "k3"],
    "anchor_level": ["token", "sequence"],
    "anchor_place": ["loss", "reward"],
    "ref_refresh_every": [1],
    "anchor_reweighted": [True],
    "passes": [1, 3],
    "minibatches": [1, 2, 3],
    "stop": ["all_at_bound", "plateau", "kl"],
    "stop_kl": [0.001],
    "sampler_sync_every": [2],
    "refill_rounds": [1],
    "mask_truncated": [True],
    "entropy_bonus": [0.1],
    "entropy_target": [5.0, 0.1],
    "entropy_top_quantile": [0.2, 0.7],
    "importance_cap": [1.05, 2.0],
    "importance_mode": ["token_mask", "sequence_truncate", "sequence_mask"],
    "off_policy_mask": [0.02],
    "value_clip": [0.01],
    "teacher_weight": [0.1, 1.0],
}
# some answers stop at a letter, some are cut
ROLLOUT = {"prompts": 3, "group_size": 4, "max_new_tokens": 12, "stop": list("abcdefgh")}
THE_FOUR = (
    {"mask_truncated": True},
    {"entropy_top_quantile": 0.2},
    {"entropy_bonus": 0.1},
    {"importance_cap": 1.05, "importance_mode": "token_mask"},
    {"teacher_weight": 0.2},
)


def legal(name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The settings of these that the recipe allows, taken one after the other."""
    kept: dict[str, Any] = {}
    for setting, value in wanted.items():
        try:
            recipe(name, **kept, **{setting: value})
        except RecipeError:
            continue
        kept[setting] = value
    return kept


def trained(world: Path, folder: Path, changes: dict[str, Any]) -> Path:
    """Train two steps with the real trainer and recorder; return the store."""
    functions = ["letters", "accuracy"]
    if changes["algorithm"]["recipe"] == "grpo-process":
        functions = ["steps"]
    algorithm = changes["algorithm"]
    if algorithm["recipe"] == "distill" or algorithm.get("teacher_weight"):
        changes = {**changes, "teacher": {"path": str(write_model(world / "teacher", seed=9))}}
    if changes["algorithm"]["recipe"] == "sft":
        answers = {"columns": {"completion": "answer"}, "options": {"chat": False}}
        changes = {**changes, "task": answers}
    config = run_settings(
        world,
        **{
            "steps": 2,
            "rewards": {"functions": [f"{world}/rewards.py:{name}" for name in functions]},
            "evaluation": {"pinned": 0, "before_and_after": False},
            **changes,
            "rollout": ROLLOUT | changes.get("rollout", {}),
        },
    )
    handle = start_run(folder / "runs.db", config, name="one")
    for event in run(config, Control(), folder=folder / "run"):
        handle.put(event)
    handle.close()
    assert isinstance(event, RunFinished), event
    return folder / "runs.db"


def details(reader: StoreReader, step: int) -> Iterator[tuple[GroupDetail, Any]]:
    """The groups of a step as Rollouts loads them."""
    facts = run_info(reader, reader.resolve("one").key)
    found = load_step(reader, facts, step)
    for group in found.groups:
        yield load_group(reader, found, group), facts


def by_pass(detail: GroupDetail, facts: Any, step: int) -> list[dict[int, Sequence[TokenLoss]]]:
    """The terms of each pass by answer: those of the last one, if it had been the last."""
    rows = [answer.row for answer in detail.completions if answer.row is not None]
    names = ("passes", "updates", "entropies", "values")
    result: list[dict[int, Sequence[TokenLoss]]] = []
    for count in range(1, max(1, *(len(row.passes) for row in rows), 1) + 1):
        cut = [replace(row, **{name: getattr(row, name)[:count] for name in names}) for row in rows]
        losses = token_losses(cut, facts.recipe, max_length=facts.max_length, step=step)
        result.append(dict(zip([row.index for row in rows], losses, strict=True)))
    assert [result[-1][answer.rollout.index] for answer in detail.completions] == [
        answer.losses for answer in detail.completions
    ]
    return result


def check(store: Path) -> int:
    """Compare the sums of a store's terms with its losses; return the number of terms."""
    counted = 0
    with StoreReader(store) as reader:
        key = reader.resolve("one").key
        losses = reader.metric_series(key, "loss")
        recorded = dict(zip(losses.steps, losses.values, strict=True))
        for step, loss in recorded.items():
            sums: dict[tuple[int, int], list[float]] = defaultdict(list)
            for detail, facts in details(reader, step):
                if detail.missing:
                    assert detail.missing.startswith("no push"), detail.missing
                    continue
                passes_of = by_pass(detail, facts, step)
                for answer in detail.completions:
                    row = answer.row
                    assert row is not None
                    for at, update in enumerate(row.updates):
                        terms = passes_of[min(at, len(passes_of) - 1)][answer.rollout.index]
                        sums[at + 1, update.minibatch] += [-one.contribution for one in terms]
                        counted += len(terms)
                        for one in terms:
                            told = arithmetic(
                                one,
                                facts.recipe,
                                update,
                                length=sum(loss_mask(row)),
                                max_length=facts.max_length,
                            )
                            assert_adds_up(told, one.contribution)
            events = (item.event for item in events_of_step(reader, key, step))
            passes = [event for event in events if isinstance(event, PassFinished)]
            assert passes
            for made in passes:
                got = math.fsum(sums[made.index, made.minibatch])
                assert got == pytest.approx(made.loss, rel=1e-5, abs=1e-5), made
            last = [math.fsum(v) for (index, _), v in sums.items() if index == passes[-1].index]
            count = sum(one.index == passes[-1].index for one in passes)
            assert math.fsum(last) / count == pytest.approx(loss, rel=1e-5, abs=1e-5)
    return counted


def assert_adds_up(told: str, contribution: float) -> None:
    """The printed arithmetic gives the term, as far as its rounded factors allow."""
    left, _, _ = told.partition(" = ")
    numbers = re.sub(r"[A-Za-z-]{2,}|:", "", left)
    for sign, python in {"×": "*", "÷": "/", "−": "-"}.items():
        numbers = numbers.replace(sign, python)
    scaled = numbers
    for unit, power in {"k": "e3", "M": "e6", "G": "e9"}.items():
        scaled = re.sub(rf"(?<=[\d.]){unit}\b", power, scaled)
    # thousands and millions have two digits: 1.45 M is printed as 1.5M
    allowed = 0.03 if scaled == numbers else 0.05
    # factors have three digits: where parts nearly cancel, half a digit of each remains
    parts = abs(eval(scaled.replace(" - ", " + ").strip().removeprefix("-")))
    allowed_apart = 2e-4 + 0.002 * parts
    assert eval(scaled.strip()) == pytest.approx(contribution, rel=allowed, abs=allowed_apart), told


@pytest.mark.slow
@pytest.mark.parametrize("changes", THE_FOUR, ids=lambda changes: next(iter(changes)))
def test_the_terms_of_a_step_add_up_to_its_loss(
    world: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    store = trained(world, tmp_path, {"algorithm": {"recipe": "grpo", **changes}})
    assert check(store) > 0


def test_forced_tokens_have_no_term(world: Path, tmp_path: Path) -> None:
    rollout = {"max_new_tokens": 16, "think_budget": 4}
    store = trained(
        world, tmp_path, {"steps": 1, "algorithm": {"recipe": "grpo"}, "rollout": rollout}
    )
    assert check(store) > 0
    with StoreReader(store) as reader:
        terms = [
            term
            for detail, _ in details(reader, 1)
            for answer in detail.completions
            for term in answer.losses
            if not term.in_loss
        ]
    assert terms
    assert all(term.contribution == 0 for term in terms)


CASES: dict[str, Any] = {
    "wanted": st.lists(st.sampled_from(sorted(SWITCHES)), unique=True, max_size=6).flatmap(
        lambda names: st.fixed_dictionaries({n: st.sampled_from(SWITCHES[n]) for n in names})
    ),
    "rollout": st.sampled_from([{}, {"think_budget": 4}, {"top_p": 0.8}]),
    "micro_rows": st.sampled_from([3, 4, 12]),
}
# shrinking trains for minutes
QUICK = settings(
    max_examples=1,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), list(zip(RECIPES, itertools.cycle(("float32", "bfloat16")), strict=False))
)
@QUICK
@given(**CASES)
def test_the_terms_of_every_recipe_and_switch_add_up_to_the_loss(
    world: Path,
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    name: str,
    wanted: dict[str, Any],
    rollout: dict[str, Any],
    micro_rows: int,
) -> None:
    check_case(world, tmp_path_factory.mktemp("run"), dtype, name, wanted, rollout, micro_rows)


@pytest.mark.slow
def test_answers_whose_minibatch_came_after_the_stop_are_said_to_have_no_push(
    world: Path, tmp_path: Path
) -> None:
    switches = {
        "minibatches": 3,
        "trust": "none",
        "entropy_bonus": 0.1,
        "passes": 3,
        "stop": "kl",
        "entropy_target": 5.0,
    }
    check_case(world, tmp_path, "bfloat16", "grpo-process", switches, {"top_p": 0.8}, 3)


def check_case(
    world: Path,
    folder: Path,
    dtype: str,
    name: str,
    wanted: dict[str, Any],
    rollout: dict[str, Any],
    micro_rows: int,
) -> None:
    """Train with these settings, and compare."""
    changes = {
        "model": {"path": str(world / "model"), "lora_rank": 4, "dtype": dtype},
        "algorithm": {"recipe": name, **legal(name, wanted)},
        "rollout": rollout,
        "optimizer": {"learning_rate": 3e-2, "micro_rows": micro_rows},
    }
    check(trained(world, folder, changes))
