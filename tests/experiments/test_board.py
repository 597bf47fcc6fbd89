"""The board shows everything sampled."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine import events as ev
from grpo_tui.experiments import board as boards
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.values import BoardRollout, BoardView
from tests.experiments import made


def advanced(row: ev.RowDelta) -> ev.RolloutsAdvanced:
    return ev.RolloutsAdvanced(
        step=1, rows=(row,), tokens=0, finished=0, total=12, tokens_per_second=1.0
    )


DELTAS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 3),
        st.text(max_size=4),
        st.integers(1, 3),
        st.booleans(),  # whether someone looks
    )
)


@given(DELTAS)
def test_rows_grow_by_what_was_sampled(
    deltas: list[tuple[int, int, str, int, bool]],
) -> None:
    board = Board()
    texts: dict[tuple[int, int], str] = {}
    tokens: dict[tuple[int, int], int] = {}
    for group, index, text, count, looks in deltas:
        row = ev.RowDelta(group=group, index=index, text=text, tokens=count)
        board.apply(advanced(row))
        key = group, index
        texts[key] = texts.get(key, "") + text
        tokens[key] = tokens.get(key, 0) + count
        if looks:
            assert board.view is board.view
    rows = {(g.index, row.index): row for g in board.view.groups for row in g.rollouts}
    assert {key: row.text for key, row in rows.items()} == texts
    assert {key: row.tokens for key, row in rows.items()} == tokens


def test_values_are_made_when_someone_looks_and_not_at_each_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_of = Counter[int]()

    def counted(*, index: int, **fields: Any) -> BoardRollout:
        made_of[index] += 1
        return BoardRollout(index=index, **fields)

    board = Board()
    board.apply(
        ev.PromptsStarted(
            step=1,
            prompts=(
                ev.PromptStarted(group=0, origin="train", prompt_text="?", target="", rows=3),
            ),
        )
    )
    monkeypatch.setattr(boards, "BoardRollout", counted)
    for _ in range(100):  # two of the three rows grow
        rows = tuple(ev.RowDelta(group=0, index=n, text="a", tokens=1) for n in (0, 2))
        board.apply(replace(advanced(rows[0]), rows=rows, finished=1))
    view = board.view
    assert made_of == {0: 2, 2: 2}  # one to begin with and one for the view
    assert [len(row.text) for row in view.groups[0].rollouts] == [100, 0, 100]
    assert (view.done, view.total, view.step) == (1, 12, 1)
    assert board.view is view


def test_a_row_ends_once_and_a_new_phase_forgets_it() -> None:
    board = Board()
    ended = ev.RowDelta(group=0, index=0, text="a", tokens=1, finish="stop")
    later = ev.RowDelta(group=0, index=0, text="", tokens=0)
    for row in (ended, later):
        board.apply(advanced(row))
        assert board.view.groups[0].rollouts[0].finish == "stop"
    board.apply(ev.PhaseStarted(step=2, phase="generate"))
    view = board.view
    assert (view.groups, view.step, view.phase) == ((), 2, "generate")


def test_a_dialogue_on_the_board_has_its_turns_and_who_waits_and_no_score() -> None:
    board = Board()
    turn = ev.Span(start=0, length=2, kind="model", turn=0, chars=2)
    reply = ev.Span(
        start=2,
        length=3,
        kind="environment",
        turn=0,
        chars=8,
        name="Guess",
        ms=3.0,
        reward=0.5,
        info={"found": 0},
    )
    steps = (
        ev.RowDelta(group=0, index=0, text="50", tokens=2, spans=(turn,), waits=True),
        ev.RowDelta(group=0, index=0, text="\nhigher\n", tokens=0, spans=(ev.unscored(reply),)),
        ev.RowDelta(group=0, index=0, text="75", tokens=2),
    )
    seen = []
    for delta in steps:
        board.apply(advanced(delta))
        view = board.view
        assert ev.decode(BoardView, json.loads(json.dumps(ev.encode(view)))) == view
        seen.append(view.groups[0].rollouts[0])
    assert [one.waits_since is not None for one in seen] == [True, False, False]
    assert [len(one.spans) for one in seen] == [1, 2, 2]
    assert (seen[-1].text, seen[-1].tokens) == ("50\nhigher\n75", 4)
    scored = made.group()
    rollouts = (replace(scored.rollouts[0], spans=(turn, reply)),)
    board.apply(ev.GroupScored(step=1, group=replace(scored, rollouts=rollouts)))
    kept = board.view.groups[0].rollouts[0].spans
    assert [(one.chars, one.reward, one.info) for one in kept] == [(2, None, {}), (8, None, {})]
