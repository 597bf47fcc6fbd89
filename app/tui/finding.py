"""What the palette finds: actions, questions, metrics, settings, runs and help."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape
from textual.screen import Screen

from grpo_tui.app.text.numbers import with_unit
from grpo_tui.app.text.run_text import run_summary
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui.key_actions import key_actions
from grpo_tui.app.tui.lifecycle import RunApp
from grpo_tui.app.tui.looks.colours import PALETTES
from grpo_tui.app.tui.questions import questions
from grpo_tui.app.tui.screens.base import Entry, WorkbenchScreen
from grpo_tui.app.tui.widgets.top_bar import TABS
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import RunSummary

MAX_RUNS, MAX_HITS = 1000, 50
PARTS = re.compile(r"[^\w+-]+")
# Words of a question that do not say what it is about.
SMALL_WORDS = (
    "a an and are be did do does for have how i in is it my of on or that the this to was what "
    "where which why with would"
).split()


class NameProvider(Provider):
    """Finds what has a name."""

    _actions: tuple[Entry, ...] = ()
    _questions: tuple[Entry, ...] = ()
    _entries: tuple[Entry, ...] = ()
    _reading: asyncio.Task[tuple[Entry, ...]] | None = None

    async def startup(self) -> None:
        """List all names; those of runs follow once they are read."""
        app, screen = self.app, self.screen
        self._actions = tuple(_actions(app, screen))
        if not isinstance(app, RunApp) or not isinstance(screen, WorkbenchScreen):
            return
        self._questions = tuple(_questions(app, screen))
        self._entries = (
            *_metrics(app, screen),
            *screen.entries(),
            *_settings(app),
            *_helps(screen),
        )
        self._reading = asyncio.create_task(_read_runs(app, screen))

    async def shutdown(self) -> None:
        """Read no further."""
        if self._reading is not None:
            self._reading.cancel()

    async def names(self) -> tuple[Entry, ...]:
        """All names, those of runs included."""
        runs = await asyncio.shield(self._reading) if self._reading is not None else ()
        return (*self._actions, *self._entries, *runs, *self._questions)

    async def discover(self) -> Hits:
        """Yield the questions, the screens, and the actions of this screen before all others."""
        for entry in (*self._questions, *self._actions):
            yield DiscoveryHit(_title(entry), entry.go, entry.name, escape(safe(entry.help)))

    async def search(self, query: str) -> Hits:
        """Yield what matches best."""
        for score, entry in best(await self.names(), query):
            yield Hit(score, _title(entry), entry.go, entry.name, escape(safe(entry.help)))


def _title(entry: Entry) -> Content:
    return Content.assemble(entry.name, ("   " + entry.value, "$accent"))


def best(entries: Iterable[Entry], query: str) -> list[tuple[float, Entry]]:
    """Return what answers the query or matches all its terms, with its score, the best first."""
    typed = query.casefold().replace("?", " ").split()
    terms = [word for word in typed if word not in SMALL_WORDS] or typed
    scored = ((_answers(entry, typed) or _match(entry, terms), entry) for entry in entries if terms)
    matches = [match for match in scored if match[0]]
    return sorted(matches, key=lambda match: -match[0])[:MAX_HITS]


def _answers(entry: Entry, typed: Sequence[str]) -> float:
    """2 where these are the first words of a question that the entry is for."""
    text = " ".join(typed)
    begins = any(question.startswith(text) for question in entry.also.split(", "))
    return 2.0 * (begins and len(typed) > 1)


def _match(entry: Entry, terms: Sequence[str]) -> float:
    return min(_score(entry, term) for term in terms)


def _score(entry: Entry, term: str) -> float:
    """1 for a whole word of the name, less for a part or for other words, least in the help."""
    for text, weight in ((entry.name, 1.0), (entry.also, 0.9)):
        if term in text.casefold():
            parts = PARTS.split(text.casefold())
            begins = any(part.startswith(term) for part in parts)
            return weight * (1.0 if term in parts else 0.75 if begins else 0.5)
    return 0.25 if term in entry.help.casefold() else 0.0


def _actions(app: Any, screen: Screen[Any]) -> Iterator[Entry]:
    """The screens, then what the key bar offers, then the rest, without what is of no use now."""
    unused = screen.key_bar.hidden if isinstance(screen, WorkbenchScreen) else ()
    items = [item for item in key_actions(screen) if item.action not in unused]
    for item in sorted(items, key=lambda item: (not item.switches, item.everywhere, item.hidden)):
        name = item.name[:1].upper() + item.name[1:]
        keys = f"  ({item.keys})" if item.keys else ""
        go = partial(app.run_action, item.action, item.node)
        yield Entry(name, item.help + keys, go, item.also)
    for theme in PALETTES:
        yield Entry(
            f"Theme: {theme}", "Colours of the whole workbench", partial(app.change_theme, theme)
        )


def _questions(app: RunApp, screen: WorkbenchScreen) -> Iterator[Entry]:
    """Questions, with what can be said of the open run in a sentence, else with their screen."""
    for question in questions():
        word, sentence = question.short_answer(screen.snapshot, app)
        text = sentence or f"See {TABS[question.mode][2:]}"
        go = partial(question.show_answer, app)
        yield Entry(question.text, text, go, question.also, word)


def _metrics(app: RunApp, screen: WorkbenchScreen) -> Iterator[Entry]:
    from grpo_engine.metrics import METRICS, spec

    series = screen.snapshot.series
    lacking = "" if screen.snapshot.status == "empty" else "not in this run"
    recorded = sorted(series, key=[*METRICS, *series].index)
    for key in dict.fromkeys((*recorded, *METRICS)):
        metric = spec(key)
        label = key if metric.label == key else f"{metric.label} ({key})"
        go: Callable[[], object] = partial(screen.explain, f"metric:{key}")
        value = lacking
        if view := series.get(key):
            first, last = (with_unit(value, metric.unit) for value in (view.start, view.value))
            go = partial(app.post_message, msg.MetricRequested(key))
            value = f"first {first}, now {last}"
        yield Entry(f"Metric: {label}", metric.help, go, metric.also, value)


async def _read_runs(app: RunApp, screen: WorkbenchScreen) -> tuple[Entry, ...]:
    with suppress(StoreError):  # there is no store yet
        runs = await app.reader.read(lambda reader: reader.runs(limit=MAX_RUNS))
        return tuple(_runs(app, screen, runs))
    return ()


def _runs(app: RunApp, screen: WorkbenchScreen, runs: Sequence[RunSummary]) -> Iterator[Entry]:
    open_run, sweeps = screen.snapshot.head, defaultdict(list)
    for run in runs:
        name = safe(run.title)
        summary = run_summary(run)
        yield Entry(
            f"Run: {name}", summary, partial(app.post_message, msg.RunOpened(run.id, run.title))
        )
        if open_run.id and run.id != open_run.id:
            request = msg.CompareRequested((open_run.id, run.id))
            yield Entry(
                f"Compare with: {name}",
                summary,
                partial(app.post_message, request),
                "differs, differences",
            )
        if run.sweep:
            sweeps[run.sweep_id, run.sweep].append(run.id)
    for (_, sweep), refs in sweeps.items():
        request = msg.CompareRequested(tuple(reversed(refs)))
        yield Entry(
            f"Compare sweep: {safe(sweep)}",
            f"{len(refs)} runs: which setting is better, and how sure that is",
            partial(app.post_message, request),
        )


def _settings(app: RunApp) -> Iterator[Entry]:
    from grpo_engine.config.parse import settings

    for path, info in settings().items():
        yield Entry(
            f"Setting: {path}",
            info.help.replace("`", ""),
            partial(app.post_message, msg.NewRunRequested(setting=path)),
        )


def _helps(screen: WorkbenchScreen) -> Iterator[Entry]:
    from grpo_tui.app.tui.dialogs.help.topics import ALERTS, PANELS

    for name, part in PANELS.items():
        yield Entry(
            f"Help: {part.heading}", part.paragraphs[0][1], partial(screen.explain, f"panel:{name}")
        )
    for rule, what in ALERTS.items():
        yield Entry(f"Help: alert {rule}", what, partial(screen.explain, f"alert:{rule}"))
