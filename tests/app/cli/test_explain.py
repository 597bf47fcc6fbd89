"""`grpo-tui explain`: one name, all of a kind, or words; for people and for programs."""

import json

import pytest
import typer
from typer.testing import CliRunner

from grpo_engine.alerts.rules import RULES
from grpo_engine.config.parse import settings
from grpo_engine.metrics import METRICS
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.verbs.explain import SECTIONS, explain

APP = typer.Typer()
APP.command()(explain)


def printed(*words: str, width: int = 80, code: int = 0) -> str:
    done = CliRunner().invoke(APP, list(words), env={"COLUMNS": str(width)})
    assert done.exit_code == code, done.output
    return done.output


def headings(*words: str) -> list[str]:
    return [part["heading"] for part in json.loads(printed(*words, "--json"))]


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("algorithm.beta", "algorithm.beta"),
        ("kl", "KL to reference"),
        ("KL to reference", "KL to reference"),
        ("no_signal", "alert: no signal"),
    ],
)
def test_a_name_is_explained_alone(name: str, heading: str) -> None:
    assert headings(*name.split()) == [heading]


def test_a_key_is_explained_by_what_it_does_on_each_screen() -> None:
    assert printed("4") == (
        "keys: everywhere\n  4  Every answer, down to the token (mode.rollouts)\n"
    )
    parts = json.loads(printed("G", "--json"))
    assert len(parts) > 1
    assert all("G" in keys.split() for part in parts for keys, _ in part["paragraphs"])


def test_every_name_of_a_kind_is_listed() -> None:
    assert headings("settings") == list(settings())
    assert len(headings("metrics")) == len(METRICS)
    assert len(headings("alerts")) >= len(RULES)
    assert headings("metrics", "alerts") == headings("metrics") + headings("alerts")
    assert headings() == [heading for section in SECTIONS for heading in headings(section)]


def test_words_find_what_has_all_of_them() -> None:
    assert "alert: most truncated" in headings("length", "limit", "cut")
    assert printed("no", "such", "words", code=exit_codes.NOT_FOUND) == (
        "nothing is called 'no such words', and no explanation has these words; grpo-tui explain "
        "lists all\n"
    )
