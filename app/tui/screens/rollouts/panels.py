"""The three panes of the Rollouts screen; each draws a `View` and posts user actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.inspector.groups import balance, largest_by_reward, letter, verdicts
from grpo_tui.app.inspector.heat import HEAT_MODES, HEAT_NAMES
from grpo_tui.app.inspector.layout import Line as TokenLine
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.inspector.moments import MEASURES
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.prompt_text import question
from grpo_tui.app.text.safe_text import safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.rollouts.lines import (
    KINDS,
    answer_line,
    diff_lines,
    group_line,
    groups_head,
    history_line,
    hit_lines,
    kind_of,
    place_line,
    reward_lines,
    search_note,
    verdict_line,
)
from grpo_tui.app.tui.screens.rollouts.load import Hits
from grpo_tui.app.tui.screens.rollouts.siblings import bar, sibling_lines
from grpo_tui.app.tui.screens.rollouts.token_lines import standouts, token_lines
from grpo_tui.app.tui.screens.rollouts.turns import HEADS, Note, dialogue_rows, note_line, turn_at
from grpo_tui.app.tui.screens.rollouts.view import View
from grpo_tui.app.tui.widgets.panel import Line, Panel, Span

TURN_LINES, TEXT_LINES, LEAST_NUMBERS = 9, 6, 3  # of a dialogue, of an answer, of a token
NO_RUN = "No run is open. Press 1 for the list of runs, then ⏎ on one."
NO_GROUPS = "No answers are recorded. The first appear once a step has ended; 3 shows the run."


@dataclass
class GroupPicked(Message):
    """A group was clicked."""

    place: int


@dataclass
class TokenPicked(Message):
    """A token was clicked."""

    index: int


def missing(view: View, width: int, palette: Palette) -> list[Line]:
    """Why there is nothing to show, and which key helps."""
    text = NO_RUN if view.step is None else NO_GROUPS
    return [[(" " + part, style(palette.label))] for part in wrap(text, width - 2, 5)]


class ViewPanel(Panel):
    """A panel that draws the screen's view."""

    view: reactive[View] = reactive(View)


class HistoryBar(ViewPanel, can_focus=False):
    """The current position, and the same prompt over the steps."""

    DEFAULT_CSS = "HistoryBar { height: 2; }"
    framed: ClassVar[bool] = False

    live: reactive[bool] = reactive(False)

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - two lines always
        """The position in a sentence, and the bars of the prompt's visits."""
        view, palette = self.view, self.palette
        step, chosen, detail = view.step, view.chosen, view.shown
        if step is None or chosen is None:
            return []
        history = detail.history if detail else ()
        place = place_line(chosen, view.rollout, step.run.name, width, palette)
        return [place, history_line(history, chosen, width, palette, live=self.live)]


class GroupsPanel(ViewPanel):
    """One row per prompt of the step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("groups", **kwargs)
        self._top = 0

    def topic(self) -> str:
        return "panel:prompts"

    def paint(self, width: int, height: int) -> list[Line]:
        """A header, the groups around the selected one, and counts of other origins."""
        palette, view = self.palette, self.view
        kind = view.step.origin if view.step else "train"
        self.title = "groups" if kind == "train" else kind_of(kind)
        groups = view.groups
        self.note = f"sort {view.sort}" if groups else ""
        if view.search is not None:
            self.title, self.note = "found", search_note(view.search, view.hit)
            return self._found(view.search, width, height)
        if not groups:
            text = "The prompts of a step, with the mean reward of their answers, appear here."
            return [[(" " + p, style(palette.label))] for p in wrap(text, width - 2, 5)]
        foot = self._foot(palette)
        room = max(1, height - 1 - len(foot))
        self._top = max(min(self._top, view.group), view.group - room + 1)
        rows = [
            group_line(group, view.sort, chosen=place == view.group, width=width, palette=palette)
            for place, group in enumerate(groups)
        ][self._top : self._top + room]
        gap: list[Line] = [[] for _ in range(room - len(rows))]
        return [groups_head(view.sort, width, palette), *rows, *gap, *foot]

    def _found(self, search: Hits, width: int, height: int) -> list[Line]:
        hits, at = search.found, self.view.hit
        if not hits:
            text = f"Looking for “{safe(search.text)}” in all prompts and answers of this run."
            if search.done:
                text = f"No prompt or answer of this run contains “{safe(search.text)}”."
            return [[(" " + part, style(self.palette.label))] for part in wrap(text, width - 2, 5)]
        self._top = max(min(self._top, at), at - height + 1)
        return hit_lines(hits, at, width, self.palette)[self._top : self._top + height]

    def _foot(self, palette: Palette) -> list[Line]:
        step = self.view.step
        if step is None:
            return []
        label = style(palette.label)
        key = style(palette.headline)
        others = [
            f"{name} at {count} step{'s' if count != 1 else ''}"
            for kind, name in KINDS.items()
            if kind != step.origin and (count := step.counts[kind])
        ]
        lines: list[Line] = [[("t ", key), (text, label)] for text in others]
        return [*lines, [("H L ", key), ("other step  ", label), ("s ", key), ("sort", label)]]

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked group."""
        head = 0 if self.view.search else 1
        place = self.inside(event.offset).y - head + self._top
        if 0 <= place < len(self.view.hits if self.view.search else self.view.groups):
            self.post_message(GroupPicked(place))


def moment_note(view: View) -> str:
    """Which of the step's moments is shown: `clipped token 3 of 17`, `highest KL .21, 1 of 64`."""
    moments, moment = view.moments or (), view.moment
    if moment is None or moment not in moments or not view.found:
        return ""
    place = f"{moments.index(moment) + 1} of {len(moments)}"
    name = MEASURES[view.measure][0]
    if view.measure == "clipped":
        return f"clipped token {place}"
    return f"{name} {short(moment.value, 3)}, {place}"


class AnswerPanel(ViewPanel):
    """One answer token by token, with the numbers of the token under the cursor."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("answer", **kwargs)
        self._top = 0
        self._rows: tuple[TokenLine | Note, ...] = ()
        self._laid_out_for: object = None
        self._text_from = 2  # the line on which the text begins
        self._drawn: list[TokenLine | Note] = []  # by line from there on

    def paint(self, width: int, height: int) -> list[Line]:
        """The group's answers, the text with its bars, the token's numbers, and the siblings."""
        view, palette = self.view, self.palette
        chosen, rollout = view.chosen, view.rollout
        place = HEAT_MODES.index(view.mode) + 1
        self.title, self.note = "answer", ""
        if chosen is None or rollout is None:
            return missing(view, width, palette)
        changes = view.diff and (view.earlier is not None or view.shown is None)
        how = ", changes" if changes else f": {view.arrived}" if view.arrived else " by token"
        self.title += f" {letter(rollout.index)}{how}"
        shade = HEAT_NAMES[view.mode]
        texts = [f"heat {place}/{len(HEAT_MODES)}: {shade}", shade]
        if view.mode != "clip":
            texts = [f"{text}, group's scale" for text in texts] + texts
        if not view.shaded:
            texts = [f"heat {place}/{len(HEAT_MODES)}: no {shade} here", f"no {shade}"]
        if changes:
            texts = []
        if moment := moment_note(view):
            placed = f"{moment} in the step"
            texts = [f"{placed} · {texts[0]}", placed, moment] if texts else [placed, moment]
        self.note_first(*texts)
        head = [answer_line(chosen.rollouts, view.answer, width, palette)]
        if changes:
            return head + self._changes(width, palette)
        head += self._reason(width)
        self._text_from = len(head)
        foot = self._token(width, palette)
        room = max(2, height - len(head) - len(foot) - 1)
        least = TURN_LINES if view.spans else TEXT_LINES  # a turn is read with its reply
        room = max(room, min(least, height - len(head) - LEAST_NUMBERS - 1))
        body = self._text(width, room, palette)
        kept = max(LEAST_NUMBERS, height - len(head) - len(body) - 1)
        if len(foot) > kept:
            more = f"… {len(foot) - kept + 1} more lines; z makes room"
            foot = [*foot[: kept - 1], [(more, style(palette.label))]]
        lines = [*head, *body, [], *foot, []]
        return lines + sibling_lines(view, width, height - len(lines), palette)

    def _reason(self, width: int) -> list[Line]:
        """Why there are no changes, shades or terms to show; a blank line if there are."""
        detail = self.view.shown
        if self.view.diff and detail is not None:
            why = "this prompt has no earlier answer to compare with"
            return [[(why, style(self.palette.label))]]
        if detail is None or not detail.missing:
            return [[]]
        look = style(self.palette.warn if detail.tokens is None else self.palette.label)
        return [[(part, look)] for part in wrap(detail.missing, width, 3)]

    def _changes(self, width: int, palette: Palette) -> list[Line]:
        changes, earlier = self.view.changes(), self.view.earlier
        if earlier is None:
            return [[("reading the earlier answer", style(palette.label))]]
        same = all(change.kind == "same" for change in changes)
        since = f"{'unchanged' if same else 'what changed'} since step {earlier.step}"
        return [[(since, style(palette.label))], *diff_lines(changes, width, palette)]

    def _token(self, width: int, palette: Palette) -> list[Line]:
        view = self.view
        row, step, detail = view.row, view.step, view.shown
        if row is None or step is None or detail is None or not row.ids:
            words = "" if detail else "reading the token numbers"
            return [[(words, style(palette.label))]]
        lines = token_lines(
            row, view.texts[view.token], view.token, view.terms, step.run.recipe,
            step.run.max_length, width, palette,
        )  # fmt: skip
        last = view.terms[-1] if view.terms else ()
        found = standouts(row, view.texts, last, step.run.recipe)
        for name, text in found:
            heads = [name, ""]
            lines += [
                [(f"{head:<8}", style(palette.label)), (part, style(palette.text))]
                for head, part in zip(heads, wrap(text, width - 8, 2), strict=False)
            ]
        return lines

    def _text(self, width: int, room: int, palette: Palette) -> list[Line]:
        rows = self._laid_out(width)
        first, last = reach(rows, self.view.token, room)
        self._top = max(min(self._top, first), first_before(rows, last, room))
        heat, terms = self.view.heat, self.view.terms
        clipped = {t for t, term in enumerate(terms[-1]) if term.side != "free"} if terms else set()
        lines: list[Line] = []
        self._drawn = []
        for row in rows[self._top :]:
            if len(lines) + height_of(row) > room:
                break
            self._drawn += [row] * height_of(row)
            if isinstance(row, Note):
                lines.append(note_line(row, width, palette))
                continue
            lines.append([self._piece(p.token, p.text, clipped, palette) for p in row])
            lines.append([bar(heat, p.token, p.cells, palette) for p in row])
        return lines

    def _laid_out(self, width: int) -> tuple[TokenLine | Note, ...]:
        """The lines of the answer, computed again when it, its open turn or the width changes."""
        view = self.view
        opened = None if view.unfolded else turn_at(view.spans, view.token)
        plain = view.shown is not None and view.row is None  # without token numbers
        key = view.texts, view.spans, width, opened if view.spans else None, plain
        if self._laid_out_for != key:
            self._laid_out_for, self._top = key, 0
            self._rows = lay_out(view.texts, width)
            if plain:
                self._rows = tuple(
                    Note("said", part, 0) for part in wrap("".join(view.texts), width, 999)
                )
            if view.spans and view.rollout is not None:
                self._rows = dialogue_rows(view.rollout.text, view.spans, view.texts, width, opened)
        return self._rows

    def _piece(self, token: int, text: str, clipped: set[int], palette: Palette) -> Span:
        here = token == self.view.token and self.view.row is not None
        front = palette.headline if here else palette.text
        back = palette.cursor if here else None
        return text, style(front, back, bold=here, underline=token in clipped)

    def copy_text(self) -> str:
        """Return the answer as the model wrote it, escaped for the terminal."""
        rollout = self.view.rollout
        return safe(rollout.text, "\n") if rollout else ""

    def topic(self) -> str:
        return "panel:tokens"

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked token."""
        place = self.inside(event.offset)
        line = place.y - self._text_from
        if not 0 <= line < len(self._drawn):
            return
        row, cell = self._drawn[line], 0
        if isinstance(row, Note):
            self.post_message(TokenPicked(row.token))
            return
        for piece in row:
            cell += piece.cells
            if place.x < cell:
                self.post_message(TokenPicked(piece.token))
                return


def height_of(row: TokenLine | Note) -> int:
    """A line of tokens has one with their bars below it."""
    return 1 if isinstance(row, Note) else 2


def first_before(rows: Sequence[TokenLine | Note], last: int, room: int) -> int:
    """The first line with which those up to `last` fit."""
    first, used = last, sum(map(height_of, rows[last : last + 1]))
    while first and used + height_of(rows[first - 1]) <= room:
        first -= 1
        used += height_of(rows[first])
    return first


def reach(rows: Sequence[TokenLine | Note], token: int, room: int) -> tuple[int, int]:
    """The first and last line to show for a token: its own, or its whole turn if that fits."""
    at = next(
        (
            place for place, row in enumerate(rows)
            if not isinstance(row, Note) and any(piece.token == token for piece in row)
        ),
        0,
    )  # fmt: skip
    heads = [n for n, row in enumerate(rows) if isinstance(row, Note) and row.kind in HEADS]
    first = max((n for n in heads if n <= at), default=at)
    last = min((n for n in heads if n > at), default=len(rows)) - 1 if heads else at
    return (first, last) if sum(map(height_of, rows[first : last + 1])) <= room else (at, at)


class WhyPanel(ViewPanel):
    """The parts of the reward, and how they compare within the group."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("why this reward", **kwargs)

    def topic(self) -> str:
        return "panel:why"

    def paint(self, width: int, height: int) -> list[Line]:
        """Rewards by function with reasons, verdicts, and the group's balance."""
        view, palette = self.view, self.palette
        chosen, rollout = view.chosen, view.rollout
        if chosen is None or rollout is None:
            text = "What each reward function gave an answer, and why, appears here."
            return [[(" " + p, style(palette.label))] for p in wrap(text, width - 2, 5)]
        groups = view.step.groups if view.step else ()
        lines = reward_lines(rollout, largest_by_reward(groups), width, palette)
        lines += [[], *verdict_line(verdicts(rollout, chosen), palette)]
        label = style(palette.label)
        target = [f"target {chosen.target}"] if chosen.target else []
        for text in (*target, f"group: {balance(chosen)}"):
            lines += [[(part, label)] for part in wrap(text, width, 3)]
        prompt = wrap(question(chosen.prompt_text), width, height - len(lines) - 2)
        if prompt:
            lines += [[], [("prompt", label)]]
            lines += [[(part, style(palette.text))] for part in prompt]
        return lines[:height]
