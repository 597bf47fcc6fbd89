"""The text of New run: the form, help on a setting, the pages beside the form, and its lists."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from math import inf
from typing import NamedTuple

from grpo_engine.config.custom import FORMS
from grpo_engine.config.declaration import as_text
from grpo_engine.config.recipes import SETTINGS, Recipe, available
from grpo_engine.config.settings import RemoteConfig, RunConfig
from grpo_engine.presets import names, preset
from grpo_tui.app.text.numbers import seconds, short, signed, tokens, with_unit
from grpo_tui.app.text.recipe_cards import card_of
from grpo_tui.app.text.recipe_text import MEANINGS, choice_texts, formula, values_of
from grpo_tui.app.text.run_text import run_summary
from grpo_tui.app.text.safe_text import cell_len, clip, clip_start, pad, wrap
from grpo_tui.app.text.words import count_of, first_of
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.dialogs.picker import Picker, PickerItem
from grpo_tui.app.tui.screens.new_run.completion import completions
from grpo_tui.app.tui.screens.new_run.state import (
    CHANGED,
    COLUMNS,
    FORM_ONLY,
    OPTIONS,
    PRESET,
    RECIPE,
    TASK,
    FormField,
    NewRunView,
    can_sweep,
    choices_of,
    held_out_answers,
)
from grpo_tui.app.tui.widgets.panel import (
    Line,
    cells,
    justified,
    labelled,
    list_row,
    meter,
    paragraph,
)

GIGA = 1e9
LABEL = 12
MARK = 3
NAME_CELLS = 24
VALUE_CELLS = 30
BELOW = 8  # lines of a problem below its setting; help has all of a longer one
FEW = 14  # settings that a search finds, whose help is not cut beside them
WHOLE = 12  # lines that hold the help of any setting
ASIDE = 88  # width from which the list has the help of each setting
OFF = "–"
ONE_TASK = (
    "starter knows arithmetic in chat messages alone{}; for other tasks set model.path to a "
    "language model"
)
CHOOSE_COLUMNS = "⏎ chooses among the columns; n shows what the model is sent"
GETS = ("rewards.functions", "rewards.completions")  # what decides what reward functions get
VALUES: Mapping[str, Mapping[str, str]] = tomllib.loads(
    files("grpo_tui.app.text").joinpath("setting_values.toml").read_text(encoding="utf-8")
)


def problem_lines(error: str, width: int, limit: int = 20) -> list[Line]:
    return paragraph(f"✗ {error}", width, limit, "bad")


def ruled(line: Line, width: int) -> Line:
    """A heading, with a rule up to the right end."""
    return [*line, ("─" * (width - cells(line)), "guide")]


# -- the header -----------------------------------------------------------------------------


def header_line(view: NewRunView, width: int) -> Line:
    """The costs, or what prevents a launch; whether it can be launched, and what is changed."""
    state, message, colour = _status(view)
    runs = f"{view.form.count} runs  " if view.form.count > 1 else ""
    right = [
        (runs, "bold headline"),
        (
            f"{len(view.form.changed) or 'nothing'} changed",
            "accent" if view.form.changed else "label",
        ),
        (f"   {state} ", "bold bad" if view.errors else colour),
    ]
    space = width - cells(right) - 2
    if not message:
        message, colour = cost_summary(view), "label"
        while cell_len(message) >= space and view.form.count == 1 and ", " in message:
            message = message.partition(", ")[2]  # the time is last
    return justified([(clip(f" {message}", space), colour)], right, width)


def _status(view: NewRunView) -> tuple[str, str, str]:
    """Whether the run can be launched, and why not; only what was tried is ready."""
    if view.errors:
        return f"✗ {len(view.errors)} to fix", f"✗ {next(iter(view.errors.values()))}", "bad"
    if not view.ready:
        return "… checking", "", "label"
    for name, state in (
        ("problem", "not checked"),
        ("now", "cannot start now"),
        ("fetches", "downloads first"),
    ):
        if text := view.ready.get(name):
            message = text if isinstance(text, str) else " ".join(text)
            return f"▲ {state}", f"▲ {message}", "warn"
    if text := task_warning(view):
        return "▲ ready", f"▲ {text}", "warn"
    return "✓ ready", "", "good"


def task_warning(view: NewRunView) -> str:
    """Why the model cannot learn this task, although a run would begin."""
    fields = view.form.fields
    if fields["model.path"].text != "starter" or view.form.task == "arithmetic":
        return ""
    chat = fields.get(f"{OPTIONS}.chat")
    hint = " (own data: task.options.chat true)" if chat and not chat.text else ""
    return ONE_TASK.format(hint)


# -- the form -------------------------------------------------------------------------------


def form_blocks(view: NewRunView, width: int) -> list[list[Line]]:
    """The lines of each row of the form; the first one of a section is below its heading."""
    blocks: list[list[Line]] = []
    section = "main"
    for row in view.rows:
        block: list[Line] = []
        if row.section != section:
            section = row.section
            block.append(ruled([(f" {section} ", "bold label")], width))
        blocks.append([*block, *setting_lines(view, row, width)])
    return blocks


def name_cells(width: int) -> int:
    """Width of the name column."""
    return min(NAME_CELLS, max(14, 2 * width // 5))


def value_at(width: int) -> int:
    """The column where values start."""
    return MARK + name_cells(width) + 1


def setting_lines(view: NewRunView, field: FormField, width: int) -> list[Line]:
    """A setting: mark, name, value, previous value, on a wide screen help; below it a problem."""
    path = field.path
    selected = view.row is not None and view.row.path == path
    error, mark, colour = view.errors.get(path, ""), " ", "label"
    if error:
        mark, colour = "✗", "bad"
    elif field.changed:
        mark, colour = "●", "accent"
    dim = "label" if is_unread(view, field) else "text"
    space = name_cells(width)
    is_full = field.section in ("main", CHANGED) and cell_len(path) <= space
    name = path if is_full or "." not in path else path.partition(".")[2]
    left = width - value_at(width)
    is_short = cell_len(field.text) < VALUE_CELLS - 4
    aside = width >= ASIDE and is_short and not (selected and view.editing)
    line = [
        (f" {mark} ", f"bold {colour}"),
        (pad(name, space) + " ", "headline" if selected else dim),
        *_value(view, field, VALUE_CELLS if aside else left),
    ]
    more: list[Line] = []
    if aside:
        at = value_at(width) + VALUE_CELLS + 2
        lines = WHOLE if view.search and len(view.rows) <= FEW else 1
        help = paragraph(field.info.help.replace("`", ""), width - at - 1, lines, "label")
        line += [("  ", ""), *help[0]]
        more = [[(" " * at, ""), *part] for part in help[1:]]
    line = list_row(line, width, selected=selected)
    warning = task_warning(view) if path == TASK and view.ready and not view.errors else ""
    below = ("✗", error, "bad") if error else ("▲", warning, "warn")
    sign, text, colour = below
    return [
        line,
        *more,
        *(paragraph(text, width, BELOW, colour, (f"   {sign} ", colour)) if text else ()),
    ]


def _value(view: NewRunView, field: FormField, width: int) -> Line:
    """The value with its unit, and at the right end a note, as far as there is room."""
    text, note = value_text(view, field)
    style = "text" if text and text == field.text else "label"
    if field.changed:
        style = "bold bad" if field.path in view.errors else "bold headline"
        note = f"← {field.start or no_value(field.path)}"
    unit = (
        field.info.unit if text[:1].isdigit() and not field.path.endswith(field.info.unit) else ""
    )
    value = clip(text or OFF, max(1, width - len(unit) - 4))
    left = [(value, style), (f" {unit}", "label")]
    return justified(left, [(clip(note, width - cells(left) - 3) + " ", "label")], width)


def value_text(view: NewRunView, field: FormField) -> tuple[str, str]:
    """The current value, and a note on its origin."""
    path, form, text = field.path, view.form, field.text
    section, _, name = path.partition(".")
    if path == PRESET and form.origin.run:
        return text, "cloned run"
    if path == "name" and not field.changed:
        return view.name, "suggested"
    if is_unread(view, field):
        return text, "not read"
    if not text and section == "algorithm" and form.recipe is not None:
        value = getattr(form.recipe, name.rpartition(".")[2], None)
        return as_text(value) or "off", f"as {form.recipe.name}"
    return text, ""


def no_value(path: str) -> str:
    return "set by the recipe" if path.startswith("algorithm.") else "nothing"


def is_unread(view: NewRunView, field: FormField) -> bool:
    """Whether the recipe does not read this setting."""
    recipe = view.form.recipe
    if recipe is None or field.path == "algorithm.beta":  # beta switches the anchor on
        return False
    return not field.info.is_read(recipe)


# -- help on a setting ----------------------------------------------------------------------


def help_lines(view: NewRunView, width: int) -> list[Line]:
    """A setting's problem, help, range and the origin of its value."""
    if view.row is None:
        return paragraph("No setting matches; esc shows all again.", width, 2, "label")
    origin = view.form.origin
    entries = sorted(_entries(view, view.row), key=lambda entry: HELP.index(entry[0]))
    if view.row.path == PRESET:
        entries = [(origin.kind, origin.summary)]
    error = view.errors.get(view.row.path, "")
    is_long = len(paragraph(error, width - 5, BELOW + 1, "bad")) > BELOW
    lines = problem_lines(error, width, 100) if is_long else []
    lines += paragraph(view.row.info.help.replace("`", ""), width, 3, "text")
    return lines + labelled(entries, LABEL, width, 6)


# What help says below a setting's problem and purpose, the most important first: a small panel
# shows the first ones, and scrolls to the others.
HELP = ("→ completes", "edit", "allowed", "was", "gets", "", "read", "default", "sweep")


def _entries(view: NewRunView, field: FormField) -> list[tuple[str, str]]:
    """The parts of a setting's help below its purpose."""
    path, info, origin = field.path, field.info, view.form.origin
    start = f"{field.start or no_value(path)} in {origin.kind} {origin.name}; backspace resets it"
    sweep = "values with commas between them" if info.number else "space marks several in the list"
    return [
        ("→ completes", ", ".join(completions(path, field.text)) if view.editing else ""),
        ("edit", CHOOSE_COLUMNS if path == COLUMNS and view.columns else ""),
        ("gets", view.examples.get("gets", "") if path in GETS else ""),
        ("allowed", info.allowed if info.number or info.choices else ""),
        ("default", as_text(info.default) or no_value(path)),
        ("sweep", f"{sweep}: a run for each" if can_sweep(info) else ""),
        ("was", start if field.changed else ""),
        *_recipe_entries(view, path),
    ]


def _recipe_entries(view: NewRunView, path: str) -> list[tuple[str, str]]:
    """What the recipe is, or when an algorithm's setting is read."""
    form, (section, _, leaf) = view.form, path.partition(".")
    if path == RECIPE and form.recipe is not None:
        return [("", card_of(form.recipe.name).summary)]
    if section != "algorithm" or leaf not in SETTINGS or leaf == "beta":
        return []
    condition = SETTINGS[leaf].condition.text
    return [("read", f"only with {condition}" if condition else "")]


# -- the page of costs ----------------------------------------------------------------------


def cost_lines(view: NewRunView, width: int) -> list[Line]:
    """What a step and the run cost: answers, tokens, memory, time, disk; and a sweep in all."""
    config, form = view.form.config, view.form
    if config is None:
        return paragraph("Costs are shown once all errors are fixed.", width, 3, "label")
    price = view.price_of(config)
    about, time = "at most", "no run with these settings yet"
    if price.seconds is not None and price.step_seconds is not None:
        evaluated = " with held-out evaluation" * bool(price.held_out)
        total = f"{seconds(price.seconds)} in all{evaluated}"
        a_step = f"{seconds(price.step_seconds)} a step"
        about, time = "about", f"{a_step}, {total}, by the speed of run {price.run}"
    rows, count = config.training.rows, price.tokens / config.steps
    per = f"{config.rollout.prompts} prompts × {config.training.group_size}"
    entries = [
        ("answers", f"{per} = {rows:,} a step, {tokens(rows * config.steps)} in all"),
        ("tokens", f"{about} {tokens(count)} a step, {tokens(price.tokens)} in all"),
    ]
    quantities = [
        ("time", time),
        ("disk", f"{with_unit(price.gigabytes, 'GB')} of token numbers"),
        *side_costs(view, config, count / rows),
    ]
    if form.count > 1:
        quantities += [
            ("sweep", f"{form.count} runs, {sweep_cost(view)} in all; above is the first")
        ]
    at_server = config.remote.url and server_lines(view, config.remote, width)
    return [
        *labelled(entries, LABEL, width),
        *(at_server or memory_lines(view, width)),
        *labelled(quantities, LABEL, width),
    ]


def sweep_cost(view: NewRunView) -> str:
    """The time and disk space of all runs together."""
    costs = [view.price_of(config) for _, config in view.form.points] * view.form.seeds
    time = "unknown time, not all were tried before"
    if all(price.seconds is not None for price in costs):
        time = f"about {seconds(sum(price.seconds or 0 for price in costs))}"
    disk = with_unit(sum(price.gigabytes for price in costs), "GB")
    return f"{time}, {disk} of disk"


def side_costs(view: NewRunView, config: RunConfig, length: float) -> list[tuple[str, str]]:
    """Sampling and scoring that happen besides training; `length` is the tokens of an answer."""
    rollout, check = config.training, config.evaluation

    def sampled(count: float, times: int) -> str:
        cost = tokens(count * times * length)
        often = f" {times:,} times" if times != 1 else ""
        return f"{count:,} answers{often}: {cost} tokens" if count * times else ""

    available = view.examples.get("held_out", inf)
    pinned = rollout.group_size * min(check.pinned, available)
    by_reference = config.record.kl and config.algorithm.resolved().anchor == "none"
    teacher = view.memory.get("teacher_share", 0)
    again = config.record.tokens not in ("none", "nothing")
    return [
        ("held-out", sampled(*held_out_answers(config, available))),
        ("pinned", sampled(pinned, config.steps // check.pinned_every + 1)),
        (
            "KL",
            f"{rollout.rows} answers scored by the reference as well: +100% of a forward"
            if by_reference
            else "",
        ),
        (
            "teacher",
            f"{rollout.rows} answers scored by it: +{teacher:.0%} of a forward" if teacher else "",
        ),
        (
            "extra check",
            f"1 of {rollout.prompts} groups (+{1 / rollout.prompts:.0%} time)" if again else "",
        ),
    ]


def server_lines(view: NewRunView, remote: RemoteConfig, width: int) -> list[Line]:
    """What a step asks of the server, or why that is not known."""
    reason = view.memory.get("problem") or view.activity or "not estimated"
    asked = view.memory.get("server") or {"calls": reason}
    return labelled([("server", f"{remote.url} has the weights"), *asked.items()], LABEL, width)


def memory_lines(view: NewRunView, width: int) -> list[Line]:
    """The memory estimate beside the available memory, or why there is no estimate."""
    memory, label = view.memory, (f"{'memory':<{LABEL}}", "label")
    if refused := memory.get("refused"):
        return paragraph(f"✗ {refused}", width, 4, "bad", label)
    if "peak" not in memory:
        reason = memory.get("problem") or view.activity or "not estimated"
        return labelled([("memory", reason)], LABEL, width)

    def in_gigabytes(name: str) -> str:
        return with_unit(memory[name] / GIGA, "GB")

    used = memory["peak"] / max(1, memory["limit"])
    line = [
        label,
        *meter(used, 10, "warn" if used > 0.8 else "accent"),
        (f" {in_gigabytes('peak')} of {in_gigabytes('limit')}", "text"),
    ]
    if memory.get("teacher"):
        line.append((f", teacher {in_gigabytes('teacher')}", "label"))
    names = ("weights", "optimizer", "sampling", "update")
    parts = (f"{name} {in_gigabytes(name)}" for name in names)
    text = "{}, {}, {} or {}, in ".format(*parts) + memory["dtype"]
    layers = "recomputed" if memory["grad_checkpoint"] else "kept"
    at_a_time = f"{memory['max_rows']:,} answers sampled at a time, {memory['micro_rows']:,}"
    rows = f"{at_a_time} per backward pass, layers {layers}"
    return [line, *labelled([("", text), ("", rows)], LABEL, width)]


def cost_summary(view: NewRunView) -> str:
    """The costs of all runs in one line, for the header and dialogs."""
    config = view.form.config
    if config is None:
        return ""
    if view.form.count > 1:
        return sweep_cost(view)
    price = view.price_of(config)
    in_all = tokens(price.tokens + price.held_out)
    parts = [f"{config.training.rows:,} answers a step", f"{in_all} tokens in all"]
    if view.memory.get("peak") and not config.remote.url:
        parts.append(f"{with_unit(view.memory['peak'] / GIGA, 'GB')} of memory")
    parts.append("unknown time" if price.seconds is None else f"about {seconds(price.seconds)}")
    return ", ".join(parts)


# -- the page of the recipe -----------------------------------------------------------------


def recipe_lines(view: NewRunView, width: int) -> list[Line]:
    """The six choices by their names in a recipe file, and the formula."""
    form = view.form
    if form.recipe is None:
        return []
    lines = []
    changed = {
        path.partition(".")[2]
        for path, row in form.fields.items()
        if path.startswith("algorithm.") and row.text
    }
    indent = ("  ", "")
    for answer in choice_texts(form.recipe):
        mark = "● " if changed & {answer.question, *answer.settings} else "  "
        asks = answer.asks if cell_len(answer.choice + answer.asks) < width - 12 else ""
        choice = [
            (mark, "bold accent"),
            (f"{answer.question:<8} ", "bold headline"),
            (answer.choice, "accent"),
        ]
        lines.append(justified(choice, [(asks, "label")], width))
        lines += paragraph(answer.text, width, 3, "text", indent)
    lines.append([])
    for text in formula(form.recipe):
        lines += paragraph(text, width, 3, "series.kl", indent)
    return lines


# -- the page of example prompts ------------------------------------------------------------


def prompt_lines(view: NewRunView, width: int) -> list[Line]:
    """The task in numbers and its first problems, with visible line ends."""
    examples = view.examples
    if not examples:
        text = view.activity or "The first prompts of the run appear here."
        return paragraph(text, width, 2, "label")
    if error := examples.get("problem"):
        return problem_lines(error, width, 30)
    sizes = f"{examples['train']:,} problems to train on, {examples['held_out']:,} held out"
    if skipped := examples.get("skipped", 0):
        sizes += f", {skipped:,} skipped"
    lines = paragraph(examples["about"], width, 3, "text")
    lines.append([(clip(sizes, width), "label")])
    for note in examples["notes"]:
        lines += paragraph(note, width, 6, "warn")
    for index, example in enumerate(examples["examples"]):
        selected = index == view.example
        title = f" {index + 1} of 3 · {example['key']} · {example['tokens']} tokens "
        head = (clip(title, width - 4), "bold headline" if selected else "headline")
        lines += [[], ruled([("▸─" if selected else "──", "guide"), head], width)]
        lines += prompt_text(example["text"], width, example.get("special", ()))
        for name, colour in (("target", "good"), ("columns", "label")):
            if text := example[name]:
                lines += paragraph(text, width, 1, colour, (f"{name} ", "label"))
        if example["folded"]:
            text = "The template takes no system message: it is put before the user's."
            lines += paragraph(text, width, 2, "warn")
    return lines


def prompt_text(text: str, width: int, special: Sequence[str] = ()) -> list[Line]:
    """The text that the model reads, with special tokens in colour, line ends as dim symbols."""
    tokens = re.compile(f"({'|'.join(map(re.escape, special)) or '(?!)'})")
    lines: list[Line] = []
    for line in text.split("\n"):
        for part in wrap(line, width - 1, 40):
            pieces = tokens.split(part)
            lines.append([(piece, "series.kl" if piece in special else "text") for piece in pieces])
        lines[-1].append(("⏎", "label"))
    lines[-1].pop()
    return lines


# -- the page of tried rewards --------------------------------------------------------------


def prompt_end(view: NewRunView, width: int) -> list[Line]:
    """The end of the prompt that is answered, and its target; two lines."""
    examples = view.examples.get("examples", ())
    if view.example >= len(examples):
        return [[("no prompt yet; the page of prompts says why", "label")], []]
    example = examples[view.example]
    text = clip_start(example["text"].strip().replace("\n", " "), width - 7)
    target = f"target {example['target']}" if example["target"] else ""
    return [
        [("after  ", "label"), (text, "label")],
        [(clip(target, width - 22), "good"), ("   n p another prompt", "label")],
    ]


def score_lines(view: NewRunView, width: int) -> list[Line]:
    """Each function's score for the typed answer, with its reason."""
    scores = view.scores
    if not scores:
        return paragraph("The scores of the reward functions appear here.", width, 3, "label")
    if error := scores.get("problem"):
        return problem_lines(error, width)
    lines = []
    for row in scores["rows"]:
        value, weight = row["value"], row["weight"]
        none = "failed" if row["failed"] else "None"
        weighted = none if value is None else signed(value * weight)
        times = "" if value is None else f"{short(value)} × {short(weight)}"
        right = [(times, "label"), (f"{weighted:>8}", "bold headline")]
        lines.append(justified([(clip(row["name"], max(4, width - 22)), "text")], right, width))
        lines += paragraph(row["reason"], width, 3, "label", ("  ", "")) if row["reason"] else []
    has_failed = any(row["failed"] for row in scores["rows"])
    none = "None: a function failed" if has_failed else "None: no function gave a score"
    total = none if scores["total"] is None else short(scores["total"])
    lines.append(justified([("reward", "text")], [(total, "bold good")], width))
    for error in scores["problems"]:
        lines += problem_lines(error, width, 6)
    return lines


def sweep_command(view: NewRunView, file: str) -> str:
    """The command that trains a sweep with the settings of a file."""
    sets = [f"--set {path}={','.join(values)}" for path, values in view.form.axes.items()]
    seeds = [f"--seeds {view.form.seeds}"] if view.form.seeds > 1 else []
    return " ".join(["grpo-tui sweep", file, *sets, *seeds])


# -- the strip of pages ---------------------------------------------------------------------


class FormPage(NamedTuple):
    """A page beside the form: title, lines, what ? explains and what ⏎ does."""

    title: str
    lines: Callable[[NewRunView, int], list[Line]]
    topic: str = "screen:new_run"
    enter: str = ""


PAGE: Mapping[str, FormPage] = {
    "cost": FormPage("cost", cost_lines),
    "recipe": FormPage("recipe", recipe_lines, f"setting:{RECIPE}", "choose recipe…"),
    "prompts": FormPage("prompts", prompt_lines, "setting:task.name"),
    "try": FormPage("try rewards", score_lines, "setting:rewards.functions", "edit the answer"),
}


# -- lists and dialogs ----------------------------------------------------------------------


def meaning_of(path: str, text: str, recipe: Recipe | None) -> str:
    """What one value of a setting means, in one line; with the recipe's numbers."""
    recipe = recipe or available()[0]["grpo"]
    leaf = path.partition(".")[2]
    if not text and not path.startswith("algorithm."):
        return "as the task has it"
    if not text:
        return f"{recipe.name} has {as_text(getattr(available()[0][recipe.name], leaf)) or 'none'}"
    if text in ("true", "false"):
        return "on" if text == "true" else "off"
    if text in VALUES.get(path, {}):
        return VALUES[path][text]
    if leaf not in MEANINGS:
        return ""
    meaning = MEANINGS[leaf][text]
    result = meaning.text.format(**{**values_of(recipe), leaf: text})
    if leaf == "anchor" and meaning.formula:
        result = f"{meaning.formula[0]}, x = log π − log π_ref: {result}"
    return result


def value_picker(view: NewRunView, field: FormField) -> Picker:
    """The values of a setting, with the conflicts of each; several make a sweep."""
    path, recipe = field.path, view.form.recipe
    is_recipe = path == RECIPE

    def refused(text: str) -> set[str]:
        errors = view.form.type(path, text).errors
        return {error for name, error in errors.items() if name not in view.form.errors}

    items = [
        PickerItem(
            text,
            (
                text or ("by the recipe" if path.startswith("algorithm.") else "default"),
                card_of(text).title if is_recipe else meaning_of(path, text, recipe),
            ),
            bad=bool(refused(text)),
        )
        for text in choices_of(field)
    ]
    items += [PickerItem(FORMS, (FORMS, "type the name of a function of yours"))] * field.info.open

    def details(text: str, width: int) -> list[Line]:
        then = view.with_form(view.form.type(path, text))
        lines = [line for error in refused(text) for line in problem_lines(error, width, 8)]
        if is_recipe:
            return [*lines, *recipe_card(then, text, width)]
        return [*lines, *(recipe_lines(then, width) if path.startswith("algorithm.") else [])]

    several = " Several marked values make a sweep." * can_sweep(field.info)
    hint = f"✗ conflicts with the current settings.{several}"
    axis = view.form.axes.get(path, ())
    return Picker(
        "recipe" if is_recipe else path,
        items,
        hint=hint,
        cursor=field.text,
        marks=axis if can_sweep(field.info) else None,
        details=details,
    )


def recipe_card(view: NewRunView, name: str, width: int) -> list[Line]:
    """A recipe's title, summary, six choices, character and paper."""
    card = card_of(name)
    return [
        [(card.title, "bold headline")],
        *paragraph(card.summary, width, 3, "text"),
        [],
        *recipe_lines(view, width),
        [],
        *labelled([("good", card.good), ("bad", card.bad)], LABEL, width, 3),
        *paragraph(card.paper, width, 1, "label"),
    ]


def start_picker(view: NewRunView) -> Picker:
    """The presets and runs to start from."""
    items = [PickerItem(f"preset:{name}", (name, preset(name).description)) for name in names()]
    items += [
        PickerItem(f"clone:{run.id}", (run.title, run_summary(run))) for run in view.runs[:200]
    ]
    origin = view.form.origin
    current = f"clone:{origin.run}" if origin.run else f"preset:{origin.name}"
    return Picker(
        "start from", items, hint="u undoes the choice: your changes come back.", cursor=current
    )


def launch_dialog(view: NewRunView, training: str) -> Choice[str]:
    """Ask how to launch: `here`, `detached`, `queue`, or `worker` for a sweep that starts now."""
    count = view.form.count
    title = f"a sweep of {count} runs" if count > 1 else view.name
    return Choice(f"launch {title}", launch_text(view, training), launch_options(view, training))


def launch_text(view: NewRunView, training: str) -> str:
    """Describe the run, or the sweep, and any objections to it."""
    config, form = view.config, view.form
    assert config is not None
    rollout, recipe = config.training, config.algorithm.recipe
    lines = [
        f"{config.model.path} learns {config.task.name} with {recipe}: "
        f"{count_of(config.steps, 'step')} of {rollout.prompts} × {rollout.group_size} answers.",
        f"{cost_summary(view)}.",
    ]
    if form.count > 1:
        axes = [f"{path} {', '.join(values)}" for path, values in form.axes.items()]
        axes += [f"{form.seeds} seeds"] if form.seeds > 1 else []
        lines[1:] = [f"{' × '.join(axes)}: {form.count} runs, {cost_summary(view)} in all."]
    changed = [path for path in form.changed if path not in ("name", *FORM_ONLY, *form.axes)]
    if changed:
        kind = "run" if form.origin.run else "preset"
        lines.append(f"Differs from {kind} {form.origin.name}: {first_of(changed, 4)}.")
    if not view.ready:
        lines.append("It is still being checked; a run that would fail is refused.")
    elif text := _status(view)[1]:
        lines.append(text[:300])
    if training and form.count == 1:
        lines.append(f"{training} trains in this process, which trains one run at a time.")
    return "\n".join(lines)


def launch_options(view: NewRunView, training: str) -> list[tuple[str, str, str, str]]:
    """The ways to start it at this moment."""
    queue = ("queue", "q", "into the queue", "waits in the queue; Q on Runs starts a worker")
    worker = ("worker", "s", "start the sweep", "one run after another, in the background")
    nearest_step = f"in parallel with {training}" if training else "even when this window closes"
    detached = ("detached", "d", "detached", f"in the background, {nearest_step}")
    in_process = ("here", "h", "here", "trains in this process; Watch opens")
    options = [queue]
    if not view.ready.get("now"):
        alone = [queue, detached] if training else [in_process, detached, queue]
        options = [worker, queue] if view.form.count > 1 else alone
    return [*options, ("", "n", "not yet", "")]
