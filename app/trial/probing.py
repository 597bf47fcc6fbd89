"""A probe of the settings, carried out a little with each question."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.platform.scratch import scratch

if TYPE_CHECKING:
    from grpo_engine.api.probe import PromptsProbed
    from grpo_engine.events import Event

PROMPTS, SAMPLES = 32, 16
AROUND = (1.0, 0.75, 1.25)  # temperatures, as factors of the run's own
TURN_S = 0.5  # that one question may take, where the engine lets it end


class Probing:
    """Keeps the model and what was found between questions."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._events: Iterator[Event | PromptsProbed] = iter(())
        self._results: list[PromptsProbed] = []

    def close(self) -> None:
        """Free the model."""
        self._stack.close()
        self._events = iter(())

    def advance(self, config: RunConfig, *, begin: bool) -> dict[str, Any]:
        """Continue for a moment, or begin; return what was found so far."""
        from grpo_engine.api.probe import PromptsProbed

        if begin:
            self._begin(config)
        until = time.monotonic() + TURN_S
        for event in self._events:
            if isinstance(event, PromptsProbed):
                self._results.append(event)
            if time.monotonic() > until:
                return self._summary(config, ended=False)
        self.close()
        return self._summary(config, ended=True)

    def _begin(self, config: RunConfig) -> None:
        from grpo_engine.api.probe import probe
        from grpo_engine.control import Control

        self.close()
        self._results = []
        folder = self._stack.enter_context(scratch("probe"))
        events = probe(
            config, Control(), folder=folder, prompts=PROMPTS, samples=SAMPLES,
            temperatures=temperatures(config),
        )  # fmt: skip
        self._stack.callback(events.close)  # type: ignore[attr-defined]  # a generator, typed as an iterator
        self._events = events

    def _summary(self, config: RunConfig, *, ended: bool) -> dict[str, Any]:
        from grpo_engine.api.probe import ENOUGH, histogram, merged, signals, sizes_of, to_json

        tables = []
        for probed in merged(self._results):
            shares = signals(probed, sizes_of(config, SAMPLES), config.rollout.prompts)
            table = to_json(probed, shares)
            rates = table.pop("pass_rates")
            table["histogram"] = None if rates is None else histogram(list(rates.values()))
            table["right"] = None if rates is None else sum(rates.values()) / len(rates)
            tables.append(table)
        reached = [table for table in tables if table["recommended"]] if ended else []
        best = min(reached, key=lambda table: table["recommended"], default=None)
        answers = sum(table["prompts"] * SAMPLES for table in tables)
        return {
            "ended": ended,
            "enough": ENOUGH,
            "answers": answers,
            "of": answers if ended else PROMPTS * SAMPLES * len(AROUND),
            "tables": tables,
            "best": best
            and {"group_size": best["recommended"], "temperature": best["temperature"]},
        }


def temperatures(config: RunConfig) -> list[float]:
    """The temperatures to try, the run's own first."""
    return [round(config.rollout.temperature * factor, 3) for factor in AROUND]
