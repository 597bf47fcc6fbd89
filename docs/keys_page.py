"""Writes docs/keys.md from the bindings of the workbench: python docs/keys_page.py"""

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from textual.binding import Binding

from grpo_tui import app
from grpo_tui.app.tui.key_actions import key_name
from grpo_tui.app.tui.keys import is_bound

PAGE = Path(__file__).with_name("keys.md")
HEAD = """\
# Keys

Letters never fire while a field has the focus; `esc` leaves the field and keeps its text. Arrows
are also `h j k l`. `tab` and `shift+tab` go from panel to panel, `ctrl+o` puts a letter on each
panel and field, `ctrl+p` finds everything by its name. The last line of each screen shows the
keys that matter there, `?` explains the focused panel and lists all keys. `(` `)` resize the
focused panel, `X` hides it and `Z` undoes that; it is remembered. A key means the same on every
screen; what has a dash for a key is in the palette, `ctrl+p`.

Keys can be changed: `settings.json` in the configuration folder (Linux `~/.config/grpo-tui`, macOS
`~/Library/Application Support/grpo-tui`) maps the names in the last column to keys, as in
`{"keymap": {"find": "ctrl+f", "run.pause": "P,full_stop"}}`.
"""
# Classes whose keys belong together, in the order of the page; others follow by themselves.
SECTIONS = {
    "Everywhere": ("Workbench", "WorkbenchScreen", "Panel"),
    "Runs": ("RunsScreen", "QueueScreen"),
    "New run": ("NewRunScreen",),
    "Watch": ("WatchScreen", "Curves", "Lanes", "Groups", "AlertsLog"),
    "Rollouts": ("RolloutsScreen",),
    "Lab": ("LabScreen",),
    "Charts, on Compare and where z on Watch's curves leads": ("ChartScreen", "ExploreScreen"),
    "Compare": ("CompareScreen",),
    "Chat": ("ChatScreen", "AnswersPanel"),
    "Lists": ("Pick", "Picker", "LatestScreen"),
    "Help, questions and fields": ("HelpScreen", "Choice", "Ask", "CrashScreen", "FindBar"),
}
PANELS = {"Curves": "curves", "Lanes": "answers", "Groups": "groups", "AlertsLog": "alerts · log",
          "QueueScreen": "queue", "Choice": "questions", "Ask": "fields", "HelpScreen": "help",
          "CrashScreen": "error", "FindBar": "search", "AnswersPanel": "answers",
          "Picker": "runs, metrics", "LatestScreen": "messages"}  # fmt: skip


def classes() -> dict[str, list[Binding]]:
    """Every class of the app that declares bindings, by its name."""
    found: dict[str, list[Binding]] = {}
    for info in pkgutil.walk_packages(app.__path__, "grpo_tui.app."):
        if info.name.startswith("grpo_tui.app.cli.verbs"):
            continue
        module = importlib.import_module(info.name)
        for name, cls in inspect.getmembers(module, inspect.isclass):
            own = vars(cls).get("BINDINGS", [])
            if cls.__module__ == info.name and own:
                found.setdefault(name, []).extend(b for b in own if isinstance(b, Binding))
    return found


def keys_of(binding: Binding) -> str:
    """The keys of a binding as code: `→` `l`; a dash if it has none."""
    keys = (f"`{key_name(key)}`" for key in binding.key.split(",") if is_bound(key))
    return " ".join(keys) or "–"


def page() -> str:
    """The whole page."""
    found = classes()
    listed = {name for names in SECTIONS.values() for name in names}
    sections = {**SECTIONS, **{name: (name,) for name in sorted(found) if name not in listed}}
    lines = [HEAD]
    for title, names in sections.items():
        rows = [
            f"| {keys_of(binding)} | {_where(name)}{binding.tooltip} | `{binding.id}` |"
            for name in names
            for binding in found.get(name, [])
        ]
        if rows:
            lines += [f"## {title}", "", "| key | what it does | name |", "| --- | --- | --- |"]
            lines += [*rows, ""]
    return "\n".join(lines)


def _where(name: str) -> str:
    return f"{PANELS[name]}: " if name in PANELS else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
