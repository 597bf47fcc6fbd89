"""The actions of a screen, with keys, name and explanation, read from its bindings."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import format_key
from textual.screen import Screen

from grpo_tui.app import tui
from grpo_tui.app.tui.keys import is_bound

# Textual's own bindings that the help lists, described in our words.
OWN_WORDS = {
    "app.focus_next": ("next panel", "Go to the next panel or field"),
    "app.focus_previous": ("previous panel", "Go to the previous panel or field"),
    "command_palette": ("palette", "Find actions, metrics, settings, runs and help by name"),
}


@dataclass(frozen=True, slots=True)
class KeyAction:
    """One action, its keys, and the DOM node it belongs to."""

    keys: tuple[str, ...]
    name: str
    help: str
    action: str
    node: DOMNode
    everywhere: bool = False

    @property
    def written(self) -> str:
        """The keys as shown to people: `↑ k`."""
        return " ".join(self.keys)


def words_of(binding: Binding) -> tuple[str, str] | None:
    """Return a binding's name and explanation, or None for Textual's that the help omits."""
    if binding.id:
        return binding.description, binding.tooltip or binding.description
    return OWN_WORDS.get(binding.action)


def key_actions(screen: Screen[Any]) -> Iterator[KeyAction]:
    """Yield the actions of the active keys, the focused widget's first."""
    found: dict[tuple[str, DOMNode], tuple[Binding, list[str]]] = {}
    for active in screen.active_bindings.values():
        if active.enabled and words_of(active.binding) is not None:
            _, keys = found.setdefault((active.binding.action, active.node), (active.binding, []))
            if is_bound(active.binding.key):
                keys.append(format_key(active.binding.key))
    for (action, node), (binding, keys) in found.items():
        words = words_of(binding)
        if words is not None:
            section = (binding.id or "").rpartition(".")[0]
            everywhere = section in ("", "mode", "move", "panel")
            yield KeyAction(tuple(dict.fromkeys(keys)), *words, action, node, everywhere)


# Classes whose keys belong together, in the order in which they are listed.
SECTIONS = {
    "everywhere": ("Workbench", "WorkbenchScreen", "Panel"),
    "Runs": ("RunsScreen", "QueueScreen"),
    "New run": ("NewRunScreen",),
    "Watch": ("WatchScreen", "Curves", "Answers", "Groups", "AlertsLog"),
    "Rollouts": ("RolloutsScreen",),
    "lab": ("LabScreen",),
    "Compare": ("CompareScreen",),
}


def bindings_of_classes() -> dict[str, list[Binding]]:
    """Every class of the workbench that declares bindings, by its name."""
    result: dict[str, list[Binding]] = {}
    for info in pkgutil.walk_packages(tui.__path__, f"{tui.__name__}."):
        module = importlib.import_module(info.name)
        for name, cls in inspect.getmembers(module, inspect.isclass):
            declared = [b for b in vars(cls).get("BINDINGS", ()) if isinstance(b, Binding)]
            if cls.__module__ == info.name and declared:
                result.setdefault(name, []).extend(declared)
    return result


def described_keys() -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """The keys of each screen with what they do and their name in a keymap; last, of dialogs."""
    classes = bindings_of_classes()
    listed = [name for names in SECTIONS.values() for name in names]
    dialogs = tuple(name for name in classes if name not in listed)
    for title, names in {**SECTIONS, "dialogs": dialogs}.items():
        bindings = [binding for name in names for binding in classes.get(name, ())]
        yield title, tuple((_keys_of(b), f"{b.tooltip} ({b.id})") for b in bindings)


def _keys_of(binding: Binding) -> str:
    """The keys of a binding: `→ l`; a dash if it has none."""
    keys = " ".join(format_key(key) for key in binding.key.split(",") if is_bound(key))
    return keys or "–"
