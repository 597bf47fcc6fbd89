"""The dialog that maps the columns of a task's data: which has the prompt, which the answer."""

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult

from grpo_engine.config.settings import COLUMNS
from grpo_engine.tasks.files import PROMPTS, TARGETS
from grpo_tui.app.text.safe_text import cell_len, pad, safe
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.widgets.list_panel import ListPanel
from grpo_tui.app.tui.widgets.panel import Line, labelled, list_row, paragraph

USE_CELLS, LABEL = 12, 12
DETAIL_LINES = 12
UNSET = "No column is used as the prompt yet: go to it with ↑↓, and press →."
OTHERS = "Reward functions get every column by its name."

Uses = Mapping[str, str]  # columns by what they are used as


def uses_of(columns: Mapping[str, object], data: Sequence[str]) -> Uses:
    """The columns in use: those that are set or have the usual names, else likely ones."""
    likely = {"prompt": PROMPTS, "answer": TARGETS}
    names = {name.lower(): name for name in reversed(data)}
    uses: dict[str, str] = {}
    for use, setting in COLUMNS.items():
        for name in (str(columns.get(use, setting.default)), *likely.get(use, ())):
            column = name if name in data else names.get(name.lower())
            if column is not None and column not in uses.values():
                uses[use] = column
                break
    return uses


def turned(uses: Uses, column: str, by: int) -> Uses:
    """The next or previous use for a column, of none and those that no other column has."""
    others = {use: name for use, name in uses.items() if name != column}
    order = ["", *(use for use in COLUMNS if use not in others)]
    current = next((use for use, name in uses.items() if name == column), "")
    chosen = order[(order.index(current) + by) % len(order)]
    return {**others, chosen: column} if chosen else others


def column_lines(
    data: Mapping[str, Sequence[str]], uses: Uses, selected: str, width: int
) -> list[Line]:
    """A heading and a line for each column: its name, its use, and its texts in the first rows."""
    by_column = {column: use for use, column in uses.items()}
    names = min(width // 4, max(cell_len(safe(name)) for name in data)) + 1
    texts = max(map(len, data.values()))
    space = (width - names - USE_CELLS - 2) // max(1, texts)
    heads = " " + pad("column", names) + pad("used as", USE_CELLS)
    heads += "".join(pad(f"row {number + 1}", space) for number in range(texts))
    return [
        [(heads, "label")],
        *(
            list_row(
                [
                    (f" {pad(name, names - 1)} ", "bold headline"),
                    (
                        pad(by_column.get(name, "–"), USE_CELLS),
                        "accent" if name in by_column else "label",
                    ),
                    *((f"{pad(text, space - 2)}  ", "text") for text in values),
                ],
                width,
                selected=name == selected,
            )
            for name, values in data.items()
        ),
    ]


def detail_lines(
    data: Mapping[str, Sequence[str]], uses: Uses, selected: str, width: int
) -> list[Line]:
    """What the uses mean, and the texts of the column under the cursor."""
    meaning = [(use, COLUMNS[use].help) for use in COLUMNS if use in uses]
    rows = [(f"row {number}", text) for number, text in enumerate(data[selected], 1)]
    return [
        [],
        *(
            paragraph(UNSET, width, 2, "warn")
            if not {"prompt", "messages"} & {*uses, *data}
            else ()
        ),
        *labelled(meaning, LABEL, width),
        *paragraph(OTHERS, width, 2, "label"),
        [],
        *labelled(rows, LABEL, width, 3),
    ]


class ColumnsPanel(ListPanel):
    """The columns above, and more on the one under the cursor below."""

    DEFAULT_CSS = "ColumnsPanel { width: 140; max-width: 96%; max-height: 90%; }"

    def __init__(self, data: Mapping[str, Sequence[str]], uses: Uses) -> None:
        super().__init__("task.columns")
        self._data, self.uses = data, uses
        self.styles.height = len(data) + DETAIL_LINES + 3
        self.note = "↑↓ column   ←→ use as   ⏎ choose   esc cancel"

    def count(self) -> int:
        return len(self._data)

    def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor, or take the next use for its column."""
        super().action_move(rows, columns)
        if columns:
            self.uses = turned(self.uses, list(self._data)[self.selected], columns)
            self.refresh()

    def paint(self, width: int, height: int) -> list[Line]:
        column = list(self._data)[self.selected]
        details = detail_lines(self._data, self.uses, column, width)
        heads, *lines = column_lines(self._data, self.uses, column, width)
        space = max(1, height - 1 - min(len(details), DETAIL_LINES))
        rows = self.listed([[line] for line in lines], space, self.selected, above=1)
        return [heads, *rows, *details]


class ColumnsDialog(Dialog[Uses | None]):
    """Return the columns by their uses, or None if dismissed."""

    DEFAULT_CSS = "ColumnsDialog { align: center middle; }"
    BINDINGS = bindings("columns")

    def __init__(self, data: Mapping[str, Sequence[str]], columns: Mapping[str, object]) -> None:
        super().__init__()
        self._panel = ColumnsPanel(data, uses_of(columns, list(data)))

    def compose(self) -> ComposeResult:
        yield self._panel

    def action_choose(self) -> None:
        """Return the uses."""
        self.dismiss(self._panel.uses)
