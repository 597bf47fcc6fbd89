"""The lab's screen: change a choice with ←→ and see the effect on the group's push."""

import asyncio
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive

from app.inspector.lab import KNOBS, WhatIf, changed, turn, what_if
from app.text.safe_text import wrap
from app.tui.dialogs.help.topics import setting_part
from app.tui.lifecycle import RunApp
from app.tui.looks.colours import style
from app.tui.screens.base import NARROW
from app.tui.screens.rollouts.lab.lines import (
    answers_lines,
    knob_lines,
    legend,
    token_lines,
    value_text,
)
from app.tui.screens.rollouts.view import View
from app.tui.textual_private.screens import Dialog
from app.tui.widgets.key_bar import KeyBar
from app.tui.widgets.panel import Line, Panel
from grpo_engine.config.recipe_cards import card_of
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import EngineError


class KnobsPanel(Panel):
    """The choices that can be changed."""

    recipe: reactive[Recipe | None] = reactive(None)
    chosen: reactive[int] = reactive(0)

    def __init__(self, base: Recipe) -> None:
        super().__init__("what if", id="knobs")
        self.base = base

    def topic(self) -> str:
        knob = list(KNOBS)[self.chosen]
        return f"setting:algorithm.{'recipe' if knob == 'name' else knob}"

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - what does not fit is help
        """One line per choice, and what the selected one does."""
        lines = knob_lines(self.base, self.recipe or self.base, self.chosen, width, self.palette)
        label = style(self.palette.label)
        lines.append([])
        for part in wrap(self._help(), width, 8):
            lines.append([(part, label)])
        return lines

    def _help(self) -> str:
        knob = list(KNOBS)[self.chosen]
        recipe, was = self.recipe or self.base, getattr(self.base, knob)
        part = setting_part(self.topic().removeprefix("setting:"))
        words = card_of(recipe.name).summary if knob == "name" else part.paragraphs[0][1]
        before = f" The run had {value_text(was)}." if getattr(recipe, knob) != was else ""
        return f"{part.heading}: {words}{before}"


class EffectPanel(Panel):
    """What the group did, and what it would have done."""

    effects: reactive[tuple[WhatIf, WhatIf] | None] = reactive(None)
    answer: reactive[int] = reactive(0)

    def __init__(self, view: View) -> None:
        super().__init__("this group under both", id="effect")
        self.view = view

    def paint(self, width: int, height: int) -> list[Line]:
        """The answers as a table, one answer's tokens, and an explanation."""
        if self.effects is None:
            return [[("computing", None)]]
        was, now = self.effects
        lines = answers_lines(was, now, self.answer, width, self.palette)
        foot = legend(was, now, width, self.palette)
        texts = self.view.at_row(self.answer)
        room = height - len(lines) - len(foot) - 2
        tokens = token_lines(
            texts, was.terms[self.answer], now.terms[self.answer], width, room, self.palette
        )
        return [*lines, [], *tokens, [], *foot]


class LabScreen(Dialog[None]):
    """One stored group under the run's recipe and under a modified one."""

    DEFAULT_CSS = """
    LabScreen { background: $background; }
    LabScreen #knobs { width: 46; }
    LabScreen.-narrow #knobs { width: 32; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "knob(1)", "choice", id="lab.knob", key_display="↑↓",
                tooltip="Go to the next choice"),
        Binding("up,k", "knob(-1)", "previous choice", id="lab.knob_before", show=False,
                tooltip="Go to the previous choice"),
        Binding("right,l", "turn(1)", "change", id="lab.turn", key_display="←→",
                tooltip="Next value"),
        Binding("left,h", "turn(-1)", "change back", id="lab.turn_back", show=False,
                tooltip="Previous value"),
        Binding("J", "answer(1)", "answer", id="lab.answer", key_display="J K",
                tooltip="Show the next answer's tokens"),
        Binding("K", "answer(-1)", "previous answer", id="lab.answer_before", show=False,
                tooltip="Show the previous answer's tokens"),
        Binding("backspace", "reset", "reset", id="lab.reset",
                tooltip="Reset this choice to the run's value"),
        Binding("escape,q,v", "close", "close", id="lab.close", tooltip="Back to the rollouts"),
    ]  # fmt: skip

    def __init__(self, view: View) -> None:
        super().__init__()
        if view.step is None or view.shown is None or view.shown.tokens is None:
            raise ValueError("the lab needs a group with token numbers")
        self._view, self._step, self._tokens = view, view.step, view.shown.tokens
        self._group = view.shown.group
        self._base = self._how = view.step.run.recipe
        self._was: WhatIf | None = None

    def compose(self) -> ComposeResult:
        with Vertical(), Horizontal():
            yield KnobsPanel(self._base)
            yield EffectPanel(self._view)
        yield KeyBar()

    def on_resize(self) -> None:
        """Collapse on narrow terminals."""
        self.set_class(self.app.size.width < NARROW, "-narrow")

    def on_mount(self) -> None:
        """Compute the group under the recorded recipe."""
        self.query_one(EffectPanel).answer = min(self._view.answer, len(self._tokens.rows) - 1)
        self._turned(self._how)

    def _turned(self, recipe: Recipe) -> None:
        self._how = recipe
        self.query_one(KnobsPanel).recipe = recipe
        self._compute(recipe)

    @work(exclusive=True, group="lab")
    async def _compute(self, recipe: Recipe) -> None:
        app = self.app
        assert isinstance(app, RunApp)

        def run(recipe: Recipe) -> WhatIf:
            return what_if(
                self._tokens, self._step.groups, self._group, recipe,
                was=self._base, max_length=self._step.run.max_length,
            )  # fmt: skip

        try:
            if self._was is None:
                self._was = await app.reader.ask(lambda _reader: run(self._base), "lab.was")
            now = await app.reader.ask(lambda _reader: run(recipe), "lab.now")
        except EngineError as error:
            self.notify(str(error), severity="error")
            return
        except asyncio.CancelledError:
            return
        self.query_one(EffectPanel).effects = (self._was, now)

    def action_knob(self, by: int) -> None:
        """Select another choice."""
        panel = self.query_one(KnobsPanel)
        panel.chosen = (panel.chosen + by) % len(KNOBS)

    def action_turn(self, by: int) -> None:
        """Change the selected choice."""
        knob = list(KNOBS)[self.query_one(KnobsPanel).chosen]
        self._turned(turn(self._how, knob, by))

    def action_reset(self) -> None:
        """Reset the selected choice."""
        knob = list(KNOBS)[self.query_one(KnobsPanel).chosen]
        value = getattr(self._base, knob)
        try:
            self._turned(self._base if knob == "name" else changed(self._how, knob, value))
        except EngineError as error:
            self.notify(str(error), severity="warning")

    def action_answer(self, by: int) -> None:
        """Show another answer's tokens."""
        panel = self.query_one(EffectPanel)
        panel.answer = (panel.answer + by) % len(self._tokens.rows)

    def action_close(self) -> None:
        """Return to the rollouts."""
        self.dismiss(None)
