"""Makes ready what a key may ask for: modules are loaded and screens built before their first key.

The first show of a screen is its modules, its widgets and its first layout; done at the key, each
takes as long as ten ordinary keys. So it is done after the first picture, a piece at a time, and
only while nobody types; a key that comes first does its part itself.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

QUIET_S = 0.15  # after a key; who holds one down sends more in between
PAUSE_S = 0.02  # for the screen, between two modules

# In the order of use; large ones by their parts, so that none holds a key for long. Only leaves
# and what others load by the same name: two threads that enter a ring of modules at two places
# would meet it half loaded.
MODULES = (
    "app.feed.stored",
    "pydantic_core",
    "annotated_types",
    "grpo_engine.config.run_config",
    "app.tui.screens.watch",
    "app.tui.screens.rollouts",
    "app.tui.dialogs.help",
    "app.tui.dialogs.export",
    "app.tui.dialogs.jump",
    "app.tui.screens.runs.queue",
    "numpy",
    "experiments.compare.values",
    "app.tui.screens.compare",
    "grpo_engine.config.settings",
    "app.tui.screens.new_run",
    "app.tui.screens.rollouts.lab.screen",
    "sqlalchemy",
    "sqlmodel",
    "experiments.store",
)


class Readying:
    """Loads modules on a thread and builds screens on the loop, as long as it is quiet."""

    def __init__(
        self, build: Callable[[str], None], screens: Mapping[str, str], *, read_only: bool = False,
        modules: Sequence[str] = MODULES,
    ) -> None:  # fmt: skip
        self._build = build
        self._modules = modules
        barred = {"new_run"} if read_only else set()
        places = {name: place for place, name in enumerate(modules)}
        packages = {mode: target.split(":")[0] for mode, target in screens.items()}
        wanted = [mode for mode in packages if packages[mode] in places and mode not in barred]
        wanted.sort(key=lambda mode: places[packages[mode]])
        self.screens = [(mode, packages[mode]) for mode in wanted]
        self.loaded: set[str] = set()
        self._failure: Exception | None = None
        self._quiet = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first picture is on the screen."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._load, name="readying", daemon=True)
            self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether modules are being loaded."""
        return self._thread is not None and self._thread.is_alive()

    def look(self, quiet: float) -> None:
        """Build the next screen if its module is there and nobody types; called with each frame.

        Raises what kept a module from being loaded.
        """
        if self._failure is not None:
            raise self._failure
        if quiet < QUIET_S:
            self._quiet.clear()
            return
        self._quiet.set()
        found = next((screen for screen in self.screens if screen[1] in self.loaded), None)
        if found is not None:
            self.screens.remove(found)
            self._build(found[0])

    def stop(self) -> None:
        """End after the module in hand."""
        self._stopped.set()
        self._quiet.set()
        if self._thread is not None:
            self._thread.join(1.0)  # the interpreter must not end under an import

    def _load(self) -> None:
        for name in self._modules:
            self._quiet.wait()
            if self._stopped.wait(PAUSE_S):
                return
            try:
                import_module(name)
            except Exception as error:  # a broken installation, which `look` reports
                self._failure = error
                return
            self.loaded.add(name)
