"""TooSmall: what covers a screen on a terminal that is too small for it; its keys go on working."""

from collections.abc import Iterator

from textual.keys import format_key
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.text.words import step_of
from grpo_tui.app.tui.widgets.panel import BarPanel, Line, paragraph

SMALLEST = (60, 16)
KEYS = ("run.pause", "run.stop", "mode.watch", "back", "quit")  # the most important first


def is_too_small(width: int, height: int) -> bool:
    """Whether a terminal is too small for the screens."""
    return width < SMALLEST[0] or height < SMALLEST[1]


class TooSmall(BarPanel):
    """The size that is needed, the keys that matter even so, and the state of the run."""

    DEFAULT_CSS = "TooSmall { layer: cover; dock: top; height: 100%; display: none; }"

    snapshot: reactive[Snapshot] = reactive(Snapshot)

    def _keys(self) -> Iterator[str]:
        active = {item.binding.id: item.binding for item in self.screen.active_bindings.values()}
        for name in KEYS:
            binding = active.get(name)
            idle = name.startswith("run.") and not self.snapshot.active
            if binding and not idle and (name != "mode.watch" or "run.pause" not in active):
                yield f"{format_key(binding.key)} {binding.description}"

    def paint(self, width: int, height: int) -> list[Line]:
        """Sentences, as many lines of them as there are."""
        snapshot, (columns, rows) = self.snapshot, SMALLEST
        text = f"Too small, {columns}x{rows} is needed. These keys work: {', '.join(self._keys())}."
        if snapshot.status != "empty":
            step = step_of(snapshot.current_step, snapshot.head.total_steps)
            asked = f", {snapshot.requested} requested".replace("_", " ") * bool(snapshot.requested)
            text += f" {safe(snapshot.head.name, ' ')}: {snapshot.status}{asked}, {step}."
        return paragraph(text, width, height, "text")
