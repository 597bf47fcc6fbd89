"""The Rollouts screen: browse steps, groups, answers and tokens of a stored run."""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Offset
from textual.message import Message
from textual.reactive import reactive

from grpo_engine.events import Origin
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.inspector.groups import Order, is_greedy, letter
from grpo_tui.app.inspector.measures import (
    HEAT_MODES,
    MEASURES,
    Cursor,
    Measure,
    next_highlight,
)
from grpo_tui.app.inspector.stored import (
    ORIGINS,
    UNFINISHED,
    GroupList,
    RolloutTokens,
    load_group,
    load_step,
    nearest_step,
    with_functions,
)
from grpo_tui.app.text.numbers import clamped, short
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.exporting import Export, file_stem
from grpo_tui.app.tui.keys import LAST, bindings
from grpo_tui.app.tui.messages import RolloutOpened
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.rollouts import render
from grpo_tui.app.tui.screens.rollouts.export import write_json, write_text
from grpo_tui.app.tui.screens.rollouts.state import (
    NO_GROUPS,
    Against,
    RolloutsView,
    Search,
    load_highlights,
    load_hits,
    load_prompts,
    search,
)
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.widgets.charts.stack import GAP
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.list_panel import ListPanel
from grpo_tui.app.tui.widgets.panel import (
    BarPanel,
    Line,
    Panel,
    ScrolledPanel,
    ViewPanel,
    cells,
    hint,
    justified,
    paragraph,
)
from grpo_tui.experiments.values import GroupView

OverRun = Literal["run", "highest", "lowest"]
ORDERS: dict[Order, tuple[str, str, str, Measure | None]] = {
    "prompt": ("p", "prompt", "as they were drawn", None),
    "surprise": ("s", "surprise", "the strongest push", None),
    "reward": ("r", "reward", "the best answer, by its reward", None),
    "worst": ("w", "worst", "the worst answer, by its reward; of equal ones a wrong one", None),
    "failing": ("f", "failing", "the prompt with the fewest right answers", None),
    "length": ("l", "length", "the longest", None),
    "kl": ("k", "KL", "the furthest from the reference, at the furthest token", "kl"),
    "clip": ("c", "clip", "the most clipped, at the first clipped token", "clipped"),
}
# What is chosen over all steps of the run.
OVER_RUN: list[tuple[OverRun, str, str, str]] = [
    ("run", "o", "over the run", "all its prompts, those that fail most first"),
    ("highest", "R", "best of the run", "the answer with the highest reward of all steps"),
    ("lowest", "W", "worst of the run", "the answer with the lowest reward of all steps"),
]
NEED_ROLLOUTS = frozenset(
    {"prompt(1)", "highlight(1)", "lab", "sort", "origin", "heat", "visit(1)", "compare_visits"}
)
# What a search leaves out of the footer for its own keys.
NOT_OF_HITS = frozenset({"sort", "lab", "compare_visits", "highlight(1)"})
TALL = 20  # lines of the list of groups from which a sentence fits below it
TWO_COLUMNS, TOKENS = 100, 60  # cells from which the other answers stand beside, and of the tokens
READING = "reading the token numbers"
TYPING_S = 0.25  # without a key before a search begins
# Fields of the view that concern the lists alone, and the tokens of the answer alone.
OF_LISTS = frozenset(("hit", "listed_from"))
OF_TOKENS = frozenset(("token", "mode", "measure", "highlights"))
NO_RUN = "No run is open. Press 1 for the list of runs, then ⏎ on one."


class RolloutsPanel(ViewPanel):
    """A panel that draws the screen's view."""

    navigable = True
    view: reactive[RolloutsView] = reactive(RolloutsView)


class HistoryBar(RolloutsPanel, BarPanel, can_focus=False):
    """The current position, and the same prompt over the steps."""

    DEFAULT_CSS = "HistoryBar { height: 2; }"

    unseen = OF_LISTS | OF_TOKENS | {"rollout_at", "against"}

    def paint(self, width: int, _height: int) -> list[Line]:
        view = self.view
        if view.step is None or view.group is None:
            return []
        return [
            render.position_line(view.step.run.name, view.group, view.sorted_by, width),
            render.history_line(view.visits, view.group, width),
        ]


class GroupsPanel(RolloutsPanel, ListPanel):
    """The prompts of the step, the hits of a search, or the prompts of the run."""

    help_topic = "panel:prompts"
    unseen = OF_TOKENS | {"rollout_at", "against", "detail", "listed_from"}

    @property
    def selected(self) -> int:
        """The group, hit or prompt under the cursor."""
        view = self.view
        return view.hit if view.search or view.prompts else view.group_at

    def action_move(self, rows: int, columns: int) -> None:
        """Leave the move to the screen, which reads what it leads to."""
        Panel.action_move(self, rows, columns)

    def paint(self, width: int, height: int) -> list[Line]:
        view = self.view
        if view.search is not None:
            return self._paint_search(view.search, width, height)
        origin = view.step.origin if view.step else "train"
        self.title = "groups" if origin == "train" else render.origin_name(origin)
        if len(view.by_sampling) > 1:
            self.title += ", greedy" if view.greedy else ", sampled"
        if view.prompts:
            self.title += " of the run"
            self.note = f"{view.hit + 1:,} of {len(view.prompts):,}"
            first, heading, *rows = render.prompt_lines(view, width, height)
            lines = self.listed([[row] for row in rows], height - 2, view.hit, above=2)
            return [first, heading, *lines]
        self.note = ""
        if not view.groups:
            text = "The prompts of a step, with the mean reward of their answers, appear here."
            return hint(text, width)
        self.note_first(f"sort {view.order}", f"by {view.order}", view.order)
        foot = render.sampling_lines(view, width) if height >= TALL else []
        height -= len(foot)
        (heading,), *blocks = render.group_blocks(view, width, height)
        lines = self.listed(blocks, max(1, height - 1), view.group_at, above=1)
        return [heading, *lines, *foot]

    def _paint_search(self, search: Search, width: int, height: int) -> list[Line]:
        self.title, self.note = "search", render.search_note(search, self.view.hit)
        if not search.matches:
            text = f"Searching “{safe(search.text)}” in all prompts and answers of this run."
            if search.done:
                text = f"No prompt or answer of this run contains “{safe(search.text)}”."
            if search.done and search.in_prompts:
                text = f"No answer contains “{safe(search.text)}”. {render.prompts_note(search)}"
            return hint(text, width)
        head = render.count_lines(search, search.matches[self.view.hit], width)
        # the hits around another one may not be read yet
        selected = clamped(self.view.hit - search.first, len(search.hits))
        blocks = [[line] for line in render.hit_lines(search.hits, selected, width)]
        lines = self.listed(blocks, height - len(head), selected, len(head))
        self._items = [None if i is None else i + search.first for i in self._items]
        return [*head, *lines]


class CompletionPanel(RolloutsPanel):
    """One answer token by token, with the numbers of the token under the cursor."""

    wheel = 0
    unseen = OF_LISTS | {"search", "prompts"}

    @dataclass
    class Turned(Message):
        """The cursor is to move by so many turns."""

        by: int

    def __init__(self, title: str = "", **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self._text_top = 2  # the line on which the text begins
        self._text_width = 0
        self._row_tokens: list[list[int]] = []  # the token of each cell, by line from there on

    help_topic = "panel:tokens"

    def action_move_page(self, by: int) -> None:
        """Go to another turn."""
        self.post_message(self.Turned(by))

    def copy_text(self) -> str:
        """The answer as the model wrote it, escaped for the terminal."""
        return safe(self.view.rollout.text, "\n") if self.view.rollout else ""

    def paint(self, width: int, height: int) -> list[Line]:
        """The group's answers, the text with its bars, the token's numbers, and what else fits."""
        view = self.view
        group, completion, detail = view.group, view.completion, view.loaded
        self.title, self.note = "answer", ""
        if view.step is None or group is None or completion is None:
            return hint(NO_RUN if view.step is None else NO_GROUPS, width)
        self.title = f"answer {letter(completion.rollout.index)}"
        if pair := view.compared:
            is_first = view.against == "first"
            self.title += ", first against newest" if is_first else ", changes"
            self.note = "d leaves" if is_first else "d first → newest"
            lines = render.compared_lines(*pair, view.rollout_at, width, height)
            more = render.visit_lines(view, width, height - len(lines) - 2)
            return [*lines, [], [], *more]
        self.title += " by token"
        self.note_first(*render.heat_notes(view))
        head = [render.rollouts_line(group.rollouts, view.rollout_at, width)]
        reason = detail.missing if detail else ""
        if detail and view.against:
            reason = "this prompt has no earlier answer to compare with"
        sections, side_width = render.SECTIONS, 0
        if width >= TWO_COLUMNS:  # the other answers stand beside the tokens of this one
            side_width = width - max(TOKENS, width * 9 // 20) - GAP
            *sections_left, last = render.SECTIONS
            sections = (last,)
        column = width - side_width - GAP * bool(side_width)
        head += paragraph(reason, column, 3, "label")
        space = height - len(head)
        lines = self._token_lines(completion, column, space, len(head))
        left = render.section_lines(sections, view, column, space - len(lines) - 1)
        lines += [[], *left] if left else []
        if side_width:
            right = render.section_lines(sections_left, view, side_width, space)
            pairs: Iterator[tuple[Line, Line]] = zip_longest(lines, right, fillvalue=[])
            lines = [justified(a, b, column + GAP + cells(b)) for a, b in pairs]
        return [*head, *lines]

    def _token_lines(
        self, completion: RolloutTokens, width: int, height: int, top: int
    ) -> list[Line]:
        """The text around the cursor, and the numbers of its token."""
        view, parts = self.view, {"": [[("" if self.view.loaded else READING, "label")]]}
        self._text_top, self._text_width = top, width
        if completion.row is not None and completion.row.ids and view.step is not None:
            parts = render.token_parts(completion, view.token, view.step.run, width)
        count = sum(map(len, parts.values()))
        min_lines = min(render.TEXT_LINES, height - 1 - render.NUMBER_LINES)
        text = self._text(completion, width, max(2, height - 1 - count, min_lines))
        return [*text, [], *render.fitted(parts, max(1, height - 1 - len(text)))]

    def _text(self, completion: RolloutTokens, width: int, height: int) -> list[Line]:
        view = self.view
        rows, shades = render.text_rows(completion, width), view.shades
        indices = render.visible_rows(rows, view.token, 2 if shades else 1, height, self._top)
        self._top = indices.start
        cache = [
            (row, render.row_lines(completion, view.token, row, shades))
            for row in rows[indices.start : indices.stop]
        ]
        self._row_tokens = [row.cells for row, lines in cache for _ in lines]
        return [line for _, lines in cache for line in lines]

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked token, or the one that follows a clicked note."""
        x, y = self.inside(event.offset) - Offset(0, self._text_top)
        if 0 <= y < len(self._row_tokens) and x < self._text_width:
            cells, tokens = self._row_tokens[y], self.view.tokens
            token = cells[min(x, len(cells) - 1)]
            self.action_move(0, bisect_right(tokens, token) - bisect_right(tokens, self.view.token))


class RewardPanel(RolloutsPanel, ScrolledPanel):
    """The parts of the reward, and how they compare within the group."""

    help_topic = "panel:why"
    unseen = OF_LISTS | OF_TOKENS | {"search", "prompts", "against", "detail"}

    def paint(self, width: int, height: int) -> list[Line]:
        lines = render.reward_lines(self.view, width)
        more = render.group_reward_lines(self.view, width)
        return self.scrolled(lines + more * (len(lines) + len(more) <= height), height)

    def watch_view(self, old: RolloutsView, new: RolloutsView) -> None:
        """Begin with the reward of another answer."""
        if old.rollout is not new.rollout:
            self._top = 0


class RolloutsScreen(WorkbenchScreen):
    """Every answer of a run, down to the token."""

    mode = "rollouts"
    find_hint = "find a text in all prompts and answers of the run"
    parent_mode = "watch"
    CSS_PATH = "rollouts.tcss"
    BINDINGS = bindings("rollouts")

    view: reactive[RolloutsView] = reactive(RolloutsView, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._requested: int | None = None  # the run that was last requested
        self._watched: int | None = None  # the run that was last shown in the workbench
        self._following = True
        self._answers_only = False  # of searches
        self._seen_step = -1
        self._train_step = 0  # the last one shown of training prompts
        self._loading: int | None = None  # the step that is being read
        self.typing_pause: Callable[[], Awaitable[None]] = partial(asyncio.sleep, TYPING_S)

    def body(self) -> ComposeResult:
        """A history line and three panes."""
        yield HistoryBar(id="history")
        with Horizontal(id="panes"):
            yield GroupsPanel("groups", id="groups")
            yield CompletionPanel("answer", id="answer")
            yield RewardPanel("why this reward", id="why")

    def on_mount(self) -> None:
        """Focus the answer first."""
        self.query_one(CompletionPanel).focus()
        self.key_bar.hidden = NEED_ROLLOUTS

    # -- which run and step -----------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the run on Watch, which this screen follows, and the step have been read."""
        session = self.workbench.session
        return super().ready and (session is None or session.opened)

    def show(self, snapshot: Snapshot) -> None:
        """Follow the run on Watch until the user picks a step; follow each newly opened run."""
        session = self.workbench.session
        if session is None or not session.run:  # a run that is still being opened
            if self._watched and session is None:
                self._watched, self._requested = 0, None
                self.view = self.view.cleared()
            return
        step, name = self.view.step, "" if snapshot.reading else snapshot.head.name
        if step is not None and step.run.key == session.run and name not in ("", step.run.name):
            self.update(step=replace(step, run=replace(step.run, name=name)))
        if session.run != self._watched:
            self._following = self._following or self._watched is not None
            self._watched = session.run
        other = self._requested is None or (self._following and self._requested != session.run)
        if other or (self._following and snapshot.step != self._seen_step):
            self._load(session.run if other else None, step=None)
        elif (
            snapshot.step != self._seen_step
            and (detail := self.view.loaded)
            and detail.missing == UNFINISHED
        ):
            self.opening = self._read_group(detail.group)
        self._seen_step = snapshot.step

    def again(self) -> None:
        """Go to the newest step, and follow the run."""
        if self.view.step is not None:
            self._following = True
            self._load(None, None)

    def receive(self, message: RolloutOpened) -> None:
        """Open the answer that another screen requests."""
        self._following = False
        at = message.group, message.rollout
        self._load(message.run or None, message.step, message.origin, at)

    def _load(
        self,
        run: int | None,
        step: int | None,
        origin: Origin = "train",
        at: tuple[int, int] | None = None,
    ) -> None:
        # a step requested before its run was read must not be taken from the previous run
        self._requested = run if run is not None else self._requested
        self._loading = step
        worker = self._read_step(self._requested, step, origin, at)
        if run is not None or step is not None or self.view.step is None:
            self.opening = worker

    @work(exclusive=True, group="step")
    async def _read_step(
        self, run: int | None, step: int | None, origin: Origin, at: tuple[int, int] | None
    ) -> None:
        current = self.view.step.run if self.view.step else None
        source = current if current is not None and run in (None, current.key) else run or 0
        with reporting(self):
            groups = await self.read("step", load_step, source, step, origin)
            self._loading = None
            if step is not None and groups.step != step:
                self.notify(f"Step {step} has no recorded answers; this is step {groups.step}.")
            view = self.view
            if source is not current:
                view = view.cleared()
            self.view = view.with_step(groups, at)

    def watch_view(self, _old: RolloutsView, new: RolloutsView) -> None:
        """Pass the view to every panel, and read the numbers of the selected group."""
        if not self.is_mounted:
            return
        self.set_class(bool(new.search or new.prompts), "-finding")
        self.set_class(new.compared is not None, "-comparing")
        self.key_bar.hidden = NOT_OF_HITS if new.search else frozenset()
        self.key_bar.hidden |= frozenset() if new.group else NEED_ROLLOUTS
        self.key_bar.renamed = {"prompt(1)": "next hit"} if new.search else {}
        for panel in self.query(RolloutsPanel):
            panel.show_view(new)
        if new.group is not None and new.loaded is None:
            self.opening = self._read_group(new.group)

    @work(exclusive=True, group="group")
    async def _read_group(self, group: GroupView) -> None:
        step = self.view.step
        with reporting(self):
            if step is not None:
                detail = await self.read("group", load_group, step, group)
                self.view = self.view.with_detail(detail)

    # -- moves ------------------------------------------------------------------------------

    def _move(self, view: RolloutsView) -> None:
        """Move the cursor, and stop following the run."""
        self._following, self.view = False, view

    @on(Panel.Moved, "#groups")
    def move_group(self, event: Panel.Moved) -> None:
        self.action_prompt(event.rows)

    @on(Panel.Moved, "#answer")
    def move_in_completion(self, event: Panel.Moved) -> None:
        """Move by tokens, or by answers."""
        if event.columns or abs(event.rows) == LAST:
            self._move(self.view.move_token(event.columns or event.rows))
        else:
            self._move(self.view.move_rollout(event.rows))

    def on_completion_panel_turned(self, message: CompletionPanel.Turned) -> None:
        """Go to another turn of a dialogue, or from long thinking to the answer."""
        self._move(self.view.move_turn(message.by))

    def action_prompt(self, by: int) -> None:
        """Go to another prompt of the step, or to another hit of a search."""
        if self.view.hits:
            self._open_hit(self.view.hit + by)
        elif self.view.search is None:
            self._move(self.view.move_group(by))

    def action_heat(self) -> None:
        """Shade by the next measure."""
        index = HEAT_MODES.index(self.view.mode) + 1
        self.update(mode=HEAT_MODES[index % len(HEAT_MODES)], highlights=())  # the title names it

    def action_step(self, by: int) -> None:
        """Go to another step that has groups of this origin, or hits of the search."""
        search = self.view.search
        if search and search.matches:
            self._open_hit(search.at_step(self.view.hit, by))
        elif (step := self.view.step) is not None:
            current = step.step if self._loading is None else self._loading
            self._go_to_step(nearest_step(step.steps, current, by))

    def action_step_at(self) -> None:
        """Ask for a step to go to."""
        hint = "A step, or -50 for 50 steps earlier."
        if self.view.step and self.view.step.origin == "train":
            hint += " Each has other prompts; t changes to prompts that are asked at many steps."
        self.input_step(hint, self.view.cursor[0], self._go_to_step)

    def _go_to_step(self, target: int) -> None:
        step = self.view.step
        if step is not None and step.steps:
            self._following = target == step.steps[-1] and step.origin == "train"
            self._load(None, max(0, target), step.origin)

    def action_origin(self) -> None:
        """Switch between training, pinned and held-out prompts, those greedy or sampled."""
        view, step = self.view, self.view.step
        if view.search and view.search.matches:
            self._open_hit(view.search.at_origin(view.hit))
            return
        if step is None:
            return
        if other := view.other_sampling():
            self._move(other)
            return
        origins = [o for o in ORIGINS if o in ("train", step.origin) or step.steps_of[o]]
        origin = origins[(origins.index(step.origin) + 1) % len(origins)]
        self._following = False
        if step.origin == "train":
            self._train_step = step.step
        self.view = replace(view, greedy=True)
        self._load(None, nearest_step(step.steps_of[origin], self._train_step), origin)

    # -- the same prompt at another step ----------------------------------------------------

    def action_visit(self, by: int) -> None:
        """Go to the same prompt at another step."""
        if visit := self.view.visit(by):
            self._following = False
            self._load(None, visit.step, visit.origin, (visit.index, self.view.rollout_at))
        else:
            when = "earlier" if by < 0 else "later"
            self.notify(
                f"This prompt has no {when} answers; t shows prompts sampled at many steps."
            )

    def action_compare_visits(self) -> None:
        """Compare answers with those of the visit before, the first with the newest, or neither."""
        order: dict[str, Against] = {"": "before", "before": "first", "first": ""}
        self.update(against=order[self.view.against])

    # -- clipped tokens, and the furthest by a sort ----------------------------------------

    def action_highlight(self, by: int) -> None:
        """Go to the next clipped token of this step or of a later one, or to the one before."""
        if self.view.step is not None:
            self._go_to_highlight(self.view.step, "clipped", by, self.view.cursor)

    @work(exclusive=True, group="highlight")
    async def _go_to_highlight(
        self, step: GroupList, measure: Measure, by: int, cursor: Cursor
    ) -> None:
        self._move(self.view)
        highlights = self.view.highlights if self.view.measure == measure else ()
        start, has_any, backward = step, bool(highlights), by < 0
        highlight, distance = next_highlight(highlights, cursor, by), by if highlights else 0
        with reporting(self):
            while highlight is None:
                last = step.step
                step, highlights = await self.read(
                    "highlights", load_highlights, step, measure, distance
                )
                has_any |= bool(highlights and not distance)
                if distance and step.step == last:
                    if by < 0 or has_any:
                        self._report_no_highlight(measure, backward=backward, in_step=has_any)
                        return
                    # None here or later, as in a step that is being trained: go to the latest.
                    step, by = start, -1
                    distance = by
                else:
                    highlight, distance = next_highlight(highlights, cursor, by), by
            self.query_one(FindBar).close()  # the token is in no hit
            view = self.view if self.view.step is step else self.view.with_step(step)
            view = replace(view, measure=measure, highlights=highlights, search=None)
            self._move(view.at_highlight(highlight))

    def _report_no_highlight(self, measure: Measure, *, backward: bool, in_step: bool) -> None:
        """Say that there is no earlier or no later highlight, or none, and why."""
        name, detail = MEASURES[measure], self.view.loaded
        text = f"No {name} in this run."
        if backward:
            text = f"No earlier {name} in this run; f goes to later ones."
        elif in_step:
            text = f"No later {name} in this run; F goes to earlier ones."
        if detail and detail.missing and (backward or detail.missing != UNFINISHED):
            text = f"No {name}: {detail.missing}."
        self.notify(text)

    def action_sort(self) -> None:
        """Ask what to sort the groups by."""
        self._following = False
        options: list[tuple[Order | OverRun, str, str, str]] = [
            *((order, key, name, text) for order, (key, name, text, _) in ORDERS.items()),
            *OVER_RUN,
        ]
        question = "The cursor goes to the first group, or to the answer or token that is named."
        dialog = Choice[Order | OverRun]("sort groups", question, options)
        self.app.push_screen(dialog, self._sort)

    def _sort(self, order: Order | OverRun | None) -> None:
        step = self.view.step
        if order is None or step is None:
            return
        match order:
            case "run":
                self.opening = self._list_prompts(step)
            case "highest" | "lowest":
                self.opening = self._go_to_extreme(step, lowest=order == "lowest")
            case _:
                self._sort_step(step, order)

    def _sort_step(self, step: GroupList, order: Order) -> None:
        self.query_one(FindBar).close()
        self.update(search=None)
        if self.view.prompts:
            self.opening = self._leave_list(order)
        else:
            self._order(step, order)

    def _order(self, step: GroupList, order: Order) -> None:
        self.view = self.view.ordered_by(order)
        if measure := ORDERS[order][-1]:  # its first in the answer, or in the step
            parts = 3 if measure == "clipped" else 1
            self._go_to_highlight(step, measure, 1, self.view.cursor[:parts])

    # -- the prompts of the run -------------------------------------------------------------

    @work(exclusive=True, group="prompts")
    async def _go_to_extreme(self, step: GroupList, *, lowest: bool) -> None:
        """Go to the newest answer with the lowest or the highest reward of the run."""
        with reporting(self):
            args = step.run.key, step.origin
            item = await self.read(
                "prompts", lambda reader: reader.extreme_rollout(*args, lowest=lowest)
            )
            if item is None:
                self.notify("No answer of this run has a reward.")
                return
            self.query_one(FindBar).close()
            self.update(search=None, prompts=(), order="prompt")
            self._following = False
            self._load(None, item.step, step.origin, (item.group_index, item.index))
            kind = "lowest" if lowest else "highest"
            self.notify(
                f"The {kind} reward of the run is {short(item.reward)}: "
                f"{count_of(item.count, 'answer')}, this is the newest."
            )

    @work(exclusive=True, group="prompts")
    async def _list_prompts(self, step: GroupList) -> None:
        """List the prompts of one kind over the run, and go to the one that fails most."""
        group = self.view.group
        greedy = is_greedy(group) if group else False
        with reporting(self):
            prompts = await self.read("prompts", load_prompts, step, greedy)
            self.view = self.view.with_prompts(prompts)
            if prompts:
                self._open_hit(0)

    @work(exclusive=True, group="step")
    async def _leave_list(self, order: Order | None = None) -> None:
        """Close the list of the run's prompts, and return to the step that was shown before it."""
        listed, (step, group, rollout, _) = self.view.step, self.view.listed_from
        self.update(prompts=())
        with reporting(self):
            if listed is not None:
                groups = await self.read("step", load_step, listed.run, step, listed.origin)
                self.view = self.view.with_step(groups, (group, rollout))
                if order is not None:
                    self._order(groups, order)

    def leave(self, quits: bool = False) -> None:
        """Close the list of the run's prompts before the screen is left."""
        if self.view.prompts and not quits:
            self.opening = self._leave_list()
        else:
            super().leave(quits)

    # -- what leaves the screen -------------------------------------------------------------

    def action_pin(self) -> None:
        """Ask the run to follow this prompt."""
        group, step, session = self.view.group, self.view.step, self.workbench.session
        if group is None or step is None or session is None:
            return
        if session.run != step.run.key or not self.snapshot.active:
            self.notify("Only an active run can follow another prompt.")
        elif not self.workbench.refused(session.feed.may_control):
            session.feed.pin(group.example_key)
            self.notify("Pinned: this prompt will be sampled again during the run.")

    def exports(self) -> Iterator[Export]:
        """The answer, by token or to read."""
        step, group, completion = self.view.step, self.view.group, self.view.completion
        if step is None or group is None or completion is None:
            return
        rollout, run = completion.rollout, step.run
        answer = letter(rollout.index)
        stem = f"{file_stem(run.name)}-step-{step.step}-{group.index + 1}{answer}"
        description = f"prompt, answer {answer} and its rewards, to read"
        write: Callable[[Path], object] = partial(write_text, run, group, rollout)
        yield Export(key="t", name="text", description=description, file=f"{stem}.txt", write=write)
        description = f"answer {answer} with the numbers of each token"
        write = partial(write_json, run, group, completion)
        yield Export(
            key="j", name="JSON", description=description, file=f"{stem}.json", write=write
        )

    def action_lab(self) -> None:
        """Open the lab on this step and this answer, or on the last step of training before it."""
        step, (_, group, rollout, _) = self.view.step, self.view.cursor
        if step is not None:
            self.opening = self._open_lab(step, (group, rollout))

    @work(exclusive=True, group="lab")
    async def _open_lab(self, step: GroupList, selected: tuple[int, int]) -> None:
        """Open the lab, after a yes to the functions of a run that began elsewhere."""
        from grpo_tui.app.tui.dialogs.trust import trusting
        from grpo_tui.app.tui.screens.rollouts.lab.screen import LabScreen

        with reporting(self):
            if step.origin != "train":
                step = await self.read("lab", load_step, step.run, step.step)
                selected = (0, 0)
            if not step.groups:
                self.notify("The lab computes with training prompts, and none are recorded yet.")
                return
            if step.run.recipe.functions:
                allowed = await trusting(self, "lab", with_functions, step)
                if allowed is None:
                    return
                step = allowed
            self.app.push_screen(LabScreen(step, selected, self.snapshot))

    # -- search -----------------------------------------------------------------------------

    def find(self, text: str) -> None:
        """Search all answers and prompts of the run once the user stops typing."""
        self._begin_search(text, self.typing_pause)

    def _begin_search(self, text: str, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self.workers.cancel_group(self, "search")
        search = Search(text=text, answers_only=self._answers_only)
        new = search if self.view.step is not None and text.strip() else None
        self.update(search=new, hit=0, prompts=())
        if self.view.step is not None and new is not None:
            self._search(self.view.step.run.key, text, pause)

    @work(exclusive=True, group="search")
    async def _search(
        self, run: int, text: str, pause: Callable[[], Awaitable[None]] | None
    ) -> None:
        with reporting(self):
            if pause is not None:
                await pause()
            only = self._answers_only
            results = await self.read("search", search, run, text, answers_only=only)
            result = Search(text=text, answers_only=only)
            while not result.done and self.view.step and self.view.step.run.key == run:
                result = await self.read("search", lambda _: next(results))
                old = self.view.search or result
                self.update(search=replace(result, first=old.first, hits=old.hits))
                if result.matches and not old.matches:
                    self._open_hit(0)

    def action_answers_only(self) -> None:
        """Leave the hits in prompts out of the search, or take them again."""
        if self.view.search is None:
            self.notify("In a search this leaves out prompts.")
            return
        self._answers_only = not self._answers_only
        self._begin_search(self.view.search.text)

    def _open_hit(self, index: int) -> None:
        """Go to a hit of the search, or to a prompt of the run; read its text first."""
        self._move(replace(self.view, hit=clamped(index, self.view.hits)))
        step = self.view.step
        if (item := self.view.item) is not None and step is not None:
            self.workers.cancel_group(self, "step")
            self._loading = None
            indices = {group.index for group in step.groups}
            same = (step.step, step.origin) == (item.step, item.origin)
            if same and item.group_index in indices:
                self._move(self.view.at_rollout(item.group_index, item.index))
            else:
                self._load(None, item.step, item.origin, (item.group_index, item.index))
        elif self.view.search is not None:
            self.opening = self._read_hits(self.view.search)

    @work(exclusive=True, group="hits")
    async def _read_hits(self, search: Search) -> None:
        with reporting(self):
            read = await self.read("hits", load_hits, search, self.view.hit)
            current = self.view.search
            if current is not None and current.text == read.text:
                self.update(search=replace(current, first=read.first, hits=read.hits))
                if self.view.item is not None:
                    self._open_hit(self.view.hit)
