"""`grpo-tui recipes`: lists every recipe and shows all its details."""

import json

import pytest
from typer.testing import CliRunner

from grpo_engine.config.recipes import RECIPES, path_of, settings_read
from grpo_tui.app.cli.verbs.recipes import app
from grpo_tui.app.text.recipe_cards import CARDS

RUN = CliRunner()


def printed(*args: str) -> str:
    done = RUN.invoke(app, list(args), env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_list_is_json_on_request() -> None:
    rows = json.loads(printed("list", "--json"))
    assert [row["name"] for row in rows] == list(RECIPES)
    grpo = next(row for row in rows if row["name"] == "grpo")
    assert grpo == {
        "name": "grpo",
        "title": "GRPO",
        "signal": "group_standard",
        "ratio": "token",
        "trust": "clip",
        "anchor": "k3",
        "weight": "per_sequence",
        "reuse": "1×",
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_shown_with_answers_formula_paper_settings_and_character(name: str) -> None:
    text, made = printed("show", name), RECIPES[name]
    card = CARDS[name]
    for part in (card.title, card.paper, card.good, card.bad, made.signal, made.weight, "L = −"):
        assert part in text
    for setting in settings_read(made):
        if setting not in ("signal", "ratio", "trust", "anchor", "weight"):
            assert f"{path_of(setting)} " in text


def test_a_recipe_is_json_on_request() -> None:
    page = json.loads(printed("show", "dapo", "--json"))
    assert page["settings"]["clip_high"] == 0.28
    assert [answer["question"] for answer in page["answers"]] == [
        "signal",
        "ratio",
        "trust",
        "anchor",
        "weight",
        "reuse",
    ]


def test_an_unknown_recipe_is_refused_with_its_neighbour() -> None:
    done = RUN.invoke(app, ["show", "dappo"])
    assert done.exit_code != 0
    assert "did you mean dapo" in str(done.exception)
