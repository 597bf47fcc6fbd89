"""The answers panel: one lane per answer to the selected prompt, updated live."""

from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from grpo_engine.events import CUT
from grpo_tui.app.feed.snapshot import ENDED, ShownGroup, ShownRollout, Snapshot
from grpo_tui.app.inspector.dialogue import Piece, flow
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.text.numbers import seconds, short, signed
from grpo_tui.app.text.prompt_text import question
from grpo_tui.app.text.safe_text import cell_len, clip, clip_start, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.messages import RolloutOpened
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.experiments.values import BoardGroup, BoardRollout

LEAD = 16
MOST_LINES = 6
ORIGINS = {"train": "prompt", "eval": "held-out problem", "pinned": "pinned prompt"}


def arrow(advantage: float | None) -> str:
    """▲ positive advantage, ▼ negative, = zero, · not scored for training."""
    if advantage is None:
        return "·"
    return "▲" if advantage > 0 else "▼" if advantage < 0 else "="


def largest_push(group: ShownGroup) -> float:
    """The group's largest |advantage|, which scales the colours of pushes."""
    if isinstance(group, BoardGroup):
        return 1.0
    return max((abs(one.advantage) for one in group.rollouts if one.advantage), default=1.0)


def waits_since(rollout: ShownRollout) -> float | None:
    """When the environment of an answer was asked for the reply that has not come yet."""
    return rollout.waits_since if isinstance(rollout, BoardRollout) else None


def end_mark(rollout: ShownRollout, now: float = 0.0) -> str:
    """How an answer ended: ▪ by itself, [cut] at the length limit, ▌ unfinished.

    An answer with an environment may have failed, have no turn left, or wait for a reply.
    """
    since = waits_since(rollout)
    if since is not None:
        return f" ⚙ {seconds(max(0.0, now - since))}"
    if rollout.finish is None:
        return "▌"
    ends = {"environment_error": " [failed]", "turns": " [no turn left]"}
    return ends.get(rollout.finish, " [cut]" if rollout.finish in CUT else "▪")


def lane_lines(
    rollout: ShownRollout, width: int, rows: int, palette: Palette, largest: float,
    now: float = 0.0,
) -> list[Line]:  # fmt: skip
    """One answer in `rows` lines: name, push and reward on the left, then its text."""
    lead: Line = [(f"{letter(rollout.index):>2} ", style(palette.text))]
    if isinstance(rollout, BoardRollout):
        lead.append((f"{rollout.tokens:>7} tok".ljust(LEAD - 3), style(palette.label)))
    else:
        colour = palette.of_push(rollout.advantage, largest)
        look = style(palette.label if colour == palette.border else colour, bold=True)
        push = signed(rollout.advantage) if rollout.advantage else ""
        lead.append((f"{arrow(rollout.advantage)}{push:>5} ", look))
        lead.append((f"{short(rollout.reward):>4}  ", style(palette.text)))
    room = width - LEAD
    mark = end_mark(rollout, now)
    looks = {False: style(palette.text), True: style(palette.label)}
    parts = _text_rows(rollout, mark, room, rows)
    lines: list[Line] = []
    for i, part in enumerate(parts):
        start: Line = lead if i == 0 else [(" " * LEAD, None)]
        last = i == len(parts) - 1
        tail: Line = [(mark, style(_mark_colour(rollout, palette)))] if last and mark else []
        lines.append([*start, *((text, looks[is_reply]) for text, is_reply in part), *tail])
    return lines + [[]] * (rows - len(lines))


def _mark_colour(rollout: ShownRollout, palette: Palette) -> int:
    if rollout.finish is None:
        return palette.label if waits_since(rollout) is not None else palette.accent
    colours = {"environment_error": palette.bad, "turns": palette.warn}
    usual = palette.warn if rollout.finish in CUT else palette.label
    return colours.get(rollout.finish, usual)


def _text_rows(rollout: ShownRollout, mark: str, room: int, rows: int) -> list[list[Piece]]:
    """An answer in at most `rows` lines, the last one with room for the mark."""
    if room <= cell_len(mark) + 1:
        return [[]]
    if rollout.spans:
        parts = flow(rollout.text, rollout.spans, room, rows) or [[]]
        if sum(cell_len(text) for text, _ in parts[-1]) + cell_len(mark) > room:
            parts = flow(rollout.text, rollout.spans, room - cell_len(mark), rows)
        return parts
    return [[(part, False)] for part in _plain_rows(rollout, mark, room, rows)]


def _plain_rows(rollout: ShownRollout, mark: str, room: int, rows: int) -> list[str]:
    growing = rollout.finish is None
    if rows == 1:
        fit = room - cell_len(mark)
        return [(clip_start if growing else clip)(rollout.text, fit)]
    parts = wrap(rollout.text, room, rows, keep_end=growing) or [""]
    if cell_len(parts[-1]) + cell_len(mark) > room:
        parts = wrap(rollout.text, room - cell_len(mark), rows, keep_end=growing)
    return parts


class Lanes(Panel):
    """The answers to one prompt, side by side."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "answer", id="lanes.up", key_display="↑↓",
                tooltip="Choose the answer above"),
        Binding("down,j", "step(1)", "answer below", id="lanes.down", show=False,
                tooltip="Choose the answer below"),
        Binding("enter", "open", "open", id="lanes.open",
                tooltip="Open this answer, token by token, on Rollouts"),
    ]  # fmt: skip

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    place: reactive[int] = reactive(0)
    cursor: reactive[int] = reactive(0)
    now: reactive[float] = reactive(0.0, repaint=False)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("answers", **kwargs)
        self._top = 0
        self._rows = 1
        self._head = 0

    @property
    def group(self) -> ShownGroup | None:
        """The group of the selected prompt."""
        groups = self.snapshot.groups
        return groups[min(self.place, len(groups) - 1)] if groups else None

    def topic(self) -> str:
        return "panel:answers"

    def watch_now(self) -> None:
        """Count the seconds of those that wait for their environment."""
        group = self.group
        if group is not None and any(waits_since(one) is not None for one in group.rollouts):
            self.refresh()

    def watch_place(self) -> None:
        """Show the new prompt from its first answer."""
        self._top = 0
        self.set_reactive(Lanes.cursor, 0)

    def paint(self, width: int, height: int) -> list[Line]:
        """The prompt, then a lane for each answer that fits."""
        palette = self.palette
        group = self.group
        if group is None:
            self.title, self.note = "answers", ""
            return _empty(self.snapshot, width, palette)
        names = f"{letter(0)}–{letter(len(group.rollouts) - 1)}" if group.rollouts else ""
        prompt = ORIGINS.get(group.origin) or safe(group.origin, " ")
        self.title = f"answers to {prompt} {group.index + 1}"
        lines = self._prompt(group, width, height)
        if not lines and not self.snapshot.active:  # while it is, Watch's sentence has the prompt
            asked = " ".join(question(group.prompt_text).split())
            self.title += f": {clip(asked, max(1, width - cell_len(self.title) - 6))}"
        waiting = sum(waits_since(one) is not None for one in group.rollouts)
        about = f"⚙ {waiting} wait{'s' if waiting == 1 else ''}" if waiting else names
        self.note_first(f"step {self.snapshot.groups_step} · {about}", about)
        self._head = len(lines)
        return lines + self._lanes(group, width, height - len(lines))

    def _prompt(self, group: ShownGroup, width: int, height: int) -> list[Line]:
        target = f"   target {clip(group.target, 24)}" if group.target else ""
        room = width - 2 - cell_len(target)
        if room <= 0 or height < len(group.rollouts) + 2:
            return []
        dim = style(self.palette.label)
        most = 1 if height < 20 else 3
        rows = wrap(" ".join(question(group.prompt_text).split()), room, most)
        bright = style(self.palette.headline)
        lines: list[Line] = [[(" ", None), (row, bright)] for row in rows]
        lines[0].append((target, dim))
        lines.append([])
        return lines

    def _lanes(self, group: ShownGroup, width: int, height: int) -> list[Line]:
        count = len(group.rollouts)
        if not count or height <= 0:
            return []
        room = width - 1 - LEAD
        needed = max(len(_text_rows(one, end_mark(one), room, MOST_LINES))
                     for one in group.rollouts)  # fmt: skip
        spare = 1 if height // count > needed else 0
        self._rows = max(1, min(needed + spare, height // count))
        shown = max(1, height // self._rows)
        cursor = min(self.cursor, count - 1)
        self._top = max(0, min(self._top, cursor, count - shown))
        if cursor >= self._top + shown:
            self._top = cursor - shown + 1
        largest = largest_push(group)
        lines: list[Line] = []
        for rollout in group.rollouts[self._top : self._top + shown]:
            block = lane_lines(rollout, width - 1, self._rows, self.palette, largest, self.now)
            marked = self.has_focus and rollout.index == group.rollouts[cursor].index
            edge = ("▌" if marked else " ", style(self.palette.accent))
            lines += [[edge, *line] for line in block]
        return lines

    def action_step(self, by: int) -> None:
        """Move the selection by some answers."""
        if self.group is not None:
            self.cursor = max(0, min(len(self.group.rollouts) - 1, self.cursor + by))

    def action_open(self) -> None:
        """Open the selected answer."""
        group = self.group
        if group is not None and group.rollouts:
            answer = group.rollouts[min(self.cursor, len(group.rollouts) - 1)].index
            step = self.snapshot.groups_step
            self.post_message(RolloutOpened(0, step, group.origin, group.index, answer))

    def copy_text(self) -> str:
        """Return the text of the selected answer."""
        group = self.group
        return group.rollouts[min(self.cursor, len(group.rollouts) - 1)].text if group else ""

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked answer; a second click opens it."""
        row = self.inside(event.offset).y - self._head
        if row >= 0 and self.group is not None:
            self.cursor = min(len(self.group.rollouts) - 1, self._top + row // self._rows)
            if event.chain == 2:
                self.action_open()


def _empty(snapshot: Snapshot, width: int, palette: Palette) -> list[Line]:
    dim = style(palette.label)
    text = "The first answers arrive when the model is loaded."
    if snapshot.status == "empty":
        text = "Answers appear here while they are sampled, one lane each."
    elif snapshot.reading:
        text = "The run is being read."
    elif snapshot.status in ENDED:
        text = "No answers of this run are recorded."
    return [[(" " + part, dim)] for part in wrap(text, width - 2, 4)]
