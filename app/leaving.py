"""How the workbench is left while a run goes on: ask, hand over, stop, or lose the terminal."""

import os
import signal
import sys
from typing import TYPE_CHECKING, Literal

from app.run_state import Snapshot
from app.screens.dialogs import Choice

if TYPE_CHECKING:
    from app.lifecycle import RunKeeper

Plan = Literal["", "stay", "hand_over", "stop", "now", "leave"]


class QuitDialog(Choice[Plan]):
    """What is to become of the run in this process."""

    def __init__(self, snapshot: Snapshot, name: str, waiting: Plan) -> None:
        step = snapshot.current_step
        if waiting:
            question = f"{name} finishes step {step} first. That takes a moment."
            answers: list[tuple[Plan, str, str, str]] = [
                ("stay", "w", "wait", "for the step and its checkpoint"),
                ("now", "x", "do not wait", f"drop step {step}"),
            ]
        else:
            question = f"{name} trains in this process, at step {step} of " \
                f"{snapshot.head.total_steps}."  # fmt: skip
            answers = [
                ("stay", "n", "stay", "change nothing"),
                ("hand_over", "h", "hand over and leave", "it goes on in the background"),
                ("stop", "s", "checkpoint, stop and leave", "resume goes on from there"),
            ]
        super().__init__("leave the workbench", question, answers)


class LeaveDialog(Choice[Plan]):
    """Whether to leave where no run would be lost sight of."""

    def __init__(self, watching: str) -> None:
        question = "Leave the workbench?"
        if watching:
            question += f" {watching} goes on without it; `grpo-tui watch` shows it again."
        super().__init__("leave the workbench", question, [
            ("leave", "y", "leave", ""), ("stay", "n", "stay", ""),
        ])  # fmt: skip


def ask(app: "RunKeeper") -> None:
    """Ask what to do, as far as there is something to decide."""
    if app.bridge.running:
        snapshot = app.session.state.snapshot() if app.session else Snapshot()
        name = app.bridge.name or "The run"
        app.push_screen(QuitDialog(snapshot, name, app.plan), lambda plan: follow(app, plan or ""))
    else:
        app.push_screen(LeaveDialog(_watched(app)), lambda plan: follow(app, plan or ""))


def _watched(app: "RunKeeper") -> str:
    if app.session is None:
        return ""
    snapshot = app.session.state.snapshot()
    return snapshot.head.name if snapshot.active and not app.session.feed.mark else ""


def follow(app: "RunKeeper", plan: Plan) -> None:
    """Do what was decided; stopping and handing over end when the engine has."""
    if plan == "leave":
        app.exit(0)
    elif plan == "now" and app.bridge.control is not None:
        app.ask_engine("stop_now")
    elif plan in ("hand_over", "stop"):
        app.plan = plan
        app.ask_engine("stop_after_step")
        app.notify("Leaving when the step is done and saved. Ctrl-C again offers not to wait.")


def listen(app: "RunKeeper") -> None:
    """SIGTERM is checkpoint and stop; SIGHUP takes the screen and leaves the engine."""
    import asyncio

    loop = asyncio.get_running_loop()
    for number, act in ((signal.SIGTERM, terminate), (signal.SIGHUP, lose_terminal)):
        try:
            loop.add_signal_handler(number, act, app)
        except (RuntimeError, ValueError, NotImplementedError):
            return


def terminate(app: "RunKeeper") -> None:
    """Checkpoint and stop; without a run, leave."""
    if app.bridge.running:
        app.plan = "stop"
        app.ask_engine("stop_after_step")
    else:
        app.exit(0)


def lose_terminal(app: "RunKeeper") -> None:
    """The terminal is gone: draw into the void, end the screen, let the engine finish."""
    if app.dark:
        return
    go_dark()
    app.dark = True
    app.exit(0)


def go_dark() -> None:
    """Point the standard streams at nothing, so that no write can fail or block."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def terminal_is_lost() -> bool:
    """Whether reading or writing the terminal can only fail from now on."""
    import termios

    try:
        termios.tcgetattr(sys.__stdin__.fileno() if sys.__stdin__ else 0)
    except termios.error as error:
        return bool(error.args and error.args[0] == 5)
    except (OSError, ValueError):
        return True
    return False


def finish(app: "RunKeeper") -> None:
    """After the screen is gone: wait for the engine, or hand the run over."""
    if app.plan == "hand_over" and app.handed_over:
        sys.stderr.write(f"{app.handed_over} goes on in the background; "
                         "grpo-tui watch shows it again\n")  # fmt: skip
        return
    if not app.bridge.running:
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: app.ask_engine("stop_after_step"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while not app.bridge.wait(1.0):
        pass
