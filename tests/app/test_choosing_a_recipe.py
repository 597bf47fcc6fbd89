"""A recipe comes with its own settings, wherever it is chosen; what is set beside it stays."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from grpo_engine.config.parse import build, read_yaml, write_yaml
from grpo_engine.config.recipes import RECIPES, Recipe, recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, RecipeError
from grpo_engine.presets import names, preset
from grpo_tui.app.cli.main import main
from grpo_tui.app.cli.run_config import assemble
from grpo_tui.app.tui.screens.new_run.state import RunForm, preset_view
from grpo_tui.experiments.db.tables import QUEUE_ITEM
from grpo_tui.experiments.reader import StoreReader

RECIPE = "algorithm.recipe"
# settings of the algorithm that people set on purpose, with values that no recipe has
CHANGES = {
    "passes": 3,
    "minibatches": 2,
    "beta": 0.07,
    "clip_low": 0.11,
    "clip_high": 0.13,
    "mask_truncated": True,
    "entropy_bonus": 0.01,
    "ref_refresh_every": 7,
    "weight": "sum",
    "refill_rounds": 1,
    "overlong_buffer": 0.3,
}
PRESETS, CHANGED = st.sampled_from(names()), st.sampled_from(tuple(RECIPES))
ON_PURPOSE = st.lists(st.sampled_from(tuple(CHANGES)), unique=True, max_size=3)


def expected(name: str, changes: Sequence[str]) -> Recipe | None:
    """The recipe as defined with these changes; None if it refuses them."""
    try:
        return recipe(name, **{change: CHANGES[change] for change in changes})
    except RecipeError:
        return None


def pairs(changes: Sequence[str]) -> list[str]:
    return [f"algorithm.{name}={str(CHANGES[name]).lower()}" for name in changes]


def same(config: Callable[[], RunConfig], wanted: Recipe | None) -> None:
    """A configuration has this recipe, or is refused as the recipe's changes are."""
    if wanted is None:
        with pytest.raises(ConfigError, match="recipe"):
            config()
    else:
        assert config().algorithm.resolved() == wanted


@given(PRESETS, CHANGED, ON_PURPOSE, st.randoms())
def test_what_is_set_beside_the_recipe_stays_in_any_order(
    start: str, name: str, changes: list[str], order: Random
) -> None:
    words = [f"{RECIPE}={name}", *pairs(changes)]
    order.shuffle(words)
    same(lambda: assemble(None, start, words), expected(name, changes))


@given(PRESETS, CHANGED, ON_PURPOSE)
def test_the_form_takes_a_recipe_as_defined_and_keeps_what_was_typed(
    start: str, name: str, changes: list[str]
) -> None:
    opened = RunForm(preset(start).config)
    if name == opened.base.algorithm.recipe:
        return
    before, after = opened, opened.type(RECIPE, name)
    for pair in pairs(changes):
        path, _, text = pair.partition("=")
        before, after = before.type(path, text), after.type(path, text)
    for form in (before.type(RECIPE, name), after):
        same(form.build, expected(name, changes))


def test_a_preset_keeps_its_own_changes_to_its_own_recipe() -> None:
    # starter makes two passes with grpo, whose own number is one
    assert assemble(None, "starter", ["seed=3"]).algorithm.resolved() == recipe("grpo", passes=2)
    changed = assemble(None, "starter", ["algorithm.beta=0.1"])
    assert changed.algorithm.resolved() == recipe("grpo", passes=2, beta=0.1)


def test_a_file_brings_its_recipe_over_a_preset_and_keeps_what_it_sets(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algorithm: {recipe: how-much, options: {target_tolerance: 0.05}}")
    made = assemble(file, "starter", []).algorithm.resolved()
    assert made == recipe("how-much", target_tolerance=0.05)
    assert assemble(file, None, [f"{RECIPE}=ppo"]).algorithm.resolved() == RECIPES["ppo"]


def test_a_file_that_names_no_recipe_changes_whichever_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algorithm: {passes: 3}")
    for start in (None, "starter"):
        made = assemble(file, start, [f"{RECIPE}=ppo"]).algorithm.resolved()
        assert made == recipe("ppo", passes=3)


@pytest.mark.parametrize("start", names())
def test_a_written_file_belongs_to_its_recipe(start: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(write_yaml(preset(start).config))
    assert build(read_yaml(file)) == preset(start).config
    for name in RECIPES:
        assert assemble(file, None, [f"{RECIPE}={name}"]).algorithm.resolved() == RECIPES[name]


def test_config_check_says_what_differs_from_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algorithm: {recipe: how-much, passes: 3, options: {stop_share: 0.99}}")
    assert main(["config", "check", str(file)]) == 0
    out = capsys.readouterr().out
    assert "algorithm.passes = 3\n" in out
    assert main(["config", "check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differs_from_recipe"] == {"passes": [3, 8]}


def test_a_sweep_over_recipes_compares_them_as_defined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.trial.ready.require_apart", lambda _configs, **_: ())
    store = tmp_path / "runs.db"
    assert (
        main(
            [
                "sweep",
                "--preset",
                "starter",
                "--set",
                f"{RECIPE}={','.join(RECIPES)}",
                "--add-only",
                "--db",
                str(store),
            ]
        )
        == 0
    )
    with StoreReader(store) as reader:
        configs = [build(tree) for tree in reader.column(select(QUEUE_ITEM.c.config))]
    assert [config.algorithm.resolved() for config in configs] == list(RECIPES.values())


def test_a_clone_takes_another_recipe_as_defined_and_undoes_it_to_the_parents_own() -> None:
    parent = build({"algorithm": {"recipe": "grpo", "passes": 2, "beta": 0.1}})
    form = RunForm(parent).type(RECIPE, "ppo")
    assert form.build().algorithm.resolved() == RECIPES["ppo"]
    # the parent's number of passes, set on purpose for another recipe
    assert form.type("algorithm.passes", "2").build().algorithm.resolved().passes == 2
    assert form.type(RECIPE, "grpo").build() == parent


def test_the_form_marks_what_was_set_on_purpose_and_nothing_else() -> None:
    form = preset_view("starter").form.type(RECIPE, "how-much")
    assert form.changed == (RECIPE,)
    form = form.type("algorithm.passes", "2")
    assert set(form.changed) == {RECIPE, "algorithm.passes"}
    assert form.type(RECIPE, "grpo").changed == ()
