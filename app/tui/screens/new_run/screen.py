"""The New run screen: settings as a form that is checked, tried out, estimated and launched."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.reactive import reactive
from textual.widgets import Input, TextArea

from grpo_engine.config.custom import FORMS
from grpo_engine.config.declaration import as_text
from grpo_engine.config.parse import write_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import EngineError
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.text.words import count_of
from grpo_tui.app.trial.client import TrialProcess
from grpo_tui.app.tui.dialogs.ask import ask_text
from grpo_tui.app.tui.dialogs.picker import PickerResult
from grpo_tui.app.tui.dialogs.trust import trusting
from grpo_tui.app.tui.exporting import file_stem
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.messages import LaunchRequested, NewRunRequested, SweepRequested
from grpo_tui.app.tui.screens.base import NARROW, WIDE, WorkbenchScreen
from grpo_tui.app.tui.screens.new_run.columns import columns_picker, uses_of
from grpo_tui.app.tui.screens.new_run.completion import NAMES, Completer
from grpo_tui.app.tui.screens.new_run.render import (
    PAGE,
    form_blocks,
    header_line,
    help_lines,
    launch_dialog,
    prompt_end,
    start_picker,
    sweep_command,
    value_at,
    value_picker,
    value_text,
)
from grpo_tui.app.tui.screens.new_run.state import (
    COLUMNS,
    MAIN,
    PRESET,
    RECIPE,
    FormField,
    NewRunView,
    RunForm,
    choices_of,
    clone_view,
    load_runs,
    preset_view,
    written,
)
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.widgets.field import Field, TextField
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.list_panel import ListPanel
from grpo_tui.app.tui.widgets.pages import PagesPanel
from grpo_tui.app.tui.widgets.panel import (
    BarPanel,
    Line,
    Panel,
    ScrolledPanel,
    ViewPanel,
    plain_text,
)
from grpo_tui.experiments.errors import StoreError

FIRST_PRESET = "starter"
COMPLETION_LINES = 5
TALL = 40  # rows
OF_FORM = frozenset(("cursor", "search", "editing", "roomy"))  # what its list alone draws


@cache
def first_view() -> NewRunView:
    """What the screen and its panels begin with, read once."""
    return preset_view(FIRST_PRESET)


# -- panels ---------------------------------------------------------------------------------


class NewRunPanel(ViewPanel):
    """A panel that draws the screen's view."""

    navigable = True
    view: reactive[NewRunView] = reactive(first_view, init=False)

    def topic(self) -> str:
        row = self.view.row
        return f"setting:{row.path}" if row is not None and "." in row.path else "screen:new_run"


class HeaderPanel(NewRunPanel, BarPanel, can_focus=False):
    """The costs or what prevents a launch, and whether the run can be launched."""

    DEFAULT_CSS = "HeaderPanel { height: 1; }"

    unseen = OF_FORM | {"page", "example"}

    def paint(self, width: int, _height: int) -> list[Line]:
        return [header_line(self.view, width)]


class HelpPanel(NewRunPanel, ScrolledPanel):
    """Help on the setting under the cursor."""

    def paint(self, width: int, height: int) -> list[Line]:
        """Help, range, default and previous value."""
        row = self.view.row
        title = row.path if row is not None else "help"
        if title != self.title:
            self._top = 0
        self.title = title
        return self.scrolled(help_lines(self.view, width), height)


class FormPagePanel(NewRunPanel, PagesPanel, ScrolledPanel):
    """One page of what belongs to the settings, below a strip with the titles of all pages."""

    titles: ClassVar = {name: page.title for name, page in PAGE.items()}
    unseen = OF_FORM

    def compose(self) -> ComposeResult:
        yield TextField(placeholder="an answer, as the model might give it", id="answer")

    @property
    def field(self) -> TextField:
        """The field of the page on which an answer is tried."""
        return self.query_one(TextField)

    def watch_view(self, old: NewRunView, view: NewRunView) -> None:
        """Show the field on its page, and another page from its top."""
        if old.page != view.page:
            self._top = 0
        self.field.display = view.page == "try"

    def topic(self) -> str:
        return PAGE[self.view.page].topic

    def copy_text(self) -> str:
        """The text of the page, or the chosen prompt, escaped for the terminal."""
        view = self.view
        examples = view.examples.get("examples", ())
        if view.page == "prompts" and view.example < len(examples):
            return safe(str(examples[view.example]["text"]), "\n")
        return plain_text(PAGE[view.page].lines(view, 100))

    def paint(self, width: int, height: int) -> list[Line]:
        """The strip, and the page with space for its field."""
        view = self.view
        self.title = PAGE[view.page].title
        self.note_first(view.activity or "[ ] turn the page", "[ ] page")
        head = [self.strip_line(), []]
        if view.page == "try":
            head += prompt_end(view, width) + [[]] * (COMPLETION_LINES + 1)
        lines = PAGE[view.page].lines(view, width)
        return head + self.scrolled(lines, height - len(head))


class BesidePanel(NewRunPanel, ScrolledPanel):
    """The example prompts, or the costs while the prompts are on the page above."""

    unseen = OF_FORM

    def paint(self, width: int, height: int) -> list[Line]:
        page = "cost" if self.view.page == "prompts" else "prompts"
        self.title = PAGE[page].title
        return self.scrolled(PAGE[page].lines(self.view, width), height)


class FormPanel(NewRunPanel, ListPanel):
    """The form."""

    _row = 0  # the line with the cursor

    def compose(self) -> ComposeResult:
        yield Field(id="value")

    @property
    def input(self) -> Field:
        """The field over the edited value."""
        return self.query_one(Field)

    def watch_view(self) -> None:
        """Place the field, after the lines have been drawn."""
        if self.view.editing:
            self.refresh()
        self.move_field()

    def copy_text(self) -> str:
        """The settings as YAML, or the line under the cursor."""
        config, row = self.view.form.config, self.view.row
        if row is None:
            return ""
        return f"{row.path}={row.text}" if config is None else write_yaml(config)

    # -- the list ---------------------------------------------------------------------------

    def count(self) -> int:
        return len(self.view.rows)

    @property
    def selected(self) -> int:
        return self.view.rows.index(self.view.row) if self.view.row is not None else 0

    def action_move(self, rows: int, columns: int) -> None:
        """Ask the screen to move the cursor, or to take the next value."""
        self.post_message(self.Moved(self, rows, columns))

    def paint(self, width: int, height: int) -> list[Line]:
        """The lines around the cursor; the frame says why settings are hidden."""
        view = self.view
        notes = [
            f"find {view.search}" if view.search else "",
            f"{len(view.rows)} of {len(view.form.fields)}",
            "/ finds others" if len(view.rows) < len(view.form.fields) and not view.listed else "",
        ]
        self.note = " · ".join(filter(None, notes))
        if view.row is None:
            return [[("no setting matches; esc shows all again", "")]]
        lines = self.listed(form_blocks(view, width), height, self.selected)
        marked = (y for y, line in enumerate(lines) if line and "on cursor" in line[0][1])
        self._row = next(marked, 0)
        return lines

    def move_field(self) -> None:
        """Place the field over the value of the cursor's row, or hide it."""
        field, width = self.input, self.inner.width
        field.display = self.view.editing and self.view.row is not None
        if field.display:
            left = value_at(width)
            field.styles.offset = (left + 1, self._row + 1)
            field.styles.width = max(4, width - left)

    def on_resize(self) -> None:
        """Move the field with the lines."""
        self.call_after_refresh(self.move_field)

    # -- editing ----------------------------------------------------------------------------

    def edit(self, field: FormField) -> None:
        """Open the field on a row; while it is empty, it shows the value in use."""
        entry = self.input
        entry.placeholder = "  ".join(filter(None, value_text(self.view, field)))
        with entry.prevent(Input.Changed):
            entry.suggester = Completer(field.path) if field.path in NAMES else None
            entry.value = field.text
        self.move_field()
        entry.focus()


# -- the screen -----------------------------------------------------------------------------


class NewRunScreen(WorkbenchScreen):
    """Edit the settings of a new run and launch it."""

    mode = "new_run"
    find_hint = "find a setting by its name or purpose"
    CSS_PATH = "new_run.tcss"
    BINDINGS = bindings("new_run")

    REHEARSE_S = 0.5
    SCORE_S = 0.4
    FILES_S = 1.0

    view: reactive[NewRunView] = reactive(first_view, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._past: deque[tuple[RunForm, str]] = deque(maxlen=100)  # forms with their cursors
        self.trial = TrialProcess()  # The process starts with the first request.
        self._written: dict[Path, int] = {}  # modification times of the files that the form names

    def body(self) -> ComposeResult:
        """The header; the form and help on the left, the pages on the right."""
        yield HeaderPanel(id="head")
        with Container(id="panes"):
            with Vertical(id="form"):
                yield FormPanel("settings", id="settings")
                yield HelpPanel(id="help")
            with Vertical(id="side"):
                yield FormPagePanel(id="page")
                yield BesidePanel(id="beside")

    def on_mount(self) -> None:
        """Focus the settings first."""
        self.update_panels()
        self.query_one(FormPanel).focus()
        self.read_runs()
        self.set_interval(self.FILES_S, self.check_files, name="files")

    def on_screen_resume(self) -> None:
        """Reload the runs: those that ended meanwhile count for names and costs."""
        self.read_runs()
        self.try_settings()

    def on_unmount(self) -> None:
        """Stop the trial process."""
        self.trial.close()

    def on_resize(self) -> None:
        """List all settings, and show a second page, where there is room for them."""
        super().on_resize()
        width, height = self.app.size
        is_tall = height >= TALL and width >= NARROW
        self.set_class(is_tall, "-tall")
        self.update(roomy=is_tall and width >= WIDE)

    # -- what is shown ----------------------------------------------------------------------

    def watch_view(self, old: NewRunView, new: NewRunView) -> None:
        """Pass the view to every panel; retry what the change affects."""
        if self.is_mounted:
            self.update_panels()
            if old.form is not new.form:
                self.try_settings()

    def update_panels(self) -> None:
        """Pass the view to every panel, and the keys of the page to the key bar."""
        for panel in self.query(NewRunPanel):
            panel.show_view(self.view)
        self._update_keys()

    @work(exclusive=True, group="files")
    async def check_files(self) -> None:
        """Try the settings again after a file that they name was written."""
        self._retry_if(await asyncio.to_thread(written, self.view.form.files))

    def _retry_if(self, times: dict[Path, int]) -> None:
        before, self._written = self._written, times
        if before.keys() == times.keys() and before != times:
            self.view = self.view.with_form(replace(self.view.form))

    def change(self, form: RunForm) -> None:
        """Change the form; that can be undone."""
        self._past.append((self.view.form, self.view.cursor))
        self.view = self.view.with_form(form)

    def action_undo(self) -> None:
        """Undo the last change."""
        if not self._past:
            self.notify("Nothing was changed here.")
            return
        self.end_typing()  # undo also restores the cursor, and the field would move with it
        form, cursor = self._past.pop()
        self.view = replace(self.view.with_form(form), cursor=cursor)

    @work(exclusive=True, group="runs")
    async def read_runs(self) -> None:
        """Load earlier runs, for names and costs."""
        try:
            runs = await self.read("former runs", load_runs)
        except StoreError:
            return  # without a store there are no earlier runs
        self.update(runs=runs)

    # -- where settings come from -----------------------------------------------------------

    def receive(self, message: NewRunRequested) -> None:
        """Open the form for another screen, on a run to clone or on a setting."""
        if message.clone:
            self.opening = self.clone(message.clone, message.changes, leaves=True)
        elif message.setting:
            self.go_to(message.setting)

    def go_to(self, path: str) -> None:
        """Move to a setting, by a search if it is not one of the main ones."""
        self.end_typing()
        self.end_search()
        self.update(search=None if path in MAIN else path, cursor=path)
        self._to_settings()

    @work(exclusive=True, group="clone")
    async def clone(
        self, ref: str, changes: Sequence[tuple[str, Any]] = (), *, leaves: bool = False
    ) -> None:
        """Start from a run's settings, with some changed; a no changes nothing, and `leaves`."""
        with reporting(self):
            if (view := await trusting(self, "clone", clone_view, ref)) is None:
                if leaves:
                    self.leave()
                return
            form = view.form
            for path, value in changes:
                form = form.type(path, as_text(value))
            self.start_from(form)

    def start_from(self, form: RunForm) -> None:
        """Start from another preset or run."""
        count = len(self.view.form.changed)
        self.end_typing()
        self.end_search()
        self.change(form)
        self.update(cursor=PRESET)
        if count:
            changes = count_of(count, "change")
            self.notify(f"Now from {form.origin.name}; u brings the {changes} back.")

    # -- pages ------------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        """Turn the page; on a narrow screen, show it first."""
        pages = list(PAGE)
        if self.has_class("-narrow") and not self.has_class("-paged"):
            by = 0
        self.show_page(pages[(pages.index(self.view.page) + by) % len(pages)])

    def on_pages_panel_page_clicked(self, message: PagesPanel.PageClicked) -> None:
        self.show_page(message.page)

    def show_page(self, page: str) -> None:
        """Show and focus a page."""
        self.end_typing()
        self.add_class("-paged")
        self.update(page=page)
        self.call_after_refresh(self.query_one(FormPagePanel).focus)

    def on_descendant_focus(self) -> None:
        """Show the keys of the page, or of the settings."""
        self._update_keys()

    def _update_keys(self) -> None:
        bar, on_page = self.key_bar, isinstance(self._focused_panel(), FormPagePanel)
        enter = PAGE[self.view.page].enter if on_page else "edit"
        bar.leads = "settings" if on_page else ""
        bar.renamed = {"open": enter, "example(1)": "prompts"}
        used = enter and not isinstance(self.focused, TextField)
        bar.hidden = frozenset(() if used else {"open"})

    def _to_settings(self) -> None:
        self.remove_class("-paged")
        self.query_one(FormPanel).focus()

    def action_escape(self) -> None:
        """Leave the field, the page, or the screen."""
        panel = self._focused_panel()
        if self.view.editing:
            self.end_typing()
        elif isinstance(panel, FormPagePanel) and panel.field.has_focus:
            panel.focus()
        elif self.maximized is None and not self.query_one(FormPanel).has_focus:
            self._to_settings()
        elif self.maximized is None and self.view.listed:
            self.end_search()
        else:
            super().action_escape()

    def action_find(self) -> None:
        """List all settings, and search in them."""
        super().action_find()
        self.find(self.query_one(FindBar).field.value)

    def find(self, text: str) -> None:
        """Show only the settings that match, until the search is closed."""
        if self.query_one(FindBar).display:
            self.view = self.view.searched(text)

    def end_search(self) -> None:
        """Show the main settings."""
        bar = self.query_one(FindBar)
        bar.field.value = ""
        bar.display = False
        self.update(search=None)

    # -- moves ------------------------------------------------------------------------------

    @on(Panel.Moved, "#settings")
    def move(self, message: Panel.Moved) -> None:
        """Move the cursor, or take the next value."""
        self.end_typing()
        if message.columns:
            self._step(message.columns)
        else:
            self.view = self.view.moved(message.rows)

    # -- editing ----------------------------------------------------------------------------

    def action_open(self) -> None:
        """Edit the setting; on a page, do what the page offers."""
        panel, view = self._focused_panel(), self.view
        if not isinstance(panel, FormPagePanel):
            if view.row is not None:
                self._edit(view.row)
        elif view.page == "try":
            panel.field.focus()
        elif view.page == "recipe":
            self._choose(view.form.fields[RECIPE])

    def _edit(self, field: FormField) -> None:
        choices = choices_of(field)
        if field.path == PRESET:
            self.action_preset()
        elif f"{field.path}.".startswith(f"{COLUMNS}.") and self.view.columns:
            self._map_columns()
        elif len(choices) == 2:
            self._step(1)
        elif choices:
            self._choose(field)
        else:
            self._type(field)

    def _type(self, field: FormField) -> None:
        self.change(self.view.form)
        self.update(cursor=field.path, editing=True)
        self.query_one(FormPanel).edit(field)

    @on(Input.Changed, "#value")
    def check_typed(self, event: Input.Changed) -> None:
        """Check the typed text; stop editing a setting that is not listed any more."""
        view = self.view
        if view.editing and (view.row is None or view.row.path != view.cursor):
            self.end_typing()
        elif view.editing:
            self.view = view.with_form(view.form.type(view.cursor, event.value))

    @on(Input.Submitted, "#value")
    def end_typing(self) -> None:
        """Close the field and keep its text."""
        if self.view.editing:
            panel = self.query_one(FormPanel)
            had_focus = panel.input.has_focus
            self.update(editing=False)
            if had_focus:
                panel.focus()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Keep the text when the field loses the focus."""
        if event.widget.id == "value":
            self.end_typing()

    def _step(self, by: int) -> None:
        """Take the next of a setting's values."""
        row = self.view.row
        choices = choices_of(row) if row is not None else ()
        if row is not None and choices:
            index = choices.index(row.text) if row.text in choices else 0
            self.change(self.view.form.type(row.path, choices[(index + by) % len(choices)]))

    def action_reset(self) -> None:
        """Reset the setting."""
        row = self.view.row
        if row is None or not row.changed:
            self.notify("This is unchanged.")
        else:
            self.change(self.view.form.reset(row.path))

    # -- lists ------------------------------------------------------------------------------

    def _map_columns(self) -> None:
        data = self.view.columns
        uses = uses_of(self.view.form.mapping(COLUMNS), list(data))

        def take(result: PickerResult | None) -> None:
            if result is not None:
                self.change(self.view.form.type(COLUMNS, as_text(uses)))

        self.app.push_screen(columns_picker(data, uses, self.app.size.width), take)

    def _choose(self, field: FormField) -> None:
        def choose(result: PickerResult | None) -> None:
            if result is not None and FORMS in (*result.marks, result.value):
                self._type(field)
            elif result is not None:
                text = ",".join(result.marks) or result.value
                self.change(self.view.form.type(field.path, text))

        self.app.push_screen(value_picker(self.view, field), choose)

    def action_preset(self) -> None:
        """List presets and runs to start from."""
        self.app.push_screen(start_picker(self.view), self._start_with)

    def _start_with(self, result: PickerResult | None) -> None:
        kind, _, name = (result.value if result else "").partition(":")
        if kind == "preset":
            self.start_from(preset_view(name).form)
        elif kind == "clone":
            self.clone(name)

    # -- trying the settings, shortly after the last change ---------------------------------

    @work(exclusive=True, group="try")
    async def try_settings(self, online: bool = False) -> None:
        """Show prompts, memory and what a run would fail at; what was loaded is kept there."""
        await asyncio.sleep(0 if online else self.REHEARSE_S)
        form, config = self.view.form, self.view.form.config
        if config is None or not self.is_current:
            return
        for method, activity in (
            ("offers", "reading the task…"),
            ("examples", "downloading…" if online else "reading the task…"),
            ("memory", "estimating memory…"),
            ("ready", "trying the rewards…"),
        ):
            self.update(activity=activity)
            result = await self._request(method, config, online)
            if method == "offers":
                self.view = self.view.with_offers(result)
            elif method != "ready" or self.view.form is form:
                self.update(**{method: result})
            if method == "examples":
                self.choose_example(0)
        self.update(activity="")

    async def _request(
        self, method: str, config: RunConfig, online: bool = False, **more: Any
    ) -> Mapping[str, Any]:
        from grpo_tui.app.jobs.start import with_teacher

        try:
            config = await asyncio.to_thread(with_teacher, config, self.workbench.store)
        except EngineError as error:
            return {"problem": str(error)}
        return await self.trial.request(method, config, online=online, **more)

    def action_fetch(self) -> None:
        """Download what the example prompts need from the hub."""
        config = self.view.form.config
        if config is None:
            self.warn("Fix the errors first.")
            return
        names = " and ".join(dict.fromkeys([config.model.path, config.task.name]))
        self.notify(f"Downloading missing files of {names}; this may take a while.")
        self.try_settings(online=True)

    def action_example(self, by: int) -> None:
        """Show the prompts; where they are shown, choose another one, to answer and to copy."""
        hidden = self.has_class("-narrow") and not self.has_class("-paged")
        if hidden or not (self.has_class("-tall") or self.view.page in ("prompts", "try")):
            self.show_page("prompts")
        elif self.view.examples.get("examples"):
            self.choose_example(by)
        else:
            self.notify(self.view.activity or "There are no prompts to choose from.")

    def choose_example(self, by: int) -> None:
        """Choose another prompt."""
        count = len(self.view.examples.get("examples", ()))
        self.update(example=(self.view.example + by) % max(1, count))
        self.score()

    @on(TextArea.Changed, "#answer")
    @work(exclusive=True, group="score")
    async def score(self) -> None:
        """Score the typed answer, once no key was pressed for a moment."""
        await asyncio.sleep(self.SCORE_S)
        config, completion = self.view.form.config, self.query_one(FormPagePanel).field.text
        scores: Mapping[str, Any] = {}
        if completion and config is not None:
            scores = await self._request(
                "score", config, example=self.view.example, completion=completion
            )
        elif completion:
            scores = {"problem": "Fix the errors first; see the settings marked ✗."}
        self.update(scores=scores)

    # -- launching --------------------------------------------------------------------------

    def _ready(self) -> RunConfig | None:
        """The settings, or None after reporting what to fix and moving there."""
        self.end_typing()
        if self.refused():
            return None
        self._retry_if(written(self.view.form.files))
        if self.view.config is None:
            self._show_errors()
        return self.view.config

    def _show_errors(self) -> None:
        self.end_search()
        view = self.view
        path, error = next(iter((view.form.errors or view.errors).items()))
        self.view = replace(view, cursor=path)
        text = error if path in error else f"{path}: {error}"
        self.warn(text, f"{count_of(len(view.errors), 'error')} to fix first")

    def action_launch(self) -> None:
        """Describe the launch and ask where to run."""
        if self._ready() is None:
            return
        if self.view.errors:
            self._show_errors()
            self.try_settings()
            return
        bridge = self.workbench.bridge
        training = (bridge.name or "a run") if bridge.running else ""
        self.app.push_screen(launch_dialog(self.view, training), self._launch)

    def _launch(self, way: str | None) -> None:
        config, form = self.view.config, self.view.form
        if config is None or not way:
            return
        parent = form.origin.run
        if form.count > 1:
            name, start = self.view.name, way == "worker"
            self.post_message(SweepRequested(name, form.points, form.seeds, parent, start))
        else:
            tried = self.view.tried
            self.post_message(LaunchRequested(config, way, parent, tried))  # type: ignore[arg-type]  # one of the three

    def action_save(self) -> None:
        """Ask for a file name and write the YAML."""
        config = self._ready()
        if config is None:
            return
        hint = "A YAML file for `grpo-tui train FILE` and for this screen."
        name = f"{file_stem(config.name)}.yaml"
        ask_text(self, "save as", hint, partial(self._save, config), name)

    def action_export(self) -> None:
        """The settings are what is shown."""
        self.action_save()

    def _save(self, config: RunConfig, name: str) -> None:
        """Write a new file; another one is never overwritten."""
        path = Path(name).expanduser().absolute()
        command = f"grpo-tui train {path.name}"
        if self.view.form.count > 1:
            command = sweep_command(self.view, path.name)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(write_yaml(config))
        except FileExistsError:
            self.warn(f"{path} exists already; choose another name.", "not written")
        except OSError as error:
            self.warn(f"{path} was not written: {error.strerror}")
        else:
            self.notify(f"Wrote {path}; start it with {command}")
