"""Strengths and weaknesses of each recipe, from `recipe_cards.toml`."""

import tomllib
from importlib.resources import files

from grpo_engine import names
from grpo_engine.frozen import frozen


@frozen
class RecipeCard:
    """A recipe's title, source and character."""

    title: str
    paper: str
    summary: str
    good: str
    bad: str


_TEXT = files(__package__).joinpath("recipe_cards.toml").read_text(encoding="utf-8")
CARDS = {name: RecipeCard(**card) for name, card in tomllib.loads(_TEXT).items()}


def card_of(name: str) -> RecipeCard:
    """The card of a recipe; one that a package brings has only its name and the package's."""
    if name in CARDS:
        return CARDS[name]
    point = names.installed("recipes").get(name)
    package = names.package_of(point) if point else "another program"
    return RecipeCard(
        title=name,
        paper=f"the package {package}",
        summary=f"From the package {package}.",
        good="See the package.",
        bad="See the package.",
    )
