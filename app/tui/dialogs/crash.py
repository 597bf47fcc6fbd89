"""The error screen shown when the engine has failed: the message, what to do, and the log."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from grpo_tui.app.feed.run_state import clock
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.keys import bind
from grpo_tui.app.tui.textual_private.screens import Dialog

REMEDY = (
    "Everything recorded up to here is in the store: esc goes back to it, 1 lists all runs, and r "
    "there resumes from the last checkpoint. Outside, `grpo-tui watch {run}` shows it."
)


def crash_text(snapshot: Snapshot, message: str, traceback: str) -> Content:
    """Return the screen's text, escaped for the terminal."""
    head = snapshot.head
    remedy = REMEDY.format(run=head.id)
    parts = [
        Content.styled(safe(message, "\n") or "The engine ended without a message.",
                       "bold $error"),
        Content("\n\n"),
        Content.styled(safe(f"{head.name or 'The run'} at step {snapshot.step}. {remedy}"),
                       "$foreground"),
        Content("\n\n"),
    ]  # fmt: skip
    if traceback:
        parts += [Content.styled(safe(traceback.rstrip(), "\n"), "$text-muted"), Content("\n\n")]
    parts.append(Content.styled("last lines of the log\n", "$headline"))
    last = snapshot.log[-12:]
    digits = max((len(str(line.step)) for line in last), default=0)
    for line in last:
        at = f"{clock(line.at)}  step {line.step:>{digits}}"
        parts.append(Content(f"{at}  {safe(line.text, ' ')}\n"))
    return Content("").join(parts)


class CrashScreen(Dialog[None]):
    """Shown once when the run on screen fails."""

    DEFAULT_CSS = """
    CrashScreen { align: center middle; }
    CrashScreen > Vertical {
        width: 100; max-width: 98%; height: auto; max-height: 90%; padding: 0 1;
        border: round $error; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    CrashScreen VerticalScroll { height: auto; max-height: 100%; background: $background; }
    CrashScreen Static { width: 100%; height: auto; }
    """
    BINDINGS: ClassVar = [
        bind("escape,q,enter", "dismiss", "close", "crash.close", "Back to what was recorded"),
        bind("y", "copy", "copy", "crash.copy", "Copy message and traceback"),
    ]  # fmt: skip

    def __init__(self, snapshot: Snapshot, message: str, traceback: str) -> None:
        super().__init__()
        self._text = crash_text(snapshot, message, traceback)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "the run failed"
            box.border_subtitle = "y copy   esc close"
            with VerticalScroll():
                yield Static(self._text)

    def on_mount(self) -> None:
        """Focus the text, so that the arrow keys scroll at once."""
        self.query_one(VerticalScroll).focus()

    def action_copy(self) -> None:
        """Copy the whole text."""
        self.app.copy_to_clipboard(self._text.plain)
        self.notify("Sent the error to the terminal's clipboard.")
