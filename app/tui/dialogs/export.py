"""The export dialog: what to write, in which format, and where."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from textual.app import App

from grpo_tui.app.tui.dialogs.choices import Choice
from grpo_tui.app.tui.picture import paper_of, rows_of, svg

Writer = Callable[[], str | Awaitable[str]]  # the text of a file, or a store query that returns it
FORMATS = {
    "csv": ("c", "CSV", "for spreadsheets and pandas"),
    "yaml": ("y", "YAML", "for `grpo-tui train` and New run"),
    "json": ("j", "JSON", "for programs"),
    "md": ("m", "Markdown", "for notes and pull requests"),
    "curves.csv": ("v", "curves as CSV", "every step's value behind the charts"),
    "svg": ("s", "SVG", "a picture of the screen"),
}


def free_path(folder: Path, stem: str, ending: str) -> Path:
    """Return a path in the folder that is not in use."""
    names = (f"{stem}-{number}.{ending}" for number in count(2))
    paths = (folder / name for name in chain([f"{stem}.{ending}"], names))
    return next(path for path in paths if not path.exists())


class ExportScreen(Choice[str]):
    """Choose a format; the file is written to the folder the program was started in."""

    def __init__(self, app: App[Any], name: str, writers: Mapping[str, Writer]) -> None:
        self._stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
        self._writers = dict(writers)
        # Capture the screen before the dialog covers it; build the SVG only if chosen.
        self._writers["svg"] = partial(svg, rows_of(app), *app.size, paper_of(app))
        answers = [(kind, *FORMATS[kind]) for kind in self._writers if kind in FORMATS]
        super().__init__("export", f"Write what is shown to {Path.cwd()}", answers)

    def dismiss(self, result: str | None = None) -> object:  # type: ignore[override]
        """Write the file and close."""
        if result:
            self.app.run_worker(self._write(result))
        return super().dismiss(result)

    async def _write(self, kind: str) -> None:
        path = free_path(Path.cwd(), self._stem, kind)
        try:
            result = self._writers[kind]()
            text = result if isinstance(result, str) else await result
            path.write_text(text, encoding="utf-8", newline="")
        except Exception as error:  # reported on the screen, whatever failed to be written
            self.app.notify(f"{path.name} was not written: {error}", severity="error",
                            markup=False)  # fmt: skip
        else:
            self.app.notify(f"Wrote {path.name}, {len(text):,} characters.", markup=False)
