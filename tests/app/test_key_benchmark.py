"""What the key benchmark sees of a terminal, and the run that it floods it with."""

from itertools import islice

import pyte

from benchmarks.app_keys import flood
from benchmarks.app_tour import LIVE, Screen, still, unfired
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.events import RolloutsAdvanced

COLUMNS, ROWS = 40, 6
PLAIN, MARKED = "38;5;251;48;5;233", "38;5;251;48;5;236"


def drawn(row: int, text: str, code: str = PLAIN) -> str:
    """The output that puts text at the beginning of a row."""
    return f"\x1b[{row};1H\x1b[{code}m{text}\x1b[0m"


def watch(text: str, code: str = PLAIN) -> tuple[object, ...]:
    """What counts as still on Watch with this text within a frame."""
    screen = Screen(COLUMNS, ROWS)
    output = drawn(1, f"▌3 Watch▐ {LIVE}") + drawn(4, "│ ") + drawn(5, text, code)
    screen.draw(output.encode())
    return still(screen)


def test_output_cut_anywhere_is_drawn_as_an_emulator_draws_it() -> None:
    output = "".join((
        "\x1b[?1049h\x1b[?2026$p\x1b]2;a title\x07\x1b]52;c;YQ==\x1b\\\x1b[?25l",
        drawn(2, "│ first │"), "\r\n", drawn(3, "⠒⠤ – ᵢ"), drawn(2, "  ", MARKED), "\x1b[2;5HX",
    )).encode()  # fmt: skip
    emulated = pyte.Screen(COLUMNS, ROWS)
    pyte.ByteStream(emulated).feed(output)
    for place in range(len(output)):
        screen = Screen(COLUMNS, ROWS)
        screen.draw(output[:place])
        screen.draw(output[place:])
        assert screen.display == list(emulated.display), place
        codes = {character: code for code, character in screen.codes.items()}
        for row, colours in enumerate(screen.colours):
            dark = [codes[colour].endswith("48;5;233") for colour in colours]
            assert dark == [emulated.buffer[row][c].bg == "121212" for c in range(COLUMNS)], place


def test_a_number_on_watch_is_the_runs_and_a_mark_is_a_keys() -> None:
    assert watch("reward 0.1") == watch("reward 0.25")
    assert watch("reward 0.1") != watch("reward 0.1", MARKED)
    assert watch("▸ reward") != watch("  reward")


def test_the_tour_presses_a_key_of_every_action() -> None:
    assert unfired() == []


def test_the_flood_brings_answers_token_by_token() -> None:
    events = list(islice(flood(RunConfig(), Control()), 40))
    tokens = [row.tokens for event in events if isinstance(event, RolloutsAdvanced)
              for row in event.rows]  # fmt: skip
    assert len(tokens) > 600
    assert set(tokens) == {1}
