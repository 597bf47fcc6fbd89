"""Panel: a changed reactive value redraws the panel and sends only the lines that differ."""

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

from grpo_tui.app.tui.widgets.panel import Line, Panel


class Counter(Panel):
    DEFAULT_CSS = "Counter { height: 6; }"
    count: reactive[int] = reactive(0)

    def __init__(self) -> None:
        super().__init__("counter")
        self.painted = 0

    def paint(self, _width: int, _height: int) -> list[Line]:
        self.painted += 1
        self.note = f"at {self.count}"
        return [[("same", "")], [(f"count {self.count}", "")]]


class OnePanel(App[None]):
    def compose(self) -> ComposeResult:
        yield Counter()

    def on_mount(self) -> None:
        self.theme = "textual-dark"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Region, ...]]:
    """The regions of each refresh that reaches Textual; none means the whole panel."""
    calls: list[tuple[Region, ...]] = []
    refresh = Widget.refresh

    def noted(self: Widget, *regions: Region, **options: bool) -> Widget:
        if isinstance(self, Counter):
            calls.append(regions)
        return refresh(self, *regions, **options)

    monkeypatch.setattr(Widget, "refresh", noted)
    return calls


async def test_a_new_value_sends_the_lines_that_differ(sent: list[tuple[Region, ...]]) -> None:
    app = OnePanel()
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        panel = app.query_one(Counter)
        sent.clear()
        panel.count = 7
        # of six lines, the top shows the note "at 7" and line 2 the count; 1, 3, 4, 5 are the same
        assert [[region.y for region in regions] for regions in sent] == [[0, 2]]
        assert "at 7" in panel.render_line(0).text
        assert "count 7" in panel.render_line(2).text


async def test_the_same_value_and_the_same_lines_send_nothing(
    sent: list[tuple[Region, ...]],
) -> None:
    app = OnePanel()
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        panel = app.query_one(Counter)
        sent.clear()
        painted = panel.painted
        panel.count = 0
        assert panel.painted == painted
        panel.refresh()
        assert panel.painted == painted + 1
        assert sent == []


async def test_a_panel_that_cannot_be_seen_is_not_painted() -> None:
    app = OnePanel()
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        panel = app.query_one(Counter)
        await app.push_screen(Screen())  # to Textual, the screen directly below may show through
        await app.push_screen(Screen())
        painted = panel.painted
        panel.count = 3
        assert panel.painted == painted
        await app.pop_screen()
        await app.pop_screen()
        panel.catch_up()
        assert "count 3" in panel.render_line(2).text
        painted = panel.painted
        panel.catch_up()  # nothing was asked for in the meantime
        assert panel.painted == painted
