"""Small questions, with one key for each answer."""

from typing import Generic, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from grpo_tui.app.text.safe_text import safe, wrap
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.widgets.too_small import is_too_small

T = TypeVar("T")
WIDTH, NAMES = 84, 26  # longer names do not widen the column of names


class Choice(Dialog[T | None], Generic[T]):
    """A question whose answers are chosen by arrow keys, by their first key or by mouse."""

    DEFAULT_CSS = """
    Choice { align: center middle; }
    Choice > Vertical {
        width: 84; max-width: 96%; height: auto; max-height: 90%; padding: 1 2;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    Choice Static { color: $foreground; margin-bottom: 1; }
    Choice OptionList { height: auto; border: none; background: $background; padding: 0; }
    Choice OptionList:focus { border: none; background-tint: $background 0%; }
    Choice.-small > Vertical { padding: 0; max-width: 100%; height: 100%; max-height: 100%; }
    Choice.-small OptionList { dock: bottom; }
    """
    BINDINGS = bindings("choice")

    def __init__(self, title: str, question: str, options: list[tuple[T, str, str, str]]) -> None:
        super().__init__()
        self._title, self._question, self._options = title, question, options

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            box.border_subtitle = "↑↓ browse   ⏎ choose   esc cancel"
            yield from self.question()
            yield OptionList(*self._lines())

    def _lines(self) -> list[Option]:
        """The answers; on a small terminal without what they do, for the question needs lines."""
        names = min(NAMES, max(len(name) for _, _, name, _ in self._options))
        indent = len(" k  ") + names + 2
        space = min(WIDTH, int(0.96 * self.app.size.width)) - 6 - indent  # in frame and padding
        abouts = [
            "" if self.has_class("-small") else f"\n{' ' * indent}".join(wrap(about, space, 4))
            for *_, about in self._options
        ]
        return [
            Option(
                Content.assemble(
                    (f" {key}  ", "bold $accent"),
                    (name.ljust(names), "$headline"),
                    (f"  {about}", "$foreground"),
                )
            )
            for (_, key, name, _), about in zip(self._options, abouts, strict=True)
        ]

    def on_resize(self) -> None:
        """Write the answers for the new size."""
        width, height = self.app.size
        self.set_class(is_too_small(width, height), "-small")
        options = self.query_one(OptionList)
        highlighted = options.highlighted
        options.set_options(self._lines())
        options.highlighted = highlighted

    def question(self) -> ComposeResult:
        yield Static(safe(self._question, "\n"), markup=False)

    def on_mount(self) -> None:
        """Focus the list with its first answer, so that the arrow keys and ⏎ work at once."""
        options = self.query_one(OptionList)
        options.highlighted = 0
        options.focus()

    def on_key(self, event: events.Key) -> None:
        """Choose the answer that this key belongs to."""
        values = {key: value for value, key, _, _ in self._options}
        if event.character in values:
            event.stop()
            event.prevent_default()
            self.dismiss(values[event.character])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Choose by ⏎ or click."""
        self.dismiss(self._options[event.option_index][0])
