"""Colours that work in every terminal, readable numbers, and curves that do not wobble."""

import math

import pytest

from grpo_tui.app.text.numbers import change, seconds, share, signed
from grpo_tui.app.tui.looks.colours import PALETTES, contrast, rgb, style_named

# Machado, Oliveira and Fernandes 2009, severity 1: protanopia, deuteranopia, tritanopia
SIMULATIONS = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def seen(number: int, matrix: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    """An xterm colour as a person with this colour vision sees it, in linear light."""
    linear = [(c / 255) ** 2.2 for c in rgb(number)]
    return tuple(
        max(0.0, min(1.0, sum(m * c for m, c in zip(row, linear, strict=True)))) ** (1 / 2.2)
        for row in matrix
    )


@pytest.mark.parametrize("name", list(PALETTES))
@pytest.mark.parametrize("vision", list(SIMULATIONS))
def test_opposite_advantages_stay_apart_for_the_colour_blind(name: str, vision: str) -> None:
    if name == "safe-blue-yellow" and vision != "tritan":
        pytest.skip("this palette is for tritanopia")
    ramp = PALETTES[name].marks["advantage"]
    for step in (1, 2, 3):
        one = seen(ramp[3 - step], SIMULATIONS[vision])
        other = seen(ramp[3 + step], SIMULATIONS[vision])
        assert math.dist(one, other) > 0.2


def test_shares_signs_and_durations() -> None:
    assert [share(v) for v in (0.012, 0.75, 0.0, 0.0001)] == ["1.2%", "75%", "0%", "<.1%"]
    assert [share(v) for v in (0.0012, -0.0051, 0.1, 0.00999)] == [".1%", "−.5%", "10%", "1.0%"]
    assert [signed(v) for v in (1.21, -0.69, 0.0)] == ["+1.21", "−.69", "0"]
    assert [seconds(v) for v in (0.2, 12, 600, 9000)] == [".2s", "12s", "10 min", "2.5 h"]


def test_a_change_is_shown_to_the_digits_of_its_value() -> None:
    assert change(0.66, 0.04) == "▲.04"
    assert change(0.66, -0.003) == "="
    assert change(0.017, 0.002) == "▲.002"
    assert change(0.5, math.nan) == ""


@pytest.mark.parametrize("name", list(PALETTES))
def test_text_can_be_read_in_every_theme(name: str) -> None:
    palette = PALETTES[name]
    names = ["text", "headline", "label", "focus", "accent", "good", "warn", "bad"]
    names += [
        f"{ramp}.{index}" for ramp in ("push", "cycle") for index in range(len(palette.marks[ramp]))
    ]
    names += [f"series.{key}" for key in palette.marks["series"]]
    written = {palette.colour(one) for one in names}
    paper = palette.colour("paper")
    assert {n: contrast(n, paper) for n in written if contrast(n, paper) < 4.5} == {}
    numbers = {rgb(number): number for number in range(16, 256)}
    for one in names:
        for back in ("raised", "cursor"):
            color = style_named(name, f"{one} on {back}").color
            assert color is not None
            front = numbers[tuple(color.get_truecolor())]  # type: ignore[index]  # three numbers
            assert contrast(front, palette.colour(back)) >= 4.5, (one, back)


def test_contrast_is_that_of_wcag() -> None:
    # black on white is 21; #767676 is the lightest grey with 4.5 on white, and 243 is #767676
    assert contrast(16, 231) == pytest.approx(21)
    assert contrast(243, 231) == pytest.approx(4.54, abs=0.01)
