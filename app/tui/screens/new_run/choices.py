"""The values to choose from for a setting, and the effect of a recipe on other settings."""

from typing import get_args

from app.tui.screens.new_run.form import FormField, RunForm, shown
from app.tui.screens.new_run.view import check
from grpo_engine.config.recipes import known, recipe, settings_read

RECIPE = "algorithm.recipe"


def choices_of(field: FormField) -> tuple[str, ...]:
    """The allowed texts of a setting with a list of values; empty if it has none."""
    info = field.info
    kinds = (info.annotation, *get_args(info.annotation))
    if info.path == RECIPE:
        return tuple(known()[0])
    found = info.choices or (("true", "false") if bool in kinds else ())
    return ("", *found) if found and type(None) in kinds else found


def with_recipe(form: RunForm, name: str) -> RunForm:
    """Switch the form to another recipe, clearing the settings that the recipe would refuse."""
    made = form.type(RECIPE, name)
    read = settings_read(recipe(name))
    for clear_all in (False, True):
        if not any(path.startswith("algorithm.") for path in check(made).errors):
            break
        values = made.start
        for path in values:
            leaf = path.partition(".")[2]
            own = path.startswith("algorithm.") and path != RECIPE
            text = made.edits.get(path, shown(values[path]))
            if own and text and (clear_all or leaf not in read):
                made = made.type(path, "")
    return made
