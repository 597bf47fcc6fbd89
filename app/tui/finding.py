"""What the command palette finds besides actions: metrics, settings, runs and help."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from textual.command import Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from app.text.safe_text import safe
from app.tui import messages as msg
from app.tui.lifecycle import RunApp
from app.tui.screens.base import WorkbenchScreen
from experiments.errors import StoreError
from experiments.values import RunSummary

MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """Something to go to by its name."""

    name: str
    help: str
    go: Callable[[], object]


class Finding(Provider):
    """Finds what has a name."""

    _runs: tuple[RunSummary, ...] = ()

    async def startup(self) -> None:
        """Read the runs once."""
        app = self.app
        if isinstance(app, RunApp):
            try:
                self._runs = await app.reader.ask(lambda reader: reader.runs(limit=MOST_RUNS))
            except StoreError:
                self._runs = ()  # there is no store yet

    async def search(self, query: str) -> Hits:
        """Yield what matches."""
        matcher = self.matcher(query)
        for found in self._named():
            score = matcher.match(found.name)
            if score > 0:
                yield Hit(score, Content(found.name), found.go, found.name,
                          escape(safe(found.help)))  # fmt: skip

    def _named(self) -> Iterator[Found]:
        from app.tui.dialogs.help.topics import ALERTS, PANELS
        from grpo_engine.config.parse import settings
        from grpo_engine.metrics import spec

        app, screen = self.app, self.screen
        if not isinstance(app, RunApp) or not isinstance(screen, WorkbenchScreen):
            return
        for run in self._runs:
            about = (run.status, f"step {run.step}", run.recipe, run.task, *run.tags, run.note)
            yield Found(f"Run: {safe(run.name or run.id)}", " · ".join(filter(None, about)),
                        partial(app.post_message, msg.RunOpened(run.id)))  # fmt: skip
        for key in metric_names(screen):
            one = spec(key)
            label = key if one.label == key else f"{one.label} ({key})"
            shown = key in screen.snapshot.series
            go = (partial(app.post_message, msg.MetricRequested(key)) if shown
                  else partial(screen.explain, f"metric:{key}"))  # fmt: skip
            yield Found(f"Metric: {label}", one.help, go)
        for path, info in settings().items():
            yield Found(f"Setting: {path}", info.help.replace("`", ""),
                        partial(app.post_message, msg.NewRunRequested(setting=path)))  # fmt: skip
        for name, part in PANELS.items():
            yield Found(f"Help: {part.heading}", part.paragraphs[0][1],
                        partial(screen.explain, f"panel:{name}"))  # fmt: skip
        for rule, (what, _) in ALERTS.items():
            yield Found(f"Help: alert {rule}", what, partial(screen.explain, f"alert:{rule}"))


def metric_names(screen: WorkbenchScreen) -> tuple[str, ...]:
    """The metrics of the shown run, then all other known ones."""
    from grpo_engine.metrics import METRICS

    return tuple(dict.fromkeys((*screen.snapshot.series, *METRICS)))
