"""The help screen: the topic asked about, the keys of the screen, and every metric."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app.run_state import Snapshot
from app.safe_text import safe
from app.screens.base import WorkbenchScreen
from app.screens.help.topics import PANELS, Part, metric_parts, topic_parts
from app.widgets.key_bar import key_name

Keys = list[tuple[str, str]]


def keys_of(screen: WorkbenchScreen) -> Keys:
    """The keys that do something here, with what they do."""
    found: dict[tuple[str, str], list[str]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description:
            text = binding.tooltip or binding.description
            found.setdefault((binding.description, text), []).append(key_name(binding.key))
    return [(" ".join(dict.fromkeys(keys)), text) for (_, text), keys in found.items()]


def content_of(part: Part) -> Content:
    """A part as it is shown; texts are made safe."""
    pieces: list[Content] = [Content.styled(safe(part.heading), "bold $headline"), Content("\n")]
    for word, text in part.paragraphs:
        if word:
            pieces.append(Content.styled(f"{safe(word)}  ", "$accent"))
        pieces += [Content.styled(safe(text, "\n"), "$foreground"), Content("\n")]
    return Content("").join(pieces)


class HelpScreen(ModalScreen[None]):
    """Explains; typing filters the metrics."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > Vertical {
        width: 92; max-width: 98%; height: 90%; border: round $border; background: $background;
        border-title-color: $headline; border-subtitle-color: $text-muted; padding: 0 1;
    }
    HelpScreen VerticalScroll { height: 1fr; background: $background; }
    HelpScreen Static { margin-bottom: 1; width: 100%; height: auto; }
    HelpScreen .head { color: $text-muted; }
    HelpScreen Input { border: none; height: 1; padding: 0; background: $panel; }
    HelpScreen Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "dismiss", "close", id="help.close",
                tooltip="Back to where you were"),
        Binding("slash", "filter", "filter", id="help.filter", tooltip="Filter the metrics"),
    ]  # fmt: skip

    def __init__(self, topic: str, base: WorkbenchScreen, snapshot: Snapshot) -> None:
        super().__init__()
        self._topic = topic
        self._keys = keys_of(base)
        self._snapshot = snapshot
        self._mode = base.mode

    def compose(self) -> ComposeResult:
        """Topic, keys, panels, metrics."""
        with Vertical() as box:
            box.border_title = "help"
            box.border_subtitle = "↑↓ scroll   / filter   esc close"
            with VerticalScroll():
                for part in topic_parts(self._topic, self._snapshot):
                    yield Static(content_of(part), classes="topic")
                if not self._topic.startswith("screen:"):
                    for part in topic_parts(f"screen:{self._mode}", self._snapshot):
                        yield Static(content_of(part))
                yield Static(content_of(Part("keys", tuple(self._keys))))
                if self._mode == "watch":
                    for part in PANELS.values():
                        yield Static(content_of(part))
                yield Static("every metric", classes="head")
                for part in metric_parts(self._snapshot):
                    yield Static(content_of(part), classes="metric", name=_haystack(part))
            yield Input(placeholder="type to filter the metrics")

    def on_mount(self) -> None:
        """Arrows scroll at once."""
        self.query_one(VerticalScroll).focus()

    def action_filter(self) -> None:
        """Type into the filter."""
        self.query_one(Input).focus()

    @on(Input.Changed)
    def filter_metrics(self, event: Input.Changed) -> None:
        """Keep the metrics that hold the text."""
        needle = event.value.casefold()
        for item in self.query(".metric"):
            item.display = needle in (item.name or "")
        scroll = self.query_one(VerticalScroll)
        if needle:
            scroll.scroll_to_widget(self.query_one(".head"), animate=False, top=True)


def _haystack(part: Part) -> str:
    return " ".join((part.heading, *(text for _, text in part.paragraphs))).casefold()
