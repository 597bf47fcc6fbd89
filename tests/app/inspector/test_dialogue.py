"""A dialogue's text by author, and what looks only at the model's tokens."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from grpo_engine import events as ev
from grpo_tui.app.inspector.dialogue import flow, messages
from grpo_tui.app.inspector.groups import verdicts
from grpo_tui.app.inspector.measures import (
    HEAT_MODES,
    MEASURES,
    highlights_of,
    shades,
    values_of,
)
from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.experiments.values import RecordedTokens, RolloutView
from tests.app.dialogues import Turn, completion, groups, guesses, token_numbers
from tests.app.inspector.kit import group, term

TURNS = st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40)), min_size=1, max_size=5)


def shown(one: ev.Rollout, width: int, most: int) -> list[str]:
    lines = flow(one.text, one.spans, width, most)
    return ["".join(text for text, _ in line).rstrip() for line in lines]


@given(TURNS)
def test_parts_are_what_each_said(turns: list[tuple[str, str]]) -> None:
    one = completion(0, [Turn(said, reply) for said, reply in turns], "stop")
    found = list(messages(one.text, one.spans))
    assert [p.text for p in found if not p.is_reply] == [said for said, _ in turns]
    assert [p.text for p in found if p.is_reply] == [
        reply.strip("\n") for _, reply in turns if reply
    ]


@given(TURNS, st.integers(8, 60), st.integers(1, 6))  # a narrower line breaks within a word
def test_a_dialogue_fits_its_lines_and_ends_as_it_ended(
    turns: list[tuple[str, str]], width: int, most: int
) -> None:
    one = completion(0, [Turn(said, reply) for said, reply in turns] + [Turn("56")], "stop")
    lines = shown(one, width, most)
    assert 1 <= len(lines) <= most
    assert all(cell_len(line) <= width for line in lines)
    assert lines[-1].endswith("56")
    assert not any(line.startswith(" ") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_turns_and_replies_are_one_text_of_which_the_beginning_is_cut() -> None:
    one = completion(0, guesses(("50", "higher"), ("75", "lower"), ("62", "")), "stop")
    assert shown(one, 40, 3) == ["50 ‹higher› 75 ‹lower› 62"]
    assert shown(one, 16, 3) == ["50 ‹higher› 75", "‹lower› 62"]
    assert shown(one, 16, 1) == ["…› 75 ‹lower› 62"]
    authors = flow(one.text, one.spans, 40, 1)[0]
    assert [text.strip() for text, is_reply in authors if is_reply] == ["‹higher›", "‹lower›"]


def test_a_tool_call_is_one_line_that_only_the_environment_can_write() -> None:
    first, _, several, fake = groups()[1].rollouts
    assert shown(first, 40, 3) == ["⚙ calculator(17*23) → 391", "391"]
    assert shown(several, 27, 4) == [
        "⚙ calculator(17*23) → 391",
        "⚙ calculator(1/0) → {'erro…",
        "It is 390",
    ]
    assert shown(replace(fake, text="⚙ fake(1) → 2", spans=fake.spans[:0]), 40, 3)[0][0] == "⚙"
    authors = [is_reply for _, is_reply in flow(fake.text, fake.spans, 80, 3)[0]]
    assert not authors[0]  # the model wrote a line that looks like a call


def row_of(dialogues: ev.Group, index: int) -> RecordedTokens:
    one, numbers = dialogues.rollouts[index], token_numbers(dialogues)[index]
    taken = {name: getattr(numbers, name) for name in numbers.__dataclass_fields__}
    return RecordedTokens(
        **taken, ids=one.ids, sampler=one.sampler_logprobs, ends=one.ends, spans=one.spans
    )


def test_the_environments_tokens_have_no_heat_and_do_not_scale_that_of_others() -> None:
    # "50" and its end token, two tokens of a reply, and so on: their entropy is .3 and 9
    row = row_of(groups()[0], 0)
    row = replace(row, teacher=tuple(value + 0.1 for value in row.old))
    terms = [term(kl=9.0 if place in row.reply_positions else 0.1) for place in range(len(row.ids))]
    assert row.reply_positions == {2, 3, 6, 7, 10, 11}
    assert row.model_positions == (0, 1, 4, 5, 8, 9, 12, 13)
    for mode in HEAT_MODES:
        (shaded,) = shades(mode, [values_of(mode, row, terms)])
        assert all(
            (shaded[place] is None) == (place in row.reply_positions) for place in range(14)
        ), mode
    (shaded,) = shades("entropy", [values_of("entropy", row, terms)])
    assert {shaded[place] for place in row.model_positions} == {1.0}


def test_no_moment_is_a_token_of_the_environment() -> None:
    row = row_of(groups()[0], 0)
    terms = [
        term(kl=9.0) if place in row.reply_positions else term(side="free") for place in range(14)
    ]
    for measure in MEASURES:
        found = highlights_of(measure, (1, 0, 0), row, terms)
        assert {moment.cursor[-1] for moment in found} <= set(row.model_positions), measure
        assert (measure == "clipped") == (not found)


def test_a_failed_environment_and_a_dialogue_without_turns_left_are_not_finished() -> None:
    def first(one: ev.Rollout) -> str:
        fields = {name: getattr(one, name) for name in one.__dataclass_fields__}
        view = RolloutView(**fields, key=1, group=1, tokens=1, clip_fraction=None, kl=None)
        return verdicts(view, group(0, view))[0]

    ended, spent, broken, _ = groups()[0].rollouts
    assert first(ended) == "✓ finished"
    assert first(spent) == "· no turn left"
    assert first(broken) == "✗ environment failed"
