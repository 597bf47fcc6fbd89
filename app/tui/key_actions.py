"""The actions of a screen, with keys, name and explanation, read from its bindings."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import format_key
from textual.screen import Screen

from grpo_tui.app import tui
from grpo_tui.app.tui.keys import KEYS, is_bound


@dataclass(frozen=True, slots=True)
class KeyAction:
    """One action, its keys as shown to people (`↑ k`), and the DOM node it belongs to."""

    keys: str
    name: str
    help: str
    also: str
    action: str
    node: DOMNode
    everywhere: bool
    switches: bool  # to another screen
    hidden: bool  # from the key bar


def key_actions(screen: Screen[Any]) -> Iterator[KeyAction]:
    """Yield the actions of the active keys, the focused widget's first; Textual's have no id."""
    bindings: dict[tuple[str, DOMNode], list[Binding]] = {}
    for active in screen.active_bindings.values():
        if active.enabled and active.binding.id:
            bindings.setdefault((active.binding.action, active.node), []).append(active.binding)
    for (action, node), (binding, *aliases) in bindings.items():
        section = str(binding.id).rpartition(".")[0]
        everywhere = section in ("", "mode", "move", "panel")
        keys = _keys_of(binding.key for binding in (binding, *aliases))
        name, also = binding.description, KEYS["also"].get(str(binding.id), "")
        yield KeyAction(
            keys,
            name,
            binding.tooltip,
            also,
            action,
            node,
            everywhere,
            switches=section == "mode",
            hidden=not binding.show,
        )


def _keys_of(keys: Iterable[str]) -> str:
    """Keys as shown to people: `→ l`."""
    return " ".join(dict.fromkeys(format_key(key) for key in keys if is_bound(key)))


# Classes whose keys belong together, in the order in which they are listed.
SECTIONS = {
    "everywhere": ("Workbench", "WorkbenchScreen", "Panel"),
    "Runs": ("RunsScreen", "QueueScreen"),
    "New run": ("NewRunScreen",),
    "Watch": ("WatchScreen", "Curves", "CompletionsPanel", "Groups", "AlertsLog"),
    "charts of Watch and Compare": ("ChartStack",),
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
        yield (
            title,
            tuple((_keys_of(b.key.split(",")) or "–", f"{b.tooltip} ({b.id})") for b in bindings),
        )
