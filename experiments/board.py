"""The progress board: the current state of a run, overwritten in place and never queued."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from grpo_engine import events as ev
from grpo_tui.experiments.values import BoardGroup, BoardRollout, BoardView


@dataclass(slots=True)
class GrowingRollout:
    """A rollout with what was sampled since the last view was made."""

    index: int
    texts: list[str]
    tokens: int | None
    finish: ev.Finish | None
    spans: tuple[ev.Span, ...]
    waits_since: float | None = None

    @classmethod
    def of(cls, rollout: BoardRollout) -> "GrowingRollout":
        """Begin with a rollout as it was in the last view."""
        return cls(rollout.index, [rollout.text], rollout.tokens, rollout.finish, rollout.spans)

    def add(self, delta: ev.RowDelta) -> None:
        """Add what was sampled."""
        self.texts.append(delta.text)
        self.tokens = None if delta.tokens is None else (self.tokens or 0) + delta.tokens
        self.finish = delta.finish or self.finish
        self.spans += delta.spans
        self.waits_since = time.time() if delta.waits else None

    def view(self) -> BoardRollout:
        """The rollout as it is now."""
        return BoardRollout(
            index=self.index,
            text="".join(self.texts),
            tokens=self.tokens,
            finish=self.finish,
            spans=self.spans,
            waits_since=self.waits_since,
        )


class Board:
    """The latest phase, counts and texts of a run; read by any thread.

    Scores are not on the board: viewers get them as recorded events. Engines report tokens far more
    often than anyone looks, so the frozen values are made when someone does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # two threads write: the engine's and the recorder's
        self._view = BoardView()  # replaced by a new object on each change
        self._growing: dict[tuple[int, int], GrowingRollout] = {}  # by group and index
        self._advanced: dict[str, Any] = {}  # other fields that tokens have changed
        self._paused_at = 0.0

    @property
    def view(self) -> BoardView:
        """The state at this moment; the same object while nothing changed."""
        with self._lock:
            return self._with_tokens()

    def apply(self, event: ev.Event) -> None:
        """Apply an event; events that do not concern the board change nothing."""
        with self._lock:
            if isinstance(event, ev.RolloutsAdvanced):
                self._advance(event)
                return
            self._with_tokens()
            if changes := self._changes(event):
                self._view = replace(self._view, **changes)

    def warn(self, text: str) -> None:
        """Show a problem of the store; an empty text clears it."""
        with self._lock:
            if text != self._view.store_warning:
                self._view = replace(self._view, store_warning=text)

    def _changes(self, event: ev.Event) -> dict[str, Any]:
        match event:
            case ev.PhaseAdvanced():
                return {"step": event.step, "done": event.done, "total": event.total}
            case ev.ServerAwaited():
                return {"awaited": event.detail}
            case ev.PhaseStarted():
                return self._start_phase(event)
            case ev.PromptsStarted():
                groups = [
                    _group(item.group, item, [BoardRollout(index=n) for n in range(item.rows)])
                    for item in event.prompts
                ]
                return {"step": event.step, "groups": self._with(*groups)}
            case ev.GroupScored(group=group):  # after a refill the board lacks the earlier groups
                finished = _group(group.index, group, map(_complete, group.rollouts))
                return {"step": event.step, "groups": self._with(finished)}
            case ev.RunStarted():
                return {"step": event.step, "total_steps": event.total_steps or 0, "phase": "load"}
            case ev.RunPaused():
                self._paused_at = time.time()
                return {"paused": True}
            case ev.RunResumed() if self._view.paused:  # a pause does not count for the phase
                started = self._view.phase_started + time.time() - self._paused_at
                return {
                    "paused": False,
                    "phase_started": started if self._view.phase_started else 0,
                }
            case ev.StepFinished() | ev.RunFinished() | ev.RunFailed():
                return {"step": event.step, "phase": "", "phase_seconds": self._phase_seconds()}
        return {}

    def _start_phase(self, event: ev.PhaseStarted) -> dict[str, Any]:
        is_sampling = event.phase in ("generate", "evaluate")
        return {
            "step": event.step,
            "phase": event.phase,
            "phase_detail": event.detail,
            "awaited": "",
            "done": 0,
            "total": event.total,
            "phase_started": time.time(),
            "phase_seconds": self._phase_seconds() if event.step == self._view.step else {},
            "groups": () if is_sampling else self._view.groups,
        }

    def _phase_seconds(self) -> Mapping[str, float]:
        """The seconds of each phase, with the current phase ended."""
        phase, started = self._view.phase, self._view.phase_started
        seconds = self._view.phase_seconds
        if not phase:
            return seconds
        spent = time.time() - started if started else 0.0
        return {**seconds, phase: seconds.get(phase, 0.0) + spent}

    def _with(self, *changed: BoardGroup) -> tuple[BoardGroup, ...]:
        """The groups with some of them replaced."""
        return tuple({group.index: group for group in (*self._view.groups, *changed)}.values())

    def _advance(self, event: ev.RolloutsAdvanced) -> None:
        """Note what was sampled; `_with_tokens` shows it."""
        for delta in event.rows:
            key = delta.group, delta.index
            if key not in self._growing:
                self._growing[key] = GrowingRollout.of(self._rollout(*key))
            self._growing[key].add(delta)
        self._advanced = {
            "step": event.step,
            "tokens_per_second": event.tokens_per_second,
            "done": event.finished,
            "total": event.total,
        }

    def _rollout(self, group: int, index: int) -> BoardRollout:
        """A rollout of the last view, or a new one."""
        rollouts = (item.rollouts for item in self._view.groups if item.index == group)
        known = (item for item in next(rollouts, ()) if item.index == index)
        return next(known, BoardRollout(index=index))

    def _with_tokens(self) -> BoardView:
        """The view, made again if tokens were sampled since."""
        if not self._advanced:
            return self._view
        groups = {group.index: group for group in self._view.groups}
        for index in dict.fromkeys(group for group, _ in self._growing):
            group = groups.get(index) or BoardGroup(index=index)
            rollouts = {rollout.index: rollout for rollout in group.rollouts}
            rollouts |= {
                row: growing.view()
                for (of_group, row), growing in self._growing.items()
                if of_group == index
            }
            groups[index] = replace(group, rollouts=tuple(rollouts.values()))
        self._view = replace(self._view, groups=tuple(groups.values()), **self._advanced)
        self._growing, self._advanced = {}, {}
        return self._view


def _group(
    index: int, group: ev.PromptStarted | ev.Group, rollouts: Iterable[BoardRollout]
) -> BoardGroup:
    return BoardGroup(
        index=index,
        origin=group.origin,
        prompt_text=group.prompt_text,
        target=group.target,
        rollouts=tuple(rollouts),
    )


def _complete(item: ev.Rollout) -> BoardRollout:
    return BoardRollout(
        index=item.index,
        text=item.text,
        tokens=item.model_tokens,
        finish=item.finish,
        spans=tuple(map(ev.unscored, item.spans)),
    )
