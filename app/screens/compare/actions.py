"""What the keys of the Compare screen do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from app import messages as msg
from app.screens.ask import Ask
from app.screens.compare.curves import CurvesPanel
from app.screens.compare.panels import PagePanel, RunsPanel, SettingsPanel
from app.screens.compare.pick import Item, Picked, Picker
from app.screens.compare.tracks import SMOOTHINGS
from app.screens.compare.view import AXES, PAGES, STATS, Page, View
from experiments.values import RunSummary
from grpo_engine.metrics import spec

if TYPE_CHECKING:
    from app.screens.compare.screen import CompareScreen

PICK_HINT = "space mark   ⏎ compare   / search   esc leave"
METRIC_HINT = "space mark   ⏎ draw   / search   esc leave"


class CompareActions:
    """Actions of `CompareScreen.BINDINGS`; each changes the view and reads what that needs."""

    view: View
    reload: Callable[[], None]
    draw: Callable[[], None]
    read_page: Callable[[], None]
    rest: Callable[[], Any]
    compare: Callable[..., None]

    @property
    def _screen(self) -> "CompareScreen":
        return cast("CompareScreen", self)

    # -- crosshair and curves ---------------------------------------------------------------

    def action_cross(self, by: int) -> None:
        """Move the crosshair; tables follow once it rests."""
        pixels = self._screen.query_one(CurvesPanel).pixels
        self.view = self.view.moved(by, pixels // 2)
        self.rest()

    def action_common(self) -> None:
        """Put the crosshair where the shortest run ends."""
        self.view = replace(self.view, at=None)
        self.rest()

    def action_place(self) -> None:
        """Ask where the crosshair is to go."""
        unit = {"step": "a step", "tokens": "a number of tokens", "wall": "seconds"}[self.view.axis]
        ask = Ask("crosshair", f"Type {unit}; the crosshair goes there.", f"{self.view.x:g}")
        self._screen.app.push_screen(ask, self._place)

    def _place(self, text: str | None) -> None:
        if text is None:
            return
        try:
            x = float(text.replace(",", "").replace("_", ""))
        except ValueError:
            self._screen.notify(f"{text!r} is no number.", severity="warning", markup=False)
            return
        self.view = self.view.put(x)
        self.rest()

    def action_axis(self) -> None:
        """Lay the curves over the next axis; the crosshair goes to the common end."""
        axis = AXES[(AXES.index(self.view.axis) + 1) % len(AXES)]
        self.view = replace(self.view, axis=axis, at=None)
        self.reload()

    def action_log(self) -> None:
        """A logarithmic vertical axis, or a linear one."""
        self.view = replace(self.view, log=not self.view.log)
        self.draw()

    def action_smooth(self, by: int) -> None:
        """Smooth more or less."""
        place = max(0, min(len(SMOOTHINGS) - 1, self.view.smooth + by))
        self.view = replace(self.view, smooth=place)
        self.draw()

    def action_solo(self) -> None:
        """Only the chosen chart, or all."""
        self.view = replace(self.view, solo=not self.view.solo)
        self.draw()

    def action_bands(self) -> None:
        """Seeds as mean and interval, or each run's curve."""
        found = self.view.comparison
        if found is None or not found.seeds:
            self._screen.notify("No two of these runs differ in nothing but the seed.")
            return
        self.view = replace(self.view, bands=not self.view.bands)
        self.draw()

    def action_metrics(self) -> None:
        """Choose what is drawn."""
        known = self.view.known_metrics()
        if not known:
            return
        items = [Item(key, key, spec(key).help) for key in known]
        picker = Picker("metrics to draw", items, self.view.metrics, METRIC_HINT)
        self._screen.app.push_screen(picker, self._draw_metrics)

    def _draw_metrics(self, picked: Picked | None) -> None:
        if picked is None:
            return
        before = self.view.metrics
        marks = picked.marks
        if set(marks) == set(before) and picked.cursor:
            marks = (*marks, picked.cursor) if picked.cursor not in marks else marks
        if marks:
            new = [key for key in marks if key not in before]
            chart = marks.index(new[-1] if new else picked.cursor
                                if picked.cursor in marks else marks[0])  # fmt: skip
            self.view = replace(self.view, metrics=marks, chart=chart)
            self.draw()

    # -- runs -------------------------------------------------------------------------------

    def action_run(self, by: int) -> None:
        """Choose another run."""
        last = max(0, len(self.view.runs) - 1)
        self.view = replace(self.view, run=max(0, min(last, self.view.run + by)))

    def action_baseline(self) -> None:
        """Measure the others by the chosen run."""
        chosen = self.view.chosen
        if chosen is not None:
            self.view = replace(self.view, baseline=chosen.id)
            self.reload()

    def action_hide(self) -> None:
        """Hide the chosen run's curves, or show them; one stays."""
        view, chosen = self.view, self.view.chosen
        if chosen is None:
            return
        hidden = view.hidden ^ {chosen.id}
        if len(hidden & {run.id for run in view.runs}) < len(view.runs):
            self.view = replace(view, hidden=hidden)
        else:
            self._screen.notify("One run stays on the charts; x takes this one out.")

    def action_drop(self) -> None:
        """Take the chosen run out of the comparison."""
        chosen = self.view.chosen
        if chosen is not None:
            self.compare(tuple(ref for ref in self.view.refs if ref != chosen.id))

    def action_pick(self) -> None:
        """Choose which runs are compared."""
        self._screen.pick()

    def offer(self, runs: Sequence[RunSummary]) -> None:
        """Let one choose from these runs."""
        if not runs:
            self._screen.notify("There are no runs yet; 2 starts one.")
            return
        items = [Item(run.id, run.name or run.id, about(run)) for run in runs]
        picker = Picker("runs to compare", items, self.view.refs, PICK_HINT)
        self._screen.app.push_screen(picker, self._take_runs)

    def _take_runs(self, picked: Picked | None) -> None:
        if picked is None:
            return
        marks = picked.marks
        if set(marks) == set(self.view.refs) and picked.cursor not in marks and picked.cursor:
            marks = (*marks, picked.cursor)
        self.compare(marks)

    # -- pages ------------------------------------------------------------------------------

    def pages(self) -> tuple[Page, ...]:
        """The pages to turn through; settings only where they have no panel of their own."""
        beside = self._screen.query_one(SettingsPanel).display
        return tuple(page for page in PAGES if page != "settings" or not beside)

    def action_page(self, by: int) -> None:
        """Turn to another page; on a small terminal the curves are one of them."""
        screen, pages = self._screen, self.pages()
        short = screen.has_class("-short")
        on_curves = short and not screen.has_class("-page")
        turns: tuple[Page | None, ...] = (None, *PAGES) if short else pages
        now = None if on_curves else self.view.page
        place = turns.index(now) if now in turns else 0
        target = turns[(place + by) % len(turns)]
        if target is None:
            screen.set_class(False, "-page")
            screen.query_one(CurvesPanel).focus()
            screen.call_after_refresh(self.draw)
        else:
            self.turn_to(target)

    def turn_to(self, page: Page) -> None:
        """Show a page."""
        self._screen.set_class(True, "-page")
        self.view = replace(self.view, page=page, row=0, scroll=0)
        if self._screen.has_class("-short"):
            self._screen.query_one(PagePanel).focus()
        self.read_page()

    def action_stat(self) -> None:
        """Compare best values, last ones, or those at the crosshair."""
        stat = STATS[(STATS.index(self.view.stat) + 1) % len(STATS)]
        self.view = replace(self.view, stat=stat)
        self.read_page()

    def action_settings(self) -> None:
        """All settings, or those that differ."""
        self.view = replace(self.view, everything=not self.view.everything, row=0)

    def action_prompt(self, by: int) -> None:
        """Answers to another prompt; turns to the page first where it is not shown."""
        count = len(self.view.prompts or ())
        if self.view.page == "answers" and count:
            place = (self.view.prompt + by) % count
            self.view = replace(self.view, prompt=place, scroll=0)
            self.read_page()
        else:
            self.turn_to("answers")

    def action_grid(self, which: int) -> None:
        """Another setting down or across; turns to the grid first where it is not shown."""
        view, choices = self.view, self.view.grid_choices()
        if view.page != "grid":
            self.turn_to("grid")
            return
        if len(choices) < 3 or view.grid_paths is None:
            self._screen.notify("No other setting differs between these runs.")
            return
        paths = list(view.grid_paths)
        place = choices.index(paths[which]) if paths[which] in choices else 0
        paths[which] = next(
            path for path in (*choices[place + 1 :], *choices[: place + 1])
            if path != paths[1 - which]
        )  # fmt: skip
        self.view = replace(view, grid_paths=(paths[0], paths[1]), grid=None)
        self.read_page()

    # -- what depends on the focus ----------------------------------------------------------

    def action_down(self, by: int) -> None:
        """Next chart, run or row, by the panel that has the focus."""
        focused = self._screen.focused
        if isinstance(focused, CurvesPanel):
            last = max(0, len(self.view.metrics) - 1)
            self.view = replace(self.view, chart=max(0, min(last, self.view.chart + by)))
            self.draw()
            self.read_page()
        elif isinstance(focused, RunsPanel):
            self.action_run(by)
        else:
            self.scroll_rows(by)

    def scroll_rows(self, by: int) -> None:
        """Move through the rows of the tables."""
        view = self.view
        if view.page == "answers" and not isinstance(self._screen.focused, SettingsPanel):
            self.view = replace(view, scroll=max(0, min(view.scroll + by, 5000)))
            return
        count = len(view.rows)
        if view.page == "settings" or isinstance(self._screen.focused, SettingsPanel):
            count = len(view.settings())
        self.view = replace(view, row=max(0, min(count - 1, view.row + by)))

    def action_enter(self) -> None:
        """Open what is under the cursor."""
        view, focused = self.view, self._screen.focused
        if not view.refs:
            if len(view.newest) > 1:
                newest = view.newest[:2]
                self.compare((newest[1].id, newest[0].id))
            else:
                self.action_pick()
        elif isinstance(focused, PagePanel) and view.page == "answers":
            self.open_answers()
        elif isinstance(focused, PagePanel) and view.page == "metrics":
            self.draw_row()
        elif isinstance(focused, CurvesPanel):
            self._screen.post_message(msg.ExplainRequested(focused.topic()))
        else:
            self.open_run()

    def open_run(self) -> None:
        """Watch the chosen run."""
        if self.view.chosen is not None:
            self._screen.post_message(msg.RunOpened(self.view.chosen.id))

    def open_answers(self) -> None:
        """Show the chosen run's answers token by token."""
        view = self.view
        group = None
        if view.answers is not None and view.chosen is not None:
            group = view.answers.groups.get(view.chosen.id)
        if group is not None:
            self._screen.post_message(
                msg.RolloutOpened(
                    run=group.run, step=group.step, origin=group.origin, group=group.index, answer=0
                )
            )

    def draw_row(self) -> None:
        """Draw the metric of the row, or take it off the charts."""
        view = self.view
        if not view.rows:
            return
        key = view.rows[min(view.row, len(view.rows) - 1)].key
        if key in view.metrics and len(view.metrics) > 1:
            metrics = tuple(one for one in view.metrics if one != key)
        else:
            metrics = tuple(dict.fromkeys((*view.metrics, key)))
        chart = metrics.index(key) if key in metrics else 0
        self.view = replace(view, metrics=metrics, chart=chart)
        self.draw()


def about(run: RunSummary) -> str:
    """A run in a line of the picker."""
    parts = [run.status, f"step {run.step}", run.recipe, run.task, f"seed {run.seed}", *run.tags]
    best = run.metrics.get("reward")
    if best is not None and best.best is not None:
        parts.insert(2, f"reward {best.best:.3g}")
    return " · ".join(part for part in parts if part)
