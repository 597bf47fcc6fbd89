"""`grpo-tui recipes`: list the algorithms, or describe one."""

from typing import Annotated, Any

import typer

from grpo_engine.config.recipes import Recipe, available, path_of, recipe, settings_read
from grpo_tui.app.cli.output import print_json
from grpo_tui.app.cli.params import Json, complete_recipes
from grpo_tui.app.text.recipe_cards import card_of
from grpo_tui.app.text.recipe_text import ASKS, answers, around, formula, sentence
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
    if as_json:
        return print_json([as_row(recipe_) for recipe_ in recipes_.values()])
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("recipe", *ASKS):
        table.add_column(heading, no_wrap=heading == "recipe", overflow="fold")
    for recipe_ in recipes_.values():
        choices = (answer.choice.replace("_", " ") for answer in answers(recipe_))
        table.add_row(recipe_.name, *choices)
    Console().print(table)
    return typer.echo(
        "\ngrpo-tui recipes show NAME: formula, paper, settings, what it is good and bad at"
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
    print_json(as_page(recipe_)) if as_json else typer.echo("\n".join(page(recipe_)))


def as_row(recipe_: Recipe) -> dict[str, Any]:
    """Return a recipe's row of the list, for programs."""
    choices = {answer.question: answer.choice for answer in answers(recipe_)}
    return {"name": recipe_.name, "title": card_of(recipe_.name).title} | choices


def as_page(recipe_: Recipe) -> dict[str, Any]:
    """Return everything about a recipe, for programs."""
    card = card_of(recipe_.name)
    return {
        "name": recipe_.name,
        "title": card.title,
        "summary": card.summary,
        "sentence": sentence(recipe_),
        "answers": [answer._asdict() for answer in answers(recipe_)],
        "formula": list(formula(recipe_)),
        "paper": card.paper,
        "settings": {name: getattr(recipe_, name) for name in settings_read(recipe_)},
        "good": card.good,
        "bad": card.bad,
    }


def page(recipe_: Recipe) -> list[str]:
    """Format everything about a recipe, for people."""
    card = card_of(recipe_.name)
    lines = [f"{recipe_.name} · {card.title}", card.summary, ""]
    for answer in answers(recipe_):
        lines += [f"  {answer.asks:<31}{answer.choice}", f"      {answer.text}"]
    lines += ["", "Formula", *(f"  {line}" for line in formula(recipe_))]
    lines += ["", "Paper", f"  {card.paper}", "", "Settings it reads, and their defaults"]
    for group in (*(answer.settings for answer in answers(recipe_)), around(recipe_)):
        lines += [f"  {path_of(name):<37}{format_default(value)}" for name, value in group.items()]
    return [*lines, "", "Good at", f"  {card.good}", "", "Bad at", f"  {card.bad}"]


def format_default(value: object) -> str:
    """Format a default as it would be written in a file; `off` for None."""
    if value is None:
        return "off"
    return str(value).lower() if isinstance(value, bool) else str(value)
