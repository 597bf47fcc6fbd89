"""What is tried in the trial process; each method returns what the workbench shows."""

from collections.abc import Mapping
from typing import Any

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.platform.priority import lower_priority
from grpo_tui.app.trial.episode import Player
from grpo_tui.app.trial.probing import Probing
from grpo_tui.app.trial.ready import Readiness

Settings = Mapping[str, Any]


class Trials:
    """Keeps what it loaded for the next call."""

    def __init__(self, _server: object) -> None:
        lower_priority(10)
        self._readiness, self._probing, self._player = Readiness(), Probing(), Player()

    def close(self) -> None:
        for part in (self._readiness, self._probing, self._player):
            part.close()

    def examples(self, config: Settings) -> dict[str, Any]:
        return self._readiness.examples.describe(_config(config))

    def memory(self, config: Settings) -> dict[str, Any]:
        return self._readiness.estimates.estimate(_config(config))

    def ready(self, config: Settings) -> dict[str, Any]:
        return self._readiness.of(_config(config))

    def score(self, config: Settings, example: int, completion: str) -> dict[str, Any]:
        return self._readiness.scores.score(_config(config), example, completion)

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
