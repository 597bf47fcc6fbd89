"""`grpo-tui recipes`: list the algorithms, or describe one."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from grpo_engine.config.declaration import as_text
from grpo_engine.config.recipes import Recipe, available, path_of, recipe, settings_read
from grpo_tui.app.cli.output import print_json, print_rows, print_text
from grpo_tui.app.cli.params import Json, complete_recipes
from grpo_tui.app.text.recipe_cards import card_of
from grpo_tui.app.text.recipe_text import ASKS, around, choice_texts, formula, sentence
from grpo_tui.app.text.stderr import print_stderr

app = typer.Typer(help="List the algorithms; show one. Example: grpo-tui recipes show grpo")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every recipe with its six choices.

    Example: grpo-tui recipes list --json
    """
    recipes_, complaints = available()
    for complaint in complaints:
        print_stderr(complaint)
    rows = list(map(as_row, recipes_.values()))
    table = [{heading: row[heading] for heading in ("name", *ASKS)} for row in rows]
    print_rows(rows, as_json=as_json, table=table)
    if not as_json:
        print_stderr(
            "grpo-tui recipes show NAME: formula, paper, settings, what it is good and bad at"
        )


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="A recipe, for example grpo.", autocompletion=complete_recipes)
    ],
    as_json: Json = False,
) -> None:
    """Show one recipe: its choices, formula, paper, settings, and what it is good and bad at.

    Example: grpo-tui recipes show dapo
    """
    recipe_ = recipe(name)
    print_json(as_page(recipe_)) if as_json else print_text("\n".join(page(recipe_)))


def as_row(recipe_: Recipe) -> dict[str, Any]:
    """Return a recipe's row of the list, for programs."""
    choices = {choice.question: choice.choice for choice in choice_texts(recipe_)}
    return {"name": recipe_.name, "title": card_of(recipe_.name).title} | choices


def as_page(recipe_: Recipe) -> dict[str, Any]:
    """Return everything about a recipe, for programs."""
    return {
        "name": recipe_.name,
        **asdict(card_of(recipe_.name)),
        "sentence": sentence(recipe_),
        "answers": [choice._asdict() for choice in choice_texts(recipe_)],
        "formula": list(formula(recipe_)),
        "settings": {name: getattr(recipe_, name) for name in settings_read(recipe_)},
    }


def page(recipe_: Recipe) -> list[str]:
    """Format everything about a recipe, for people."""
    card = card_of(recipe_.name)
    lines = [f"{recipe_.name} · {card.title}", card.summary, ""]
    for choice in choice_texts(recipe_):
        lines += [f"  {choice.asks:<31}{choice.choice}", f"      {choice.text}"]
    lines += ["", "Formula", *(f"  {line}" for line in formula(recipe_))]
    lines += ["", "Paper", f"  {card.paper}", "", "Settings it reads, and their defaults"]
    for group in (*(choice.settings for choice in choice_texts(recipe_)), around(recipe_)):
        lines += [
            f"  {path_of(name):<37}{as_text(value) or 'off'}" for name, value in group.items()
        ]
    return [*lines, "", "Good at", f"  {card.good}", "", "Bad at", f"  {card.bad}"]
