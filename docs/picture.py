"""The screen as SVG: text as glyphs on a grid; lines, blocks, arrows and braille dots as shapes.

Shapes look the same in every font.
"""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from rich.style import Style

from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.looks.colours import rgb

if TYPE_CHECKING:
    from textual.app import App

WIDE, TALL, MARGIN = 8.4, 18.0, 12.0
FONT = "'JetBrains Mono','Fira Code','SF Mono',Menlo,'DejaVu Sans Mono',Consolas,monospace"
BLOCKS = "▁▂▃▄▅▆▇█"
# which of left, right, up and down a box-drawing character connects to.
LINES = {
    "─": "lr",
    "│": "ud",
    "┈": "",
    "├": "udr",
    "┤": "udl",
    "┼": "udlr",
    "┬": "lrd",
    "┴": "lru",
    "└": "ur",
    "┘": "ul",
    "┌": "dr",
    "┐": "dl",
}
ARCS = {"╭": (1, 1), "╮": (-1, 1), "╰": (1, -1), "╯": (-1, -1)}
BRAILLE_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))

Row = list[tuple[str, Style | None]]


def picture(app: "App[int]") -> str:
    """The active screen as an SVG document."""
    width, height = app.size
    return svg(rows_of(app), width, height, paper_of(app))


def rows_of(app: "App[int]") -> list[Row]:
    """The active screen as rows of styled text."""
    return [
        [(s.text, s.style) for s in strip if not s.control]
        for strip in app.screen._compositor.render_strips()
    ]


def paper_of(app: "App[int]") -> str:
    """The background colour of the current theme."""
    return str(app.current_theme.background or rgb(233).hex)


def svg(rows: list[Row], width: int, height: int, paper: str) -> str:
    """Rows of styled text as an SVG document."""
    return document(
        [part for y, row in enumerate(rows) for part in elements_of(row, y, paper)],
        width,
        height,
        paper,
    )


def elements_of(row: Row, y: int, paper: str) -> list[str]:
    """One row of the screen as SVG elements."""
    top = MARGIN + y * TALL
    return [*_backgrounds(row, top, paper), *_glyphs(row, top)]


def document(parts: list[str], width: int, height: int, paper: str, style: str = "") -> str:
    """Combine SVG elements into a document for a screen of this size."""
    full_width, full_height = width * WIDE + 2 * MARGIN, height * TALL + 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full_width:.0f} {full_height:.0f}"'
        f' width="{full_width:.0f}" height="{full_height:.0f}">'
    )
    out = [
        head,
        style,
        f'<rect width="100%" height="100%" rx="8" fill="{paper}"/>',
        f'<g font-family="{FONT}" font-size="14" xml:space="preserve">',
        *parts,
        "</g>",
        "</svg>",
    ]
    return "\n".join([part for part in out if part] + [""])


def _cells(row: Row) -> Iterator[tuple[float, str, int, Style | None]]:
    column = 0
    for text, style in row:
        for character in text:
            size = cell_len(character)
            yield MARGIN + column * WIDE, character, size, style
            column += size


def _backgrounds(row: Row, top: float, paper: str) -> list[str]:
    out = []
    left = MARGIN
    for text, style in row:
        width = cell_len(text) * WIDE
        colour = _colour(style, foreground=False)
        if colour and colour != paper.lower():
            out.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{TALL:.1f}" fill="{colour}"/>'
            )
        left += width
    return out


def _colour(style: Style | None, *, foreground: bool) -> str:
    if style is None:
        return "#c6c6c6" if foreground else ""
    if style.reverse:
        foreground = not foreground
    colour = style.color if foreground else style.bgcolor
    if colour is None or colour.is_default:
        return "#c6c6c6" if foreground else ""
    return colour.get_truecolor().hex


def _glyphs(row: Row, top: float) -> list[str]:
    """Runs of characters, and of neighbouring shapes of one colour, as one element each."""
    out: list[str] = []
    text, style, path, look = "", None, "", ""
    columns: list[float] = []
    for x, character, size, following in [*_cells(row), (0.0, " ", 1, None)]:
        shape = _shape(character, x, top, _colour(following, foreground=True))
        if text and (following != style or shape is not None or character == " "):
            out.append(_text(text, columns, top, style))
            text, columns = "", []
        if path and (shape is None or shape[1] != look):
            out.append(f'<path d="{path}" {look}/>')
            path = ""
        style = following
        if shape is not None:
            path, look = path + shape[0], shape[1]
        elif character != " " and size:
            text += character
            columns.append(x)
        elif text:
            text += character
    return out


def _text(text: str, columns: list[float], top: float, style: Style | None) -> str:
    more = ""
    if style is not None:
        more += ' font-weight="bold"' if style.bold else ""
        more += ' font-style="italic"' if style.italic else ""
        more += ' text-decoration="underline"' if style.underline else ""
    at = " ".join(f"{x:.1f}" for x in columns)
    return (
        f'<text x="{at}" y="{top + 13.5:.1f}" fill="{_colour(style, foreground=True)}"{more}>'
        f"{escape(text)}</text>"
    )


def _shape(character: str, x: float, y: float, colour: str) -> tuple[str, str] | None:
    """A character drawn as a path, with its attributes; None for one that is text."""
    code = ord(character)
    middle_x, middle_y = x + WIDE / 2, y + TALL / 2
    fill = f'fill="{colour}"'
    if 0x2800 < code <= 0x28FF:
        dots = "".join(
            f"M{x + WIDE * (0.28 + 0.5 * dx):.1f} {y + TALL * (0.14 + 0.24 * dy):.1f}h.01"
            for bit, (dx, dy) in enumerate(BRAILLE_DOTS)
            if (code - 0x2800) >> bit & 1
        )
        return dots, f'stroke="{colour}" stroke-width="2.3" stroke-linecap="round" fill="none"'
    if character in BLOCKS:
        height = TALL * (BLOCKS.index(character) + 1) / 8
        return _rect(x, y + TALL - height, WIDE, height), fill
    if character in "▌▐":
        return _rect(x if character == "▌" else middle_x, y, WIDE / 2, TALL), fill
    if character in "━╸":
        return _rect(x, middle_y - 1.2, WIDE if character == "━" else WIDE / 2, 2.4), fill
    if character in "▲▼":
        tip, foot = (y + 4, y + 14) if character == "▲" else (y + 14.5, y + 4.5)
        left, right = x + 0.4, x + WIDE - 0.4
        return f"M{middle_x:.1f} {tip:.1f}L{left:.1f} {foot:.1f}H{right:.1f}Z", fill
    path = _line(character, x, y)
    return (path, f'stroke="{colour}" fill="none"') if path else None


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"


def _line(character: str, x: float, y: float) -> str:
    mx, my = x + WIDE / 2, y + TALL / 2
    if character == "┈":
        return "".join(f"M{x + WIDE * k:.1f} {my:.1f}h1.2" for k in (0.1, 0.43, 0.77))
    if character in ARCS:
        dx, dy = ARCS[character]
        stem = f"M{mx:.1f} {my + dy * TALL / 2:.1f}V{my + dy * 4:.1f}"
        bend = f"Q{mx:.1f} {my:.1f} {mx + dx * 4:.1f} {my:.1f}"
        return f"{stem}{bend}H{mx + dx * WIDE / 2:.1f}"
    ends = {"l": f"H{x:.1f}", "r": f"H{x + WIDE:.1f}", "u": f"V{y:.1f}", "d": f"V{y + TALL:.1f}"}
    return "".join(f"M{mx:.1f} {my:.1f}{ends[way]}" for way in LINES.get(character, ""))
