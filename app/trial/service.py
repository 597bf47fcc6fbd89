"""What is tried in the trial process; each method returns what the workbench shows."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.platform.priority import lower_priority
from grpo_tui.app.trial.episode import Player
from grpo_tui.app.trial.examples import Examples
from grpo_tui.app.trial.memory import Estimates
from grpo_tui.app.trial.probing import Probing
from grpo_tui.app.trial.ready import Readiness
from grpo_tui.app.trial.scores import Scores

Settings = Mapping[str, Any]


class Trials:
    """Keeps what it loaded for the next call."""

    def __init__(self, _server: object) -> None:
        lower_priority(10)
        self._stack = ExitStack()
        self._examples = Examples()
        self._estimates = Estimates(self._examples)
        self._scores = Scores(self._examples)
        self._readiness = Readiness(self._examples, self._estimates, self._scores)
        self._probing = Probing()
        self._player = Player()
        for part in (self._scores, self._probing, self._player):
            self._stack.callback(part.close)

    def close(self) -> None:
        self._stack.close()

    def examples(self, config: Settings) -> dict[str, Any]:
        return self._examples.describe(_config(config))

    def memory(self, config: Settings) -> dict[str, Any]:
        return self._estimates.estimate(_config(config))

    def ready(self, config: Settings) -> dict[str, Any]:
        return self._readiness.of(_config(config))

    def score(self, config: Settings, example: int, completion: str) -> dict[str, Any]:
        return self._scores.score(_config(config), example, completion)

    def play(self, config: Settings, answer: str | None) -> dict[str, Any]:
        return self._player.advance(_config(config), answer)

    def probe(self, config: Settings, begin: bool) -> dict[str, Any]:
        return self._probing.advance(_config(config), begin=begin)

    def stop(self, config: Settings) -> dict[str, Any]:  # noqa: ARG002 - as the others
        """Free the probe's model."""
        self._probing.close()
        return {}


def _config(settings: Settings) -> RunConfig:
    return build(settings, "these settings")
