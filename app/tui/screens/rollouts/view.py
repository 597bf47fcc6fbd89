"""What the Rollouts screen shows: the cursor's step, group, answer and token."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from grpo_engine.events import Span
from grpo_tui.app.inspector.groups import (
    Change,
    SortKey,
    furthest,
    sorted_groups,
    visits,
    word_diff,
)
from grpo_tui.app.inspector.heat import HEAT_MODES, Heat, HeatMode, heat
from grpo_tui.app.inspector.layout import token_texts
from grpo_tui.app.inspector.moments import Measure, Moment
from grpo_tui.app.inspector.values import TokenTerm
from grpo_tui.app.tui.screens.rollouts.load import UNFINISHED, GroupDetail, Hits, StepGroups
from grpo_tui.experiments.values import GroupView, RolloutView, SearchHit, TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The screen's state; every change returns a new one."""

    step: StepGroups | None = None
    detail: GroupDetail | None = None
    group: int = 0
    answer: int = 0
    token: int = 0
    sort: SortKey = "prompt"
    mode: HeatMode = "push"
    diff: bool = False
    unfolded: bool = False  # every turn of a dialogue
    search: Hits | None = None
    hit: int = 0
    measure: Measure = "clipped"
    moments: tuple[Moment, ...] | None = None  # of the shown step, in their order
    moment: Moment | None = None
    arrived: str = ""  # where `@` went, in words

    @property
    def hits(self) -> tuple[SearchHit, ...]:
        """What the search has found."""
        return self.search.found if self.search else ()

    @property
    def groups(self) -> tuple[GroupView, ...]:
        """The step's groups in display order."""
        return sorted_groups(self.step.groups, self.sort) if self.step else ()

    @property
    def chosen(self) -> GroupView | None:
        """The group under the cursor."""
        groups = self.groups
        return groups[min(self.group, len(groups) - 1)] if groups else None

    @property
    def shown(self) -> GroupDetail | None:
        """The selected group's numbers, once loaded."""
        chosen = self.chosen
        if self.detail is None or chosen is None or self.detail.group.key != chosen.key:
            return None
        return self.detail

    @property
    def unfinished(self) -> bool:
        """Whether the selected group's numbers come when the update of its step has ended."""
        return self.shown is not None and self.shown.missing == UNFINISHED

    @property
    def rollout(self) -> RolloutView | None:
        """The answer under the cursor."""
        chosen = self.chosen
        if chosen is None or not chosen.rollouts:
            return None
        return chosen.rollouts[min(self.answer, len(chosen.rollouts) - 1)]

    @property
    def row(self) -> TokenRow | None:
        """The token numbers of the answer under the cursor."""
        return self._row_of(self.rollout)

    def _row_of(self, rollout: RolloutView | None) -> TokenRow | None:
        detail = self.shown
        if detail is None or detail.tokens is None or rollout is None:
            return None
        return next((row for row in detail.tokens.rows if row.index == rollout.index), None)

    @property
    def terms(self) -> tuple[tuple[TokenTerm, ...], ...]:
        """The terms of the answer under the cursor, one tuple per pass."""
        return self._terms_of(self.row)

    def _terms_of(self, row: TokenRow | None) -> tuple[tuple[TokenTerm, ...], ...]:
        detail = self.shown
        if detail is None or row is None or detail.tokens is None:
            return ()
        place = detail.tokens.rows.index(row)
        return tuple(one[place] for one in detail.terms[: max(1, len(row.passes))])

    @property
    def texts(self) -> tuple[str, ...]:
        """The answer under the cursor split into tokens, or in one piece if they are unknown."""
        return self.texts_of(self.rollout) if self.rollout is not None else ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The turns and replies of the answer under the cursor; empty if it is one turn."""
        rollout = self.rollout
        return rollout.spans if rollout is not None else ()

    @property
    def places(self) -> Sequence[int]:
        """Where the cursor may be: on the model's tokens."""
        row, count = self.row, len(self.texts)
        return row.own if row is not None and len(row.ids) == count else range(count)

    @property
    def heat(self) -> Heat | None:
        """The shading of the answer under the cursor."""
        return self.heat_of(self.rollout)

    @property
    def shaded(self) -> bool:
        """Whether a token of the answer under the cursor has a shade."""
        heat = self.heat
        return heat is not None and any(shade is not None for shade in heat.shades)

    def heat_of(self, rollout: RolloutView | None) -> Heat | None:
        """The shading of an answer of the group; None if no token has any."""
        row, detail = self._row_of(rollout), self.shown
        if row is None or detail is None:
            return None
        terms = self._terms_of(row)
        found = heat(self.mode, row, terms[-1] if terms else (), detail.scales[self.mode])
        return found if any(shade is not None for shade in found.shades) else None

    @property
    def earlier(self) -> GroupView | None:
        """The same prompt at the previous visit."""
        detail, chosen = self.shown, self.chosen
        if detail is None or chosen is None:
            return None
        before = [v for v in visits(detail.history, chosen) if v.step < chosen.step]
        return before[-1] if before else None

    def changes(self) -> tuple[Change, ...]:
        """The words that changed since the same answer at the previous visit."""
        earlier, rollout = self.earlier, self.rollout
        if earlier is None or rollout is None or not earlier.rollouts:
            return ()
        before = earlier.rollouts[min(rollout.index, len(earlier.rollouts) - 1)]
        return word_diff(before.text, rollout.text)

    # -- moves ------------------------------------------------------------------------------

    def with_step(self, step: StepGroups) -> "View":
        """Show another step, keeping the cursor's position if possible."""
        last = max(0, len(step.groups) - 1)
        view = replace(self, step=step, group=min(self.group, last), token=0, moments=None,
                       moment=None, arrived="")  # fmt: skip
        return view.move_answer(0)  # a held-out problem may have one answer

    def at_moment(self, moment: Moment) -> "View":
        """Move to a moment of this step; its answer's numbers need not be loaded yet."""
        view = self.at_answer(moment.group, moment.answer)
        return replace(view, token=moment.token, moment=moment)

    @property
    def found(self) -> bool:
        """Whether the cursor is on the moment that `f` found."""
        one = self.moment
        return one is not None and self.here == (one.group, one.answer, one.token)

    @property
    def here(self) -> tuple[int, int, int]:
        """The cursor as a moment is placed: group, answer and token."""
        chosen, rollout = self.chosen, self.rollout
        return (chosen.index if chosen else 0, rollout.index if rollout else 0, self.token)

    def move_group(self, by: int) -> "View":
        """Go to another group."""
        last = max(0, len(self.groups) - 1)
        return replace(self, group=max(0, min(last, self.group + by)), answer=0, token=0,
                       arrived="")  # fmt: skip

    def move_answer(self, by: int) -> "View":
        """Go to another answer of the group, keeping the token if possible."""
        chosen = self.chosen
        last = max(0, len(chosen.rollouts) - 1) if chosen else 0
        view = replace(self, answer=max(0, min(last, self.answer + by)))
        return view.at_token(self.token)

    def move_token(self, by: int) -> "View":
        """Go to another token of the model."""
        places = self.places
        place = bisect_right(places, self.token) - 1 + by
        return replace(self, token=places[max(0, min(len(places) - 1, place))] if places else 0)

    def at_token(self, token: int) -> "View":
        """Put the cursor on a token, or on the model's last one before it."""
        return replace(self, token=token).move_token(0)

    def move_turn(self, by: int) -> "View":
        """Go to the first token of another turn."""
        starts = [one.start for one in self.spans if one.kind == "model" and one.length]
        place = bisect_right(starts, self.token) - 1 + by
        return self.at_token(starts[max(0, min(len(starts) - 1, place))]) if starts else self

    def next_mode(self) -> "View":
        """Shade by the next measure."""
        return replace(self, mode=HEAT_MODES[(HEAT_MODES.index(self.mode) + 1) % len(HEAT_MODES)])

    def at_answer(self, group: int, answer: int) -> "View":
        """Move the cursor to an answer of the group with this index in its step."""
        places = [place for place, one in enumerate(self.groups) if one.index == group]
        if not places:
            return self
        view = replace(self, group=places[0], token=0)
        return replace(view, answer=0).move_answer(answer)

    def sorted_by(self, key: SortKey) -> "View":
        """Sort the groups; the cursor goes to the first one's furthest answer.

        In the order of the prompts nothing is furthest, and the cursor stays on its group.
        """
        chosen, view = self.chosen, replace(self, sort=key, moments=None, arrived="")
        if chosen is None:
            return view
        if key == "prompt":
            return replace(view, group=[one.key for one in view.groups].index(chosen.key))
        return replace(view, group=0, token=0, answer=furthest(view.groups[0], key))

    def visit(self, by: int) -> GroupView | None:
        """The same prompt `by` visits away, or None."""
        detail, chosen = self.shown, self.chosen
        if detail is None or chosen is None:
            return None
        alike = visits(detail.history, chosen)
        place = next((i for i, visit in enumerate(alike) if visit.key == chosen.key), -1) + by
        return alike[place] if 0 <= place < len(alike) else None

    def texts_of(self, rollout: RolloutView) -> tuple[str, ...]:
        """An answer of the group split into tokens, or in one piece if they are unknown."""
        return cut(rollout.text, self._row_of(rollout))


def cut(text: str, row: TokenRow | None) -> tuple[str, ...]:
    """An answer split into tokens, or in one piece if they are unknown."""
    known = row is not None and len(row.ends) == len(row.ids)
    return _cut_at(text, row.ends) if row is not None and known else (text,)


@lru_cache(maxsize=128)
def _cut_at(text: str, ends: tuple[int, ...]) -> tuple[str, ...]:
    return token_texts(text, ends)
