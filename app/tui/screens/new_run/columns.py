"""The dialog that maps the columns of a task's data: which has the prompt, which the answer."""

from collections.abc import Mapping, Sequence

from grpo_engine.config.settings import COLUMNS
from grpo_engine.tasks.files import PROMPTS, TARGETS
from grpo_tui.app.text.safe_text import cell_len, clip, safe
from grpo_tui.app.tui.dialogs.picker import WIDTH, Picker, PickerItem
from grpo_tui.app.tui.widgets.panel import Line, labelled, paragraph

LABEL, NAME, USE = 12, 24, 13  # cells
HINT = "← → what a column is used as; rewards get every column by its name."
UNSET = "No column is used as the prompt yet: go to it with ↑↓, and press →."

Uses = dict[str, str]  # columns by what they are used as


def uses_of(columns: Mapping[str, object], data: Sequence[str]) -> Uses:
    """The columns in use: those that are set or have the usual names, else likely ones."""
    likely = {"prompt": PROMPTS, "answer": TARGETS}
    names = {name.lower(): name for name in reversed(data)}
    uses: Uses = {}
    for use, setting in COLUMNS.items():
        for name in (str(columns.get(use, setting.default)), *likely.get(use, ())):
            column = name if name in data else names.get(name.lower())
            if column is not None and column not in uses.values():
                uses[use] = column
                break
    return uses


def turned(uses: Uses, column: str, by: int) -> Uses:
    """The next or previous use for a column, of none and those that no other column has."""
    assigned = {use: name for use, name in uses.items() if name != column}
    order = ["", *(use for use in COLUMNS if use not in assigned)]
    current = next((use for use, name in uses.items() if name == column), "")
    chosen = order[(order.index(current) + by) % len(order)]
    return {**assigned, chosen: column} if chosen else assigned


def columns_picker(data: Mapping[str, Sequence[str]], uses: Uses, width: int) -> Picker:
    """The columns with their uses and rows, on a screen of a width; ← and → change `uses`."""
    names = min(NAME, max(map(cell_len, map(safe, data))))
    space = min(WIDTH, width * 9 // 10) - names - USE
    cell = max(1, space // max(1, *map(len, data.values())) - 1)

    async def items(text: str) -> list[PickerItem]:
        by_column = {column: use for use, column in uses.items()}
        listed = (
            PickerItem(
                name,
                (clip(name, names), by_column.get(name, "–"), *(clip(t, cell) for t in texts)),
                also=name,
            )
            for name, texts in data.items()
        )
        return [item for item in listed if item.matches(text.casefold().split())]

    def turn(column: str, by: int) -> None:
        after = turned(uses, column, by)
        uses.clear()
        uses.update(after)

    def details(column: str, width: int) -> list[Line]:
        return detail_lines(data, uses, column, width)

    return Picker("task.columns", items, hint=HINT, details=details, turn=turn)


def detail_lines(
    data: Mapping[str, Sequence[str]], uses: Uses, column: str, width: int
) -> list[Line]:
    """The texts of a column in the first rows, and what its use means."""
    rows = [(f"row {number}", text) for number, text in enumerate(data[column], 1)]
    meaning = [(use, COLUMNS[use].help) for use, name in uses.items() if name == column]
    is_unset = not {"prompt", "messages"} & {*uses, *data}
    return [
        *(paragraph(UNSET, width, 2, "warn") if is_unset else ()),
        *labelled(meaning, LABEL, width),
        *labelled(rows, LABEL, width, 3),
    ]
