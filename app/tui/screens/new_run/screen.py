"""The New run screen: settings as a form that is checked, tried out, estimated and launched."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, TextArea

from grpo_engine.config.declaration import as_text
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, EngineError
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.trial import TrialError, TrialProcess
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.dialogs.export import free_path
from grpo_tui.app.tui.dialogs.picker import Picked
from grpo_tui.app.tui.keys import unbound
from grpo_tui.app.tui.messages import LaunchRequested, NewRunRequested, SweepRequested
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.new_run.completion import NAMES, Completer
from grpo_tui.app.tui.screens.new_run.render import (
    PAGE,
    LaunchDialog,
    as_json,
    as_markdown,
    checkpoint_picker,
    form_lines,
    header_line,
    help_lines,
    plain_text,
    probe_enter,
    probe_key,
    prompt_end,
    start_picker,
    strip_line,
    sweep_command,
    value_at,
    value_picker,
    value_text,
)
from grpo_tui.app.tui.screens.new_run.state import (
    MAIN,
    PRESET,
    RECIPE,
    Episode,
    FormField,
    RunForm,
    View,
    choices_of,
    clone_view,
    load_runs,
    next_number,
    preset_view,
)
from grpo_tui.app.tui.widgets.field import Field, TextField
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.experiments.errors import StoreError

FIRST_PRESET = "starter"
ANSWER_LINES = 5
YAML_LINES = 3  # below the text
ENTRIES = {"try": "#answer", "yaml": "#text", "play": "#reply"}  # the fields of the pages


# -- panels ---------------------------------------------------------------------------------


class ViewPanel(Panel):
    """A panel that draws the screen's view, which is None until the screen has one."""

    navigable = True
    view: reactive[View | None] = reactive(None)


class HeaderPanel(ViewPanel, can_focus=False):
    """The costs or what prevents a launch, and whether the run can be launched."""

    DEFAULT_CSS = "HeaderPanel { height: 1; }"
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - one line always
        return [header_line(self.view, width, self.palette)] if self.view is not None else []


class ScrolledPanel(ViewPanel):
    """A panel that scrolls its lines."""

    top: reactive[int] = reactive(0)

    def scrolled(self, lines: list[Line], height: int) -> list[Line]:
        """The visible lines; one that says that more follow is better than a cut one."""
        height = max(1, height)
        top = max(0, min(self.top, len(lines) - height))
        self.set_reactive(ScrolledPanel.top, top)
        visible = lines[top : top + height]
        left = len(lines) - top - height
        if left > 0:
            visible[-1] = [(f"… {left + 1} more lines", None)]
        return visible

    def action_move(self, rows: int, columns: int) -> None:  # noqa: ARG002 - a panel's
        self.top = max(0, self.top + rows)

    def on_mouse_scroll_down(self) -> None:
        self.action_move(2, 0)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-2, 0)


class HelpPanel(ScrolledPanel):
    """Help on the setting under the cursor."""

    def topic(self) -> str:
        return f"setting:{self.title}" if "." in self.title else "screen:new_run"

    def paint(self, width: int, height: int) -> list[Line]:
        """Help, range, default and previous value."""
        view = self.view
        if view is None:
            return []
        title = view.row.path if view.row is not None else "help"
        if title != self.title:
            self.set_reactive(ScrolledPanel.top, 0)
        self.title = title
        return self.scrolled(help_lines(view, width, self.palette), height)


@dataclass
class PageClicked(Message):
    """A title in the strip of pages was clicked."""

    page: str


class PagePanel(ScrolledPanel):
    """One page of what belongs to the settings, below a strip with the titles of all pages."""

    def compose(self) -> ComposeResult:
        yield TextField(placeholder="an answer, as the model might give it", id="answer")
        yield TextField(soft_wrap=False, tab_behavior="focus", id="text")
        yield Field(id="reply")

    @property
    def entry(self) -> Widget | None:
        """The field of the page, if it has one."""
        page = ENTRIES.get(self.view.page) if self.view is not None else None
        return self.query_one(page, Widget) if page else None

    @property
    def area(self) -> TextArea:
        """The field of the YAML."""
        return self.query_one("#text", TextArea)

    def watch_view(self, old: View | None, view: View | None) -> None:
        """Show the field of the page, with its text."""
        if view is None:
            return
        if old is None or old.page != view.page:
            self.set_reactive(ScrolledPanel.top, 0)
        for page, selector in ENTRIES.items():
            self.query_one(selector).display = page == view.page
        if view.page == "play":
            hints = {"nobody": "⏎ begins an episode", "person": "your answer; \\n is a line break",
                     "environment": "the environment replies…"}  # fmt: skip
            self.query_one("#reply", Field).placeholder = hints[view.episode.turn]
            self.set_reactive(ScrolledPanel.top, 10**6)  # the end of the dialogue
        written = view.page == "yaml" and not (self.area.has_focus or view.yaml_error)
        if written and view.form.config is not None:
            text = view.form.to_yaml()
            if text != self.area.text:
                self.area.load_text(text)

    def topic(self) -> str:
        return PAGE[self.view.page].topic if self.view is not None else ""

    def copy_text(self) -> str:
        """The text of the page, or the chosen prompt, escaped for the terminal."""
        view = self.view
        if view is None:
            return ""
        if view.page == "yaml":
            return self.area.text
        examples = view.examples.get("examples", ())
        if view.page == "prompts" and view.example < len(examples):
            return safe(str(examples[view.example]["text"]), "\n")
        return plain_text(PAGE[view.page].lines(view, 100, self.palette))

    def paint(self, width: int, height: int) -> list[Line]:
        """The strip, and the page with space for its field."""
        view = self.view
        if view is None:
            return []
        self.title = PAGE[view.page].title
        if view.page == "recipe" and view.form.recipe is not None:
            self.title = f"recipe {view.form.recipe.name}"
        elif view.page == "prompts" and view.examples.get("name"):
            self.title = f"the model sees · {view.examples['name']}"
        self.note_first(view.activity or "[ ] turn the page", "[ ] page")
        head: list[Line] = [strip_line(view, width, self.palette), []]
        if view.page == "try":
            head += prompt_end(view, width, self.palette) + [[]] * (ANSWER_LINES + 1)
        elif view.page == "yaml":
            head += [[]] * (height - YAML_LINES - len(head))
        below = int(view.page == "play")
        lines = PAGE[view.page].lines(view, width, self.palette)
        return head + self.scrolled(lines, height - len(head) - below)

    def on_click(self, event: events.Click) -> None:
        """Turn to the clicked page."""
        offset = self.inside(event.offset)
        if self.view is None or offset.y:
            return
        start = 0
        titles = {page.title: name for name, page in PAGE.items()}
        for text, _ in strip_line(self.view, self.inner.width, self.palette):
            if start <= offset.x < start + len(text) and text in titles:
                self.post_message(PageClicked(titles[text]))
            start += len(text)


@dataclass
class RowClicked(Message):
    """A line of the settings was clicked; `twice` edits it."""

    path: str
    twice: bool


@dataclass
class TypingEnded(Message):
    """Tab in the field: editing continues `by` settings further on."""

    by: int


class ValueField(Field):
    """The field over the edited value."""

    submits = "done"

    def on_key(self, event: events.Key) -> None:
        """On tab, keep the text and edit the next setting."""
        if event.key in ("tab", "shift+tab"):
            event.stop()
            event.prevent_default()
            self.post_message(TypingEnded(1 if event.key == "tab" else -1))


class SettingsPanel(ViewPanel):
    """The form; only the visible lines are drawn."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("settings", **kwargs)
        self._top = self._first = 0
        self._paths: list[str] = []

    def compose(self) -> ComposeResult:
        yield ValueField(select_on_focus=False, id="value")

    @property
    def input(self) -> ValueField:
        return self.query_one(ValueField)

    def watch_view(self) -> None:
        """Place the field, after the lines have been drawn."""
        self.refresh()
        self.place_field()

    def topic(self) -> str:
        row = self.view.row if self.view is not None else None
        return f"setting:{row.path}" if row is not None and "." in row.path else "screen:new_run"

    def copy_text(self) -> str:
        """The settings as YAML, or the line under the cursor."""
        view = self.view
        if view is None or view.row is None:
            return ""
        if view.form.config is not None:
            return view.form.to_yaml()
        return f"{view.row.path}={view.row.field.text}"

    # -- drawing ----------------------------------------------------------------------------

    def paint(self, width: int, height: int) -> list[Line]:
        """The lines around the cursor; the frame says why settings are hidden."""
        view = self.view
        if view is None:
            return []
        notes = [f"find {view.search}" if view.search else "",
                 "changed only" if view.only_changed else "",
                 f"{len(view.rows)} of {len(view.form.fields)}",
                 "" if view.listed else "/ finds others"]  # fmt: skip
        self.note = " · ".join(filter(None, notes))
        if view.row is None:
            return [[("no setting matches; esc shows all again", None)]]
        lines = form_lines(view, width, self.palette)
        self._paths = [path for path, _ in lines]
        self._first = self._paths.index(view.row.path)
        last = self._first + self._paths.count(view.row.path) - 1
        self._top = max(0, min(self._top, len(lines) - height))
        self._top = min(max(self._top, last - height + 1), max(0, self._first - 1))
        return [line for _, line in lines[self._top : self._top + height]]

    def place_field(self) -> None:
        """Place the field over the value of the cursor's row, or hide it."""
        view, field = self.view, self.input
        width, height = self.inner
        if view is None or not view.editing or view.row is None or width <= 0:
            field.display = False
            return
        left, row = value_at(width), self._first - self._top
        field.styles.offset = (left + 1, row + 1)
        field.styles.width = max(4, width - left)
        field.display = 0 <= row < height

    def on_resize(self) -> None:
        """Move the field with the lines."""
        self.call_after_refresh(self.place_field)

    # -- editing ----------------------------------------------------------------------------

    def edit(self, view: View, field: FormField) -> None:
        """Open the field on a row; while it is empty, it shows the value in use."""
        path, entry = field.info.path, self.input
        entry.placeholder = "  ".join(filter(None, value_text(view, field)))
        with entry.prevent(Input.Changed):
            entry.suggester = Completer(path) if path in NAMES else None
            entry.value = field.text
        entry.cursor_position = len(field.text)
        self.place_field()
        entry.focus()

    # -- mouse ------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked row; a second click edits it."""
        index = self.inside(event.offset).y + self._top
        path = self._paths[index] if 0 <= index < len(self._paths) else ""
        if path and self.view is not None and self.view.row is not None:
            twice = event.chain > 1 or self.view.row.path == path
            self.post_message(RowClicked(path, twice))

    def on_mouse_scroll_down(self) -> None:
        self.action_move(3, 0)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-3, 0)


# -- the screen -----------------------------------------------------------------------------


class NewRunScreen(WorkbenchScreen):
    """Edit the settings of a new run and launch it."""

    mode = "new_run"
    find_hint = "find a setting by its name or purpose"
    CSS_PATH = "new_run.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "edit", id="new.edit",
                tooltip="Edit the setting, or choose from its list; do what the page offers"),
        Binding("L,f5", "launch", "launch…", id="new.launch",
                tooltip="Review the launch, then start here, detached or in the queue"),
        Binding("right_square_bracket", "turn(1)", "page", id="new.page", key_display="[ ]",
                tooltip="The next page: costs, recipe, prompts, rewards, probe, YAML, differences"),
        Binding("left_square_bracket", "turn(-1)", "previous page", id="new.page_before",
                show=False, tooltip="The previous page"),
        Binding("space", "switch", "switch", id="new.toggle", show=False,
                tooltip="Switch on or off, or take the next value"),
        Binding("backspace", "reset", "reset", id="new.reset",
                tooltip="Reset the setting to the value of the preset or parent"),
        Binding("u,ctrl+z", "undo", "undo", id="new.undo",
                tooltip="Undo the last change, including a change of preset"),
        Binding("n", "example(1)", "next prompt", id="new.example", show=False,
                tooltip="The next of the example prompts, to answer and to copy"),
        Binding("p", "example(-1)", "previous prompt", show=False, id="new.example_before",
                tooltip="The previous example prompt"),
        Binding("w", "save", "save YAML…", id="new.save",
                tooltip="Write the settings to a YAML file for `grpo-tui train`"),
        Binding("D", "fetch", "download", id="new.fetch", show=False,
                tooltip="Download the model and the data of the task"),
        unbound("preset", "preset…", "new.preset", "Start from another preset, or clone a run"),
        unbound("begin", "begin with…", "new.begin",
                "Begin with a checkpoint of the cloned run, or with its model untrained"),
        unbound("list('all_settings')", "all settings", "new.all", "List all settings by section"),
        unbound("list('only_changed')", "changed only", "new.changed",
                "Show only what differs from the preset or the parent"),
        unbound("reset_all", "reset all", "new.reset_all", "Reset all settings"),
        unbound("section(1)", "next section", "new.section", "The first setting of the next "
                "section"),
        unbound("section(-1)", "section above", "new.section_above", "The first setting of the "
                "section above"),
        unbound("page('cost')", "costs", "new.cost", "What a step and the run will cost"),
        unbound("page('recipe')", "recipe", "new.recipe", "The six choices of the recipe"),
        unbound("page('prompts')", "prompts", "new.prompts",
                "Three prompts as the model will see them"),
        unbound("page('try')", "try rewards", "new.try",
                "Try the reward functions on an answer that you type"),
        unbound("page('probe')", "probe", "new.probe",
                "Try the model on prompts: pass rates, and which group size has a signal"),
        unbound("probe", "stop or repeat probe", "new.stop_probe",
                "Stop the probe, or probe the settings again"),
        unbound("page('yaml')", "YAML", "new.yaml",
                "The same settings as YAML; edits there are applied"),
        unbound("page('diff')", "diff", "new.diff",
                "What differs from the recipe, and from the preset or the parent run"),
        unbound("page('play')", "play environment", "new.play",
                "Play an episode of the task's environment in the model's place"),
    ]  # fmt: skip

    REHEARSE_S: ClassVar[float] = 0.5
    SCORE_S: ClassVar[float] = 0.4
    YAML_S: ClassVar[float] = 0.3

    view: reactive[View] = reactive(partial(preset_view, FIRST_PRESET), repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._past: list[View] = []
        self.trial = TrialProcess()  # its process starts with the first request
        self.player = TrialProcess()  # an environment takes its time; other requests do not wait
        self._delays: dict[str, Timer] = {}
        self._tried: dict[str, object] = {}
        self._answer = ""

    def body(self) -> ComposeResult:
        """The header; the form and help on the left, the pages on the right."""
        yield HeaderPanel(id="head")
        with Container(id="panes"):
            with Vertical(id="form"):
                yield SettingsPanel(id="settings")
                yield HelpPanel(id="help")
            yield PagePanel(id="page")

    def on_mount(self) -> None:
        """Focus the settings first."""
        self.update_panels()
        self.query_one(SettingsPanel).focus()
        self.read_runs()
        self.check_mlx()

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
            self.update_panels()
            if old.form is not new.form:
                self.try_settings()

    def update_panels(self) -> None:
        """Pass the view to every panel, and the keys of the page to the key bar."""
        for panel in self.query(ViewPanel):
            panel.view = self.view
        self._update_keys()

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
            self.view, form=old.form, origin=old.origin, cursor=old.cursor, yaml_error=""
        )

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
                self.start_from_preset(message.preset)
            elif message.setting:
                self.go_to(message.setting)

    def go_to(self, path: str) -> None:
        """Move to a setting, with all settings listed if it is not one of the main ones."""
        self.end_typing()
        self.end_search()
        self.view = replace(self.view, all_settings=path not in MAIN, cursor=path)
        self._to_settings()

    def start_from_preset(self, name: str) -> None:
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
            fresh = await self.workbench.reader.ask(lambda r: clone_view(r, ref), "clone")
        except (StoreError, ConfigError) as error:
            self.notify(str(error), title="not cloned", severity="error", markup=False)
            return
        for path, value in changes:
            fresh = fresh.with_form(fresh.form.type(path, as_text(value)))
        self._start_from(fresh)

    def _start_from(self, fresh: View) -> None:
        count = len(self.view.form.changed)
        self.end_typing()
        self.end_search()
        self.change(replace(self.view, form=fresh.form, origin=fresh.origin, yaml_error="",
                            cursor=PRESET))  # fmt: skip
        if count:
            changes = f"{count} change{'s' if count > 1 else ''}"
            self.notify(f"Now from {fresh.origin.name}; u brings the {changes} back.",
                        markup=False)  # fmt: skip

    # -- pages ------------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        """Turn the page; on a narrow screen, show it first."""
        pages, page = self.view.pages, self.view.page
        if self.has_class("-narrow") and not self.has_class("-paged"):
            by = 0
        index = pages.index(page) if page in pages else 0
        self.action_page(pages[(index + by) % len(pages)])

    def action_page(self, page: str) -> None:
        """Show and focus a page."""
        if page not in self.view.pages:
            self.notify("This task has no environment.")
            return
        self.end_typing()
        self.add_class("-paged")
        self.view = replace(self.view, page=page)
        self.arrangement.show("page")
        self.call_after_refresh(self.query_one(PagePanel).focus)

    @on(PageClicked)
    def click_page(self, message: PageClicked) -> None:
        self.action_page(message.page)

    def on_descendant_focus(self) -> None:
        """Show the keys of the page, or of the settings."""
        self._update_keys()

    def _update_keys(self) -> None:
        panel, bar, page = self._focused_panel(), self.key_bar, self.view.page
        on_page = isinstance(panel, PagePanel)
        enter = probe_enter(self.view) if page == "probe" else PAGE[page].enter
        bar.leads = "settings" if on_page else ""
        bar.renamed = {"open": enter} if on_page and enter else {}
        unused = on_page and not (enter and self.focused is panel)
        bar.hidden = frozenset({"open"} if unused else ())

    def _to_settings(self) -> None:
        self.remove_class("-paged")
        self.query_one(SettingsPanel).focus()

    def action_escape(self) -> None:
        """Leave the field, the page, or the screen."""
        panel = self._focused_panel()
        if self.view.editing:
            self.end_typing()
        elif isinstance(panel, PagePanel) and self.focused is panel.entry:
            panel.focus()
        elif isinstance(self.focused, Input):
            super().action_escape()
        elif self.query_one(FindBar).display:
            self.end_search()
            self._to_settings()
        elif self.maximized is None and not self.query_one(SettingsPanel).has_focus:
            self._to_settings()
        elif self.maximized is None and (self.view.only_changed or self.view.all_settings):
            self.view = replace(self.view, only_changed=False, all_settings=False)
        else:
            super().action_escape()

    def find(self, text: str) -> None:
        """Show only the settings that match."""
        self.view = self.view.searched(text)

    def end_search(self) -> None:
        """Show the main settings."""
        bar = self.query_one(FindBar)
        bar.query_one(Input).value = ""
        bar.display = False
        self.view = replace(self.view, search="", only_changed=False, all_settings=False)

    def exports(self) -> Mapping[str, Callable[[], str]]:
        """The settings as YAML, JSON or Markdown."""
        if self.view.form.config is None:
            return {}
        view = self.view
        return {
            "yaml": view.form.to_yaml,
            "json": lambda: as_json(view),
            "md": lambda: as_markdown(view),
        }

    # -- moves ------------------------------------------------------------------------------

    @on(Panel.Moved, "#settings")
    def move(self, message: Panel.Moved) -> None:
        """Move the cursor, or take the next value or number."""
        self.end_typing()
        if message.columns:
            self._step(message.columns)
        else:
            self.view = self.view.moved(message.rows)

    def action_section(self, by: int) -> None:
        """Go to another section."""
        self.end_typing()
        self.view = self.view.to_section(by)

    def on_row_clicked(self, message: RowClicked) -> None:
        self.end_typing()
        self.view = replace(self.view, cursor=message.path)
        if message.twice:
            self.action_open()

    # -- editing ----------------------------------------------------------------------------

    def action_open(self) -> None:
        """Edit the setting; on a page, do what the page offers."""
        panel = self._focused_panel()
        if isinstance(panel, PagePanel):
            self._open_page(panel)
        elif self.view.row is not None:
            self._edit(self.view.row.field)

    def _open_page(self, panel: PagePanel) -> None:
        if panel.entry is not None:
            panel.entry.focus()
        elif self.view.page == "recipe":
            self._choose(self.view.form.fields[RECIPE])
        elif self.view.page == "probe" and probe_enter(self.view) == "use it":
            self._use_probe()
        elif self.view.page == "probe":
            self.action_probe()

    def _edit(self, field: FormField) -> None:
        choices = choices_of(field)
        if field.info.path == PRESET:
            self.action_preset()
        elif len(choices) == 2:
            self.action_switch()
        elif choices:
            self._choose(field)
        else:
            self.change(replace(self.view, cursor=field.info.path, editing=True))
            self.query_one(SettingsPanel).edit(self.view, field)

    @on(Input.Changed, "#value")
    def check_typed(self, event: Input.Changed) -> None:
        """Check the typed text; stop editing a setting that is not listed any more."""
        view = self.view
        if not view.editing:
            return
        if view.row is None or view.row.path != view.cursor:
            self.end_typing()
        else:
            self.view = view.with_form(view.form.type(view.cursor, event.value))

    @on(Input.Submitted, "#value")
    def end_typing(self) -> None:
        """Close the field and keep its text."""
        if self.view.editing:
            panel = self.query_one(SettingsPanel)
            had_focus = panel.input.has_focus
            self.view = replace(self.view, editing=False)
            if had_focus:
                panel.focus()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Keep the text when the field loses the focus."""
        if isinstance(event.widget, ValueField):
            self.end_typing()

    def on_typing_ended(self, message: TypingEnded) -> None:
        """Edit the next setting that is typed, if it is the next line."""
        self.view = replace(self.view, editing=False).moved(message.by)
        row = self.view.row
        if row is not None and row.path != PRESET and not choices_of(row.field):
            self._edit(row.field)
        else:
            self.query_one(SettingsPanel).focus()

    def action_switch(self) -> None:
        """Take the next value; a setting without a list is edited."""
        row = self.view.row
        if row is not None and choices_of(row.field):
            self._step(1)
        elif row is not None:
            self._edit(row.field)

    def _step(self, by: int) -> None:
        """Take the next of a setting's values, or the next number."""
        row = self.view.row
        if row is None:
            return
        field, path = row.field, row.path
        if choices := choices_of(field):
            index = choices.index(field.text) if field.text in choices else 0
            text: str | None = choices[(index + by) % len(choices)]
        else:
            text = next_number(field.info, value_text(self.view, field)[0], by)
        if text is None and field.info.number:
            self.notify(f"{path} has no {'larger' if by > 0 else 'smaller'} number.")
        elif text is not None and path == RECIPE:
            self._switch_recipe(text)
        elif text is not None:
            self._set(path, text)

    def _set(self, path: str, text: str) -> None:
        self.change(self.view.with_form(self.view.form.type(path, text)))

    def action_reset(self) -> None:
        """Reset the setting."""
        row = self.view.row
        if row is None or not row.field.changed:
            self.notify("This is unchanged.")
        else:
            self.change(self.view.with_form(self.view.form.reset(row.path)))

    def action_reset_all(self) -> None:
        """Reset all settings."""
        form = self.view.form
        if not form.changed and not self.view.yaml_error:
            self.notify("Nothing is changed.")
            return
        self.change(self.view.with_form(RunForm(form.base, title=form.title)))
        self.notify(f"{len(form.changed)} reset; u undoes that.")

    def action_list(self, name: str) -> None:
        """Toggle between other settings, `all_settings` or `only_changed`, and the usual ones."""
        self.end_typing()
        self.view = self.view.toggled(name)

    # -- lists ------------------------------------------------------------------------------

    def _choose(self, field: FormField) -> None:
        def choose(picked: Picked | None) -> None:
            if picked is None:
                return
            if field.info.path == RECIPE and len(picked.marks) == 1:
                self._switch_recipe(picked.marks[0])
            else:
                self._set(field.info.path, ",".join(picked.marks))

        self.app.push_screen(value_picker(self.view, field), choose)

    def _switch_recipe(self, name: str) -> None:
        """Switch the recipe; if it refuses settings of the user, ask what to do with them."""
        form = self.view.form.type(RECIPE, name)
        refused = [e for path, e in form.errors.items() if path.startswith("algorithm.")]
        if not refused:
            self.change(self.view.with_form(form))
            return
        cleared = self.view.form.with_recipe(name)
        before = self.view.form.fields
        gone = [
            p for p, row in cleared.fields.items() if p != RECIPE and row.text != before[p].text
        ]
        question = Choice[str](
            f"recipe {name}", " ".join(refused),
            [
                ("clear", "c", f"use {name} as it is",
                 "resets " + ", ".join(path.partition(".")[2] for path in gone)),
                ("keep", "k", "use it and fix the conflicts by hand",
                 "nothing can be launched until then"),
                ("", "n", "cancel", ""),
            ],
        )  # fmt: skip
        forms = {"clear": cleared, "keep": form}
        self.app.push_screen(
            question,
            lambda way: self.change(self.view.with_form(forms[way])) if way in forms else None,
        )

    def action_preset(self) -> None:
        """List presets and runs to start from."""
        self.app.push_screen(start_picker(self.view), self._start_with)

    def _start_with(self, picked: Picked | None) -> None:
        kind, _, name = (picked.value if picked else "").partition(":")
        if kind == "preset":
            self.start_from_preset(name)
        elif kind == "clone":
            self.clone(name)

    @work(exclusive=True, group="begin")
    async def action_begin(self) -> None:
        """List the checkpoints of the cloned run to begin with."""
        run = self.view.origin.run
        if not run:
            self.notify("Clone a run first: ⏎ on preset. A run can begin with its checkpoints.")
            return
        try:
            saved = await self.workbench.reader.ask(
                lambda reader: reader.checkpoints(reader.resolve(run).key), "checkpoints"
            )
        except StoreError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.app.push_screen(checkpoint_picker(saved), self._begin_with)

    def _begin_with(self, picked: Picked | None) -> None:
        if picked is None:
            return
        kind, _, path = picked.value.partition(":")
        form = self.view.form.reset("optimizer.start")
        full = self.view.form.fields["model.tuning"].text == "full"
        setting = "model.path" if full else "model.adapter"
        form = form.type(setting, path) if path else form.reset(setting)
        self.change(
            self.view.with_form(form.type("optimizer.start", path if kind == "both" else ""))
        )

    # -- trying the settings, shortly after the last change ---------------------------------

    def _after(self, name: str, delay: float, call: Callable[[], object]) -> None:
        if name in self._delays:
            self._delays[name].stop()
        self._delays[name] = self.set_timer(delay, call)

    @work(group="mlx")
    async def check_mlx(self) -> None:
        """Check on a thread whether MLX can train here."""
        from grpo_engine.platform.device import require_backend

        try:
            await asyncio.to_thread(require_backend)
        except EngineError as error:
            self.view = replace(self.view, lacking=str(error))

    def try_settings(self) -> None:
        """Try the settings once they have not changed for a moment."""
        if self.is_mounted:
            self._after("try_settings", self.REHEARSE_S, self._run_trials)

    def _run_trials(self) -> None:
        if self.view.form.config is not None and self.is_current:
            self._try(self.view.form, self.view.form.config, online=False)

    @work(exclusive=True, group="try_settings")
    async def _try(self, form: RunForm, config: RunConfig, *, online: bool) -> None:
        prompts = (config.seed, config.model, config.task, config.rollout.max_new_tokens,
                   config.rewards.completions)  # fmt: skip
        memory = (*prompts, config.rollout, config.optimizer)
        if config.rewards != self._tried.get("rewards") or "problem" in self.view.scores:
            self._tried["rewards"] = config.rewards
            self._score_again()
        if prompts != self._tried.get("examples") or online:
            activity = "downloading…" if online else "reading the task…"
            self.view = replace(self.view, activity=activity)
            examples = await self._request("examples", config, online=online)
            self._tried["examples"] = prompts
            self.view = replace(self.view, examples=examples, example=0)
            self._score_again()
        if memory != self._tried.get("memory") or online:
            self.view = replace(self.view, activity="estimating memory…")
            estimate = await self._request("memory", config, online=online)
            self._tried["memory"] = memory
            self.view = replace(self.view, memory=estimate)
        self.view = replace(self.view, activity="trying the rewards…")
        verdict = await self._request("ready", config, online=online)
        self.view = replace(self.view, trial=verdict, tried=form, activity="")

    async def _request(
        self, method: str, config: RunConfig, *, online: bool = False, **more: Any
    ) -> Mapping[str, Any]:
        try:
            return await self.trial.request(method, config, online=online, **more)
        except TrialError as error:
            return {"problem": str(error)}

    def action_fetch(self) -> None:
        """Download what the example prompts need from the hub."""
        form, config = self.view.form, self.view.form.config
        if config is None:
            self.notify("Fix the errors first.", severity="warning")
            return
        names = " and ".join(dict.fromkeys([config.model.path, config.task.name]))
        self.notify(f"Downloading missing files of {names}; this may take a while.", markup=False)
        self._try(form, config, online=True)

    def action_example(self, by: int) -> None:
        """Choose another example prompt, to answer and to copy."""
        count = len(self.view.examples.get("examples", ()))
        if count:
            self.view = replace(self.view, example=(self.view.example + by) % count)
            self._score_again()

    # -- the probe --------------------------------------------------------------------------

    def action_probe(self) -> None:
        """Stop the probe that is under way, or start it."""
        config = self.view.form.config
        if self.view.probe and not self.view.probe["ended"]:
            self.stop_probe()
        elif config is not None:
            self._probe(config)

    def stop_probe(self) -> None:
        """Keep the results of a probe so far, and free its model."""
        probe = self.view.probe
        if probe and not probe["ended"]:
            self.workers.cancel_group(self, "probe")
            self.view = replace(self.view, probe={**probe, "ended": True, "stopped": True})
            self._free_probe()

    @work(group="free")
    async def _free_probe(self) -> None:
        await self._request("stop", RunConfig())

    @work(exclusive=True, group="probe")
    async def _probe(self, config: RunConfig) -> None:
        probe: Mapping[str, Any] = {"ended": False, "answers": 0, "of": 0, "best": None}
        key, begin = probe_key(config), True
        while not probe["ended"]:
            self.view = replace(self.view, probe={**probe, "key": key})
            probe = {"ended": True, **await self._request("probe", config, begin=begin)}
            begin = False
        self.view = replace(self.view, probe={**probe, "key": key})

    def _use_probe(self) -> None:
        best = self.view.probe["best"]
        form = self.view.form.type("rollout.group_size", str(best["group_size"]))
        self.change(
            self.view.with_form(form.type("rollout.temperature", f"{best['temperature']:g}"))
        )
        self.notify(f"Group size {best['group_size']} at temperature {best['temperature']:g}; "
                    "u undoes that.")  # fmt: skip

    # -- rewards, the environment, YAML -----------------------------------------------------

    @on(TextArea.Changed, "#answer")
    def answer_changed(self, event: TextArea.Changed) -> None:
        """Score the answer once the user stops typing."""
        self._answer = event.text_area.text
        self._score_again()

    def _score_again(self) -> None:
        if self._answer:
            self._after("score", self.SCORE_S, self._score)
        elif self.view.scores:
            self.view = replace(self.view, scores={})

    def _score(self) -> None:
        if self.view.form.config is None:
            error = "Fix the errors first; see the settings marked ✗."
            self.view = replace(self.view, scores={"problem": error})
        elif self._answer:
            self._scored(self.view.form.config)

    @work(exclusive=True, group="score")
    async def _scored(self, config: RunConfig) -> None:
        scores = await self._request("score", config, example=self.view.example,
                                     completion=self._answer)  # fmt: skip
        self.view = replace(self.view, scores=scores)

    @on(Input.Submitted, "#reply")
    def answer_environment(self, event: Input.Submitted) -> None:
        """Begin an episode, or give an answer to the one that is being played."""
        config, episode = self.view.form.config, self.view.episode
        text = event.value.replace("\\n", "\n")
        event.input.clear()
        if config is None:
            self._show_errors()
        elif episode.turn != "environment":
            begins = episode.turn == "nobody"
            lines = () if begins else (*episode.lines, ("answer", text))
            self.view = replace(self.view, episode=Episode(lines, "environment"))
            self._advance(config, None if begins else text)

    @work(exclusive=True, group="play")
    async def _advance(self, config: RunConfig, answer: str | None) -> None:
        try:
            update = await self.player.request("play", config, answer=answer)
        except TrialError as error:
            update = {"problem": str(error)}
        lines = update.get("lines", [("error", update.get("problem", ""))])
        lines = (*self.view.episode.lines, *((role, text) for role, text in lines))
        over = update.get("over", True)
        self.view = replace(self.view, episode=Episode(lines, "nobody" if over else "person"))

    @on(TextArea.Changed, "#text")
    def yaml_changed(self, event: TextArea.Changed) -> None:
        """Apply the YAML once the user stops typing; the form's own text changes nothing."""
        self._after("yaml", self.YAML_S, lambda: self._apply_yaml(event.text_area.text))

    def _apply_yaml(self, text: str) -> None:
        form = self.view.form
        if not self.view.yaml_error and form.config is not None and text == form.to_yaml():
            return
        try:
            form = form.from_yaml(text)
        except ConfigError as error:
            problem = str(error).removeprefix("this YAML: ")
            self.view = replace(self.view, yaml_error=problem)
            return
        if form.edits != self.view.form.edits or self.view.yaml_error:
            self.change(self.view.with_form(form))

    # -- launching --------------------------------------------------------------------------

    def _ready(self) -> RunConfig | None:
        """The settings, or None after reporting what to fix and moving there."""
        self.end_typing()
        config = self.view.config
        if config is None:
            self._show_errors()
        return config

    def _show_errors(self) -> None:
        self.end_search()
        view = self.view
        if view.errors:
            path, error = next(iter((view.form.errors or view.errors).items()))
            self.view = replace(view, cursor=path)
            count = f" and {view.error_count - 1} more" if view.error_count > 1 else ""
            text = error if path in error else f"{path}: {error}"
        else:
            count, text = "", f"the YAML is not applied: {view.yaml_error}"
        self.notify(f"{text}{count}", title="errors to fix first", severity="warning", markup=False)

    def action_launch(self) -> None:
        """Describe the launch and ask where to run."""
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
        elif self._ready() is not None:
            if self.view.refused:
                self._show_errors()
                return
            try:
                len(self.view.form.points)
            except ConfigError as error:  # two values of a sweep that do not go together
                self.notify(str(error), title="not launched", severity="warning", markup=False)
                return
            bridge = self.workbench.bridge
            training = (bridge.name or "a run") if bridge.running else ""
            self.app.push_screen(LaunchDialog(self.view, training), self._launch)

    def _launch(self, way: str | None) -> None:
        config, form, parent = self.view.config, self.view.form, self.view.origin.run
        if config is None or not way:
            return
        self.stop_probe()
        if form.count > 1:
            name, start = self.view.name, way == "worker"
            self.post_message(SweepRequested(name, form.points, form.seeds, parent, start))
        else:
            self.post_message(LaunchRequested(config, way, parent))  # type: ignore[arg-type]  # one of the three

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
                question = Choice[str]("save as", f"{path} exists already.",
                                       [("", "n", "cancel", ""),  # a second ⏎ overwrites nothing
                                        ("over", "o", "overwrite it", "")])  # fmt: skip
                self.app.push_screen(question, partial(self._write_over, config, path))
            else:
                self._write(config, path)

    def _write_over(self, config: RunConfig, path: Path, way: str | None) -> None:
        if way == "over":
            self._write(config, path)

    @work(group="save")
    async def _write(self, config: RunConfig, path: Path) -> None:
        from grpo_engine.config.parse import write_yaml

        text, view = write_yaml(config), self.view
        command = f"grpo-tui train {path.name}"
        if view.form.count > 1:
            command = sweep_command(view, path.name)
        try:
            await asyncio.to_thread(path.write_text, text, encoding="utf-8")
        except OSError as error:
            self.notify(f"{path} was not written: {error.strerror}", severity="error",
                        markup=False)  # fmt: skip
        else:
            self.notify(f"Wrote {path}; start it with {command}", markup=False)
