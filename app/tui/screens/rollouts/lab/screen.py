"""The lab's screen: change or type a setting and see what the stored updates would have been."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive

from grpo_engine.config.parse import entries, settings
from grpo_engine.config.recipes import SETTINGS, Recipe
from grpo_engine.errors import EngineError
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.inspector.lab import VARIED, with_next, with_setting, with_typed
from grpo_tui.app.inspector.stored import (
    GroupList,
)
from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.text.recipe_cards import card_of
from grpo_tui.app.tui.dialogs.ask import ask_text
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.dialogs.exports import ExportingScreen
from grpo_tui.app.tui.dialogs.help.subject import HelpSubject
from grpo_tui.app.tui.exporting import Export
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.messages import NewRunRequested
from grpo_tui.app.tui.screens.rollouts.lab import export, render
from grpo_tui.app.tui.screens.rollouts.lab.state import (
    MAX_STEPS,
    MAX_TOKENS,
    Index,
    LabView,
    Study,
    spread,
)
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.panel import Line, Panel, paragraph

NAMES = list(VARIED)
AT_ONCE = 4  # steps that are computed before they are shown


class LabPanel(Panel):
    """A panel that draws the lab's view."""

    navigable = True
    view: reactive[LabView] = reactive(None, init=False)  # type: ignore[arg-type]  # given at once

    def __init__(self, view: LabView, title: str = "", **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self.set_reactive(LabPanel.view, view)


class LabSettingsPanel(LabPanel):
    """The settings that can be changed."""

    selected: reactive[int] = reactive(NAMES.index("beta"))

    @property
    def setting(self) -> str:
        """The selected setting."""
        return NAMES[self.selected]

    def topic(self) -> str:
        return f"setting:{self.path}"

    @property
    def path(self) -> str:
        """The path of the selected setting; some are entries of the options."""
        path = f"algorithm.{'recipe' if self.setting == 'name' else self.setting}"
        return path if path in settings() else f"algorithm.options.{self.setting}"

    def paint(self, width: int, height: int) -> list[Line]:
        """One line per setting, and what the selected one does."""
        base, recipe = self.view.base, self.view.recipe
        lines = render.setting_lines(base, recipe, self.selected, width)
        text = card_of(recipe.name).summary
        if self.setting != "name":
            text = {**settings(), **entries()}[self.path].help
        return [*lines, [], *paragraph(text, width, max(1, height - len(lines) - 1), "label")]

    def action_move(self, rows: int, columns: int) -> None:
        """Select another setting; changing its value is for the screen."""
        self.selected = clamped(self.selected + rows, len(NAMES))
        if columns:
            super().action_move(rows, columns)


class EffectPanel(LabPanel):
    """What the updates did, and what they would have done."""

    help_topic = "panel:lab"

    def paint(self, width: int, height: int) -> list[Line]:
        """Both recipes as a table, the scope, and what the numbers can say."""
        view = self.view
        self.title = view.title
        head = render.missing_lines(view, width) + render.table_lines(view, width)
        head += render.result_lines(view, width)
        foot = render.notes(view, width, max(5, height // 5))
        space = max(0, height - len(head) - len(foot) - 2)
        lines = render.scope_lines(view, width, space)[:space]
        return [*head, [], *lines, [], *foot]


class LabScreen(ExportingScreen, Dialog[None]):
    """Stored steps under the run's recipe and under modified ones."""

    DEFAULT_CSS = """
    LabScreen { background: $background; }
    LabScreen #settings { width: 40%; min-width: 32; max-width: 46; }
    """
    BINDINGS = bindings("lab")

    view: reactive[LabView] = reactive(None, repaint=False, init=False)  # type: ignore[arg-type]

    def __init__(self, step: GroupList, selected: Index, snapshot: Snapshot) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._study = Study(step)
        tokens = 1 + sum(r.tokens or 0 for group in step.groups for r in group.rollouts)
        steps = spread(step.steps, max(1, min(MAX_STEPS, MAX_TOKENS // max(1, tokens))))
        view = LabView(step=step, selected=selected, recipe=step.run.recipe, steps=steps)
        self.set_reactive(LabScreen.view, view)

    def compose(self) -> ComposeResult:
        with Vertical(), Horizontal():
            yield LabSettingsPanel(self.view, "what if", id="settings")
            yield EffectPanel(self.view, id="effect")
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin with the run's recipe over all steps."""
        self._compute()

    @property
    def setting(self) -> str:
        """The selected setting."""
        return self.query_one(LabSettingsPanel).setting

    def watch_view(self, _old: LabView, new: LabView) -> None:
        """Pass the view to the panels."""
        for panel in self.query(LabPanel):
            panel.view = new
        for bar in self.query(KeyBar):
            bar.hidden = frozenset({"reset"} if new.recipe == new.base else ())

    @work(exclusive=True, group="lab")
    async def _compute(self) -> None:
        study = self._study
        with reporting(self):
            while pending := self.view.pending[:AT_ONCE]:
                outcomes = await self.read("lab", study.outcomes, pending)
                view = self.view
                for (recipe, step), outcome in zip(pending, outcomes, strict=True):
                    view = view.with_outcome(recipe, step, outcome, study.rows)
                self.view = view

    def exports(self) -> Iterator[Export]:
        """The table and the charts, once they are computed."""
        return export.exports(self.view)

    # -- changes ----------------------------------------------------------------------------

    def _change(self, change: Callable[..., Recipe], value: Any) -> None:
        """Change the selected setting."""
        try:
            self.update(recipe=change(self.view.recipe, self.setting, value))
            self._compute()
        except EngineError as error:
            self.warn(error)

    @on(Panel.Moved, "#settings")
    def change_setting(self, event: Panel.Moved) -> None:
        self._change(with_next, event.columns)

    @on(Panel.Moved, "#effect")
    def move_in_scope(self, event: Panel.Moved) -> None:
        """Select another answer of the step."""
        self.view = self.view.moved(event.rows)

    def action_reset(self) -> None:
        """Reset the selected setting."""
        base, name = self.view.base, self.setting
        self._change(with_setting, base if name == "name" else getattr(base, name))

    def action_type(self) -> None:
        """Ask for a value of the selected setting."""
        name = self.setting
        allowed = (
            SETTINGS[name].allowed if name in SETTINGS else f"one of {', '.join(VARIED[name])}"
        )
        title = "recipe" if name == "name" else name
        ask_text(self, title, allowed, partial(self._change, with_typed))

    def action_clone(self) -> None:
        """Open New run with the settings of this recipe."""
        request = NewRunRequested(clone=self.view.step.run.id, changes=self.view.changes())
        self.dismiss(None)
        self.app.post_message(request)

    def action_explain(self) -> None:
        """Explain the selected setting, the numbers and the keys."""
        from grpo_tui.app.tui.dialogs.help.screen import HelpScreen

        focused = self.focused
        topic = focused.topic() if isinstance(focused, Panel) else "panel:lab"
        self.app.push_screen(HelpScreen(HelpSubject(topic, self._snapshot), self, "lab"))
