"""The lab's screen: change or type a setting and see what the stored updates would have been."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive

from grpo_engine.config.recipes import SETTINGS, Recipe
from grpo_engine.errors import EngineError
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.inspector.lab import KNOBS, changed, turn, typed
from grpo_tui.app.text.recipe_cards import card_of
from grpo_tui.app.text.safe_text import wrap
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.dialogs.help.topics import setting_part
from grpo_tui.app.tui.lifecycle import RunApp
from grpo_tui.app.tui.looks.colours import style
from grpo_tui.app.tui.messages import NewRunRequested
from grpo_tui.app.tui.screens.base import NARROW
from grpo_tui.app.tui.screens.rollouts.lab.lines import (
    answers_lines,
    chart_lines,
    group_lines,
    knob_lines,
    lack_lines,
    notes,
    table_lines,
    token_lines,
)
from grpo_tui.app.tui.screens.rollouts.lab.study import MOST_STEPS, MOST_TOKENS, Study, spread
from grpo_tui.app.tui.screens.rollouts.lab.view import MOST_VARIANTS, SCOPES, LabView, value_text
from grpo_tui.app.tui.screens.rollouts.load import StepGroups
from grpo_tui.app.tui.textual_private.screens import Dialog
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import GroupView

TOKEN_ROWS = 3  # of an answer's tokens: text, before and after
BEGINS = "0123456789.-"  # a typed value
FIRST = list(KNOBS).index("beta")


class KnobsPanel(Panel):
    """The choices that can be changed."""

    view: reactive[LabView | None] = reactive(None)
    chosen: reactive[int] = reactive(FIRST)

    def __init__(self) -> None:
        super().__init__("what if", id="knobs")

    @property
    def knob(self) -> str:
        """The selected choice."""
        return list(KNOBS)[self.chosen]

    def topic(self) -> str:
        return f"setting:algorithm.{'recipe' if self.knob == 'name' else self.knob}"

    def paint(self, width: int, height: int) -> list[Line]:
        """One line per choice, and what the selected one does."""
        if self.view is None:
            return []
        base, recipe = self.view.base, self.view.recipe
        count = len(self.view.variants)
        self.note = f"variant {self.view.chosen + 1} of {count}" if count > 1 else ""
        lines = knob_lines(base, recipe, self.chosen, width, self.palette)
        room = height - len(lines)
        words = wrap(self._help(base, recipe), width, max(1, min(8, room)))
        lines += [[]] if len(words) < room else []
        lines += [[(part, style(self.palette.label))] for part in words]
        return lines

    def _help(self, base: Recipe, recipe: Recipe) -> str:
        was = getattr(base, self.knob)
        part = setting_part(self.topic().removeprefix("setting:"))
        words = card_of(recipe.name).summary if self.knob == "name" else part.paragraphs[0][1]
        before = f" The run had {value_text(was)}." if getattr(recipe, self.knob) != was else ""
        return f"{part.heading}: {words}{before}"


class EffectPanel(Panel):
    """What the updates did, and what they would have done."""

    view: reactive[LabView | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__("", id="effect")

    def paint(self, width: int, height: int) -> list[Line]:
        """The variants as a table, what is looked at, and what the numbers can say."""
        view = self.view
        if view is None:
            return []
        self.title, self.note = view.title, ""
        if view.scope == "steps":
            count, left = len(view.steps), len({step for _, step in view.wanted})
            self.note = f"{count - left} of {count} steps" if left else f"{count} steps"
        lines = lack_lines(view, width, self.palette) + table_lines(view, width, self.palette)
        foot = notes(view, width, max(5, height // 5), self.palette)
        room = height - len(lines) - len(foot) - 2
        return [*lines, [], *_filled(self._middle(view, width, room), room), [], *foot]

    def _middle(self, view: LabView, width: int, room: int) -> list[Line]:
        if view.scope == "steps":
            return chart_lines(view, width, room, self.palette)
        if view.base not in view.here or view.recipe not in view.here:
            return [[("computing", None)]]
        if view.scope == "step":
            return group_lines(view, width, room, self.palette)
        if not view.places:
            text = "This group has no token numbers: s looks at the step."
            return [[(part, None)] for part in wrap(text, width, 3)]
        lines = answers_lines(view, width, max(3, room - TOKEN_ROWS - 1), self.palette)
        return [*lines, [], *token_lines(view, width, room - len(lines) - 1, self.palette)]


def _filled(lines: list[Line], room: int) -> list[Line]:
    return [*lines[:room], *([[]] * (room - len(lines)))]


class LabScreen(Dialog[None]):
    """Stored steps under the run's recipe and under modified ones."""

    DEFAULT_CSS = """
    LabScreen { background: $background; }
    LabScreen #knobs { width: 46; }
    LabScreen.-narrow #knobs { width: 32; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,v", "close", "close", id="lab.close", tooltip="Back to the rollouts"),
        Binding("down,j", "knob(1)", "choice", id="lab.knob", key_display="↑↓",
                tooltip="Go to the next choice"),
        Binding("up,k", "knob(-1)", "previous choice", id="lab.knob_before", show=False,
                tooltip="Go to the previous choice"),
        Binding("right,l", "turn(1)", "change", id="lab.turn", key_display="←→",
                tooltip="Next value"),
        Binding("left,h", "turn(-1)", "change back", id="lab.turn_back", show=False,
                tooltip="Previous value"),
        Binding("enter", "type", "type", id="lab.type",
                tooltip="Type the value, or several: beta=.1 clip_high=.3; a digit begins at once"),
        Binding("s", "scope", "scope", id="lab.scope",
                tooltip="Look at a range of steps, at the step or at the group"),
        Binding("r", "range", "range", id="lab.range", tooltip="Type the range of steps"),
        Binding("a", "add", "add variant", id="lab.add",
                tooltip="Put another variant beside this one"),
        Binding("c", "clone", "clone", id="lab.clone",
                tooltip="A new run with the settings of this variant"),
        Binding("x", "remove", "remove", id="lab.remove",
                tooltip="Remove this variant"),
        Binding("right_square_bracket,n", "variant(1)", "variant", id="lab.variant",
                key_display="[ ]", tooltip="Go to the next variant"),
        Binding("left_square_bracket,p", "variant(-1)", "previous variant", show=False,
                id="lab.variant_before", tooltip="Go to the previous variant"),
        Binding("J", "answer(1)", "answer", id="lab.answer", key_display="J K",
                tooltip="Show the next answer's tokens"),
        Binding("K", "answer(-1)", "previous answer", id="lab.answer_before", show=False,
                tooltip="Show the previous answer's tokens"),
        Binding("backspace", "reset", "reset", id="lab.reset", show=False,
                tooltip="Reset this choice to the run's value"),
        Binding("question_mark,f1", "explain", "explain", id="lab.explain",
                tooltip="Explain the choice, the numbers and the keys"),
    ]  # fmt: skip

    view: reactive[LabView | None] = reactive(None, repaint=False)

    def __init__(
        self, shown: StepGroups, group: GroupView | None, answer: int, snapshot: Snapshot
    ) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._study = Study(shown)
        tokens = sum(r.tokens for one in shown.groups for r in one.rollouts)
        self._most = max(1, min(MOST_STEPS, MOST_TOKENS // max(1, tokens)))
        self._first = LabView(
            shown=shown, group=group, answer=answer, variants=(shown.run.recipe,), steps=()
        )

    def compose(self) -> ComposeResult:
        with Vertical(), Horizontal():
            yield KnobsPanel()
            yield EffectPanel()
        yield KeyBar()

    def on_resize(self) -> None:
        """Collapse on narrow terminals."""
        self.set_class(self.app.size.width < NARROW, "-narrow")

    def on_mount(self) -> None:
        """Begin with the run's recipe over all steps."""
        self._look(self._first, self._first.shown.steps)

    @property
    def shown(self) -> LabView:
        """What is on the screen."""
        return self.view or self._first

    @property
    def knob(self) -> str:
        """The selected choice."""
        return self.query_one(KnobsPanel).knob

    def _look(self, view: LabView, steps: tuple[int, ...]) -> None:
        chosen = spread(steps, self._most)
        self._show(replace(view, steps=chosen, left_out=len(steps) - len(chosen)))

    def _show(self, view: LabView) -> None:
        """Show a view, and compute what is missing in it."""
        self.view = view
        self._compute()

    def watch_view(self, _old: LabView | None, new: LabView | None) -> None:
        """Pass the view to the panels."""
        if self.is_mounted:
            self.query_one(KnobsPanel).view = new
            self.query_one(EffectPanel).view = new
            view = self.shown
            self.query_one(KeyBar).hidden = frozenset(
                (*(() if len(view.variants) > 1 else ("remove", "variant(1)")),
                 *(() if view.scope == "group" else ("answer(1)",)))
            )  # fmt: skip

    @work(exclusive=True, group="lab")
    async def _compute(self) -> None:
        app, study = self.app, self._study
        assert isinstance(app, RunApp)
        try:
            view = self.shown
            here, rows = await app.reader.ask(
                lambda r: study.here(r, view.recipes, view.here), "lab.step"
            )
            self.view = replace(self.shown, here=here, rows=rows)
            while wanted := self.shown.wanted:
                some = await app.reader.ask(partial(study.advance, wanted=wanted), "lab")
                self.view = replace(self.shown, effects={**self.shown.effects, **some})
        except (EngineError, StoreError) as error:
            self.notify(str(error), severity="error", markup=False)
        except (asyncio.CancelledError, InterruptedError):
            return

    # -- changes ----------------------------------------------------------------------------

    def _change(self, change: Callable[[Recipe], Recipe]) -> None:
        try:
            self._show(self.shown.with_recipe(change(self.shown.recipe)))
        except EngineError as error:
            self.notify(str(error), severity="warning", markup=False)

    def action_knob(self, by: int) -> None:
        """Select another choice."""
        panel = self.query_one(KnobsPanel)
        panel.chosen = (panel.chosen + by) % len(KNOBS)

    def action_turn(self, by: int) -> None:
        """Change the selected choice."""
        self._change(lambda recipe: turn(recipe, self.knob, by))

    def action_reset(self) -> None:
        """Reset the selected choice."""
        base, knob = self.shown.base, self.knob
        self._change(
            lambda recipe: base if knob == "name" else changed(recipe, knob, getattr(base, knob))
        )

    def on_key(self, event: events.Key) -> None:
        """Begin to type a value."""
        if event.character and event.character in BEGINS:
            event.stop()
            self.action_type(event.character)

    def action_type(self, begun: str = "") -> None:
        """Ask for a value of the selected choice, or for several settings."""
        knob = self.knob
        label = SETTINGS[knob].label if knob in SETTINGS else "recipe"
        allowed = SETTINGS[knob].allowed if knob in SETTINGS else f"one of {', '.join(KNOBS[knob])}"

        def take(text: str | None) -> None:
            if text:
                self._change(lambda recipe: typed(recipe, knob, text))

        hint = f"{allowed}\nor several settings: beta=.1 clip_high=.3"
        self.app.push_screen(Ask(label, hint, begun, select=False), take)

    def action_add(self) -> None:
        """Add a copy of the chosen variant, to be changed."""
        view = self.shown
        if len(view.variants) == MOST_VARIANTS:
            self.notify(f"There are {MOST_VARIANTS} variants already: x removes one.")
            return
        variants = (*view.variants, view.recipe)
        self._show(replace(view, variants=variants, chosen=len(variants) - 1))

    def action_remove(self) -> None:
        """Remove the chosen variant; the last one becomes the run's recipe."""
        view = self.shown
        others = (*view.variants[: view.chosen], *view.variants[view.chosen + 1 :])
        others = others or (view.base,)
        self._show(replace(view, variants=others, chosen=min(view.chosen, len(others) - 1)))

    def action_variant(self, by: int) -> None:
        """Choose another variant."""
        view = self.shown
        self._show(replace(view, chosen=(view.chosen + by) % len(view.variants)))

    # -- what is looked at ------------------------------------------------------------------

    def action_scope(self) -> None:
        """Look at the steps, the step or the group."""
        view = self.shown
        places = SCOPES if view.group is not None else SCOPES[:2]
        scope = places[(places.index(view.scope) + 1) % len(places)]
        self._show(replace(view, scope=scope))

    def action_range(self) -> None:
        """Ask for the range of steps."""
        every = self.shown.shown.steps

        def take(text: str | None) -> None:
            if text is None:
                return
            ends = [int(number) for number in re.findall(r"\d+", text)] or [every[0], every[-1]]
            chosen = tuple(step for step in every if ends[0] <= step <= ends[-1])
            if chosen:
                self._look(replace(self.shown, scope="steps"), chosen)
            else:
                self.notify(f"No step of {text} has answers: there are {every[0]} to {every[-1]}.",
                            severity="warning", markup=False)  # fmt: skip

        hint = f"For example {every[0]}-{every[-1]}. Empty: all steps."
        self.app.push_screen(Ask("range of steps", hint), take)

    def action_answer(self, by: int) -> None:
        """Show another answer's tokens."""
        if count := len(self.shown.places):
            self.view = replace(self.shown, answer=(self.shown.row + by) % count)

    def action_clone(self) -> None:
        """Open New run with the settings of the chosen variant."""
        request = NewRunRequested(clone=self.shown.shown.run.id, changes=self.shown.changes())
        self.dismiss(None)
        self.app.post_message(request)

    def action_explain(self) -> None:
        """Explain the selected choice, the numbers and the keys."""
        from grpo_tui.app.tui.dialogs.help import HelpScreen

        topic = self.query_one(KnobsPanel).topic()
        self.app.push_screen(HelpScreen(topic, self, "lab", self._snapshot))

    def action_close(self) -> None:
        """Return to the rollouts."""
        self.dismiss(None)
