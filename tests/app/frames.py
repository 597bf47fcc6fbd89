"""Checks of the screen's contents, for every screen and size; `check(app)` raises with the reason.

Sibling regions do not overlap. No widget extends beyond a parent that does not scroll. Cut text
ends in `…`. Nothing unprintable is on the screen. All text is readable (contrast of at least 4.5 to
its background), and all colours are among the 256 of xterm. `frame(app)` returns the screen as
text.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, cast

from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.content import Content
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import DataTable, Label, Static

from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.looks.colours import DARK, READABLE, contrast, rgb
from grpo_tui.app.tui.widgets.panel import Panel

NUMBERS = {rgb(number): number for number in range(255, 15, -1)}
SIZES = [(80, 24), (120, 40), (200, 60)]
# A size changes the layout and a theme the colours, so testing every pair would show no more.
LOOKS = list(zip(SIZES, (DARK, "light", DARK), strict=True))


def frame(app: App[Any]) -> list[str]:
    """The active screen, line by line, without trailing spaces."""
    strips = app.screen._compositor.render_strips()
    return [strip.text.rstrip() for strip in strips]


def text(app: App[Any]) -> str:
    """The active screen as one text."""
    return "\n".join(frame(app))


def check(app: App[Any]) -> None:
    """Raise AssertionError with every fault of the active screen."""
    screen = app.screen
    found = [*overlaps(screen), *escapes(screen), *cuts(screen), *unprintable(app), *faint(app)]
    assert not found, "\n".join([*found, "", *frame(app)])


def _children(parent: Widget) -> list[Widget]:
    return [
        child
        for child in parent.children
        if child.display and child.visible and child.region and not _floats(child)
    ]


def _floats(widget: Widget) -> bool:
    styles = widget.styles
    return styles.overlay == "screen" or styles.position == "absolute"


def _all(screen: Screen[Any]) -> Iterator[Widget]:
    yield screen
    for widget in screen.walk_children(Widget):
        if not widget.has_class("-textual-system"):
            yield widget


def overlaps(screen: Screen[Any]) -> list[str]:
    """Siblings in the same layer whose regions overlap."""
    found = []
    shown = screen._compositor.visible_widgets
    for parent in _all(screen):
        kept = [child for child in _children(parent) if child in shown]
        for one, other in itertools.combinations(kept, 2):
            if one.layer != other.layer or "toast" in str(one.css_path_nodes).lower():
                continue
            common = one.region.intersection(other.region)
            if common:
                found.append(f"{one!r} and {other!r} overlap in {common}")
    return found


def escapes(screen: Screen[Any]) -> list[str]:
    """Widgets that extend beyond a parent that cannot scroll there."""
    found = []
    shown = screen._compositor.visible_widgets
    for parent in _all(screen):
        if parent is not screen and parent not in shown:
            continue
        area: Region = parent.region
        for child in _children(parent):
            region = child.region
            wide = region.x < area.x or region.right > area.right
            tall = region.y < area.y or region.bottom > area.bottom
            if wide and not parent.allow_horizontal_scroll and not parent.is_scrollable:
                found.append(f"{child!r} at {region} leaves {parent!r} at {area} sideways")
            if tall and not parent.allow_vertical_scroll and not parent.is_scrollable:
                found.append(f"{child!r} at {region} leaves {parent!r} at {area}")
    return found


def cuts(screen: Screen[Any]) -> list[str]:
    """Labels and table cells whose text is too long and does not end in `…`."""
    found = []
    for widget in _all(screen):
        if not widget.display or not widget.region:
            continue
        if isinstance(widget, Label | Static):
            found += _cut_static(widget)
        elif isinstance(widget, DataTable):
            found += _cut_cells(widget)
    return found


def _cut_static(widget: Static) -> list[str]:
    visual = widget.visual
    if not isinstance(visual, Content):
        return []
    width, height = widget.content_size
    if not width or not height:
        return []
    if widget.styles.text_wrap == "nowrap":
        longest = max((cell_len(line) for line in visual.plain.split("\n")), default=0)
        if longest > width and widget.styles.text_overflow != "ellipsis":
            return [f"{widget!r} cuts {visual.plain[:60]!r} to {width} cells"]
        return []
    needed = visual.get_height(cast(Any, widget.styles), width)
    if needed > height:
        return [f"{widget!r} shows {height} of {needed} lines of {visual.plain[:60]!r}"]
    return []


def _plain(cell: Any) -> str:
    if isinstance(cell, Text | Content):
        return cell.plain
    return str(cell)


def _cut_cells(table: "DataTable[Any]") -> list[str]:
    found = []
    for column in table.ordered_columns:
        if column.auto_width:
            continue
        values = [_plain(column.label), *map(_plain, table.get_column(column.key))]
        found += [
            f"{table!r} cuts {value[:60]!r} to {column.width} cells"
            for value in values
            if cell_len(value) > column.width and not value[: column.width].endswith("…")
        ]
    return found


def cut_beside_blank(app: App[Any]) -> list[str]:
    """Lines in which a third of a widget's width is blank to the right of a text that is cut."""
    lines = app.screen._compositor.render_strips()
    shown = app.screen._compositor.visible_widgets
    found = []
    for widget in _all(app.screen):
        if widget not in shown or (widget.children and not isinstance(widget, DataTable)):
            continue
        area = widget.content_region if not isinstance(widget, Panel) else widget.region
        edge = 1 if isinstance(widget, Panel) and widget.framed else 0
        left, width = area.x + edge, area.width - 2 * edge
        for y in range(max(0, area.y + edge), min(len(lines), area.bottom - edge)):
            text = lines[y].crop(left, left + width).text
            blank = max((cell_len(spaces) for spaces in re.findall(r"\S…( {2,})", text)), default=0)
            if blank >= width / 3:
                found.append(
                    f"{blank} of {width} cells are blank beside a cut text: {text.strip()}"
                )
    return found


def blank_share(app: App[Any]) -> float:
    """The share of the screen's cells in which nothing is drawn."""
    strips = app.screen._compositor.render_strips()
    blank = sum(strip.text.count(" ") + strip.text.count("\u2800") for strip in strips)
    return blank / sum(strip.cell_length for strip in strips)


def unprintable(app: App[Any]) -> list[str]:
    """Characters that a terminal could interpret as control characters."""
    found = []
    for y, line in enumerate(frame(app)):
        for char in sorted(set(line)):
            if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co"):
                found.append(f"line {y} holds U+{ord(char):04X}")
    return found


def faint(app: App[Any]) -> list[str]:
    """Words with too little contrast, and colours that a 256-colour terminal has to round.

    Behind a dialog the screen is dimmed, so only the dialog itself is checked.
    """
    found = []
    screen = app.screen
    areas = [child.region for child in screen.children if child.display]
    for y, strip in enumerate(screen._compositor.render_strips()):
        x = 0
        for text, look, control in strip:
            start, x = x, x + cell_len(text)
            if control or look is None or look.color is None or not _words(text):
                continue
            if screen.is_modal and not any(area.contains(start, y) for area in areas):
                continue
            turned = bool(look.reverse)
            front, back = _number(look, turned), _number(look, not turned)
            if front is None or back is None:
                found.append(f"line {y} writes {text[:40]!r} in {look}, which is off the palette")
            elif contrast(front, back) < READABLE:
                found.append(f"line {y} writes {text[:40]!r} in {front} on {back}: too faint")
    return found


def _words(text: str) -> bool:
    return any(char.isalnum() for char in text)


def _number(look: Style, back: bool) -> int | None:
    colour = look.bgcolor if back else look.color
    if colour is None or colour.is_default:
        return None
    # Textual's arithmetic may be off by one
    near = itertools.product(*((part, part - 1, part + 1) for part in colour.get_truecolor()))
    return next((NUMBERS[part] for part in near if part in NUMBERS), None)
