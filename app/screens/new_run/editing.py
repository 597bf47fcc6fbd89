"""Actions that change the form: moving, editing, switching, putting back, choosing a recipe."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from textual.app import App

from app.palette import Palette, style
from app.run_form import FormField, RunForm, shown
from app.safe_text import wrap
from app.screens.dialogs import Choice
from app.screens.new_run.facts import recipe_lines
from app.screens.new_run.lines import plain
from app.screens.new_run.panels import RowPicked, SettingsPanel, Typed, TypingEnded
from app.screens.new_run.picks import Entry, Pick
from app.screens.new_run.view import View, check
from app.widgets.panel import Line
from experiments.presets import names, preset
from grpo_engine.errors import ConfigError
from grpo_engine.recipe_cards import CARDS
from grpo_engine.recipes import RECIPES, settings_read
from grpo_engine.settings import flatten

MOST_PARENTS = 200
RECIPE = "algorithm.recipe"


def choices_of(field: FormField) -> tuple[str, ...]:
    """The texts that a setting with a list may have; empty where it has none."""
    info = field.info
    kinds = (info.annotation, *get_args(info.annotation))
    if info.path == RECIPE:
        return tuple(RECIPES)
    found = info.choices or (("true", "false") if bool in kinds else ())
    return ("", *found) if found and type(None) in kinds else found


def with_recipe(form: RunForm, name: str) -> RunForm:
    """The form with another recipe, and everything that the recipe would refuse left to it."""
    made = form.type(RECIPE, name)
    read = settings_read(RECIPES[name])
    for clear_all in (False, True):
        if not any(path.startswith("algorithm.") for path in check(made).errors):
            break
        values = flatten(made.base)
        for path in values:
            leaf = path.partition(".")[2]
            own = path.startswith("algorithm.") and path != RECIPE
            text = made.edits.get(path, shown(values[path]))
            if own and text and (clear_all or leaf not in read):
                made = made.type(path, "")
    return made


class EditingActions:
    """The keys that change settings."""

    view: View
    if TYPE_CHECKING:
        app: App[Any]
        query_one: Any
        notify: Any
        change: Any
        scrolled: Any
        take_preset: Any
        clone: Any

    # -- moves ------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor, or the text of the panel that has the focus."""
        panel = self.scrolled()
        if panel is not None:
            panel.scroll_lines(by)
            return
        self.end_typing()
        self.view = self.view.moved(by)

    def action_section(self, by: int) -> None:
        """Go to another section."""
        self.end_typing()
        self.view = self.view.to_section(by)

    def on_row_picked(self, message: RowPicked) -> None:
        """A line was clicked."""
        self.end_typing()
        self.view = replace(self.view, cursor=message.id)
        if message.twice:
            self.action_open()

    # -- editing ----------------------------------------------------------------------------

    def action_open(self) -> None:
        """Edit the setting, or fold the section; on a page, its own."""
        panel = self.scrolled()
        if panel is not None and panel.id in ("yaml", "try"):
            panel.area.focus()
            return
        if panel is not None and panel.id == "recipe":
            self._choose_recipe()
            return
        field = self.view.chosen
        if field is None:
            self.view = self.view.toggled()
        elif field.info.path == RECIPE:
            self._choose_recipe()
        elif len(choices_of(field)) == 2:
            self.action_switch()
        elif choices_of(field):
            self._choose_value(field)
        else:
            self.change(replace(self.view, cursor=self.view.row.id, editing=True))
            self.query_one(SettingsPanel).edit(field.text)

    def on_typed(self, message: Typed) -> None:
        """Check what is typed; a setting that has gone from the list is edited no more."""
        if not self.view.editing:
            return
        if self.view.row.id != self.view.cursor or self.view.chosen is None:
            self.end_typing()
        elif message.path == self.view.cursor:
            self.view = self.view.with_form(self.view.form.type(message.path, message.text))

    def on_typing_ended(self, message: TypingEnded) -> None:
        """The field was left, or typing goes on in the next."""
        if not message.by:
            self.end_typing()
            return
        view = replace(self.view, editing=False).moved(message.by)
        while view.chosen is None and view.moved(message.by).cursor != view.cursor:
            view = view.moved(message.by)
        self.view = view
        if view.chosen is not None and not choices_of(view.chosen):
            self.action_open()
        else:
            self.query_one(SettingsPanel).focus()

    def end_typing(self) -> None:
        """Close the field; its text is kept."""
        if self.view.editing:
            panel = self.query_one(SettingsPanel)
            had = panel.input.has_focus
            self.view = replace(self.view, editing=False)
            if had:
                panel.focus()

    def action_switch(self) -> None:
        """Switch on or off, or fold."""
        field = self.view.chosen
        if field is None:
            self.view = self.view.toggled()
        elif field.info.path != RECIPE and choices_of(field):
            self._cycle(field, 1)
        else:
            self.action_open()

    def action_cycle(self, by: int) -> None:
        """The next choice; a section opens or closes."""
        field = self.view.chosen
        if self.scrolled() is not None:
            return
        if field is None:
            self.view = self.view.toggled(opened=by > 0)
        elif field.info.path == RECIPE:
            known = tuple(RECIPES)
            at = known.index(field.text) if field.text in known else 0
            self._take_recipe(known[(at + by) % len(known)])
        elif choices_of(field):
            self._cycle(field, by)
        elif by < 0:
            self.view = self.view.toggled(opened=False)

    def _cycle(self, field: FormField, by: int) -> None:
        found = choices_of(field)
        at = found.index(field.text) if field.text in found else 0
        self._set(field.info.path, found[(at + by) % len(found)])

    def _set(self, path: str, text: str | None) -> None:
        if text is not None:
            self.change(self.view.with_form(self.view.form.type(path, text)))

    def action_reset(self) -> None:
        """Put the setting back; on a section, all of it."""
        row, changed = self.view.row, self.view.checked.changed
        mine = [p for p in changed if p == row.id] if row.field is not None else [
            r.id for r in replace(self.view, open=self.view.open | {row.section}).rows
            if r.section == row.section and r.id in changed
        ]  # fmt: skip
        if not mine:
            self.notify("This is as it was.")
            return
        form = self.view.form
        for path in mine:
            form = form.reset(path)
        self.change(self.view.with_form(form))

    def action_reset_all(self) -> None:
        """Put everything back."""
        count = len(self.view.checked.changed)
        if not count and not self.view.yaml_problem:
            self.notify("Nothing is changed.")
            return
        self.change(self.view.with_form(RunForm(self.view.form.base, title=self.view.form.title)))
        self.notify(f"{count} put back; ctrl+z brings them again.")

    def action_changed(self) -> None:
        """Only what differs, or all."""
        self.end_typing()
        self.view = replace(self.view, only_changed=not self.view.only_changed)

    # -- lists ------------------------------------------------------------------------------

    def _choose_value(self, field: FormField) -> None:
        path = field.info.path
        entries = [
            Entry(text or "-", text or "as the recipe says",
                  "now" if text == field.text else "", self._would_fail(path, text))
            for text in choices_of(field)
        ]  # fmt: skip
        pick = Pick(path, plain(field.info.help), entries, partial(self._about_value, path),
                    field.text or "-")  # fmt: skip
        self.app.push_screen(
            pick, lambda text: self._set(path, "" if text == "-" else text)
        )  # fmt: skip

    def _would_fail(self, path: str, text: str) -> bool:
        section = path.partition(".")[0]
        edits = {p: t for p, t in self.view.form.edits.items() if p.partition(".")[0] == section}
        try:
            replace(self.view.form, edits=edits).type(path, text).config()
        except ConfigError:
            return True
        return False

    def _about_value(self, path: str, text: str, width: int, palette: Palette) -> list[Line]:
        """What would be refused with this value, and the six answers that it gives."""
        view = self.view.with_form(self.view.form.type(path, "" if text == "-" else text))
        if path.startswith("algorithm."):
            return recipe_lines(view, width, palette)
        errors = view.checked.errors
        words = f"✗ {'; '.join(errors.values())}" if errors else "This is legal here."
        colour = palette.bad if errors else palette.text
        return [[(part, style(colour))] for part in wrap(words, width, 8)]

    def _choose_recipe(self) -> None:
        entries = [
            Entry(name, name, CARDS[name].title, self._would_fail(RECIPE, name))
            for name in RECIPES
        ]  # fmt: skip
        now = self.view.checked.fields[RECIPE].text
        hint = "Six questions, answered. ✗ would be refused with the settings here."
        self.app.push_screen(Pick("recipe", hint, entries, self._about_recipe, now),
                             self._take_recipe)  # fmt: skip

    def _about_recipe(self, name: str, width: int, palette: Palette) -> list[Line]:
        card = CARDS[name]
        text, label = style(palette.text), style(palette.label)
        lines: list[Line] = [[(card.title, style(palette.headline, bold=True))]]
        lines += [[(part, text)] for part in wrap(card.summary, width, 3)]
        lines.append([])
        view = self.view.with_form(self.view.form.type(RECIPE, name))
        lines += recipe_lines(view, width, palette)
        lines.append([])
        for word, said in (("good ", card.good), ("bad  ", card.bad)):
            parts = wrap(said, width - 5, 3)
            lines += [[(word if not at else "     ", label), (part, text)]
                      for at, part in enumerate(parts)]  # fmt: skip
        return [*lines, [(part, label) for part in wrap(card.paper, width, 1)]]

    def _take_recipe(self, name: str | None) -> None:
        """Take it; where settings of one's own are refused by it, ask what becomes of them."""
        if name is None:
            return
        form = self.view.form.type(RECIPE, name)
        errors = check(form).errors
        refused = [e for path, e in errors.items() if path.startswith("algorithm.")]
        if not refused:
            self.change(self.view.with_form(form))
            return
        cleared = with_recipe(self.view.form, name)
        before, after = check(form), check(cleared)
        gone = [p for p, row in after.fields.items() if row.text != before.fields[p].text]
        ask = Choice[str](
            f"recipe {name}", " ".join(refused),
            [
                ("clear", "c", f"take {name}'s own answers",
                 "leaves " + ", ".join(path.partition(".")[2] for path in gone) + " to it"),
                ("keep", "k", "take it and mend it by hand", "nothing can be launched until then"),
                ("", "n", "leave it", ""),
            ],
        )  # fmt: skip
        forms = {"clear": cleared, "keep": form}
        self.app.push_screen(
            ask,
            lambda how: self.change(self.view.with_form(forms[how])) if how in forms else None,
        )

    def action_preset(self) -> None:
        """Presets and runs to start from."""
        presets = [Entry(f"preset:{name}", name) for name in names()]
        runs = [
            Entry(f"clone:{run.id}", run.name or run.id, f"{run.recipe} {run.status}")
            for run in self.view.runs[:MOST_PARENTS]
        ]
        entries = [Entry("", "presets"), *presets]
        entries += [Entry("", "clone a run"), *runs] if runs else []
        now = self.view.origin
        chosen = f"preset:{now.name}" if now.kind == "preset" else f"clone:{now.run}"
        hint = "What is changed here can be brought back with ctrl+z."
        self.app.push_screen(Pick("start from", hint, entries, self._about_start, chosen),
                             self._start_with)  # fmt: skip

    def _about_start(self, value: str, width: int, palette: Palette) -> list[Line]:
        kind, _, name = value.partition(":")
        text, label = style(palette.text), style(palette.label)
        if kind == "preset":
            found = preset(name)
            lines: list[Line] = [[(part, text)] for part in wrap(found.about, width, 6)]
            body = [line for line in found.text.splitlines() if not line.startswith("#")]
            lines.append([])
            lines += [[(part, label)] for line in body for part in wrap(line, width, 2)]
            return lines
        run = next((run for run in self.view.runs if run.id == name), None)
        if run is None:
            return []
        state = f"{run.status}, step {run.step} of {run.total_steps}"
        facts = (("id", run.id), ("state", state), ("model", run.model), ("task", run.task),
                 ("recipe", run.recipe), ("seed", str(run.seed)), ("tags", " ".join(run.tags)),
                 ("note", run.note))  # fmt: skip
        return [
            [(f"{word:<8}", label), (part, text)]
            for word, said in facts if said for part in wrap(said, width - 8, 1)
        ]  # fmt: skip

    def _start_with(self, value: str | None) -> None:
        kind, _, name = (value or "").partition(":")
        if kind == "preset":
            self.take_preset(name)
        elif kind == "clone":
            self.clone(name)
