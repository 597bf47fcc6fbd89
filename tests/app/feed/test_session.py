"""A session: when it counts as opened."""

from grpo_tui.app.feed.feed import Session
from grpo_tui.experiments.values import TimedEvent
from tests.app.script import Script, ScriptFeed, started


class LateFeed(ScriptFeed):
    """A feed whose thread reads the last of what was recorded just after a look at its facts."""

    looks = 0

    @property
    def catching_up(self) -> bool:
        return self.looks == 0

    def facts(self) -> list[TimedEvent]:
        self.looks += 1
        return super().facts() if self.looks > 1 else []


def test_a_run_is_opened_only_with_the_facts_that_were_read() -> None:
    session = Session(LateFeed([started(), *Script(steps=2, total_steps=2).events()]))
    assert session.pull().reading
    assert not session.opened
    snapshot = session.pull()
    assert session.opened
    assert not snapshot.reading
    assert snapshot.groups
