"""The progress board: the current state of a run, overwritten in place and never queued."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from grpo_engine import events as ev
from grpo_tui.experiments.values import BoardGroup, BoardRollout, BoardView


class Board:
    """The latest phase, counts and texts of a run; read by any thread.

    Scores are not on the board: viewers get them as recorded events.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # two threads write: the engine's and the recorder's
        self.view = BoardView()  # replaced by a new object on each change
        self._paused_at = 0.0

    def apply(self, event: ev.Event) -> None:
        """Apply an event; events that do not concern the board change nothing."""
        with self._lock:
            if changes := self._changes(event):
                self.view = replace(self.view, **changes)

    def warn(self, text: str) -> None:
        """Show a problem of the store; an empty text clears it."""
        with self._lock:
            if text != self.view.store_warning:
                self.view = replace(self.view, store_warning=text)

    def _changes(self, event: ev.Event) -> dict[str, Any]:
        match event:
            case ev.RolloutsAdvanced():
                return self._advance(event)
            case ev.PhaseAdvanced():
                return {"step": event.step, "done": event.done, "total": event.total}
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
            case ev.RunResumed() if self.view.paused:  # a pause does not count for the phase
                started = self.view.phase_started + time.time() - self._paused_at
                return {"paused": False, "phase_started": started if self.view.phase_started else 0}
            case ev.StepFinished() | ev.RunFinished() | ev.RunFailed():
                return {"step": event.step, "phase": "", "phase_seconds": self._phase_seconds()}
        return {}

    def _start_phase(self, event: ev.PhaseStarted) -> dict[str, Any]:
        is_sampling = event.phase in ("generate", "evaluate")
        return {
            "step": event.step,
            "phase": event.phase,
            "phase_detail": event.detail,
            "done": 0,
            "total": event.total,
            "phase_started": time.time(),
            "phase_seconds": self._phase_seconds() if event.step == self.view.step else {},
            "groups": () if is_sampling else self.view.groups,
        }

    def _phase_seconds(self) -> Mapping[str, float]:
        """The seconds of each phase, with the current phase ended."""
        phase, started = self.view.phase, self.view.phase_started
        seconds = self.view.phase_seconds
        if not phase:
            return seconds
        spent = time.time() - started if started else 0.0
        return {**seconds, phase: seconds.get(phase, 0.0) + spent}

    def _with(self, *changed: BoardGroup) -> tuple[BoardGroup, ...]:
        """The groups with some of them replaced."""
        return tuple({group.index: group for group in (*self.view.groups, *changed)}.values())

    def _advance(self, event: ev.RolloutsAdvanced) -> dict[str, Any]:
        groups = {group.index: group for group in self.view.groups}
        for delta in event.rows:
            group = groups.get(delta.group) or BoardGroup(index=delta.group)
            rollouts = {rollout.index: rollout for rollout in group.rollouts}
            rollout = rollouts.get(delta.index) or BoardRollout(index=delta.index)
            rollouts[delta.index] = replace(
                rollout,
                text=rollout.text + delta.text,
                tokens=None if delta.tokens is None else (rollout.tokens or 0) + delta.tokens,
                finish=delta.finish or rollout.finish,
                spans=rollout.spans + delta.spans,
                waits_since=time.time() if delta.waits else None,
            )
            groups[delta.group] = replace(group, rollouts=tuple(rollouts.values()))
        return {
            "step": event.step,
            "tokens_per_second": event.tokens_per_second,
            "done": event.finished,
            "total": event.total,
            "groups": tuple(groups.values()),
        }


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
