"""The Rollouts screen: browse steps, groups, answers and tokens of a stored run."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.reactive import reactive

from grpo_engine.events import Origin
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.inspector.groups import SortKey, sorted_groups, visits
from grpo_tui.app.inspector.moments import MEASURES, Measure, Moment, in_order, next_moment
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.messages import RolloutOpened
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.rollouts.load import (
    ORIGINS,
    GroupDetail,
    Hits,
    RunFacts,
    Searcher,
    StepGroups,
    load_group,
    load_moments,
    load_step,
    run_facts,
)
from grpo_tui.app.tui.screens.rollouts.panels import (
    AnswerPanel,
    GroupPicked,
    GroupsPanel,
    HistoryBar,
    TokenPicked,
    ViewPanel,
    WhyPanel,
)
from grpo_tui.app.tui.screens.rollouts.texts import as_csv, as_json, as_markdown, show_in_pager
from grpo_tui.app.tui.screens.rollouts.view import View
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import GroupView

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MEASURE_KEYS: Final[dict[Measure, str]] = {
    "clipped": "c", "ratio": "r", "kl": "k", "probability": "p", "term": "t",
}  # fmt: skip
FOUND: Final[dict[Measure, str]] = {"kl": "KL", "probability": "prob."}  # as the key line says it
SORTS: Final[dict[SortKey, tuple[str, str, str, Measure | None]]] = {
    "prompt": ("p", "prompt", "as they were drawn", None),
    "surprise": ("s", "surprise", "the strongest push, at its least likely token", "probability"),
    "reward": ("r", "reward", "the best", None),
    "length": ("l", "length", "the longest", None),
    "kl": ("k", "KL", "the furthest from the reference, at its furthest token", "kl"),
    "clip": ("c", "clip", "the most clipped, at its first clipped token", "clipped"),
}
NEED_ANSWERS = frozenset({"token(1)", "answer(1)", "group(1)", "moment(1)", "lab", "sort", "heat",
                          "visit(1)"})  # fmt: skip
ONCE = "This prompt was sampled at no other step"
NOWHERE = (-1, -1, -1)  # before the first moment of a step
TYPING_S = 0.25  # without a key before a search begins


class RolloutsScreen(WorkbenchScreen):
    """Every answer of a run, down to the token."""

    mode = "rollouts"
    CSS_PATH = "rollouts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "token(1)", "token", id="rollouts.token", key_display="←→",
                tooltip="Go to the next token"),
        Binding("left,h", "token(-1)", "previous token", id="rollouts.token_before", show=False,
                tooltip="Go to the previous token"),
        Binding("home", "token(-1000000)", "first token", id="rollouts.first", show=False,
                tooltip="Go to the first token"),
        Binding("end", "token(1000000)", "last token", id="rollouts.last", show=False,
                tooltip="Go to the last token"),
        Binding("down,j", "answer(1)", "answer", id="rollouts.answer", key_display="↑↓",
                tooltip="Go to the next answer of the group"),
        Binding("up,k", "answer(-1)", "previous answer", id="rollouts.answer_before", show=False,
                tooltip="Go to the previous answer"),
        Binding("J", "group(1)", "group", id="rollouts.group", key_display="J K",
                tooltip="Go to the next group of the step"),
        Binding("K", "group(-1)", "previous group", id="rollouts.group_before", show=False,
                tooltip="Go to the previous group"),
        Binding("f", "moment(1)", "clipped", id="rollouts.moment",
                tooltip="Go to the next clipped token of the run, or whatever M chose"),
        Binding("F", "moment(-1)", "previous moment", id="rollouts.moment_before", show=False,
                tooltip="Go to the previous clipped token of the run, or whatever M chose"),
        Binding("M", "measure", "furthest", id="rollouts.measure", show=False,
                tooltip="Choose what f finds: clipped tokens, highest ratio, highest KL (furthest "
                        "from the reference), lowest probability, largest term"),
        Binding("v", "lab", "what if", id="rollouts.lab",
                tooltip="The lab: what other settings would have done to the steps or a group"),
        Binding("s", "sort", "sort", id="rollouts.sort",
                tooltip="Sort groups by surprise, reward, length, KL or clip, and go to the "
                        "furthest answer and token"),
        Binding("t", "origin", "kind", id="rollouts.origin",
                tooltip="Switch between training, pinned and evaluation prompts"),
        Binding("m", "heat", "heat", id="rollouts.heat",
                tooltip="Shade tokens by the next measure"),
        Binding("right_square_bracket,n", "visit(1)", "history", key_display="[ ] @",
                id="rollouts.visit", tooltip="The same prompt at a later step"),
        Binding("left_square_bracket,p", "visit(-1)", "same prompt, earlier step", show=False,
                id="rollouts.visit_before", tooltip="The same prompt at an earlier step"),
        Binding("at", "visit_at", "same prompt, typed step", id="rollouts.visit_at", show=False,
                tooltip="The same prompt at a step that you type, or -50 for 50 steps earlier"),
        Binding("L", "step(1)", "next step", id="rollouts.step", show=False,
                tooltip="Go to the next step of the run"),
        Binding("H", "step(-1)", "previous step", id="rollouts.step_before", show=False,
                tooltip="Go to the previous step"),
        Binding("pagedown", "turn(1)", "next turn", id="rollouts.turn", show=False,
                tooltip="Go to the next turn of a dialogue"),
        Binding("pageup", "turn(-1)", "previous turn", id="rollouts.turn_before", show=False,
                tooltip="Go to the previous turn of a dialogue"),
        Binding("space", "unfold", "all turns", id="rollouts.unfold", show=False,
                tooltip="Unfold every turn of a dialogue, or only the one at the cursor"),
        Binding("D", "diff", "diff", id="rollouts.diff", show=False,
                tooltip="Show the words that changed since this prompt was last sampled"),
        Binding("o", "pager", "pager", id="rollouts.pager", show=False,
                tooltip="Read the answer in your pager"),
        Binding("asterisk", "pin", "pin", id="rollouts.pin", show=False,
                tooltip="Follow this prompt through the rest of the run"),
    ]  # fmt: skip

    view: reactive[View] = reactive(View, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._run: RunFacts | None = None
        self._wanted: int | None = None  # the run that was last requested
        self._shown: int | None = None  # the run that was last shown in the workbench
        self._following = True
        self._seen_step = -1
        self._going: int | None = None  # the step that is being read
        self.typing_pause: Callable[[], Awaitable[None]] = partial(asyncio.sleep, TYPING_S)

    def body(self) -> ComposeResult:
        """A history line and three panes."""
        yield HistoryBar(id="history")
        with Horizontal(id="panes"):
            yield GroupsPanel(id="groups")
            yield AnswerPanel(id="answer")
            yield WhyPanel(id="why")

    def on_mount(self) -> None:
        """Focus the answer first."""
        self.query_one(AnswerPanel).focus()
        self.key_bar.hidden = NEED_ANSWERS | {"origin"}

    # -- what is shown ----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the run on Watch, which this screen follows, and the step have been read."""
        session = self.workbench.session
        return super().ready and (session is None or session.opened)

    def show(self, snapshot: Snapshot) -> None:
        """Follow the shown run until the user picks a step; follow each newly opened run."""
        for bar in self.query(HistoryBar):
            bar.live = snapshot.active
        session = self.workbench.session
        if session is None or not session.run:  # a run that is not in the store yet
            return
        if session.run != self._shown:
            first = self._shown is None
            self._shown = session.run
            self._following = self._following if first else True
        other = self._wanted is None or (self._following and self._wanted != session.run)
        if other or (self._following and snapshot.step != self._seen_step):
            self._seen_step = snapshot.step
            self._load(session.run if other else None, step=None)
        elif self.view.unfinished and snapshot.step != self._seen_step:
            self._seen_step = snapshot.step
            if self.view.chosen is not None:
                self.opening = self._read_group(self.view.chosen)

    def receive(self, message: Message) -> None:
        """Open the answer that another screen requests."""
        if isinstance(message, RolloutOpened):
            self._following = False
            origin: Origin = next((o for o in ORIGINS if o == message.origin), "train")
            self._load(message.run or None, message.step, origin, (message.group, message.answer))

    def _load(
        self, run: int | None, step: int | None, origin: Origin = "train",
        at: tuple[int, int] | None = None, arrived: str = "",
    ) -> None:  # fmt: skip
        # a step requested before its run was read must not be taken from the previous run
        self._wanted = run if run is not None else self._wanted
        self._going = step
        worker = self._read_step(self._wanted, step, origin, at, arrived)
        if run is not None or step is not None or self.view.step is None:
            self.opening = worker

    @work(exclusive=True, group="step")
    async def _read_step(
        self, run: int | None, step: int | None, origin: Origin, at: tuple[int, int] | None,
        arrived: str,
    ) -> None:  # fmt: skip
        facts = self._run
        ask = self.workbench.reader.ask
        try:
            if facts is None or (run is not None and run != facts.key):
                key = run if run is not None else 0
                facts = self._run = await ask(lambda reader: run_facts(reader, key), "run")
                self.view = View(mode=self.view.mode, unfolded=self.view.unfolded)
                self.key_bar.renamed = {}
            known: RunFacts = facts
            found = await ask(lambda reader: load_step(reader, known, step, origin), "step")
        except (StoreError, asyncio.CancelledError) as error:
            self._say(error)
            return
        self._going = None
        view = self.view.with_step(found)
        if at is not None:
            view = view.at_answer(*at)
        self.view = replace(view, arrived=arrived)

    def _say(self, error: BaseException) -> None:
        if isinstance(error, StoreError):
            self.notify(str(error), severity="error")

    def watch_view(self, _old: View, new: View) -> None:
        """Pass the view to every panel, and read the numbers of the selected group."""
        if not self.is_mounted:
            return
        self.set_class(new.search is not None, "-finding")
        changes = new.diff and new.earlier is not None
        hidden = frozenset(("token(1)", "heat") if changes else ())
        hidden |= frozenset() if new.chosen is not None else NEED_ANSWERS
        self.key_bar.hidden = hidden if new.step is not None else hidden | {"origin"}
        for panel in self.query(ViewPanel):
            panel.view = new
        if new.chosen is not None and new.shown is None:
            self.opening = self._read_group(new.chosen)

    @work(exclusive=True, group="group")
    async def _read_group(self, group: GroupView) -> None:
        step = self.view.step
        if step is None:
            return
        known: StepGroups = step
        try:
            detail: GroupDetail = await self.workbench.reader.ask(
                lambda reader: load_group(reader, known, group), "group"
            )
        except (StoreError, asyncio.CancelledError) as error:
            self._say(error)
            return
        self.view = replace(self.view, detail=detail)

    # -- moves ------------------------------------------------------------------------------

    def _move(self, view: View) -> None:
        """Move the cursor, and stop following the run."""
        self._following, self.view = False, view

    def action_token(self, by: int) -> None:
        self._move(self.view.move_token(by))

    def action_turn(self, by: int) -> None:
        """Go to another turn of the dialogue."""
        self._move(self.view.move_turn(by))

    def action_unfold(self) -> None:
        """Unfold every turn, or fold all but the one at the cursor."""
        self.view = replace(self.view, unfolded=not self.view.unfolded)

    def action_answer(self, by: int) -> None:
        """Go to another answer of the group."""
        self._move(self.view.move_answer(by))

    def action_group(self, by: int) -> None:
        """Go to another group, or to another search hit."""
        if self.view.hits:
            self._open_hit(self.view.hit + by)
        else:
            self._move(self.view.move_group(by))

    def action_step(self, by: int) -> None:
        """Go to another step that has groups of this origin."""
        step = self.view.step
        if step is None or not step.steps:
            return
        here = self._going if self._going in step.steps else step.step
        place = step.steps.index(here) if here in step.steps else 0
        target = max(0, min(len(step.steps) - 1, place + by))
        self._following = target == len(step.steps) - 1 and step.origin == "train"
        self._load(None, step.steps[target], step.origin)

    def action_visit(self, by: int) -> None:
        """Go to the same prompt at another step."""
        chosen, visit = self.view.chosen, self.view.visit(by)
        if visit is None:
            if chosen is not None and self.view.visit(-by) is not None:
                when = "before" if by < 0 else "after"
                self.notify(f"This prompt was not sampled {when} step {chosen.step}.")
            else:
                self.notify(f"{ONCE}; t shows pinned prompts, sampled at many.")
            return
        self._following = False
        self._load(None, visit.step, visit.origin, (visit.index, self.view.answer))

    def action_visit_at(self) -> None:
        """Ask for a step, and go to the same prompt there."""
        detail, chosen = self.view.shown, self.view.chosen
        opens = "The nearest one with this prompt opens."
        if detail is not None and chosen is not None and len(visits(detail.history, chosen)) < 2:
            opens = f"{ONCE}."
            if chosen.origin != "pinned":
                opens += " A pinned prompt at the nearest step opens instead."
        hint = f"A step, or -50 for 50 steps earlier. {opens}"
        self.app.push_screen(Ask("this prompt at another step", hint), self._ask_visit)

    def _ask_visit(self, text: str | None) -> None:
        chosen, step = self.view.chosen, self.view.step
        found = re.fullmatch(r"([+-]?)(\d+)", (text or "").strip())
        if found and chosen is not None and step is not None:
            here = chosen.step if found[1] else 0
            self._find_visit(step.run.key, chosen, here + int(f"{found[1]}{found[2]}"))
        elif text is not None:
            typed = f"“{text}” is no step" if text.strip() else "No step was typed"
            self.notify(f"{typed}: 150 is one, -50 is 50 steps back.")

    @work(exclusive=True, group="visit")
    async def _find_visit(self, run: int, group: GroupView, at: int) -> None:
        """Go to the visit nearest to a step; for a prompt that has only one, to pinned ones.

        An earlier step never leads to a later one, nor a later step to an earlier one.
        """

        def look(reader: "StoreReader") -> list[tuple[int, Origin, int]]:
            found = visits(reader.history(run, group.prompt_hash), group)
            others = [(one.step, one.origin, one.index) for one in found if one.step != group.step]
            if others or group.origin == "pinned":
                return others
            return [(step, "pinned", 0) for step in reader.group_steps(run, "pinned")]

        try:
            places = await self.workbench.reader.ask(look, "visit")
        except (StoreError, asyncio.CancelledError) as error:
            self._say(error)
            return
        if not places:
            self.notify(f"{ONCE}.")
            return
        if at == group.step and places[0][1] == group.origin:
            self.notify(f"This is step {at}.")
            return
        places = [one for one in places if (one[0] <= group.step) == (at <= group.step)]
        if not places:
            when = "before" if at <= group.step else "after"
            self.notify(f"This prompt was not sampled {when} step {group.step}.")
            return
        step, origin, index = min(places, key=lambda place: abs(place[0] - at))
        arrived = f"this prompt at step {step}" + ", the nearest" * (step != at)
        if origin != group.origin:
            self.notify(f"{ONCE}: this is a pinned one.")
            arrived = f"another prompt: pinned, step {step}"
        self._following = False
        self._load(None, step, origin, (index, self.view.answer), arrived)

    def action_origin(self) -> None:
        """Switch between training, pinned and evaluation prompts."""
        step = self.view.step
        if step is None:
            return
        place = ORIGINS.index(step.origin) if step.origin in ORIGINS else 0
        others = (*ORIGINS[place + 1 :], *ORIGINS[: place + 1])
        origin = next(o for o in others if o in ("train", step.origin) or step.counts[o])
        self._following = origin == "train"
        self._load(None, None, origin)

    def action_heat(self) -> None:
        """Shade by the next measure."""
        self.view = self.view.next_mode()

    def action_measure(self) -> None:
        """Choose what to find, and go to the first one."""
        self._following = False
        answers = [(name, key, *MEASURES[name]) for name, key in MEASURE_KEYS.items()]
        question = "f and F then go to the next and the previous one, also of other steps."
        self.app.push_screen(Choice[Measure]("find", question, answers), self._measure)

    def _measure(self, measure: Measure | None) -> None:
        if measure is not None and self.view.step is not None:
            self._set_measure(measure)
            self._find_moment(self.view.step, 1, NOWHERE)

    def _set_measure(self, measure: Measure) -> None:
        self.view = replace(self.view, measure=measure, moments=None, moment=None)
        self.key_bar.renamed = {"moment(1)": FOUND.get(measure, measure)}

    def action_moment(self, by: int) -> None:
        """Go to the next moment of the step, or to the first one of the next step that has any."""
        self._following = False
        view = self.view
        if view.step is not None:
            went_on = view.measure == "clipped" or view.found  # a step begins with its furthest
            self._find_moment(view.step, by, view.here if went_on else NOWHERE)

    @work(exclusive=True, group="moment")
    async def _find_moment(self, step: StepGroups, by: int, here: tuple[int, int, int]) -> None:
        measure, ask = self.view.measure, self.workbench.reader.ask
        place: int | None = None
        try:
            found = self.view.moments
            if found is None:
                found = await self._moments(step)
            groups = [group.index for group in self.view.groups]
            place = next_moment(measure, found, groups, here, by)
            ahead = step.steps.index(step.step) + by if step.step in step.steps else -1
            while place is None and 0 <= ahead < len(step.steps):
                read = partial(load_step, run=step.run, step=step.steps[ahead], origin=step.origin)
                step = await ask(read, "step")
                found = await self._moments(step)
                place = (0 if by > 0 else len(found) - 1) if found else None
                ahead += by
        except (StoreError, asyncio.CancelledError) as error:
            self._say(error)
            return
        if place is None:
            found_none = f"{'No later' if by > 0 else 'No earlier'} {measure} token in this run."
            found_none = found_none.replace(" kl ", " KL ")
            detail = self.view.shown
            if step.origin != "train":
                found_none = f"f finds {MEASURES[measure][0]} only in training prompts (t)."
            elif detail is not None and detail.missing and not self.view.moments:
                found_none = f"No {measure} token can be found: {detail.missing}."
            self.notify(found_none)
            return
        self._following = False
        view = self.view if self.view.step is step else self.view.with_step(step)
        self.view = replace(view, moments=found).at_moment(found[place])

    async def _moments(self, step: StepGroups) -> tuple[Moment, ...]:
        measure = self.view.measure
        found = await self.workbench.reader.ask(lambda r: load_moments(r, step, measure), "moments")
        listed = sorted_groups(step.groups, self.view.sort)
        return in_order(measure, found, [group.index for group in listed])

    def action_diff(self) -> None:
        """Toggle between the changes since the previous visit and the tokens."""
        self.view = replace(self.view, diff=not self.view.diff)

    def action_sort(self) -> None:
        """Ask what to sort the groups by."""
        self._following = False
        answers = [(sort, key, name, words) for sort, (key, name, words, _) in SORTS.items()]
        question = "The cursor goes to the first group and to the answer that put it there."
        self.app.push_screen(Choice[SortKey]("sort groups", question, answers), self._sort)

    def _sort(self, key: SortKey | None) -> None:
        if key is None or self.view.step is None:
            return
        self.view = self.view.sorted_by(key)
        measure = SORTS[key][-1]
        if measure is not None:
            self._set_measure(measure)
            self._find_in_answer(self.view.step)

    @work(exclusive=True, group="moment")
    async def _find_in_answer(self, step: StepGroups) -> None:
        """Go to the first moment of the answer under the cursor, if it has any."""
        here = self.view.here
        try:
            found = await self._moments(step)
        except (StoreError, asyncio.CancelledError) as error:
            self._say(error)
            return
        own = [one for one in found if (one.group, one.answer) == here[:2]]
        if own and self.view.step is step and self.view.here == here:
            self.view = replace(self.view, moments=found).at_moment(own[0])

    def action_pin(self) -> None:
        """Ask the run to follow this prompt."""
        chosen, session = self.view.chosen, self.workbench.session
        if chosen is None or session is None or self._run is None:
            return
        if session.run != self._run.key or not self.snapshot.active:
            self.notify("Only an active run can follow another prompt.")
        elif self.workbench.read_only or not session.feed.may_control:
            self.notify("This view is read-only.", severity="warning")
        else:
            session.feed.pin(chosen.example_key)
            self.notify("Pinned: this prompt will be sampled again during the run.")

    def action_lab(self) -> None:
        """Open the lab on this step and this group."""
        from grpo_tui.app.tui.screens.rollouts.lab.screen import LabScreen

        step = self.view.step
        if step is not None and step.steps and step.origin == "train":
            self.app.push_screen(LabScreen(step, self.view.chosen, self.view.answer,
                                           self.snapshot))  # fmt: skip
        else:
            twice = step is not None and step.origin == "pinned" and step.counts["eval"]
            self.notify(f"The lab needs training prompts: t{' twice' if twice else ''} shows them.")

    def action_pager(self) -> None:
        """Show the group in the pager."""
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
        elif self.view.chosen is not None:
            show_in_pager(self.app, as_markdown(self.view))

    # -- search and export ------------------------------------------------------------------

    def find(self, text: str) -> None:
        """Search all answers and prompts of the run once the user stops typing."""
        self.workers.cancel_group(self, "search")
        found = None
        if self._run is not None and text.strip():
            found = Hits(text=text)
            self._search(self._run, text)
        self.view = replace(self.view, search=found, hit=0)

    @work(exclusive=True, group="search")
    async def _search(self, run: RunFacts, text: str) -> None:
        searcher = Searcher(run, text)
        try:
            await self.typing_pause()
            while not searcher.hits.done and self._run is run:
                hits = await self.workbench.reader.ask(searcher.look, "search")
                first = not self.view.hits
                self.view = replace(self.view, search=hits)
                if first and hits.found:
                    self._open_hit(0)
        except (StoreError, InterruptedError, asyncio.CancelledError) as error:
            self._say(error)

    def _open_hit(self, place: int) -> None:
        hits = self.view.hits
        place = max(0, min(len(hits) - 1, place))
        hit = hits[place]
        self._following = False
        self.view = replace(self.view, hit=place)
        self._load(None, hit.step, hit.origin, (hit.group_index, hit.index))

    def exports(self) -> Mapping[str, Callable[[], str]]:
        """The shown step's answers as CSV, JSON or Markdown."""
        if self.view.step is None:
            return {}
        return {
            "csv": lambda: as_csv(self.view),
            "json": lambda: as_json(self.view),
            "md": lambda: as_markdown(self.view),
        }

    @on(GroupPicked)
    def choose_group(self, message: GroupPicked) -> None:
        """Choose the clicked group or search hit."""
        if self.view.search is not None:
            self._open_hit(message.place)
        else:
            self._move(self.view.move_group(message.place - self.view.group))

    @on(TokenPicked)
    def choose_token(self, message: TokenPicked) -> None:
        self._move(self.view.at_token(message.index))
