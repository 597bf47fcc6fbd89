"""Actions that end the form: launch here, detached or into the queue; save as a file."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from textual.app import App
from textual.widgets import OptionList

from app.messages import LaunchRequested
from app.screens.ask import Ask
from app.screens.dialogs import Choice
from app.screens.export import free_path
from app.screens.new_run.facts import cost_summary
from app.screens.new_run.view import View

if TYPE_CHECKING:
    from app.app import Workbench
    from grpo_engine.config import RunConfig


PLACES: tuple[Literal["here", "detached", "queue"], ...] = ("here", "detached", "queue")


class LaunchDialog(Choice[str]):
    """What will happen, and where."""

    def __init__(self, view: View, busy: str) -> None:
        config = view.config
        assert config is not None
        super().__init__(f"launch {config.name or 'a new run'}", what(view, busy),
                         places(view, busy))  # fmt: skip

    def on_mount(self) -> None:
        """⏎ takes the first place: to launch was asked for already."""
        super().on_mount()
        self.query_one(OptionList).highlighted = 0


def what(view: View, busy: str) -> str:
    """The run in words, and what speaks against it."""
    config = view.config
    assert config is not None
    rollout = config.rollout
    lines = [
        f"{config.model.path} learns {config.task.name} with {config.algorithm.recipe}: "
        f"{config.steps:,} steps of {rollout.prompts} × {rollout.group_size} answers.",
        f"It takes {cost_summary(view)}.",
    ]
    changed = [path for path in view.checked.changed if path != "name"]
    if changed:
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        lines.append(f"Not as in {view.origin.name}: {', '.join(changed[:4])}{more}.")
    for found in (view.examples, view.memory):
        if problem := found.get("problem") or found.get("refused"):
            lines.append(f"▲ It may fail: {str(problem)[:300]}")
            break
    if view.lacking:
        lines.append(f"▲ {view.lacking}")
    elif busy:
        lines.append(f"{busy} trains in this process, and one process runs one at a time.")
    return "\n".join(lines)


def places(view: View, busy: str) -> list[tuple[str, str, str, str]]:
    """Where it can be started now."""
    found = [] if view.lacking or busy else [
        ("here", "h", "here", "trains in this process; Watch opens")
    ]  # fmt: skip
    queue = ("queue", "q", "into the queue",
             "waits for its turn; Q on Runs starts a worker")  # fmt: skip
    aside = ("detached", "d", "detached", beside(busy))
    found += [queue] if view.lacking else [queue, aside] if busy else [aside, queue]
    return [*found, ("", "n", "not yet", "")]


def beside(busy: str) -> str:
    """What a process of its own means now."""
    if not busy:
        return "in the background, even when this window closes"
    from experiments.machine import memory_now

    held, free = memory_now()
    return f"beside it; this process holds {held:.1f} GB, {free:.1f} GB are free"


class LaunchActions:
    """The keys that end the form."""

    view: View
    workbench: "Workbench"
    if TYPE_CHECKING:
        app: App[Any]
        notify: Any
        post_message: Any
        run_worker: Any
        end_typing: Any
        end_search: Any

    def _ready(self) -> "RunConfig | None":
        """The settings, or None after saying what is to fix and going there."""
        self.end_typing()
        config = self.view.config
        if config is None:
            self._say_what_is_wrong()
        return config

    def _say_what_is_wrong(self) -> None:
        self.end_search()
        view = self.view
        if view.checked.errors:
            path, problem = next(iter(view.checked.errors.items()))
            self.view = replace(view, open=view.open | {path.partition(".")[0]},
                                cursor=path)  # fmt: skip
            count = f" and {view.problems - 1} more" if view.problems > 1 else ""
            words = f"{path}: {problem.removeprefix(path + ': ')}"
        else:
            count, words = "", f"the YAML is not taken: {view.yaml_problem}"
        self.notify(f"{words}{count}", title="to fix first", severity="warning", markup=False)

    def action_launch(self) -> None:
        """Ask where, after saying what will happen."""
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
        elif self._ready() is not None:
            bridge = self.workbench.bridge
            busy = (bridge.name or "a run") if bridge.running else ""
            self.app.push_screen(LaunchDialog(self.view, busy), self._launch)

    def _launch(self, where: str | None) -> None:
        config = self.view.config
        place = next((kind for kind in PLACES if kind == where), None)
        if config is None or place is None:
            return
        if place == "detached":
            self.notify(f"Starting {config.name or 'the run'} in the background.", markup=False)
        self.post_message(LaunchRequested(config, place, self.view.origin.run))

    # -- files ------------------------------------------------------------------------------

    def action_save(self) -> None:
        """Ask for a file, and write the YAML."""
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
            return
        config = self._ready()
        if config is None:
            return
        stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.name) or "run"
        path = free_path(Path.cwd(), stem, "yaml")
        hint = "A YAML file for `grpo-tui train FILE` and for this screen."
        self.app.push_screen(Ask("save as", hint, str(path.name)), partial(self._save, config))

    def _save(self, config: "RunConfig", name: str | None) -> None:
        if name and name.strip():
            path = Path(name.strip()).expanduser().absolute()
            if path.exists():
                ask = Choice[str]("save as", f"{path} exists already.",
                                  [("over", "o", "write over it", ""),
                                   ("", "n", "leave it", "")])  # fmt: skip
                self.app.push_screen(
                    ask, lambda how: self._write(config, path) if how == "over" else None
                )
            else:
                self._write(config, path)

    def _write(self, config: "RunConfig", path: Path) -> None:
        self.run_worker(partial(self._written, config, path), group="save")

    async def _written(self, config: "RunConfig", path: Path) -> None:
        from grpo_engine.settings import write_yaml

        text = write_yaml(config)
        try:
            await asyncio.to_thread(path.write_text, text, encoding="utf-8")
        except OSError as error:
            self.notify(f"{path} was not written: {error.strerror}", severity="error",
                        markup=False)  # fmt: skip
        else:
            self.notify(f"Wrote {path}; start it with grpo-tui train {path.name}", markup=False)
