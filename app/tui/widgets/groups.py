"""The groups panel: a row per prompt, a cell per answer, and why a prompt has no signal."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.reactive import reactive

from grpo_engine.events import REPLACED, Group
from grpo_tui.app.feed.snapshot import ShownGroup, ShownRollout, Snapshot
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.text.numbers import narrow, share, signed, sparkline
from grpo_tui.app.text.prompt_text import asked
from grpo_tui.app.text.safe_text import cell_len, clip, pad, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.messages import PromptFocused, RolloutOpened
from grpo_tui.app.tui.widgets.lanes import arrow, largest_push
from grpo_tui.app.tui.widgets.panel import Line, Panel, Span
from grpo_tui.experiments.values import BoardRollout

MEAN = 4
LEAST_PROMPT = 20  # cells beside the means from which the prompts are shown there
HEAD_FROM, FOOT_FROM = 2, 4  # rows above which there are the header, and the signal of each step


def number_width(groups: Sequence[ShownGroup]) -> int:
    """Cells of the prompt's number and the mark behind it."""
    return max(2, *(len(str(group.index + 1)) for group in groups), 0) + 2


def cell_width(width: int, answers: int) -> int:
    """Cells per answer: 7 with its advantage, 2 with its arrow, 1 if narrow, 0 for counts only."""
    room = width - MEAN
    for each in (7, 2, 1):
        if answers * each <= room:
            return each
    return 0


def group_line(
    group: ShownGroup, width: int, number: int, each: int, palette: Palette, focused: bool,
    marked: int | None, explained: bool,
) -> Line:  # fmt: skip
    """One prompt: number, the pushes of its answers or why there are none, the mean reward."""
    bright = style(palette.headline if focused else palette.text, bold=focused)
    spans: Line = [(f"{group.index + 1:>{number - 2}}", bright),
                   ("▸ " if focused else "  ", style(palette.accent))]  # fmt: skip
    used = number
    why = "" if explained else why_no_push(group)
    if why and cell_len(why) + 2 <= each * len(group.rollouts):
        text = f"= {why}".ljust(each * len(group.rollouts))
        spans += _marked(text, each, marked, style(palette.label), palette)
        used += len(text)
    elif each:
        largest = largest_push(group)
        for rollout in group.rollouts:
            spans.append(_cell(rollout, each, palette, largest, rollout.index == marked))
        used += each * len(group.rollouts)
    else:
        text = _counts(group)
        spans.append((clip(text, width - number - MEAN - 1), bright))
        used += min(len(text), width - number - MEAN - 1)
    mean = narrow(group.reward_mean, MEAN) if isinstance(group, Group) else ""
    spans.append((" " * max(0, width - used - MEAN), None))
    spans.append((f"{mean:>{MEAN}}", bright))
    return spans


def _marked(text: str, each: int, marked: int | None, look: Style, palette: Palette) -> Line:
    """A reason in place of the answers' cells, with the cursor on the one that is marked."""
    if marked is None:
        return [(text, look)]
    start, end = marked * each, (marked + 1) * each
    under = style(palette.headline, palette.cursor)
    return [(text[:start], look), (text[start:end], under), (text[end:], look)]


def _counts(group: ShownGroup) -> str:
    if not isinstance(group, Group):
        return f"{len(group.rollouts)} answers"
    up = sum((rollout.advantage or 0) > 0 for rollout in group.rollouts)
    down = sum((rollout.advantage or 0) < 0 for rollout in group.rollouts)
    return f"{up}▲ {down}▼"


def _cell(rollout: ShownRollout, each: int, palette: Palette, largest: float, marked: bool) -> Span:
    if isinstance(rollout, BoardRollout):
        text = "▪" if rollout.finish is not None else "·"
        colour = palette.label
    else:
        text = arrow(rollout.advantage)
        if each == 7:
            text += f"{signed(rollout.advantage) if rollout.advantage else '':<6}"
        colour = palette.of_push(rollout.advantage, largest)
        colour = palette.label if colour == palette.border else colour
    look = style(colour, palette.cursor if marked else None, bold=marked)
    return (text.ljust(each), look)


def why_line(why: str, width: int, palette: Palette) -> Line:
    """Why no answer of the group is pushed; if narrow, only the score that all of them have."""
    texts = (f"    └ {why}: no push", f"  └ {why}", f"  └ {why.rpartition(', ')[2]}")
    text = next((text for text in texts if cell_len(text) <= width), texts[-1])
    return [(clip(text, width), style(palette.label))]


def why_no_push(group: ShownGroup) -> str:
    """Why no answer of a recorded group is pushed; empty if some are, or if not recorded yet."""
    return group.no_signal if isinstance(group, Group) else ""


def signal_of(snapshot: Snapshot) -> float | None:
    """The share of the shown step's groups with signal; None until all of them have scores."""
    groups = snapshot.groups
    scored = [group for group in groups if isinstance(group, Group) and group.origin == "train"]
    trained = [group for group in scored if not group.no_signal.endswith(REPLACED)]
    if not trained or len(scored) < len(groups):
        return dict(snapshot.signal).get(snapshot.groups_step)
    return sum(not group.no_signal for group in trained) / len(trained)


def signal_line(snapshot: Snapshot, width: int, palette: Palette) -> Line:
    """The share of groups with signal up to the step shown; the number is that step's."""
    now = signal_of(snapshot)
    values = [value for step, value in snapshot.signal if step < snapshot.groups_step]
    values += [] if now is None else [now]
    if not values:
        return []
    number = share(now) if now is not None else "–"
    room = max(1, width - 10 - len(number))
    curve = sparkline(values[-room:], room, 0.0, 1.0)
    return [(" signal ", style(palette.label)), (curve, style(palette.of_series("kl"))),
            (f" {number}", style(palette.text))]  # fmt: skip


class Groups(Panel):
    """All prompts of the step in an overview."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "prompt", id="groups.up", key_display="↑↓",
                tooltip="Show the prompt above"),
        Binding("down,j", "step(1)", "prompt below", id="groups.down", show=False,
                tooltip="Show the prompt below"),
        Binding("left,h", "aside(-1)", "answer", id="groups.left", key_display="←→",
                tooltip="Choose the answer to the left"),
        Binding("right,l", "aside(1)", "answer to the right", id="groups.right", show=False,
                tooltip="Choose the answer to the right"),
        Binding("enter", "open", "open", id="groups.open",
                tooltip="Open this group on Rollouts"),
    ]  # fmt: skip

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    place: reactive[int] = reactive(0)
    cursor: reactive[int] = reactive(0)
    marks: reactive[bool] = reactive(True)  # the answers on screen are of these groups

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("groups", **kwargs)
        self._places: list[int] = []

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002 - the base class has it
        """Room for the arrows of all answers; overrides Textual, for `width: auto`."""
        groups = self.snapshot.groups
        answers = max((len(group.rollouts) for group in groups), default=0)
        return number_width(groups) + 2 * answers + 1 + MEAN + 2

    def watch_snapshot(self, old: Snapshot, new: Snapshot) -> None:
        """Take the room that the new groups need."""
        widths = [max((len(group.rollouts) for group in shown.groups), default=0)
                  for shown in (old, new)]  # fmt: skip
        if widths[0] != widths[1]:
            self.refresh(layout=True)

    @property
    def _focused(self) -> ShownGroup | None:
        groups = self.snapshot.groups
        return groups[min(self.place, len(groups) - 1)] if groups else None

    def topic(self) -> str:
        return "panel:groups"

    def paint(self, width: int, height: int) -> list[Line]:
        """A header, the groups around the selected one, and the signal over the last steps."""
        palette = self.palette
        groups = self.snapshot.groups
        self._places = []
        if not groups:
            dim = style(palette.label)
            text = "Each prompt of a step gets a row here, each answer a cell: ▲ pushed up, ▼ down."
            return [[(" " + part, dim)] for part in wrap(text, width - 2, 5)]
        answers = max(len(group.rollouts) for group in groups)
        number = number_width(groups)
        each = cell_width(width - number, answers)
        # the mean stays beside the answers, however wide the panel is
        table = min(width, number + each * answers + 1 + MEAN) if each else width
        lines = [self._header(number, each, answers, table)] if height > HEAD_FROM else []
        head = len(lines)
        foot = signal_line(self.snapshot, width, palette) if height > FOOT_FROM else []
        room = height - head - (1 if foot else 0)
        place = min(self.place, len(groups) - 1)
        first, explain = _window(groups, place, room)
        for index in range(first, len(groups)):
            group = groups[index]
            needed = 2 if explain and why_no_push(group) else 1
            if len(lines) - head + needed > room:
                break
            marked = self.cursor if index == place and self.has_focus else None
            chosen = self.marks and index == place
            line = group_line(group, table, number, each, palette, chosen, marked,
                              needed == 2)  # fmt: skip
            if width - table >= LEAST_PROMPT:
                prompt = clip(asked(group.prompt_text), width - table - 2)
                line.append((f"  {prompt}", style(palette.text if chosen else palette.label)))
            lines.append(line)
            self._places.append(index)
            if needed == 2:
                lines.append(why_line(why_no_push(group), width, palette))
                self._places.append(index)
        hidden = len(groups) - len(set(self._places))
        self.title = {"train": "groups", "eval": "held-out", "pinned": "pinned"}[groups[0].origin]
        step = self.snapshot.groups_step
        more = (f"step {step} · {hidden} more", f"step {step} · {hidden} ↓", f"{step} · {hidden} ↓")
        self.note_first(*(more if hidden else ()), f"step {step}", f"{step}")
        if foot:
            lines += [[]] * (height - 1 - len(lines))
            lines.append(foot)
        return lines

    def _header(self, number: int, each: int, answers: int, width: int) -> Line:
        names = "".join(letter(i).ljust(each)[:each] for i in range(answers)) if each > 1 else ""
        left = pad(" " * number + names, width - MEAN)
        return [(left, style(self.palette.label)), ("mean", style(self.palette.label))]

    def action_step(self, by: int) -> None:
        """Select another prompt."""
        count = len(self.snapshot.groups)
        if count:
            self.post_message(PromptFocused(max(0, min(count - 1, self.place + by))))

    def action_aside(self, by: int) -> None:
        """Select another answer of the prompt."""
        group = self._focused
        if group is not None:
            count = len(group.rollouts)
            self.cursor = max(0, min(count - 1, self.cursor + by))

    def action_open(self) -> None:
        """Open the selected group at the selected answer."""
        group = self._focused
        if group is not None:
            step = self.snapshot.groups_step
            self.post_message(RolloutOpened(0, step, group.origin, group.index, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Select the clicked prompt."""
        row = self.inside(event.offset).y - (self.inner.height > HEAD_FROM)
        if 0 <= row < len(self._places):
            self.post_message(PromptFocused(self._places[row]))
            if event.chain == 2:
                self.action_open()


def _window(groups: Sequence[ShownGroup], place: int, room: int) -> tuple[int, bool]:
    """The first group to show and whether reasons fit, so that the selected one is visible."""
    full = sum(2 if why_no_push(group) else 1 for group in groups)
    if full <= room:
        return 0, True
    explain = len(groups) > room and room > 4
    if not explain:
        return max(0, min(place - room + 1, len(groups) - room)) if place >= room else 0, False
    return (0 if place < room else place - room + 1), False
