"""The trained model and the one its run began with, side by side on the same prompts."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive
from textual.widgets import Input

from grpo_tui.app.chat.client import Chat, Pair, Token, Turn
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.safe_text import cell_len, clip, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.textual_private.screens import Dialog
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Line, Panel, Span

DRAW_S = 0.1
TELLING = 2.0  # nats: a change of this size has the full colour
MOST_LINES = 2000
NOTHING_YET = ("What the trained model answers appears here.",
               "And here what the model answered before training.")  # fmt: skip


class AnswersPanel(Panel):
    """What one of the two models answered; tokens are coloured by what training changed."""

    cursor: reactive[int | None] = reactive(None)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "token(1)", "token", id="chat.next", tooltip="The next token"),
        Binding("left,h", "token(-1)", "token", id="chat.before", show=False,
                tooltip="The token before"),
    ]  # fmt: skip

    def __init__(self, title: str, which: int, turns: Sequence[Turn], **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self._which, self._turns = which, turns

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the last answer, once it is complete."""
        return self._turns[-1].tokens[self._which] if self._turns else ()

    def paint(self, width: int, height: int) -> list[Line]:
        lines: list[Line] = []
        at = 0
        if not self._turns:
            words = wrap(NOTHING_YET[self._which], width - 2, 4)
            return [[(f" {part}", style(self.palette.label))] for part in words]
        for turn in self._turns:
            lines += [[(part, style(self.palette.label))] for part in
                      wrap(f"› {turn.asked}", width, 5)]  # fmt: skip
            before = len(lines)
            tokens = turn.tokens[self._which]
            lines += answer_lines(tokens, self.cursor if turn is self._turns[-1] else None,
                                  width, self.palette)  # fmt: skip
            if not tokens:
                text = turn.texts[self._which] or ("" if turn.done else "…")
                lines += [[(part, style(self.palette.text))] for part in
                          wrap(text, width, MOST_LINES, keep_end=True)]  # fmt: skip
            if turn is self._turns[-1] and self.cursor is not None:
                at = before + next(
                    (place for place, line in enumerate(lines[before:])
                     if any(look and look.reverse for _, look in line)), 0
                )  # fmt: skip
            lines.append([])
        top = max(0, len(lines) - height)
        if self.cursor is not None:
            top = max(0, min(top, at - height // 2))
        return lines[top : top + height]

    def action_token(self, by: int) -> None:
        """Move the cursor over the tokens of the last answer."""
        if self.tokens:
            now = self.cursor if self.cursor is not None else (-1 if by > 0 else 0)
            self.cursor = (now + by) % len(self.tokens)

    def on_blur(self) -> None:
        """The cursor is where the focus is."""
        self.cursor = None

    def watch_cursor(self) -> None:
        """Tell the line below."""
        if isinstance(self.screen, ChatScreen):
            self.screen.query_one(TokenLine).refresh()


def answer_lines(
    tokens: Sequence[Token], cursor: int | None, width: int, palette: Palette
) -> list[Line]:
    """The tokens, wrapped; in the colours of advantages where training changed them."""
    lines: list[list[Span]] = [[]]
    room = width
    for place, token in enumerate(tokens):
        look = style(palette.of_push(token.trained - token.before, TELLING))
        if abs(token.trained - token.before) < 0.05 * TELLING:
            look = style(palette.text)
        if place == cursor:
            look += Style(reverse=True)
        for row, piece in enumerate(safe(token.text, "\n").split("\n")):
            if row or (cell_len(piece) > room and room < width):
                lines.append([])
                room = width
            piece = clip(piece if room < width or row else piece.lstrip() or piece, width)
            lines[-1].append((piece, look))
            room -= cell_len(piece)
    return [*lines]


class TokenLine(Panel, can_focus=False):
    """The probability of the token under the cursor, after and before training."""

    framed: ClassVar[bool] = False

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002  # one line
        label, number = style(self.palette.label), style(self.palette.headline)
        for panel in self.screen.query(AnswersPanel):
            if panel.cursor is not None and panel.cursor < len(panel.tokens):
                token = panel.tokens[panel.cursor]
                line: Line = [(f"“{clip(safe(token.text), 20)}”", number)]
                for name, value in (("trained", token.trained), ("before", token.before)):
                    line += [(f"  {name} ", label), (short(math.exp(value), 3), number)]
                change = token.trained - token.before
                look = style(self.palette.of_push(change, TELLING))
                return [[*line, ("  × ", label), (short(math.exp(change), 3), look)]]
        problem = self.screen.problem if isinstance(self.screen, ChatScreen) else ""
        if problem:
            return [[(clip(safe(problem), width), style(self.palette.bad))]]
        rise, fall = (
            style(self.palette.of_push(change, TELLING)) for change in (TELLING, -TELLING)
        )
        return [[("█", rise), (" likelier since training  ", label), ("█", fall),
                 (" less likely   ⇥ → go to a token", label)]]  # fmt: skip


class ChatScreen(Dialog[None]):
    """Asks both models the same thing."""

    DEFAULT_CSS = """
    ChatScreen { align: center middle; }
    ChatScreen > Vertical {
        width: 96%; height: 92%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    ChatScreen TokenLine { height: 1; }
    ChatScreen Field { border: none; height: 1; padding: 0 1; background: $panel; }
    ChatScreen Field:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "stop or close", id="chat.leave",
                tooltip="Stop the answer, or close the dialogue"),
        Binding("ctrl+n", "begin", "new dialogue", id="chat.begin", priority=True,
                tooltip="Forget what was said"),
    ]  # fmt: skip

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self._chat = Chat(pair)
        self._asking = False

    @property
    def problem(self) -> str:
        """Why the last question has no answer."""
        return self._chat.turns[-1].problem if self._chat.turns else ""

    def compose(self) -> ComposeResult:
        pair = self._chat.pair
        with Vertical() as box:
            box.border_title = f"chat with {safe(pair.run)}"
            box.border_subtitle = "⏎ ask   ⇥ answers   ←→ tokens   ^n new   esc stop, close"
            with Horizontal():
                yield AnswersPanel(f"trained · step {pair.step}", 0, self._chat.turns)
                yield AnswersPanel("before", 1, self._chat.turns)
            yield TokenLine()
            yield Field(placeholder="ask both models")

    def on_mount(self) -> None:
        """Type at once; draw what arrives."""
        self.query_one(Field).focus()
        self.set_interval(DRAW_S, self._draw)

    def on_unmount(self) -> None:
        """End the process."""
        self._chat.close()

    @on(Input.Submitted)
    def asked(self, event: Input.Submitted) -> None:
        """Ask, unless an answer is being given."""
        if event.value.strip() and not self._asking:
            self._asking = True
            event.input.clear()
            self.run_worker(lambda: self._ask(event.value), thread=True, group="chat")

    def _ask(self, text: str) -> None:
        for _ in self._chat.send(text):
            pass
        self._asking = False

    def _draw(self) -> None:
        for panel in self.query(Panel):
            panel.refresh()

    def action_begin(self) -> None:
        """Forget what was said, unless an answer is being given."""
        if not self._asking:
            self._chat.turns.clear()

    def action_leave(self) -> None:
        """Stop the answer, or close."""
        if self._asking:
            self._chat.stop()
        else:
            self.dismiss(None)
