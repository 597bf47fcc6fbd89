"""The values of a setting, what each means, the numbers next to a number, and the lists of all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Final

from grpo_engine.config.declaration import Setting, as_text
from grpo_engine.config.parse import settings
from grpo_engine.config.recipes import SETTINGS, Recipe, available, recipe, settings_read
from grpo_engine.errors import ConfigError
from grpo_engine.presets import names, preset
from grpo_tui.app.text.recipe_cards import card_of
from grpo_tui.app.text.recipe_text import values_of
from grpo_tui.app.tui.dialogs.picker import Item, Picker
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.new_run.facts import fact, recipe_lines
from grpo_tui.app.tui.screens.new_run.form import FormField, RunForm
from grpo_tui.app.tui.screens.new_run.lines import plain
from grpo_tui.app.tui.screens.new_run.view import View, check
from grpo_tui.app.tui.widgets.panel import Line, paragraph
from grpo_tui.experiments.values import CheckpointView

RECIPE = "algorithm.recipe"
MOST_PARENTS = 200
# What the values of a setting mean, where the recipe's own words do not say it.
MEANS: Final[Mapping[str, Mapping[str, str]]] = {
    "model.tuning": {
        "lora": "small matrices beside the weights: least memory",
        "dora": "like lora, with the length of each row learned too",
        "full": "all weights: most memory",
    },
    "model.dtype": {
        "auto": "float32 on CPU, else as stored",
        "float32": "4 bytes a weight, most exact",
        "bfloat16": "2 bytes a weight, wide range and few digits",
        "float16": "2 bytes a weight, more digits and a narrow range",
    },
    "model.compute": {
        "auto": "the kernels where they serve, else the graph",
        "graph": "MLX's own operations, on every device",
        "kernels": "compiled code for Linux processors: float32, Llama-like models",
        "rows": "the graph, with the prompt run again for each answer in training",
    },
    "model.quantized": {
        "auto": "dequantised on CPU, where that is faster",
        "keep": "stays quantised: least memory",
        "dequantize": "becomes full weights when it is loaded",
    },
    "model.grad_checkpoint": {
        "auto": "recomputed where memory is short and that is faster than fewer answers",
        "on": "always recomputed: least memory, a third more work",
        "off": "always kept",
    },
    "task.curriculum": {
        "off": "all problems alike, in a seeded order",
        "hardest": "the more often, the fewer answers were right: 1 - p",
        "half": "most often those that are right half of the time: 4p(1 - p)",
    },
    "task.bad_rows": {
        "refuse": "one row that cannot be used ends the run before it begins",
        "skip": "rows that cannot be used are left out and counted",
    },
    "rewards.completions": {
        "auto": "as in TRL: text, or messages where the prompt is a chat",
        "text": "always text",
    },
    "algorithm.std": {"sample": "divided by n − 1", "population": "divided by n"},
    "algorithm.combine": {
        "sum_then_normalize": "weigh and add the rewards, then normalise the total",
        "normalize_then_sum": "normalise each reward in its group, then weigh and add",
    },
    "algorithm.anchor_level": {
        "token": "a distance for each token",
        "sequence": "one distance for each answer",
    },
    "algorithm.anchor_place": {
        "loss": "a term of the loss, after the objective",
        "reward": "subtracted from the reward, before advantages",
    },
    "algorithm.stop": {"never": "every pass runs"},
    "optimizer.name": {
        "adamw": "Adam with weight decay beside the gradient",
        "adam": "a step size for each weight, from averages of its gradients",
        "sgd": "the plain gradient",
        "muon": "orthogonalised momentum for matrices",
        "lion": "the sign of the momentum: half of Adam's memory",
        "adafactor": "like Adam, with averages per row and column: little memory",
    },
    "optimizer.schedule": {
        "constant": "stays as it is after the warm-up",
        "linear": "falls in a straight line to options.final_share of the peak",
        "cosine": "falls along half a cosine to options.final_share of the peak",
    },
    "record.tokens": {
        "all": "every group: the lab and token views work everywhere",
        "every": "every group of every 10th step",
        "pinned": "pinned prompts only",
        "none": "the answers alone",
        "nothing": "not even the answers: least disk space",
    },
}


def choices_of(field: FormField) -> tuple[str, ...]:
    """The allowed texts of a setting with a list of values; empty if it has none."""
    info = field.info
    if info.path == RECIPE:
        return tuple(available()[0])
    if info.is_list:  # several of them, which are typed
        return ()
    found = info.choices or (("true", "false") if bool in info.types else ())
    return ("", *found) if found and NoneType in info.types else found


def meaning_of(path: str, text: str, recipe: Recipe | None) -> str:
    """What one value of a setting means, in one line; with the recipe's own numbers."""
    recipe = recipe or available()[0]["grpo"]
    leaf = path.partition(".")[2]
    if not text:
        return f"{recipe.name} has {as_text(getattr(available()[0][recipe.name], leaf)) or 'none'}"
    if text in ("true", "false"):
        return "on" if text == "true" else "off"
    if text in MEANS.get(path, {}):
        return MEANS[path][text]
    means = SETTINGS[leaf].meanings[text]
    said = means.text.format(**{**values_of(recipe), leaf: text})
    if leaf == "anchor" and means.formula:
        said = f"{means.formula[0]}, x = log π − log π_ref: {said}"
    return said


def next_number(info: Setting, text: str, by: int) -> str | None:
    """The number after this one, in steps of its leading digit; None where there is none.

    Whole numbers go by 1 below 100, then by their second digit: 64, 65; 200, 210.
    """
    whole = info.number is int
    try:
        value = float(text)
    except ValueError:
        return None
    if info.number is None or not math.isfinite(value):
        return None
    made = _after(abs(value), by if value >= 0 else -by, whole)
    made = made if value >= 0 else -made
    if not info.accepts(made):
        return None
    return str(round(made)) if whole else as_text(made)


def _after(value: float, by: int, whole: bool) -> float:
    """The neighbour of a number that is not negative."""
    if whole:
        size = 10 ** max(0, len(str(round(value if by > 0 else value - 1))) - 2)
        each = size if value >= 100 else 1
        return float((math.floor(value / each) if by > 0 else math.ceil(value / each)) + by) * each
    if not value:
        return 0.01 * by
    power = math.floor(math.log10(value) + 1e-9)
    digit = round(value / 10.0**power, 6)
    if by < 0 and digit <= 1:
        power, digit = power - 1, 10.0
    digit = math.floor(digit) + 1 if by > 0 else math.ceil(digit) - 1
    return float(f"{digit}e{power}")


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
            text = made.edits.get(path, as_text(values[path]))
            if own and text and (clear_all or leaf not in read):
                made = made.type(path, as_text(settings()[path].default))
    return made


# -- lists to choose from -------------------------------------------------------------------


def would_fail(view: View, path: str, text: str) -> bool:
    """Whether a value contradicts other settings of its section."""
    section = path.partition(".")[0]
    edits = {p: t for p, t in view.form.edits.items() if p.partition(".")[0] == section}
    try:
        replace(view.form, edits=edits).type(path, text).config()
    except ConfigError:
        return True
    return False


def value_list(view: View, field: FormField) -> Picker:
    """The values of a setting, with the conflicts of each, or the recipe's six choices with it."""
    path = field.info.path
    items = [
        Item(text, (text or "by the recipe", meaning_of(path, text, view.checked.recipe)),
             bad=would_fail(view, path, text))
        for text in choices_of(field)
    ]  # fmt: skip

    def about(text: str, width: int, palette: Palette) -> list[Line]:
        then = view.with_form(view.form.type(path, text))
        if path.startswith("algorithm."):
            return recipe_lines(then, width, palette)
        errors = then.checked.errors
        words = f"✗ {'; '.join(errors.values())}" if errors else "This value is allowed here."
        colour = palette.bad if errors else palette.text
        return paragraph(words, width, 8, colour)

    return Picker(
        path, items, hint=plain(field.info.help), cursor=field.text, details=about, below=True
    )


def recipe_list(view: View) -> Picker:
    """The recipes, with the six choices of each."""
    items = [
        Item(name, (name, card_of(name).title), bad=would_fail(view, RECIPE, name))
        for name in available()[0]
    ]

    def about(name: str, width: int, palette: Palette) -> list[Line]:
        card = card_of(name)
        then = view.with_form(view.form.type(RECIPE, name))
        return [
            [(card.title, style(palette.headline, bold=True))],
            *paragraph(card.summary, width, 3, palette.text),
            [], *recipe_lines(then, width, palette), [],
            *fact("good", card.good, width, palette, 3), *fact("bad", card.bad, width, palette, 3),
            *paragraph(card.paper, width, 1, palette.label),
        ]  # fmt: skip

    hint = "The six choices. ✗ conflicts with the current settings."
    cursor = view.checked.fields[RECIPE].text
    return Picker("recipe", items, hint=hint, cursor=cursor, details=about)


def start_list(view: View) -> Picker:
    """The presets and runs to start from."""
    items = [Item(None, ("presets",)), *(Item(f"preset:{name}", (name, "")) for name in names())]
    runs = view.runs[:MOST_PARENTS]
    items += [Item(None, ("clone a run",))] if runs else []
    items += [
        Item(f"clone:{run.id}", (run.name or run.id, f"{run.recipe} · {run.status}"))
        for run in runs
    ]

    def about(value: str, width: int, palette: Palette) -> list[Line]:
        kind, _, name = value.partition(":")
        if kind == "preset":
            found = preset(name)
            body = [line for line in found.text.splitlines() if not line.startswith("#")]
            return [
                *paragraph(found.about, width, 6, palette.text), [],
                *(part for line in body for part in paragraph(line, width, 2, palette.label)),
            ]  # fmt: skip
        run = next(run for run in runs if run.id == name)
        state = f"{run.status}, step {run.step} of {run.total_steps}"
        facts = (("id", run.id), ("state", state), ("model", run.model), ("task", run.task),
                 ("recipe", run.recipe), ("seed", str(run.seed)), ("tags", " ".join(run.tags)),
                 ("note", run.note))  # fmt: skip
        return [line for word, said in facts if said for line in fact(word, said, width, palette)]

    now = view.origin
    chosen = f"preset:{now.name}" if now.kind == "preset" else f"clone:{now.run}"
    hint = "ctrl+z brings back what is changed here."
    return Picker("start from", items, hint=hint, cursor=chosen, details=about)


def begin_list(saved: Sequence[CheckpointView]) -> Picker:
    """The checkpoints that a run can begin with, the newest first."""
    items = [Item("none", ("the model as it was", "untrained, or as the parent began"))]
    for one in reversed([one for one in saved if one.exists]):
        label = f"step {one.step}{' · best' if one.best else ''}"
        items += [Item(f"weights:{one.path}", (label, "with a new optimiser")),
                  Item(f"both:{one.path}", (label, "with its optimiser's state"))]  # fmt: skip
    hint = "The run keeps its own copy; its KL penalty is towards these weights."
    return Picker("begin with", items, hint=hint)
