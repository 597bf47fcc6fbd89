"""The trained model and the one its run began with, side by side on the same prompts."""

from collections.abc import Sequence
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from grpo_tui.app.chat.client import Chat, Pair, Token, Turn
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.text.safe_text import clip, safe, wrap
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.looks.colours import push_colour
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import BarPanel, Line, Panel, hint, paragraph

DRAW_S = 0.1
FULL_COLOUR = 2.0  # nats: a change of this size has it
MAX_LINES = 2000
EMPTY = (
    "What the trained model answers appears here.",
    "And here what the model answered before training.",
)


class ChatPanel(Panel):
    """What one of the two models answered; tokens are coloured by what training changed."""

    navigable = True
    _from_end = 0  # lines below the panel

    def __init__(self, title: str, model: int, turns: Sequence[Turn], **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self._model, self._turns = model, turns

    def paint(self, width: int, height: int) -> list[Line]:
        if not self._turns:
            return hint(EMPTY[self._model], width)
        lines = []
        for turn in self._turns:
            lines += paragraph(f"› {turn.prompt}", width, 5, "label")
            if tokens := turn.tokens[self._model]:
                lines += completion_lines(tokens, width)
            else:
                text = turn.texts[self._model] or ("" if turn.done else "…")
                parts = wrap(text, width, MAX_LINES, from_end=True)
                lines += [[(part, "text")] for part in parts]
            lines.append([])
        end = max(0, len(lines) - height)
        self._from_end = min(self._from_end, end)
        top = end - self._from_end
        return lines[top : top + height]

    def action_move(self, rows: int, _columns: int) -> None:
        """Scroll."""
        self._from_end = max(0, self._from_end - rows)
        self.refresh()


def completion_lines(tokens: Sequence[Token], width: int) -> list[Line]:
    """The tokens, wrapped; in the colours of advantages where training changed them."""

    def style(index: int) -> str:
        change = tokens[index].trained - tokens[index].before
        changed = abs(change) >= 0.05 * FULL_COLOUR
        return push_colour(change, FULL_COLOUR) if changed else "text"

    lines = lay_out([token.text for token in tokens], width)
    return [[(piece.text, style(piece.token)) for piece in line] for line in lines]


class Legend(BarPanel):
    """What the colours mean, or why there is no answer."""

    def paint(self, width: int, _height: int) -> list[Line]:
        problem = self.screen.problem if isinstance(self.screen, ChatScreen) else ""
        if problem:
            return [[(clip(problem, width), "bad")]]
        rise, fall = (push_colour(sign * FULL_COLOUR, FULL_COLOUR) for sign in (1, -1))
        return [
            [
                ("█", rise),
                (" likelier since training  ", "label"),
                ("█", fall),
                (" less likely", "label"),
            ]
        ]


class ChatScreen(Dialog[None]):
    """Ask both models the same thing."""

    DEFAULT_CSS = """
    ChatScreen { align: center middle; }
    ChatScreen > Vertical {
        width: 96%; height: 92%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    ChatScreen Legend { height: 1; }
    ChatScreen Field { border: none; height: 1; padding: 0 1; background: $panel; }
    ChatScreen Field:focus { border: none; }
    """
    BINDINGS = bindings("chat")
    _generating = False

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self._chat = Chat(pair)

    @property
    def problem(self) -> str:
        """Why the last question has no answer."""
        return self._chat.turns[-1].problem if self._chat.turns else ""

    def compose(self) -> ComposeResult:
        pair = self._chat.pair
        with Vertical() as box:
            box.border_title = f"chat with {safe(pair.run)}"
            box.border_subtitle = "⏎ ask   ⇥ answers   ↑↓ scroll   ^n new   esc stop, close"
            with Horizontal():
                yield ChatPanel(f"trained · step {pair.step}", 0, self._chat.turns)
                yield ChatPanel("before", 1, self._chat.turns)
            yield Legend()
            yield Field(placeholder="ask both models")

    def on_mount(self) -> None:
        """Type at once; draw what arrives."""
        self.query_one(Field).focus()
        self.set_interval(DRAW_S, self._draw)

    def on_unmount(self) -> None:
        """End the process."""
        self._chat.close()

    @on(Input.Submitted)
    def submit(self, event: Input.Submitted) -> None:
        """Ask, unless an answer is being given."""
        if event.value.strip() and not self._generating:
            self._generating = True
            event.input.clear()
            self.run_worker(lambda: self._ask(event.value), thread=True, group="chat")

    def _ask(self, text: str) -> None:
        for _ in self._chat.send(text):
            pass
        self._generating = False

    def _draw(self) -> None:
        for panel in self.query(Panel):
            panel.refresh()

    def action_begin(self) -> None:
        """Forget this dialogue, unless an answer is being given."""
        if not self._generating:
            self._chat.turns.clear()

    def action_leave(self) -> None:
        """Stop the answer, or close."""
        if self._generating:
            self._chat.stop()
        else:
            self.dismiss(None)
