"""The progress board: the current state of a run, overwritten in place and never queued."""

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_engine import events as ev
from grpo_tui.experiments.values import BoardGroup, BoardRollout, BoardView

_UNKNOWN = ev.PromptStarted(group=0, origin="train", prompt_text="", target="", rows=0)


class Board:
    """The latest phase, counts and texts of a run; written by one thread, read by any.

    Scores are not on the board: viewers get them as recorded events.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view = BoardView()  # without groups
        self._snapshot = self._view
        self._groups: dict[int, BoardGroup] = {}  # without rollouts
        self._rollouts: dict[int, dict[int, BoardRollout]] = {}

    @property
    def version(self) -> int:
        """A counter that increases with every change."""
        return self._view.version

    def apply(self, event: ev.Event) -> None:
        """Apply an event; events that do not concern the board change nothing."""
        with self._lock:
            changes = self._changes(event)
            if changes is not None:
                self._change(changes)

    def warn(self, text: str) -> None:
        """Show a problem of the store; an empty text clears it."""
        with self._lock:
            if text != self._view.store_warning:
                self._change({"store_warning": text})

    def _change(self, changes: Mapping[str, Any]) -> None:
        version = self.version + 1
        self._view = dataclasses.replace(self._view, version=version, at=time.time(), **changes)

    def snapshot(self) -> BoardView:
        """Return the current board; the same object while nothing changed."""
        with self._lock:
            if self._snapshot.version != self.version:
                groups = tuple(
                    dataclasses.replace(group, rollouts=tuple(self._rollouts[index].values()))
                    for index, group in self._groups.items()
                )
                self._snapshot = dataclasses.replace(self._view, groups=groups)
            return self._snapshot

    def _changes(self, event: ev.Event) -> dict[str, Any] | None:
        match event:
            case ev.RolloutsAdvanced():
                return self._advance(event)
            case ev.PhaseAdvanced():
                return {"step": event.step, "done": event.done, "total": event.total}
            case ev.PhaseStarted():
                return self._start_phase(event)
            case ev.PromptsStarted():
                for prompt in event.prompts:
                    self._show(prompt.group, prompt, map(_empty, range(prompt.rows)))
                return {"step": event.step}
            case ev.GroupScored():  # after a refill the board has only the new prompts
                self._show(event.group.index, event.group, map(_complete, event.group.rollouts))
                return {"step": event.step}
            case ev.RunStarted():
                return {"step": event.step, "total_steps": event.total_steps, "phase": "load"}
            case ev.RunPaused() | ev.RunResumed():
                return {"paused": isinstance(event, ev.RunPaused)}
            case ev.StepFinished() | ev.RunFinished() | ev.RunFailed():
                return {"step": event.step, "phase": "", "phase_seconds": self._phase_seconds()}
        return None

    def _start_phase(self, event: ev.PhaseStarted) -> dict[str, Any]:
        if event.phase in ("generate", "evaluate"):
            self._groups.clear()
            self._rollouts.clear()
        return {
            "step": event.step, "phase": event.phase, "phase_detail": event.detail, "done": 0,
            "total": event.total, "phase_started": time.time(),
            "phase_seconds": self._phase_seconds() if event.step == self._view.step else {},
        }  # fmt: skip

    def _phase_seconds(self) -> Mapping[str, float]:
        """The seconds of each phase, now that the current one has ended."""
        phase, started = self._view.phase, self._view.phase_started
        seconds = self._view.phase_seconds
        if not phase:
            return seconds
        spent = time.time() - started if started else 0.0
        return {**seconds, phase: seconds.get(phase, 0.0) + spent}

    def _show(
        self, index: int, group: ev.PromptStarted | ev.Group, rollouts: Iterable[BoardRollout]
    ) -> None:
        self._groups[index] = BoardGroup(
            index=index, origin=group.origin, prompt_text=group.prompt_text, target=group.target
        )  # fmt: skip
        self._rollouts[index] = {rollout.index: rollout for rollout in rollouts}

    def _advance(self, event: ev.RolloutsAdvanced) -> dict[str, Any]:
        for delta in event.rows:
            if delta.group not in self._groups:
                self._show(delta.group, _UNKNOWN, ())
            rollouts = self._rollouts[delta.group]
            rollouts[delta.index] = _grown(rollouts.get(delta.index) or _empty(delta.index), delta)
        return {
            "step": event.step, "tokens": event.tokens, "finished": event.finished,
            "rows_total": event.total, "tokens_per_second": event.tokens_per_second,
            "done": event.finished, "total": event.total,
        }  # fmt: skip


def _empty(index: int) -> BoardRollout:
    return BoardRollout(index=index, text="", tokens=0)


def _grown(rollout: BoardRollout, delta: ev.RowDelta) -> BoardRollout:
    return BoardRollout(
        index=rollout.index,
        text=rollout.text + delta.text,
        tokens=rollout.tokens + delta.tokens,
        finish=delta.finish or rollout.finish,
        spans=(*rollout.spans, *delta.spans),
        waits_since=time.time() if delta.waits else None,
    )


def _complete(item: ev.Completion) -> BoardRollout:
    return BoardRollout(
        index=item.index, text=item.text, tokens=ev.model_tokens(item.ids, item.spans),
        finish=item.finish, spans=tuple(map(ev.unscored, item.spans)),
    )  # fmt: skip
