"""Whether a run with these settings would begin: asked by the command line, app and queue."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError
from grpo_tui.app.trial.client import call, trial_process


def refuse(result: Mapping[str, Any], *, later: bool = False) -> None:
    """Raise what a run would fail at; one that starts `later` may have more memory then."""
    if problem := result.get("problem"):
        raise ConfigError(problem)
    texts = [text for _, text in result["problems"]]
    if result["now"] and not later:
        texts.append(result["now"])
    if texts:
        raise ConfigError("; ".join(texts), *(setting for setting, _ in result["problems"]))


def require(config: RunConfig) -> None:
    """Raise if a run would fail at its first step; call it on the thread that uses MLX.

    What is missing here is downloaded, as the run would do.
    """
    from grpo_tui.app.trial.service import Trials

    with closing(Trials()) as trials:
        refuse(trials.ready(config.model_dump(mode="json")))


def require_apart(configs: Sequence[RunConfig], *, later: bool) -> tuple[str, ...]:
    """Raise if one of these runs would fail; tried in another process, which downloads nothing.

    Return what the runs would download.
    """
    with trial_process() as process:
        replies = [call(process, "ready", config) for config in configs]
    for reply in replies:
        refuse(reply, later=later)
    return tuple(dict.fromkeys(text for reply in replies for text in reply["fetches"]))
