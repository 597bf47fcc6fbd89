"""The experiments by name, in the order of the page."""

from benchmarks.results import deciding, fails, recipes, reversing, solving, starter

EXPERIMENTS = {
    "starter": starter.EXPERIMENT,
    "recipes": recipes.EXPERIMENT,
    "reversing": reversing.EXPERIMENT,
    "countdown": solving.COUNTDOWN,
    "sums": solving.SUMS,
    "deciding": deciding.EXPERIMENT,
    "fails": fails.EXPERIMENT,
}
