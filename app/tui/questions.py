"""Questions that people ask of a run, and the screens that answer them."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from grpo_tui.app.feed.narrator import hacking, loss_meaning
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.numbers import seconds
from grpo_tui.app.text.words import step_of
from grpo_tui.app.tui.lifecycle import RunApp
from grpo_tui.app.tui.tour import key_of


@dataclass(frozen=True, slots=True)
class Question:
    """A question, other ways to ask it, and the screen with the sentence that says where to look.

    `{key}` in the sentence is the key of the binding on that screen. `answer` names what can be
    said of the open run at once.
    """

    text: str
    also: str
    mode: str
    binding: str
    sentence: str
    answer: Literal["", "health", "hacking", "loss", "time", "training"] = ""

    def short_answer(self, run: Snapshot, app: RunApp) -> tuple[str, str]:
        """A word and a sentence on the open run; empty where only the screen answers."""
        if self.answer == "training":
            return "", training(app)
        if run.status == "empty":
            return "", ""
        match self.answer:
            case "health":
                return run.health.label, run.health.reason
            case "hacking":
                return "", hacking(run)
            case "loss":
                return "", loss_meaning(run)
            case "time":
                return "", time_taken(run)
        return "", ""

    async def show_answer(self, app: RunApp) -> None:
        """Go to the screen, and say where on it the answer is."""
        await app.action_mode(self.mode, leads=getattr(app.screen, "mode", "") == self.mode)
        app.notify(self.sentence.format(key=key_of(app.screen, self.binding)))


def training(app: RunApp) -> str:
    """The runs that are being trained, first the one of this window."""
    here = app.bridge.run if app.bridge.running else ""
    runs = sorted(app.active, key=lambda run: run.id != here)
    parts = [f"{app.starting.feed.head.name} is starting"] if app.starting is not None else []
    for run in runs:
        place = "in this window" if run.id == here else "in another process"
        parts.append(f"{run.title} {place}, {step_of(run.step, run.total_steps)}")
    return "; ".join(parts) if parts else "No run is training."


def time_taken(run: Snapshot) -> str:
    """The time that is left of a run, or that it took; empty if it is not known."""
    step = step_of(run.step, run.head.total_steps)
    if run.active and run.eta is not None:
        return f"{seconds(run.eta)} left at {step}"
    time = run.worked or run.elapsed
    return f"It took {seconds(time)} to {step}" if time and not run.active else ""


@cache
def questions() -> tuple[Question, ...]:
    """All questions, in their order."""
    text = files(__package__).joinpath("questions.toml").read_text("utf-8")
    return tuple(Question(**fields) for fields in tomllib.loads(text)["questions"])
