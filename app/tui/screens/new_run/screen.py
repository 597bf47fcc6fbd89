"""The New run screen: settings as a form that is checked, tried out, estimated and launched."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Input, TextArea

from grpo_engine.config.declaration import as_text
from grpo_engine.config.recipes import available
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, EngineError
from grpo_engine.presets import names, preset
from grpo_tui.app.trial import TrialError, TrialProcess
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.dialogs.export import free_path
from grpo_tui.app.tui.dialogs.picker import Picked
from grpo_tui.app.tui.messages import LaunchRequested, NewRunRequested
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.new_run.asides import AboutPanel, CostPanel, DiffPanel, RecipePanel
from grpo_tui.app.tui.screens.new_run.choices import (
    RECIPE,
    begin_list,
    choices_of,
    next_number,
    recipe_list,
    start_list,
    value_list,
    with_recipe,
)
from grpo_tui.app.tui.screens.new_run.facts import probe_key
from grpo_tui.app.tui.screens.new_run.form import FormField, RunForm
from grpo_tui.app.tui.screens.new_run.launch_dialog import PLACES, LaunchDialog
from grpo_tui.app.tui.screens.new_run.lines import value_words
from grpo_tui.app.tui.screens.new_run.load import load_parent, load_runs
from grpo_tui.app.tui.screens.new_run.pages import (
    AnswerGiven,
    AnswerTyped,
    PlayPanel,
    ProbePanel,
    PromptsPanel,
    TextPanel,
    TryPanel,
    YamlPanel,
    YamlTyped,
)
from grpo_tui.app.tui.screens.new_run.panels import (
    HeaderPanel,
    PresetPicked,
    RowPicked,
    ScrolledPanel,
    SettingsPanel,
    Typed,
    TypingEnded,
    ViewPanel,
)
from grpo_tui.app.tui.screens.new_run.texts import as_json, as_markdown
from grpo_tui.app.tui.screens.new_run.view import (
    PAGES,
    Origin,
    Page,
    Played,
    View,
    check,
    members_of,
)
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.panel import Panel
from grpo_tui.experiments.errors import StoreError

FIRST_PRESET = "starter"
# what ⏎ does on a page
ENTERS = {"recipe": "choose recipe…", "try": "type", "yaml": "edit", "play": "answer"}
# lines of the screen around the list of settings
FRAME_LINES = 6


def opening() -> View:
    """The initial form: the first preset, unchanged."""
    return preset_view(FIRST_PRESET)


def preset_view(name: str) -> View:
    """The form of a preset."""
    found = preset(name)
    form = RunForm(found.config, title=name)
    origin = Origin(kind="preset", name=name, about=found.about)
    return View(form=form, origin=origin, checked=check(form))


def key_of(config: RunConfig, *, for_memory: bool) -> str:
    """A cache key of the settings that determine the example prompts, or the memory estimate."""
    parts = [str(config.seed), config.model.model_dump_json(), config.task.model_dump_json()]
    parts += [str(config.rollout.max_new_tokens), config.rewards.completions]
    if for_memory:
        parts += [config.rollout.model_dump_json(), config.optimizer.model_dump_json()]
    return "\n".join(parts)


class NewRunScreen(WorkbenchScreen):
    """Edit the settings of a new run and launch it."""

    mode = "new_run"
    CSS_PATH = "new_run.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "edit", id="new.edit",
                tooltip="Edit the setting, choose from its list, or fold the section"),
        Binding("down,j", "move(1)", "down", id="new.down", show=False,
                tooltip="The next line"),
        Binding("up,k", "move(-1)", "up", id="new.up", show=False, tooltip="The line above"),
        Binding("pagedown", "move(10)", "page down", id="new.page_down", show=False,
                tooltip="Ten lines down"),
        Binding("pageup", "move(-10)", "page up", id="new.page_up", show=False,
                tooltip="Ten lines up"),
        Binding("home", "move(-1000000)", "first", id="new.first", show=False,
                tooltip="The first line"),
        Binding("end", "move(1000000)", "last", id="new.last", show=False,
                tooltip="The last line"),
        Binding("J", "section(1)", "next section", id="new.section", show=False,
                tooltip="The head of the next section"),
        Binding("K", "section(-1)", "section above", id="new.section_above", show=False,
                tooltip="The head of the previous section"),
        Binding("right,l", "cycle(1)", "next value", id="new.next", show=False,
                tooltip="The next of a setting's choices; open the section"),
        Binding("left,h", "cycle(-1)", "previous value", id="new.before", show=False,
                tooltip="The previous choice; close the section"),
        Binding("space", "switch", "switch", id="new.toggle", show=False,
                tooltip="Switch on or off; open or close the section"),
        Binding("plus", "nudge(1)", "more", id="new.more", show=False,
                tooltip="The next larger number"),
        Binding("minus", "nudge(-1)", "less", id="new.less", show=False,
                tooltip="The next smaller number"),
        Binding("L,f5", "launch", "launch…", id="new.launch",
                tooltip="Review the launch, then start here, detached or in the queue"),
        Binding("p", "preset", "preset…", id="new.preset",
                tooltip="Start from another preset, or clone a run"),
        Binding("b", "begin", "begin with…", id="new.begin", show=False,
                tooltip="Begin with a checkpoint of the cloned run, or with its model untrained"),
        Binding("u", "reset", "reset", id="new.reset",
                tooltip="Reset the setting to the value of the preset or parent"),
        Binding("U", "reset_all", "reset all", id="new.reset_all", show=False,
                tooltip="Reset all settings"),
        Binding("ctrl+z", "undo", "undo", id="new.undo", show=False,
                tooltip="Undo the last change, including a change of preset"),
        Binding("C", "changed", "changed only", id="new.changed", show=False,
                tooltip="Show only what differs from the preset or the parent"),
        Binding("r", "page('recipe')", "recipe", id="new.recipe",
                tooltip="The six choices of the recipe"),
        Binding("x", "page('prompts')", "prompts", id="new.prompts",
                tooltip="Three prompts as the model will see them"),
        Binding("t", "page('try')", "try rewards", id="new.try",
                tooltip="Try the reward functions on an answer that you type"),
        Binding("E", "page('play')", "play", id="new.play",
                tooltip="Play an episode of the task's environment in the model's place"),
        Binding("v", "page('yaml')", "YAML", id="new.yaml",
                tooltip="The same settings as YAML; edits there are applied"),
        Binding("d", "page('diff')", "diff", id="new.diff",
                tooltip="What differs from the recipe, and from the preset or the parent run"),
        Binding("P", "probe", "probe", id="new.probe",
                tooltip="Try the model on prompts: pass rates, and which group size has a signal"),
        Binding("s", "stop_probe", "stop or repeat probe", id="new.stop_probe", show=False,
                tooltip="Stop the probe, or probe the settings again"),
        Binding("o", "page('cost')", "costs", id="new.cost", show=False,
                tooltip="What a step and the run will cost"),
        Binding("right_square_bracket", "example(1)", "next prompt", id="new.example",
                show=False, tooltip="The next of the example prompts"),
        Binding("left_square_bracket", "example(-1)", "previous prompt", show=False,
                id="new.example_before", tooltip="The previous example prompt"),
        Binding("f", "fetch", "fetch", id="new.fetch", show=False,
                tooltip="Download the model and the data for the example prompts"),
        Binding("w", "save", "save YAML…", id="new.save", show=False,
                tooltip="Write the settings to a YAML file for `grpo-tui train`"),
    ]  # fmt: skip

    REHEARSE_S: ClassVar[float] = 0.5
    SCORE_S: ClassVar[float] = 0.4
    YAML_S: ClassVar[float] = 0.3

    view: reactive[View] = reactive(opening, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._past: list[View] = []
        self.trial = TrialProcess()  # its process starts with the first request
        self.player = TrialProcess()  # an environment takes its time, and others' questions do not
        self._delays: dict[str, Timer] = {}
        self._known = {"examples": "", "memory": "", "rewards": ""}
        self._answer = ""

    def body(self) -> ComposeResult:
        """The header; settings on the left, explanations on the right."""
        yield HeaderPanel(names(), id="head")
        with Container(id="panes"):
            yield SettingsPanel(id="settings")
            with Container(id="side"):
                with Vertical(id="meaning"):
                    yield AboutPanel(id="about")
                    yield CostPanel(id="cost")
                    yield RecipePanel(id="recipe")
                    yield DiffPanel(id="diff")
                with Horizontal(id="pages"):
                    yield PromptsPanel(id="prompts")
                    yield TryPanel(id="try")
                    yield PlayPanel(id="play")
                    yield YamlPanel(id="yaml")
                    yield ProbePanel(id="probe")

    def on_mount(self) -> None:
        """Focus the settings first."""
        self._show_page()
        self.view = self.view.opened_to_fit(self.app.size.height - FRAME_LINES)
        self.update_panels(self.view)
        self.query_one(SettingsPanel).focus()
        self.read_runs()
        self.ask_for_mlx()

    def on_screen_resume(self) -> None:
        """Reload the runs: those that ended meanwhile count for names and costs."""
        self.read_runs()
        self.try_settings()

    def on_unmount(self) -> None:
        """Stop the trial process."""
        self.trial.close()
        self.player.close()

    # -- what is shown ----------------------------------------------------------------------

    def watch_view(self, old: View, new: View) -> None:
        """Pass the view to every panel; retry what the change affects."""
        if self.is_mounted:
            self.update_panels(new)
            if old.checked is not new.checked:
                self.try_settings()

    def update_panels(self, view: View) -> None:
        """Pass the view to every panel."""
        for panel in self.query(ViewPanel):
            panel.take(view)

    def change(self, view: View) -> None:
        """Apply a change to the form that can be undone."""
        self._past = [*self._past[-99:], self.view]
        self.view = view

    def action_undo(self) -> None:
        """Undo the last change."""
        if not self._past:
            self.notify("Nothing was changed here.")
            return
        self.end_typing()  # undo also restores the cursor, and the field would move with it
        old = self._past.pop()
        self.view = replace(
            self.view, form=old.form, origin=old.origin, checked=old.checked, cursor=old.cursor,
            yaml_problem="",
        )  # fmt: skip

    @work(exclusive=True, group="runs")
    async def read_runs(self) -> None:
        """Load earlier runs, for names and costs."""
        try:
            runs = await self.workbench.reader.ask(load_runs, "former runs")
        except StoreError:
            return  # without a store there are no earlier runs
        self.view = replace(self.view, runs=runs)

    # -- where settings come from -----------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Open the form for another screen, on a preset or a run to clone."""
        if isinstance(message, NewRunRequested):
            if message.clone:
                self.opening = self.clone(message.clone, message.changes)
            elif message.preset:
                self.take_preset(message.preset)
            elif message.setting:
                self.go_to(message.setting)

    def go_to(self, path: str) -> None:
        """Move to a setting, in its section opened."""
        self.end_typing()
        self.end_search()
        section = next(name for name, paths in members_of().items() if path in paths)
        self.view = replace(self.view, open=self.view.open | {section}, cursor=path)
        self._to_settings()

    def take_preset(self, name: str) -> None:
        """Start from a preset."""
        try:
            fresh = preset_view(name)
        except (StoreError, ConfigError) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self._start_from(fresh)

    @work(exclusive=True, group="clone")
    async def clone(self, ref: str, changes: Sequence[tuple[str, Any]] = ()) -> None:
        """Start from a run's settings, with some changed."""
        try:
            parent = await self.workbench.reader.ask(lambda r: load_parent(r, ref), "clone")
        except (StoreError, ConfigError) as error:
            self.notify(str(error), title="not cloned", severity="error", markup=False)
            return
        run, form = parent.run, RunForm(parent.config, title=parent.run.name)
        for path, value in changes:
            form = form.type(path, as_text(value))
        name = run.name or run.id
        about = f"{run.status} at step {run.step} of {run.total_steps}"
        about += f", id {run.id}, {run.task} with {run.recipe}"
        if parent.unknown:
            about += f"; no longer known: {', '.join(parent.unknown)}"
        origin = Origin(kind="clone", name=name, about=about, run=run.id)
        self._start_from(View(form=form, origin=origin, checked=check(form)))

    def _start_from(self, fresh: View) -> None:
        had = len(self.view.checked.changed)
        self.end_typing()
        self.end_search()
        self.change(
            replace(self.view, form=fresh.form, origin=fresh.origin, checked=fresh.checked,
                    yaml_problem="", cursor="model.path")
        )  # fmt: skip
        if had:
            count = f"{had} change{'s' if had > 1 else ''}"
            self.notify(f"Now from {fresh.origin.name}; ctrl+z brings the {count} back.",
                        markup=False)  # fmt: skip

    @on(PresetPicked)
    def preset_clicked(self, message: PresetPicked) -> None:
        if message.name != self.view.origin.name or self.view.origin.kind != "preset":
            self.take_preset(message.name)

    # -- pages ------------------------------------------------------------------------------

    def action_page(self, page: Page) -> None:
        """Show and focus a page; the same key again returns to the settings."""
        panel = self.query_one(f"#{page}", Panel)
        if self.has_class("-paged") and self.view.page == page and panel.has_focus_within:
            self._to_settings()
            return
        self.end_typing()
        self.view = replace(self.view, page=page)
        self.add_class("-paged")
        self.arrangement.show(page)
        self._show_page()
        if isinstance(panel, TryPanel | PlayPanel):
            self.call_after_refresh(panel.entry.focus)
        else:
            self.call_after_refresh(panel.focus)

    def _show_page(self) -> None:
        for page in PAGES:
            self.set_class(self.view.page == page, f"-page-{page}")
        self.arrangement.apply()

    def on_descendant_focus(self) -> None:
        """Show the keys of the page, or of the settings."""
        panel, bar = self._focused_panel(), self.key_bar
        page = (panel.id or "") if panel is not None and panel.id != "settings" else ""
        bar.leads = "settings" if page else ""
        bar.renamed = {"open": ENTERS[page]} if page in ENTERS else {}
        unused = isinstance(self.focused, TextArea) or (page and page not in ENTERS)
        bar.hidden = frozenset({"open"} if unused else ())

    def _to_settings(self) -> None:
        self.remove_class("-paged")
        self.query_one(SettingsPanel).focus()

    def action_escape(self) -> None:
        """Leave the field, the page, or the screen."""
        panel = self._focused_panel()
        if self.view.editing:
            self.end_typing()
        elif isinstance(panel, TextPanel) and self.focused is panel.entry:
            panel.focus()
        elif isinstance(self.focused, Input):
            super().action_escape()
        elif self.query_one(FindBar).display:
            self.end_search()
            self._to_settings()
        elif self.maximized is None and not self.query_one(SettingsPanel).has_focus:
            self._to_settings()
        elif self.maximized is None and self.view.only_changed:
            self.view = replace(self.view, only_changed=False)
        else:
            super().action_escape()

    def scrolled(self) -> ScrolledPanel | None:
        """The focused scrolling panel, if any."""
        panel = self._focused_panel()
        return panel if isinstance(panel, ScrolledPanel) else None

    def find(self, text: str) -> None:
        """Show only the settings that match."""
        self.view = self.view.searched(text)

    def end_search(self) -> None:
        """Show all settings."""
        bar = self.query_one(FindBar)
        bar.query_one(Input).value = ""
        bar.display = False
        self.view = replace(self.view, search="", only_changed=False)

    def exports(self) -> Mapping[str, Callable[[], str]]:
        """The settings as YAML, JSON or Markdown."""
        if self.view.checked.config is None:
            return {}
        view = self.view
        return {
            "yaml": lambda: view.form.to_yaml(),
            "json": lambda: as_json(view),
            "md": lambda: as_markdown(view),
        }

    # -- moves ------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor, or scroll the focused panel."""
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
        self.end_typing()
        self.view = replace(self.view, cursor=message.id)
        if message.twice:
            self.action_open()

    # -- editing ----------------------------------------------------------------------------

    def action_open(self) -> None:
        """Edit the setting or fold the section; on a page, run the page's own action."""
        panel = self.scrolled()
        if isinstance(panel, TextPanel):
            panel.entry.focus()
            return
        if panel is not None and panel.id == "recipe":
            self._choose_recipe()
            return
        if panel is not None and panel.id == "probe":
            self._use_probe()
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
        """Check the typed text; stop editing a setting that is not listed any more."""
        if not self.view.editing:
            return
        if self.view.row.id != self.view.cursor or self.view.chosen is None:
            self.end_typing()
        elif message.path == self.view.cursor:
            self.view = self.view.with_form(self.view.form.type(message.path, message.text))

    def on_typing_ended(self, message: TypingEnded) -> None:
        """Close the field, or edit the next setting."""
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
        """Close the field and keep its text."""
        if self.view.editing:
            panel = self.query_one(SettingsPanel)
            had = panel.input.has_focus
            self.view = replace(self.view, editing=False)
            if had:
                panel.focus()

    def action_switch(self) -> None:
        """Toggle the setting, or fold the section."""
        field = self.view.chosen
        if field is None:
            self.view = self.view.toggled()
        elif field.info.path != RECIPE and choices_of(field):
            self._cycle(field, 1)
        else:
            self.action_open()

    def action_cycle(self, by: int) -> None:
        """Select the next allowed value; a section opens or closes."""
        field = self.view.chosen
        if self.scrolled() is not None:
            return
        if field is None:
            self.view = self.view.toggled(opened=by > 0)
        elif field.info.path == RECIPE:
            every = tuple(available()[0])
            at = every.index(field.text) if field.text in every else 0
            self._take_recipe(every[(at + by) % len(every)])
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

    def action_nudge(self, by: int) -> None:
        """Make the number larger or smaller."""
        field = self.view.chosen
        if field is None:
            return
        made = next_number(field.info, value_words(self.view, field)[0], by)
        if made is None:
            self.notify(f"{field.info.path} has no {'larger' if by > 0 else 'smaller'} number.")
        else:
            self._set(field.info.path, made)

    def action_reset(self) -> None:
        """Reset the setting, or all of a section."""
        row, changed = self.view.row, self.view.checked.changed
        mine = [p for p in changed if p == row.id] if row.field is not None else [
            r.id for r in replace(self.view, open=self.view.open | {row.section}).rows
            if r.section == row.section and r.id in changed
        ]  # fmt: skip
        if not mine:
            self.notify("This is unchanged.")
            return
        form = self.view.form
        for path in mine:
            form = form.reset(path)
        self.change(self.view.with_form(form))

    def action_reset_all(self) -> None:
        """Reset all settings."""
        count = len(self.view.checked.changed)
        if not count and not self.view.yaml_problem:
            self.notify("Nothing is changed.")
            return
        self.change(self.view.with_form(RunForm(self.view.form.base, title=self.view.form.title)))
        self.notify(f"{count} reset; ctrl+z undoes that.")

    def action_changed(self) -> None:
        """Toggle between changed settings and all."""
        self.end_typing()
        self.view = replace(self.view, only_changed=not self.view.only_changed)

    # -- lists ------------------------------------------------------------------------------

    def _choose_value(self, field: FormField) -> None:
        path = field.info.path
        self.app.push_screen(value_list(self.view, field),
                             lambda picked: self._set(path, picked and picked.value))  # fmt: skip

    def _choose_recipe(self) -> None:
        self.app.push_screen(
            recipe_list(self.view), lambda picked: self._take_recipe(picked and picked.value)
        )

    def _take_recipe(self, name: str | None) -> None:
        """Switch the recipe; if it refuses settings of the user, ask what to do with them."""
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
                ("clear", "c", f"use {name}'s own choices",
                 "resets " + ", ".join(path.partition(".")[2] for path in gone)),
                ("keep", "k", "use it and fix the conflicts by hand",
                 "nothing can be launched until then"),
                ("", "n", "cancel", ""),
            ],
        )  # fmt: skip
        forms = {"clear": cleared, "keep": form}
        self.app.push_screen(
            ask,
            lambda how: self.change(self.view.with_form(forms[how])) if how in forms else None,
        )

    def action_preset(self) -> None:
        """List presets and runs to start from."""
        self.app.push_screen(start_list(self.view), self._start_with)

    @work(exclusive=True, group="begin")
    async def action_begin(self) -> None:
        """List the checkpoints of the cloned run to begin with."""
        run = self.view.origin.run
        if not run:
            self.notify("Clone a run first, with p: a run can begin with its checkpoints.")
            return
        try:
            saved = await self.workbench.reader.ask(
                lambda reader: reader.checkpoints(reader.resolve(run).key), "checkpoints"
            )
        except StoreError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.app.push_screen(begin_list(saved), self._begin_with)

    def _begin_with(self, picked: Picked | None) -> None:
        kind, _, path = (picked.value if picked else "").partition(":")
        if not kind:
            return
        form = self.view.form.reset("optimizer.start")
        full = self.view.checked.fields["model.tuning"].text == "full"
        place = "model.path" if full else "model.adapter"
        form = form.type(place, path) if path else form.reset(place)
        self.change(
            self.view.with_form(form.type("optimizer.start", path if kind == "both" else ""))
        )

    def _start_with(self, picked: Picked | None) -> None:
        kind, _, name = (picked.value if picked else "").partition(":")
        if kind == "preset":
            self.take_preset(name)
        elif kind == "clone":
            self.clone(name)

    # -- trying the settings, shortly after the last change ---------------------------------------

    def _soon(self, name: str, after: float, call: Any) -> None:
        if name in self._delays:
            self._delays[name].stop()
        self._delays[name] = self.set_timer(after, call)

    @work(group="mlx")
    async def ask_for_mlx(self) -> None:
        """Check on a thread whether MLX can train here."""
        from grpo_engine.platform.device import require_backend

        try:
            await asyncio.to_thread(require_backend)
        except EngineError as error:
            self.view = replace(self.view, lacking=str(error))

    # -- prompts and memory -----------------------------------------------------------------

    def try_settings(self) -> None:
        """Try the settings once they have not changed for a moment."""
        if self.is_mounted:
            self._soon("try_settings", self.REHEARSE_S, self._run_trials)

    def _run_trials(self) -> None:
        config = self.view.checked.config
        if config is not None and self.is_current:
            self._look(config, online=False)

    @work(exclusive=True, group="try_settings")
    async def _look(self, config: RunConfig, *, online: bool) -> None:
        prompts, memory = key_of(config, for_memory=False), key_of(config, for_memory=True)
        checked, rewards = self.view.checked, config.rewards.model_dump_json()
        if rewards != self._known["rewards"] or "problem" in self.view.scores:
            self._known["rewards"] = rewards
            self._score_again()
        if prompts != self._known["examples"] or online:
            self.view = replace(self.view, busy="fetching…" if online else "reading the task…")
            found = await self._ask("examples", config, online=online)
            self._known["examples"] = prompts
            self.view = replace(self.view, examples=found, example=0)
            self._score_again()
        if memory != self._known["memory"] or online:
            self.view = replace(self.view, busy="estimating memory…")
            found = await self._ask("memory", config, online=online)
            self._known["memory"] = memory
            self.view = replace(self.view, memory=found)
        self.view = replace(self.view, busy="trying the rewards…")
        found = await self._ask("ready", config, online=online)
        self.view = replace(self.view, trial=found, tried=checked, busy="")

    async def _ask(
        self, what: str, config: RunConfig, *, online: bool = False, **more: Any
    ) -> Mapping[str, Any]:
        try:
            return await self.trial.request(what, config, online=online, **more)
        except TrialError as error:
            return {"problem": str(error)}

    def action_fetch(self) -> None:
        """Download what the example prompts need from the hub."""
        config = self.view.checked.config
        if config is None:
            self.notify("Fix the errors first.", severity="warning")
            return
        names = " and ".join(dict.fromkeys([config.model.path, config.task.name]))
        self.notify(f"Downloading missing files of {names}; this may take a while.", markup=False)
        self._look(config, online=True)

    def action_example(self, by: int) -> None:
        """Choose another example prompt, to answer and to copy."""
        count = len(self.view.examples.get("examples", ()))
        if count:
            self.view = replace(self.view, example=(self.view.example + by) % count)
            self._score_again()

    # -- the probe --------------------------------------------------------------------------

    def action_probe(self) -> None:
        """Show the probe; start it unless it has these settings."""
        config = self.view.checked.config
        if config is not None and self.view.probe.get("key") != probe_key(config):
            self._probe(config)
        self.action_page("probe")

    def action_stop_probe(self) -> None:
        """Stop the probe that is under way, or start it again."""
        config = self.view.checked.config
        if self.view.probe and not self.view.probe["ended"]:
            self.stop_probe()
        elif self.view.page == "probe" and config is not None:
            self._probe(config)

    def stop_probe(self) -> None:
        """Keep what a probe has found so far, and free its model."""
        found = self.view.probe
        if found and not found["ended"]:
            self.workers.cancel_group(self, "probe")
            self.view = replace(self.view, probe={**found, "ended": True, "stopped": True})
            self._free_probe()

    @work(group="free")
    async def _free_probe(self) -> None:
        await self._ask("stop", RunConfig())

    @work(exclusive=True, group="probe")
    async def _probe(self, config: RunConfig) -> None:
        found: Mapping[str, Any] = {"ended": False, "answers": 0, "of": 0, "best": None}
        key, begin = probe_key(config), True
        while not found["ended"]:
            self.view = replace(self.view, probe={**found, "key": key})
            found = {"ended": True, **await self._ask("probe", config, begin=begin)}
            begin = False
        self.view = replace(self.view, probe={**found, "key": key})

    def _use_probe(self) -> None:
        best = self.view.probe.get("best")
        if not best:
            self.notify("The probe recommends nothing yet.")
            return
        form = self.view.form.type("rollout.group_size", str(best["group_size"]))
        self.change(
            self.view.with_form(form.type("rollout.temperature", f"{best['temperature']:g}"))
        )
        self.notify(f"Group size {best['group_size']} at temperature {best['temperature']:g}; "
                    "ctrl+z brings back what it was.")  # fmt: skip

    # -- rewards ----------------------------------------------------------------------------

    def on_answer_typed(self, message: AnswerTyped) -> None:
        """Score the answer once the user stops typing."""
        self._answer = message.text
        self._score_again()

    def _score_again(self) -> None:
        if self._answer:
            self._soon("score", self.SCORE_S, self._score)
        elif self.view.scores:
            self.view = replace(self.view, scores={})

    def _score(self) -> None:
        config = self.view.checked.config
        if config is None:
            problem = "Fix the errors first; see the settings marked ✗."
            self.view = replace(self.view, scores={"problem": problem})
        elif self._answer:
            self._scored(config)

    @work(exclusive=True, group="score")
    async def _scored(self, config: RunConfig) -> None:
        found = await self._ask("score", config, example=self.view.example, completion=self._answer)
        self.view = replace(self.view, scores=found)

    # -- the environment --------------------------------------------------------------------

    def on_answer_given(self, message: AnswerGiven) -> None:
        """Begin an episode, or give an answer to the one that is being played."""
        config, played = self.view.checked.config, self.view.played
        if config is None:
            self._say_what_is_wrong()
            return
        begins = played.turn == "nobody"
        lines = () if begins else (*played.lines, ("answer", message.text))
        self.view = replace(self.view, played=Played(lines, "environment"))
        self._reply(config, None if begins else message.text)

    @work(exclusive=True, group="play")
    async def _reply(self, config: RunConfig, answer: str | None) -> None:
        try:
            found = await self.player.request("play", config, answer=answer)
        except TrialError as error:
            found = {"problem": str(error)}
        told = found.get("lines", [("error", found.get("problem", ""))])
        lines = (*self.view.played.lines, *((kind, text) for kind, text in told))
        over = found.get("over", True)
        self.view = replace(self.view, played=Played(lines, "nobody" if over else "person"))

    # -- YAML -------------------------------------------------------------------------------

    def on_yaml_typed(self, message: YamlTyped) -> None:
        """Apply the YAML once the user stops typing."""
        self._soon("yaml", self.YAML_S, lambda: self._take_yaml(message.text))

    def _take_yaml(self, text: str) -> None:
        try:
            form = self.view.form.from_yaml(text)
        except ConfigError as error:
            problem = str(error).removeprefix("this YAML: ")
            self.view = replace(self.view, yaml_problem=problem)
            return
        if form.edits != self.view.form.edits or self.view.yaml_problem:
            self.change(self.view.with_form(form))

    # -- launching ---------------------------------------------------------------------------

    def _ready(self) -> RunConfig | None:
        """Return the settings, or None after reporting what to fix and moving there."""
        self.end_typing()
        config = self.view.config
        if config is None:
            self._say_what_is_wrong()
        return config

    def _say_what_is_wrong(self) -> None:
        self.end_search()
        view = self.view
        if view.wrong:
            path, problem = next(iter((view.checked.errors or view.wrong).items()))
            self.view = replace(view, open=view.open | {path.partition(".")[0]},
                                cursor=path)  # fmt: skip
            count = f" and {view.problems - 1} more" if view.problems > 1 else ""
            words = problem if path in problem else f"{path}: {problem}"
        else:
            count, words = "", f"the YAML is not applied: {view.yaml_problem}"
        self.notify(
            f"{words}{count}", title="errors to fix first", severity="warning", markup=False
        )

    def action_launch(self) -> None:
        """Describe the launch and ask where to run."""
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
        elif self._ready() is not None:
            if self.view.refused:
                self._say_what_is_wrong()
                return
            bridge = self.workbench.bridge
            busy = (bridge.name or "a run") if bridge.running else ""
            self.app.push_screen(LaunchDialog(self.view, busy), self._launch)

    def _launch(self, where: str | None) -> None:
        config = self.view.config
        place = next((kind for kind in PLACES if kind == where), None)
        if config is None or place is None:
            return
        self.stop_probe()
        where = {"here": "", "detached": " in the background", "queue": " from the queue"}[place]
        self.notify(f"Trying the settings of {config.name or 'the run'}, which then starts{where}.",
                    markup=False)  # fmt: skip
        self.post_message(LaunchRequested(config, place, self.view.origin.run))

    # -- files ------------------------------------------------------------------------------

    def action_save(self) -> None:
        """Ask for a file name and write the YAML."""
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
            return
        config = self._ready()
        if config is None:
            return
        stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.name) or "run"
        path = free_path(Path.cwd(), stem, "yaml")
        hint = "A YAML file for `grpo-tui train FILE` and for this screen."
        self.app.push_screen(Ask("save as", hint, str(path.name)), partial(self._save, config))

    def _save(self, config: RunConfig, name: str | None) -> None:
        if name and name.strip():
            path = Path(name.strip()).expanduser().absolute()
            if path.exists():
                ask = Choice[str]("save as", f"{path} exists already.",
                                  [("", "n", "cancel", ""),  # a second ⏎ overwrites nothing
                                   ("over", "o", "overwrite it", "")])  # fmt: skip
                self.app.push_screen(ask, partial(self._write_over, config, path))
            else:
                self._write(config, path)

    def _write_over(self, config: RunConfig, path: Path, how: str | None) -> None:
        if how == "over":
            self._write(config, path)

    @work(group="save")
    async def _write(self, config: RunConfig, path: Path) -> None:
        from grpo_engine.config.parse import write_yaml

        text = write_yaml(config)
        try:
            await asyncio.to_thread(path.write_text, text, encoding="utf-8")
        except OSError as error:
            self.notify(f"{path} was not written: {error.strerror}", severity="error",
                        markup=False)  # fmt: skip
        else:
            self.notify(f"Wrote {path}; start it with grpo-tui train {path.name}", markup=False)
