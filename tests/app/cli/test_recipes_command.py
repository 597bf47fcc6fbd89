"""`grpo-tui recipes`: lists every recipe and shows all its details."""

import json
from collections.abc import Callable

import pytest

from grpo_engine.config.recipes import RECIPES, path_of, settings_read
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.main import main
from grpo_tui.app.text.recipe_cards import CARDS

Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printed:
    """What `grpo-tui recipes` prints."""

    def run(*args: str, columns: int = 100) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["recipes", *args]) == exit_codes.OK
        return capsys.readouterr().out

    return run


def test_the_list_is_json_on_request(printed: Printed) -> None:
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
def test_a_recipe_is_shown_with_answers_formula_paper_settings_and_character(
    name: str, printed: Printed
) -> None:
    text, made = printed("show", name), RECIPES[name]
    card = CARDS[name]
    for part in (card.title, card.paper, card.good, card.bad, made.signal, made.weight, "L = −"):
        assert part in text
    for setting in settings_read(made):
        if setting not in ("signal", "ratio", "trust", "anchor", "weight"):
            assert f"{path_of(setting)} " in text


def test_a_recipe_is_json_on_request(printed: Printed) -> None:
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
