"""Why the run of this process has failed: the message, what to do, and the log."""

from collections.abc import Iterator

from textual.content import Content

from grpo_tui.app.feed.run_state import clock
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.dialogs.page import Page

REMEDY = (
    "Everything recorded up to here is in the store: esc goes back to it, 1 lists all runs, and r "
    "there resumes from the last checkpoint. Outside, `grpo-tui watch {run}` shows it."
)
LAST_LINES = 12


class CrashScreen(Page):
    """Shown once when the run on screen fails."""

    heading = "the run failed"

    def __init__(self, snapshot: Snapshot, message: str, traceback: str) -> None:
        super().__init__()
        self._snapshot, self._message, self._traceback = snapshot, message, traceback

    def texts(self, width: int) -> Iterator[Content]:  # noqa: ARG002 - all lines may wrap
        """The text, escaped for the terminal."""
        head, last = self._snapshot.head, self._snapshot.log[-LAST_LINES:]
        message = self._message or "The engine ended without a message."
        remedy = f"{head.name or 'The run'} at step {self._snapshot.step}. "
        remedy += REMEDY.format(run=head.id)
        digits = max((len(str(line.step)) for line in last), default=0)
        lines = (f"{clock(line.at)}  step {line.step:>{digits}}  {safe(line.text, ' ')}\n"
                 for line in last)  # fmt: skip
        yield Content.styled(safe(message, "\n") + "\n", "bold $error")
        yield Content(safe(remedy) + "\n")
        if self._traceback:
            yield Content.styled(safe(self._traceback.rstrip(), "\n") + "\n", "$text-muted")
        yield Content.styled("last lines of the log", "$headline")
        yield Content("".join(lines))
