"""Load modules and build screens before they are first needed.

Showing a screen for the first time loads its modules, creates its widgets and lays them out. Each
of these takes as long as handling ten ordinary keys, so it is done in small pieces after the first
frame while no key is pressed. A key that comes earlier loads what it needs itself.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

QUIET_S = 0.15  # since the last key; longer than the key repeat interval
PAUSE_S = 0.02  # between two modules, to leave time for drawing

# In order of use. Large packages are listed by submodule, so that none delays a key for long. Only
# leaves and modules that others import by the same name: two threads entering an import cycle at
# different places would see half-initialized modules.
MODULES = (
    "grpo_tui.experiments.reader",
    "grpo_tui.app.feed.stored",
    "grpo_engine.config.settings",
    "grpo_tui.app.tui.screens.watch",
    "grpo_tui.app.tui.screens.rollouts",
    "grpo_tui.app.tui.dialogs.help",
    "grpo_tui.app.tui.dialogs.export",
    "grpo_tui.app.tui.dialogs.jump",
    "grpo_tui.app.tui.screens.runs.dialogs",
    "numpy",
    "grpo_tui.experiments.compare.values",
    "grpo_tui.app.tui.screens.compare",
    "grpo_engine.config.parse",
    "grpo_tui.app.tui.screens.new_run",
    "grpo_tui.app.tui.screens.rollouts.lab.screen",
    "grpo_tui.experiments.store",
)


class Preloading:
    """Load modules on a thread and build screens on the event loop while no key is pressed."""

    def __init__(
        self, build: Callable[[str], None], screens: Mapping[str, str], *, read_only: bool = False,
        modules: Sequence[str] = MODULES,
    ) -> None:  # fmt: skip
        self._build = build
        self._modules = modules
        left_out = {"new_run"} if read_only else set()
        places = {name: place for place, name in enumerate(modules)}
        packages = {mode: target.split(":")[0] for mode, target in screens.items()}
        known = [mode for mode in packages if packages[mode] in places and mode not in left_out]
        known.sort(key=lambda mode: places[packages[mode]])
        self.screens = [(mode, packages[mode]) for mode in known]
        self.loaded: set[str] = set()
        self._failure: Exception | None = None
        self._quiet = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start after the first frame."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._load, name="preloading", daemon=True)
            self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether modules are still being loaded."""
        return self._thread is not None and self._thread.is_alive()

    def poll(self, quiet: float) -> None:
        """Build the next screen once its module is loaded and no key is pressed; called each frame.

        Raises the error that stopped a module from loading.
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
        """Stop after the module that is being loaded."""
        self._stopped.set()
        self._quiet.set()
        if self._thread is not None:
            self._thread.join(1.0)  # the interpreter must not exit during an import

    def _load(self) -> None:
        for name in self._modules:
            self._quiet.wait()
            if self._stopped.wait(PAUSE_S):
                return
            try:
                import_module(name)
            except Exception as error:  # such as a broken installation; `poll` raises it
                self._failure = error
                return
            self.loaded.add(name)
