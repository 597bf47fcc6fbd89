"""The question before a run of others is loaded: all that it names, and yes or no."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from grpo_engine.consent import Question, UntrustedError
from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.dialogs.dialog import AppScreen
from grpo_tui.app.tui.keys import bindings

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

P = ParamSpec("P")
T = TypeVar("T")


class TrustDialog(Choice[bool]):
    """A list that may be longer than the screen, and its answers below."""

    DEFAULT_CSS = """
    TrustDialog VerticalScroll { height: auto; max-height: 50vh; margin-bottom: 1; }
    """
    BINDINGS = bindings("trust")

    def question(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield from super().question()

    def action_move(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)


def trust_dialog(question: Question) -> TrustDialog:
    """Ask whether what a run names may be imported, run, read and contacted."""
    lines = [
        f"{question.subject} did not begin here. With its settings this program would",
        "",
        *(f"· {item}" for item in question.items),
        "",
        "(j, k scroll.) It is asked again when the settings or these files change.",
    ]
    return TrustDialog(
        "do you trust this run?",
        "\n".join(lines),
        [
            (False, "n", "no", "load nothing, and leave everything as it is"),
            (True, "y", "yes", "I know who made it, and have looked at all of this"),
        ],
    )


async def trusting(
    screen: AppScreen,
    key: str,
    call: "Callable[Concatenate[StoreReader, P], T]",
    *args: P.args,
    **options: P.kwargs,
) -> T | None:
    """What a call returns, after a yes to what a run of others names; None after a no."""
    while True:
        try:
            return await screen.read(key, call, *args, **options)
        except UntrustedError as error:
            if not await screen.app.push_screen_wait(trust_dialog(error.question)):
                return None
            if problem := await asyncio.to_thread(error.question.allow):
                screen.warn(problem)
