"""The progress board: what a run is at, overwritten in place, so that nothing can be dropped."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

from experiments.values import BoardGroup, BoardRow, BoardView
from grpo_engine import events as ev


class Growing:
    """A row of the board; a token costs an entry in a list, the rest waits until someone looks."""

    __slots__ = ("_finish", "_new", "_row", "_tokens")

    def __init__(self, row: BoardRow) -> None:
        self._row = row
        self._tokens, self._finish = row.tokens, row.finish
        self._new: list[str] = []

    def grow(self, delta: ev.RowDelta) -> None:
        """Take in what was sampled."""
        self._new.append(delta.text)
        self._tokens += delta.tokens
        self._finish = delta.finish or self._finish

    def look(self) -> BoardRow:
        """The row as it is; the same object as long as nothing changed."""
        if self._new:
            text = self._row.text + "".join(self._new)
            self._new.clear()
            self._row = BoardRow(
                index=self._row.index, text=text, tokens=self._tokens, finish=self._finish
            )
        return self._row


class Board:
    """The latest phase, counts and texts of a run; written by one thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view = BoardView()
        self._values: dict[str, Any] = {
            field.name: getattr(self._view, field.name)
            for field in dataclasses.fields(BoardView)
            if field.name not in ("version", "groups")
        }
        self._groups: dict[int, BoardGroup] = {}
        self._rows: dict[int, dict[int, Growing]] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version

    def apply(self, event: ev.Event) -> None:
        """Take an event in; facts that do not concern the board change nothing."""
        with self._lock:
            changes = self._changes(event)
            if changes is not None:
                self._change(changes)

    def warn(self, text: str) -> None:
        """Show, or with an empty text take away, what is wrong with the store."""
        with self._lock:
            if text != self._values["store_warning"]:
                self._change({"store_warning": text})

    def _change(self, changes: Mapping[str, Any]) -> None:
        self._version += 1
        self._values.update(changes, at=time.time())

    def snapshot(self) -> BoardView:
        """The board as it is; the same object as long as nothing changed."""
        with self._lock:
            if self._view.version != self._version:
                groups = tuple(
                    dataclasses.replace(
                        group, rows=tuple(row.look() for row in self._rows[index].values())
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
                self._score(event.group)
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
            self._rows.clear()
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
            target=prompt.target, rows=(),
        )  # fmt: skip
        self._rows[prompt.group] = {
            index: Growing(BoardRow(index=index, text="", tokens=0)) for index in range(prompt.rows)
        }

    def _advance(self, event: ev.RolloutsAdvanced) -> dict[str, Any]:
        for delta in event.rows:
            rows = self._rows.setdefault(delta.group, {})
            if delta.group not in self._groups:
                self._groups[delta.group] = BoardGroup(
                    index=delta.group, origin="train", prompt_text="", target="", rows=()
                )
            row = rows.get(delta.index)
            if row is None:
                row = rows[delta.index] = Growing(BoardRow(index=delta.index, text="", tokens=0))
            row.grow(delta)
        return {
            "step": event.step, "tokens": event.tokens, "finished": event.finished,
            "rows_total": event.total, "tokens_per_second": event.tokens_per_second,
            "done": event.finished, "total": event.total,
        }  # fmt: skip

    def _score(self, group: ev.Group) -> None:
        self._groups[group.index] = BoardGroup(
            index=group.index, origin=group.origin, prompt_text=group.prompt_text,
            target=group.target, rows=(), reward_mean=group.reward_mean,
            reward_std=group.reward_std, no_signal=group.no_signal, scored=True,
        )  # fmt: skip
        self._rows[group.index] = {
            item.index: Growing(BoardRow(
                index=item.index, text=item.text, tokens=len(item.ids), finish=item.finish,
                reward=item.reward, advantage=item.advantage, scored=True,
            ))
            for item in group.completions
        }  # fmt: skip


def board_json(view: BoardView) -> dict[str, Any]:
    """The board as JSON values, for viewers in other processes."""
    return dataclasses.asdict(view)


def board_from_json(data: Mapping[str, Any]) -> BoardView:
    """Rebuild the board that `board_json` wrote."""
    groups = tuple(
        BoardGroup(**{**group, "rows": tuple(BoardRow(**row) for row in group["rows"])})
        for group in data["groups"]
    )
    return BoardView(**{**data, "groups": groups})
