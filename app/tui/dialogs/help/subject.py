"""What the help of a screen is about, without its texts."""

from dataclasses import dataclass, field

from grpo_engine.run_health import Health
from grpo_tui.app.feed.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class HelpSubject:
    """A topic, the run that its values are of, and a run's name and health.

    `compared` are the names of compared runs, and their values of the metric that is the topic.
    """

    topic: str
    run: Snapshot = field(default_factory=Snapshot)
    health: tuple[str, Health] | None = None
    compared: tuple[tuple[str, str], ...] = ()
