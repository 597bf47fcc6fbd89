"""The lines of the settings list, the header and the pane about one setting."""

from grpo_engine.config.declaration import Setting, as_text
from grpo_engine.config.mismatch import CORRECTION_TEXT, can_agree
from grpo_engine.config.recipes import SETTINGS
from grpo_engine.config.settings import RunConfig
from grpo_engine.platform.device import uses_gpu
from grpo_engine.platform.formats import auto_format, auto_text
from grpo_tui.app.text.recipe_cards import card_of
from grpo_tui.app.text.recipe_text import ASKS
from grpo_tui.app.text.safe_text import cell_len, clip, pad, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.new_run.completion import completions, functions_in
from grpo_tui.app.tui.screens.new_run.form import FormField
from grpo_tui.app.tui.screens.new_run.view import FIRST, SECTIONS, Row, View
from grpo_tui.app.tui.widgets.panel import Line, Span, paragraph

MARK = 3
NAME_CELLS = 24
OFF = "–"


def name_cells(width: int) -> int:
    """Width of the name column."""
    return min(NAME_CELLS, max(14, 2 * width // 5))


def value_at(width: int) -> int:
    """The column where values start."""
    return MARK + name_cells(width) + 1


def setting_lines(view: View, row: Row, width: int, palette: Palette) -> list[Line]:
    """A setting: mark, name, value, previous value; below it any problem."""
    field = row.field
    assert field is not None
    here = row.id == view.cursor
    back = palette.cursor if here else palette.paper
    problem = view.wrong.get(row.id, "")
    mark, colour = _mark(field, problem, palette)
    names = name_cells(width)
    unread = is_unread(view, field)
    name_colour = palette.headline if here else palette.label if unread else palette.text
    path = field.info.path
    name = path if row.section == FIRST else path.rpartition(".")[2]
    if row.section == FIRST and cell_len(name) > names:
        name = name.rpartition(".")[2]
    line: Line = [
        (f" {mark} ", style(colour, back, bold=True)),
        (pad(name, names) + " ", style(name_colour, back)),
        *_value(view, field, width - value_at(width), back, palette),
    ]
    lines = [line]
    if problem:
        words = wrap(complaint(field, problem), width - MARK - 2, 4)
        lines += [
            [("   " + ("✗ " if not at else "  ") + text, style(palette.bad))]
            for at, text in enumerate(words)
        ]
    return lines


def _mark(field: FormField, problem: str, palette: Palette) -> tuple[str, int]:
    if problem:
        return "✗", palette.bad
    return ("●", palette.accent) if field.changed else (" ", palette.label)


def _value(view: View, field: FormField, room: int, back: int, palette: Palette) -> Line:
    text, aside = value_words(view, field)
    derived = aside == "suggested" or text != field.text
    front = palette.label if derived else palette.text
    if field.changed:
        front = palette.bad if field.info.path in view.wrong else palette.headline
    was = f"← {shown_value(view, field)}" if field.changed else aside
    if not text:
        text, front = OFF, palette.label
    # on narrow screens the value takes precedence over the previous one
    tail = clip(was, max(8, room - cell_len(safe(text[:200])) - 3)) if was else ""
    if tail.endswith("…") and not field.changed:
        tail = ""
    left = room - (cell_len(tail) + 2 if tail else 0) - 1
    unit = field.info.unit
    unit = f" {unit}" if text[0].isdigit() and not field.info.path.endswith(unit) else ""
    value = clip(text, max(1, left - len(unit)))
    line: Line = [
        (value, style(front, back, bold=field.changed)),
        (pad(unit, max(0, left - cell_len(value))) + " ", style(palette.label, back)),
    ]
    if tail:
        line.append((f"{tail} ", style(palette.label, back)))
    used = sum(cell_len(part) for part, _ in line)
    line.append((" " * max(0, room - used), style(None, back)))
    return line


def value_words(view: View, field: FormField) -> tuple[str, str]:
    """The current value, and a word on its origin."""
    path = field.info.path
    if path == "name" and not field.changed:
        return view.name, "suggested"
    if is_unread(view, field) and not field.text:
        return "", "not read"
    if not field.text and path.startswith("algorithm.") and view.checked.recipe is not None:
        chosen = getattr(view.checked.recipe, path.partition(".")[2], None)
        return as_text(chosen) or "off", f"as {view.checked.recipe.name}"
    if path == "rewards.weights" and not field.text:
        own = view.checked.fields["rewards.functions"].text
        return "", "1 for each function" if own else "the task's own"
    return field.text, own_words(view, path)


def own_words(view: View, path: str) -> str:
    """The recipe's own value, where the setting differs from it."""
    own, recipe = view.checked.own, view.checked.recipe
    if path not in own or recipe is None:
        return ""
    return f"{recipe.name} has {as_text(own[path]) or 'none'}"


def shown_value(view: View, field: FormField) -> str:
    """Format the value from the preset, the parent or the recipe."""
    path = field.info.path
    value = as_text(view.form.start[path])
    if value:
        return value
    if path.startswith("algorithm."):
        return own_words(view, path) or "set by the recipe"
    return "nothing"


def is_unread(view: View, field: FormField) -> bool:
    """Whether the recipe does not read this setting."""
    section, _, leaf = field.info.path.partition(".")
    # beta switches the anchor on
    always = ("recipe", "beta", "options")
    known = section == "algorithm" and leaf not in always and view.checked.read
    return bool(known) and leaf not in view.checked.read


def allowed(info: Setting) -> str:
    """The values of a number or a choice."""
    return info.allowed if info.number or info.choices else ""


def complaint(field: FormField, problem: str) -> str:
    """The problem, and the allowed values."""
    words = allowed(field.info)
    return f"{problem} (allowed: {words})" if words and words not in problem else problem


def head_line(view: View, row: Row, width: int, palette: Palette) -> Line:
    """A section's heading: open or closed, number of settings, number of changes."""
    here = row.id == view.cursor
    back = palette.cursor if here else palette.paper
    title = SECTIONS[row.section]
    notes: list[Span] = []
    if row.wrong:
        notes.append((f" {row.wrong} to fix", style(palette.bad, back)))
    if row.changed:
        notes.append((f" {row.changed} changed", style(palette.accent, back)))
    if not row.open:
        notes.append((f" {row.count} settings", style(palette.label, back)))
    used = 3 + cell_len(title) + sum(cell_len(text) for text, _ in notes) + 2
    rule = "─" * max(0, width - used)
    return [
        (" ▾ " if row.open else " ▸ ", style(palette.label, back)),
        (f"{title} ", style(palette.headline if here or row.open else palette.text, back,
                            bold=row.open)),
        (rule, style(palette.guide, back)),
        *notes,
        (" ", style(None, back)),
    ]  # fmt: skip


def question_line(name: str, palette: Palette) -> Line:
    """The choice that the settings below belong to."""
    return [(f"   {ASKS[name]}", style(palette.label, italic=True))]


# -- the header -----------------------------------------------------------------------------


def state_words(view: View, palette: Palette) -> Line:
    """Whether the run can be launched, and the number of changes."""
    changed = len(view.checked.changed)
    words: Line = [(f"{changed} changed" if changed else "unchanged",
                    style(palette.accent if changed else palette.label))]  # fmt: skip
    if view.problems:
        return [*words, (f"  ✗ {view.problems} to fix ", style(palette.bad, bold=True))]
    mark, colour = verdict_words(view, palette)
    return [*words, (f"  {mark} ", style(colour))]


def verdict_words(view: View, palette: Palette) -> tuple[str, int]:
    """What checking the settings found, in two words; only what was checked is ready."""
    found = view.verdict
    if not found:
        return "… checking", palette.label
    if "problem" in found:
        return "▲ not checked", palette.warn
    if found["now"]:
        return "▲ cannot start now", palette.warn
    if found["fetches"]:
        return "▲ downloads first", palette.warn
    return "✓ ready", palette.good


def origin_line(view: View, names: tuple[str, ...], width: int, palette: Palette) -> Line:
    """The presets, with the current one marked, or the run being cloned."""
    state = state_words(view, palette)
    room = width - sum(cell_len(text) for text, _ in state) - 1
    line: Line = [(" from ", style(palette.label))]
    chosen = view.origin.name
    if view.origin.kind == "clone":
        title = clip(f"clone of {chosen}", max(8, room - 12))
        line += [("▌", style(palette.accent)), (title, style(palette.headline, bold=True)),
                 ("▐ ", style(palette.accent))]  # fmt: skip
    for name in names:
        used = sum(cell_len(text) for text, _ in line)
        if name == chosen and view.origin.kind == "preset":
            line += [("▌", style(palette.accent)), (name, style(palette.headline, bold=True)),
                     ("▐", style(palette.accent))]  # fmt: skip
        elif used + len(name) + 5 <= room:
            line.append((f" {name} ", style(palette.label)))
    used = sum(cell_len(text) for text, _ in line)
    return [*line, (" " * max(1, width - used - (width - room - 1)), None), *state]


def about_line(view: View, width: int, palette: Palette) -> Line:
    """The preset's purpose, what is missing on this machine, or an error in the YAML."""
    if view.yaml_problem:
        return [(clip(f" YAML: {view.yaml_problem}", width), style(palette.bad))]
    if view.lacking:
        words = f" cannot train here: {view.lacking} Editing, saving and queueing work."
        return [(clip(words, width), style(palette.warn))]
    found = view.verdict
    if view.refused:
        return [(clip(f" ✗ {next(iter(view.refused.values()))}", width), style(palette.bad))]
    words = found.get("problem") or found.get("now") or " ".join(found.get("fetches", ()))
    if words:
        return [(clip(f" ▲ {words}", width), style(palette.warn))]
    about = view.origin.about
    if cell_len(about) >= width:  # its first sentence
        about = about.partition(". ")[0] + "."
    return [(clip(f" {about}", width), style(palette.label))]


# -- the pane about one setting -------------------------------------------------------------


def about_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """A setting's help, range and origin of its value; for a section, its description."""
    label, text = style(palette.label), style(palette.text)
    row, field = view.row, view.row.field
    if field is None:
        return paragraph(section_help(row.section), width, 4, palette.text)
    path = field.info.path
    lines: list[Line] = paragraph(plain(field.info.help), width, 3, palette.text)
    facts = _offered(view, field)  # first, where a small panel has little room
    if path in ("rewards.functions", "rewards.completions"):
        facts.append(("get", view.examples.get("gets", "")))
    facts += [("allowed", allowed(field.info)), ("default", default_words(field))]
    own = own_words(view, path)
    was = shown_value(view, field) if field.changed else ""
    if was and was != own:
        facts.append(("was", f"{was} in {view.origin.kind} {view.origin.name}; u resets it"))
    facts.append(("recipe", f"{own}; u resets it" if was and was == own else own))
    facts += _recipe_facts(view, path)
    if path == "model.dtype":
        facts.append(("here", auto_text(on_gpu=uses_gpu())))
    if path == "name":
        facts.append(("suggested", "from the preset or parent and what is changed"))
    for word, said in facts:
        if said:
            parts = wrap(said, width - 9, 3)
            lines += [
                [(f"{word if not at else '':<9}", label), (part, text)]
                for at, part in enumerate(parts)
            ]
    return lines


def _offered(view: View, field: FormField) -> list[tuple[str, str]]:
    """What could be typed next, while the setting is edited; a file's functions at any time."""
    path = field.info.path
    found = []
    if path == "rewards.functions":
        files = dict.fromkeys(one.rpartition(":")[0] or one for one in field.text.split(","))
        for file in files:
            if names := functions_in(file) if file.endswith(".py") else ():
                found.append(("offers", f"{file}: {', '.join(names)}"))
    if view.editing and (offered := completions(path, field.text)):
        found.append(("→ takes", ", ".join(offered)))
    return found


def _recipe_facts(view: View, path: str) -> list[tuple[str, str]]:
    leaf = path.partition(".")[2]
    if path == "algorithm.recipe" and view.checked.recipe is not None:
        card = card_of(view.checked.recipe.name)
        return [("", card.summary), ("good", card.good), ("bad", card.bad)]
    if not path.startswith("algorithm."):
        return []
    found = []
    if leaf == "importance_cap" and (config := view.checked.config) is not None:
        asked = config.model.dtype
        dtype = auto_format(on_gpu=uses_gpu()) if asked == "auto" else asked
        if config.algorithm.importance_cap is None and not can_agree(dtype):
            found.append(
                ("here", f"on where the weights are in 16 bits ({dtype}): {CORRECTION_TEXT}")
            )
    if leaf in SETTINGS and leaf != "beta" and SETTINGS[leaf].condition.text:
        read = "" if leaf not in view.checked.read else ", as here"
        found.append(("read", f"only with {SETTINGS[leaf].condition.text}{read}"))
    return found


def diff_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """The settings that differ from the recipe's own, then those that differ from the origin."""
    fields, own, recipe = view.checked.fields, view.checked.own, view.checked.recipe
    origin = f"{'preset' if view.origin.kind == 'preset' else 'parent run'} {view.origin.name}"
    from_recipe = [
        (path, as_text(getattr(recipe, path.partition(".")[2])), as_text(value) or "none")
        for path, value in own.items()
    ]
    from_origin = [
        (path, fields[path].text or "by the recipe", shown_value(view, fields[path]))
        for path in view.checked.changed
    ]
    lines: list[Line] = []
    for name, rows in (
        (f"recipe {recipe.name}" if recipe is not None else "the recipe", from_recipe),
        (origin, from_origin),
    ):
        count = "1 setting differs" if len(rows) == 1 else f"{len(rows) or 'no'} settings differ"
        lines.append([(f"{count} from {name}", style(palette.headline, bold=True))])
        lines += [_diff_line(row, width, palette) for row in rows]
        lines.append([])
    return lines[:-1]


def _diff_line(row: tuple[str, str, str], width: int, palette: Palette) -> Line:
    path, here, there = row
    names = min(30, max(14, width // 2))
    room = max(12, width - names - 4)
    here = clip(here, max(room // 2, room - cell_len(there)))
    return [
        (pad(path if cell_len(path) < names else path.rpartition(".")[2], names) + " ",
         style(palette.text)),
        (here, style(palette.headline, bold=True)),
        (f" ← {clip(there, room - cell_len(here))}", style(palette.label)),
    ]  # fmt: skip


def plain(text: str) -> str:
    """Return help text without documentation markup."""
    return text.replace("`", "")


def section_help(section: str) -> str:
    if not section:
        return "No setting matches."
    if section == FIRST:
        return "The eight most important settings. The others are below, by purpose."
    if section == "run":
        return "The run's name, its random seed, its steps, and when it ends."
    kind = RunConfig.model_fields[section].annotation
    return (getattr(kind, "__doc__", "") or "").strip()


def default_words(field: FormField) -> str:
    """Format a setting's default."""
    if field.info.default is None:
        return "set by the recipe" if field.info.path.startswith("algorithm.") else "nothing"
    return as_text(field.info.default) or "nothing"
