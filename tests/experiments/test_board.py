"""The board shows everything sampled, however often it is read."""

import json

from hypothesis import given
from hypothesis import strategies as st

from experiments.board import Board, board_from_json, board_json
from grpo_engine import events as ev
from tests.experiments import made

DELTAS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 3), st.text(max_size=4), st.integers(1, 3), st.booleans()
    )
)


@given(DELTAS)
def test_rows_grow_by_what_was_sampled_whoever_looks(
    deltas: list[tuple[int, int, str, int, bool]],
) -> None:
    board = Board()
    texts: dict[tuple[int, int], str] = {}
    tokens: dict[tuple[int, int], int] = {}
    for group, index, text, count, looked in deltas:
        row = ev.RowDelta(group=group, index=index, text=text, tokens=count)
        board.apply(
            ev.RolloutsAdvanced(
                step=1, rows=(row,), tokens=0, finished=0, total=12, tokens_per_second=1.0
            )
        )
        key = group, index
        texts[key] = texts.get(key, "") + text
        tokens[key] = tokens.get(key, 0) + count
        if looked:
            assert board.snapshot() is board.snapshot()
    rows = {(g.index, row.index): row for g in board.snapshot().groups for row in g.rollouts}
    assert {key: row.text for key, row in rows.items()} == texts
    assert {key: row.tokens for key, row in rows.items()} == tokens


def test_a_row_ends_once_and_a_new_phase_forgets_it() -> None:
    board = Board()
    ended = ev.RowDelta(group=0, index=0, text="a", tokens=1, finish="stop")
    later = ev.RowDelta(group=0, index=0, text="", tokens=0)
    for row in (ended, later):
        board.apply(
            ev.RolloutsAdvanced(
                step=1, rows=(row,), tokens=1, finished=1, total=1, tokens_per_second=1.0
            )
        )
        assert board.snapshot().groups[0].rollouts[0].finish == "stop"
    board.apply(ev.PhaseStarted(step=2, phase="generate"))
    view = board.snapshot()
    assert (view.groups, view.step, view.phase) == ((), 2, "generate")


def test_a_board_in_mid_step_has_the_answers_and_no_score() -> None:
    board = Board()
    prompt = ev.PromptStarted(group=1, origin="train", prompt_text="p", target="2", rows=2)
    board.apply(ev.PhaseStarted(step=1, phase="generate", detail="refill 1"))
    board.apply(ev.PromptsStarted(step=1, prompts=(prompt,)))
    for index in (0, 1):  # group 0 was sampled before the refill
        board.apply(ev.GroupScored(step=1, group=made.group(index)))
    told = board_json(board.snapshot())
    assert [[row["text"] for row in one["rows"]] for one in told["groups"]] == [["yes", "no"]] * 2
    assert set(told["groups"][0]) == {"index", "origin", "prompt_text", "target", "rows"}
    assert set(told["groups"][0]["rows"][0]) == {"index", "text", "tokens", "finish"}
    assert board_from_json(json.loads(json.dumps(told))) == board.snapshot()


def test_a_board_with_scores_of_an_earlier_version_is_read_without_them() -> None:
    board = Board()
    board.apply(ev.GroupScored(step=1, group=made.group()))
    old = board_json(board.snapshot())
    for one in old["groups"]:
        one |= {"reward_mean": 0.5, "reward_std": 0.5, "no_signal": "", "scored": True}
        one["rows"] = [row | {"reward": 1.0, "advantage": 0.5, "scored": True}
                       for row in one["rows"]]  # fmt: skip
    assert board_from_json(old) == board.snapshot()
