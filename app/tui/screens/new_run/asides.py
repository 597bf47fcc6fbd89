"""The panes beside the settings: one setting, the cost estimate, the recipe."""

from typing import Any

from textual.geometry import Offset, Size

from grpo_tui.app.tui.screens.new_run.facts import cost_lines, cost_summary, recipe_lines
from grpo_tui.app.tui.screens.new_run.lines import about_lines, diff_lines
from grpo_tui.app.tui.screens.new_run.panels import ScrolledPanel
from grpo_tui.app.tui.screens.new_run.view import View
from grpo_tui.app.tui.widgets.panel import Line, Panel


class AboutPanel(ScrolledPanel):
    """Help on the setting under the cursor."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("this setting", **kwargs)

    def topic(self) -> str:
        return f"setting:{self.title}" if "." in self.title else "screen:new_run"

    def lines(self, view: View, width: int) -> list[Line]:
        """Help, range, default and previous value."""
        row = view.row
        title = row.id if row.field is not None else row.section
        if title != self.title:
            self._top = 0
        self.title = title
        if self.screen.has_class("-narrow"):
            words = cost_summary(view).split(", ")
            self.note_first(*(", ".join(words[:count]) for count in range(len(words), 0, -1)))
        else:
            self.note = ""
        return about_lines(view, width, self.palette)


class CostPanel(ScrolledPanel):
    """What a step and the run will cost."""

    reads = ("checked", "runs", "memory", "examples", "busy")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("what it costs", **kwargs)

    def lines(self, view: View, width: int) -> list[Line]:
        return cost_lines(view, width, self.palette)

    def copy_text(self) -> str:
        """Return the costs in one line."""
        return cost_summary(self.view) if self.view is not None else ""


class RecipePanel(ScrolledPanel):
    """The six choices of the recipe, and its formula."""

    reads = ("checked",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("recipe", **kwargs)

    def topic(self) -> str:
        return "setting:algorithm.recipe"

    def lines(self, view: View, width: int) -> list[Line]:
        """Conflicts, the six choices, the formula."""
        if view.checked.recipe is not None:
            self.title = f"recipe {view.checked.recipe.name}, six choices"
            self.note = "● differs" if view.checked.own else ""
        return recipe_lines(view, width, self.palette)


class DiffPanel(ScrolledPanel):
    """What differs from the recipe's own settings, and from the preset or the parent run."""

    reads = ("checked", "origin")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("what differs", **kwargs)

    def topic(self) -> str:
        return "screen:new_run"

    def lines(self, view: View, width: int) -> list[Line]:
        """Both lists: the setting, its value, and the other one's."""
        return diff_lines(view, width, self.palette)

    def copy_text(self) -> str:
        """Return both lists as text."""
        lines = diff_lines(self.view, 100, self.palette) if self.view is not None else []
        return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def covered(panel: Panel, top: int, height: int) -> tuple[Offset, Size]:
    """The offset and size of a widget inside a panel's frame, `top` lines below its upper edge."""
    width, room = panel.inner
    return Offset(1, 1 + top), Size(max(1, width), max(1, min(height, room - top)))
