"""What is tried in the trial process; each method returns what the workbench shows."""

from collections.abc import Mapping
from typing import Any

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.platform.priority import lower_priority
from grpo_tui.app.trial.ready import Readiness

Settings = Mapping[str, Any]


class Trials:
    """Keeps what it loaded for the next call."""

    def __init__(self, _server: object) -> None:
        lower_priority(10)
        self._readiness = Readiness()

    def close(self) -> None:
        self._readiness.close()

    def examples(self, config: Settings) -> dict[str, Any]:
        return self._readiness.examples.describe(_config(config))

    def memory(self, config: Settings) -> dict[str, Any]:
        return self._readiness.estimates.estimate(_config(config))

    def ready(self, config: Settings) -> dict[str, Any]:
        return self._readiness.of(_config(config))

    def score(self, config: Settings, example: int, completion: str) -> dict[str, Any]:
        return self._readiness.scores.score(_config(config), example, completion)


def _config(settings: Settings) -> RunConfig:
    return build(settings, "these settings")
