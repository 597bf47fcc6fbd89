"""The New run screen: settings as a form, checked as one types, tried, priced, launched."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input, TextArea

from app.messages import NewRunRequested
from app.run_form import RunForm
from app.screens.base import WorkbenchScreen
from app.screens.new_run.asides import AboutPanel, CostPanel, RecipePanel
from app.screens.new_run.editing import EditingActions
from app.screens.new_run.launching import LaunchActions
from app.screens.new_run.load import load_parent, load_runs
from app.screens.new_run.pages import PromptsPanel, TryPanel, YamlPanel
from app.screens.new_run.panels import (
    HeaderPanel,
    PresetPicked,
    ScrolledPanel,
    SettingsPanel,
    ViewPanel,
)
from app.screens.new_run.texts import as_json, as_markdown
from app.screens.new_run.trying import TryingActions
from app.screens.new_run.view import PAGES, Origin, Page, View, check
from app.widgets.find_bar import FindBar
from app.widgets.panel import Panel
from experiments.errors import StoreError
from experiments.presets import names, preset
from grpo_engine.errors import ConfigError

FIRST_PRESET = "starter"
# what of the screen's height is not the list of settings
FRAME_LINES = 6


def opening() -> View:
    """The form as it opens: the first preset, nothing changed."""
    return preset_view(FIRST_PRESET)


def preset_view(name: str) -> View:
    """The form of a preset."""
    found = preset(name)
    form = RunForm(found.config, title=name)
    about = f"{found.about}"
    return View(form=form, origin=Origin(kind="preset", name=name, about=about),
                checked=check(form))  # fmt: skip


class NewRunScreen(EditingActions, TryingActions, LaunchActions, WorkbenchScreen):
    """Settings of a new run, and start."""

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
                tooltip="The head of the section above"),
        Binding("right,l", "cycle(1)", "next value", id="new.next", show=False,
                tooltip="The next of a setting's choices; open the section"),
        Binding("left,h", "cycle(-1)", "value before", id="new.before", show=False,
                tooltip="The choice before; close the section"),
        Binding("space", "switch", "switch", id="new.toggle", show=False,
                tooltip="Switch on or off; open or close the section"),
        Binding("L,f5", "launch", "launch…", id="new.launch", key_display="L",
                tooltip="Say what will happen, and start here, detached or in the queue"),
        Binding("p", "preset", "preset…", id="new.preset",
                tooltip="Start from another preset, or clone a run"),
        Binding("u", "reset", "put back", id="new.reset",
                tooltip="Put the setting back to what the preset or the parent has"),
        Binding("U", "reset_all", "all back", id="new.reset_all", show=False,
                tooltip="Put all settings back"),
        Binding("ctrl+z", "undo", "undo", id="new.undo", show=False,
                tooltip="Take the last change back, a chosen preset as well"),
        Binding("C", "changed", "changed only", id="new.changed", show=False,
                tooltip="Show only what differs from the preset or the parent"),
        Binding("r", "page('recipe')", "recipe", id="new.recipe",
                tooltip="The six answers of the recipe"),
        Binding("x", "page('prompts')", "prompts", id="new.prompts",
                tooltip="Three prompts as the model will see them"),
        Binding("t", "page('try')", "try rewards", id="new.try",
                tooltip="Try the reward functions on an answer that you type"),
        Binding("v", "page('yaml')", "YAML", id="new.yaml",
                tooltip="The same settings as YAML; what you edit there is taken over"),
        Binding("o", "page('cost')", "costs", id="new.cost", show=False,
                tooltip="What a step and the run will take"),
        Binding("right_square_bracket", "example(1)", "next prompt", id="new.example",
                show=False, tooltip="The next of the example prompts"),
        Binding("left_square_bracket", "example(-1)", "prompt before", show=False,
                id="new.example_before", tooltip="The example prompt before"),
        Binding("f", "fetch", "fetch", id="new.fetch", show=False,
                tooltip="Fetch the model and the data of the example prompts now"),
        Binding("w", "save", "save YAML…", id="new.save", show=False,
                tooltip="Write the settings to a YAML file for `grpo-tui train`"),
    ]  # fmt: skip

    view: reactive[View] = reactive(opening, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self.prepare_trying()
        self._past: list[View] = []

    def body(self) -> ComposeResult:
        """Where it comes from; settings at the left, what they mean at the right."""
        yield HeaderPanel(names(), id="head")
        with Container(id="panes"):
            yield SettingsPanel(id="settings")
            with Container(id="side"):
                with Vertical(id="meaning"):
                    yield AboutPanel(id="about")
                    yield CostPanel(id="cost")
                    yield RecipePanel(id="recipe")
                with Horizontal(id="pages"):
                    yield PromptsPanel(id="prompts")
                    yield TryPanel(id="try")
                    yield YamlPanel(id="yaml")

    def on_mount(self) -> None:
        """Keys go to the settings first."""
        self._show_page()
        self.view = self.view.opened_to_fit(self.app.size.height - FRAME_LINES)
        self.hand_down(self.view)
        self.query_one(SettingsPanel).focus()
        self.read_runs()
        self.ask_for_mlx()

    def on_screen_resume(self) -> None:
        """What ran in between counts for names and costs."""
        self.read_runs()
        self.rehearse()

    def on_unmount(self) -> None:
        """The trial process ends with the screen."""
        self.rehearsal.close()

    # -- what is shown ----------------------------------------------------------------------

    def watch_view(self, old: View, new: View) -> None:
        """Hand the view down; try again what the change touches."""
        if self.is_mounted:
            self.hand_down(new)
            if old.checked is not new.checked:
                self.rehearse()

    def hand_down(self, view: View) -> None:
        """Give every panel the view."""
        for panel in self.query(ViewPanel):
            panel.take(view)

    def change(self, view: View) -> None:
        """Take a changed form, so that it can be undone."""
        self._past = [*self._past[-99:], self.view]
        self.view = view

    def action_undo(self) -> None:
        """Take the last change back."""
        if not self._past:
            self.notify("Nothing was changed here.")
            return
        self.end_typing()  # the cursor goes back as well, and takes the field along
        old = self._past.pop()
        self.view = replace(
            self.view, form=old.form, origin=old.origin, checked=old.checked, cursor=old.cursor,
            yaml_problem="",
        )  # fmt: skip

    def read_runs(self) -> None:
        """Read former runs, for names and costs."""
        self.run_worker(self._read_runs, exclusive=True, group="runs")

    async def _read_runs(self) -> None:
        try:
            runs = await self.workbench.reader.ask(load_runs, "former runs")
        except (StoreError, asyncio.CancelledError):
            return  # without a store there are no former runs
        self.view = replace(self.view, runs=runs)

    # -- where settings come from -----------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Another screen opens the form, on a preset or on a run to clone."""
        if isinstance(message, NewRunRequested):
            if message.clone:
                self.clone(message.clone)
            elif message.preset:
                self.take_preset(message.preset)

    def take_preset(self, name: str) -> None:
        """Start over from a preset."""
        try:
            fresh = preset_view(name)
        except (StoreError, ConfigError) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self._start_from(fresh)

    def clone(self, ref: str) -> None:
        """Start over from a run's settings."""
        self.run_worker(partial(self._clone, ref), exclusive=True, group="clone")

    async def _clone(self, ref: str) -> None:
        try:
            parent = await self.workbench.reader.ask(lambda r: load_parent(r, ref), "clone")
        except asyncio.CancelledError:
            return
        except (StoreError, ConfigError) as error:
            self.notify(str(error), title="not cloned", severity="error", markup=False)
            return
        run, form = parent.run, RunForm(parent.config, title=parent.run.name)
        name = run.name or run.id
        about = f"{run.status} at step {run.step} of {run.total_steps}"
        about += f", id {run.id}, {run.task} with {run.recipe}"
        if parent.unknown:
            about += f"; not known any more: {', '.join(parent.unknown)}"
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
        """A preset was clicked in the header."""
        if message.name != self.view.origin.name or self.view.origin.kind != "preset":
            self.take_preset(message.name)

    # -- pages ------------------------------------------------------------------------------

    def action_page(self, page: Page) -> None:
        """Show a page and give it the keys; the same key again goes back to the settings."""
        panel = self.query_one(f"#{page}", Panel)
        if self.has_class("-paged") and self.view.page == page and panel.has_focus_within:
            self._to_settings()
            return
        self.end_typing()
        self.view = replace(self.view, page=page)
        self.add_class("-paged")
        self._show_page()
        if page == "try":
            self.call_after_refresh(self.query_one(TryPanel).area.focus)
        else:
            self.call_after_refresh(panel.focus)

    def _show_page(self) -> None:
        for page in PAGES:
            self.set_class(self.view.page == page, f"-page-{page}")

    def _to_settings(self) -> None:
        self.remove_class("-paged")
        self.query_one(SettingsPanel).focus()

    def action_escape(self) -> None:
        """Out of the field, out of the page, out of the screen."""
        if self.view.editing:
            self.end_typing()
        elif isinstance(self.focused, TextArea):
            panel = self._focused_panel()
            if panel is not None:
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
        """The panel whose text the arrows move, if one has the focus."""
        panel = self._focused_panel()
        return panel if isinstance(panel, ScrolledPanel) else None

    def find(self, text: str) -> None:
        """Show only the settings that fit."""
        self.view = self.view.searched(text)

    def end_search(self) -> None:
        """Show all settings again."""
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
