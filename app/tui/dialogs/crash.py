"""Why the run of this process has failed: the message, what to do, and the log."""

from collections.abc import Iterator

from textual.content import Content

from grpo_tui.app.feed.run_state import clock
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.dialogs.page import PageDialog

REMEDY = (
    "Everything recorded up to here is in the store: esc goes back to it, 1 lists all runs, and r "
    "there resumes from the last checkpoint. Outside, `grpo-tui watch {run}` shows it."
)
LAST_LINES = 12


def crash_page(snapshot: Snapshot, message: str, traceback: str) -> PageDialog:
    """Shown once when the run on screen fails."""
    return PageDialog("the run failed", _texts(snapshot, message, traceback))


def _texts(snapshot: Snapshot, message: str, traceback: str) -> Iterator[Content]:
    head, last = snapshot.head, snapshot.log[-LAST_LINES:]
    remedy = f"{head.name or 'The run'} at step {snapshot.step}. {REMEDY.format(run=head.id)}"
    lines = (f"{clock(line.at)}  step {line.step}  {safe(line.text, ' ')}" for line in last)
    yield Content.styled(safe(message, "\n") + "\n", "bold $error")
    yield Content(safe(remedy) + "\n")
    if traceback:
        yield Content.styled(safe(traceback.rstrip(), "\n") + "\n", "$text-muted")
    yield Content.styled("last lines of the log", "$headline")
    yield Content("\n".join(lines))
