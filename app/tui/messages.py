"""Messages from panels to screens and from screens to the app."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_engine.config.settings import RunConfig
    from grpo_engine.events import Origin
    from grpo_tui.app.jobs.sweep import Point


class Notice(NamedTuple):
    """What a toast said, with its time and a sign for its severity."""

    head: str
    text: str


@dataclass
class MuteRequested(Message):
    """Mute this kind of alert in the shown run, or unmute it."""

    rule: str
    muted: bool


class ScreenRequest(Message):
    """A request that a screen fulfils, by its mode."""

    mode: ClassVar[str]


@dataclass
class MetricRequested(ScreenRequest):
    """Show this metric of the shown run alone."""

    mode = "watch"
    key: str


@dataclass
class RolloutOpened(ScreenRequest):
    """Show this answer on the Rollouts screen; run 0 is the one on screen."""

    mode = "rollouts"
    run: int
    step: int
    origin: "Origin"
    group: int
    rollout: int


@dataclass
class RunOpened(Message):
    """Show this stored run on Watch; its name, if it is known, is shown while it is read."""

    ref: str
    name: str = ""


@dataclass
class CompareRequested(ScreenRequest):
    """Compare these runs side by side."""

    mode = "compare"
    refs: tuple[str, ...]


@dataclass
class NewRunRequested(ScreenRequest):
    """Open the form, filled in from this run's settings, or go to a setting.

    `changes` are settings of a clone by path, with their values.
    """

    mode = "new_run"
    clone: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    setting: str = ""


@dataclass
class LaunchRequested(Message):
    """Start a run with these settings: in this process, detached, or in the queue.

    Those that were `tried` are not tried again.
    """

    config: "RunConfig"
    where: Literal["here", "detached", "queue"] = "here"
    parent: str = ""
    tried: bool = False


@dataclass
class SweepRequested(Message):
    """Queue the points of a sweep with as many seeds; `start` trains them in the background."""

    name: str
    points: "Sequence[Point]"
    seeds: int
    parent: str
    start: bool


@dataclass
class ResumeRequested(Message):
    """Resume a stored run from its last checkpoint."""

    ref: str
    name: str = ""


@dataclass
class LaunchRefused(Message):
    """A run could not be started, with the reason."""

    error: Exception


@dataclass
class RunBegan(Message):
    """A run started in this process; its feed can be shown."""

    feed: Any


@dataclass
class EngineEnded(Message):
    """The engine thread has finished a run; `error` describes the failure, if any."""

    error: str = ""
    traceback: str = ""
