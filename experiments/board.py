"""The progress board: the current state of a run, overwritten in place and never queued."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_engine import events as ev
from grpo_tui.experiments.values import BoardGroup, BoardRollout, BoardView

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")


class Growing:
    """A rollout on the board; tokens are appended to a list and joined only when someone reads."""

    __slots__ = ("_finish", "_new", "_rollout", "_spans", "_tokens", "_waits_since")

    def __init__(self, rollout: BoardRollout) -> None:
        self._rollout = rollout
        self._tokens, self._finish = rollout.tokens, rollout.finish
        self._spans, self._waits_since = list(rollout.spans), rollout.waits_since
        self._new: list[str] = []

    def grow(self, delta: ev.RowDelta) -> None:
        self._new.append(delta.text)
        self._tokens += delta.tokens
        self._finish = delta.finish or self._finish
        self._spans += delta.spans
        self._waits_since = time.time() if delta.waits else None

    def look(self) -> BoardRollout:
        """Return the current rollout; the same object while nothing changed."""
        if self._new:
            text = self._rollout.text + "".join(self._new)
            self._new.clear()
            self._rollout = BoardRollout(
                index=self._rollout.index, text=text, tokens=self._tokens, finish=self._finish,
                spans=tuple(self._spans), waits_since=self._waits_since,
            )  # fmt: skip
        return self._rollout


class Board:
    """The latest phase, counts and texts of a run; written by one thread, read by any.

    Scores are not on the board: viewers get them as recorded events.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view = BoardView()
        self._values: dict[str, Any] = {
            field.name: getattr(self._view, field.name)
            for field in dataclasses.fields(BoardView)
            if field.name not in ("version", "groups")
        }
        self._groups: dict[int, BoardGroup] = {}
        self._rollouts: dict[int, dict[int, Growing]] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """A counter that increases with every change."""
        return self._version

    def apply(self, event: ev.Event) -> None:
        """Apply an event; events that do not concern the board change nothing."""
        with self._lock:
            changes = self._changes(event)
            if changes is not None:
                self._change(changes)

    def warn(self, text: str) -> None:
        """Show a problem of the store; an empty text clears it."""
        with self._lock:
            if text != self._values["store_warning"]:
                self._change({"store_warning": text})

    def _change(self, changes: Mapping[str, Any]) -> None:
        self._version += 1
        self._values.update(changes, at=time.time())

    def snapshot(self) -> BoardView:
        """Return the current board; the same object while nothing changed."""
        with self._lock:
            if self._view.version != self._version:
                groups = tuple(
                    dataclasses.replace(
                        group, rollouts=tuple(one.look() for one in self._rollouts[index].values())
                    )
                    for index, group in self._groups.items()
                )
                self._view = BoardView(version=self._version, groups=groups, **self._values)
            return self._view

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
                    self._start_prompt(prompt)
                return {"step": event.step}
            case ev.GroupScored():
                self._end_sampling(event.group)
                return {"step": event.step}
            case ev.RunStarted():
                return {"step": event.step, "total_steps": event.total_steps, "phase": "load"}
            case ev.RunPaused() | ev.RunResumed():
                return {"paused": isinstance(event, ev.RunPaused)}
            case ev.StepFinished() | ev.RunFinished() | ev.RunFailed():
                return {"step": event.step, "phase": "", **self._close_phase()}
        return None

    def _start_phase(self, event: ev.PhaseStarted) -> dict[str, Any]:
        if event.phase in ("generate", "evaluate"):
            self._groups.clear()
            self._rollouts.clear()
        seconds = self._close_phase()
        if event.step != self._values["step"]:
            seconds = {"phase_seconds": {}}
        return {
            "step": event.step, "phase": event.phase, "phase_detail": event.detail, "done": 0,
            "total": event.total, "phase_started": time.time(), **seconds,
        }  # fmt: skip

    def _close_phase(self) -> dict[str, Any]:
        phase, started = self._values["phase"], self._values["phase_started"]
        if not phase:
            return {}
        spent = time.time() - started if started else 0.0
        seconds = self._values["phase_seconds"]
        return {"phase_seconds": {**seconds, phase: seconds.get(phase, 0.0) + spent}}

    def _start_prompt(self, prompt: ev.PromptStarted) -> None:
        self._groups[prompt.group] = BoardGroup(
            index=prompt.group, origin=prompt.origin, prompt_text=prompt.prompt_text,
            target=prompt.target, rollouts=(),
        )  # fmt: skip
        self._rollouts[prompt.group] = {
            index: Growing(BoardRollout(index=index, text="", tokens=0))
            for index in range(prompt.rows)
        }

    def _advance(self, event: ev.RolloutsAdvanced) -> dict[str, Any]:
        for delta in event.rows:
            rollouts = self._rollouts.setdefault(delta.group, {})
            if delta.group not in self._groups:
                self._groups[delta.group] = BoardGroup(
                    index=delta.group, origin="train", prompt_text="", target="", rollouts=()
                )
            if delta.index not in rollouts:
                rollouts[delta.index] = Growing(BoardRollout(index=delta.index, text="", tokens=0))
            rollouts[delta.index].grow(delta)
        return {
            "step": event.step, "tokens": event.tokens, "finished": event.finished,
            "rows_total": event.total, "tokens_per_second": event.tokens_per_second,
            "done": event.finished, "total": event.total,
        }  # fmt: skip

    def _end_sampling(self, group: ev.Group) -> None:
        """Show the whole group: after a refill the board holds only the new prompts."""
        self._groups[group.index] = BoardGroup(
            index=group.index, origin=group.origin, prompt_text=group.prompt_text,
            target=group.target, rollouts=(),
        )  # fmt: skip
        self._rollouts[group.index] = {
            one.index: Growing(BoardRollout(
                index=one.index, text=one.text, tokens=ev.model_tokens(one.ids, one.spans),
                finish=one.finish, spans=tuple(map(ev.unscored, one.spans)),
            ))
            for one in group.rollouts
        }  # fmt: skip


def board_json(view: BoardView) -> dict[str, Any]:
    """Return the board as JSON for viewers in other processes; a group's rollouts are `rows`."""
    tree = dataclasses.asdict(view)
    for group in tree["groups"]:
        group["rows"] = group.pop("rollouts")
    return tree


def board_from_json(data: Mapping[str, Any]) -> BoardView:
    """Rebuild the board that `board_json` wrote; ignore unknown fields of other versions.

    Earlier versions put scores on the board.
    """
    groups = tuple(
        _of(BoardGroup, group, rollouts=tuple(map(_rollout_from_json, group["rows"])))
        for group in data["groups"]
    )
    return _of(BoardView, data, groups=groups)


def _rollout_from_json(row: Mapping[str, Any]) -> BoardRollout:
    return _of(BoardRollout, row, spans=tuple(_of(ev.Span, span) for span in row.get("spans", ())))


def _of(kind: type[Value], data: Mapping[str, Any], **changes: Any) -> Value:
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in names} | changes)
