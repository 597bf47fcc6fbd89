"""The verbs of the command line, with module and summary, without importing any."""

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """One row of the table; `target` is `module:attribute`, a Typer app or a function."""

    name: str
    target: str
    help: str
    section: str

    @property
    def needs_engine(self) -> bool:
        """Whether nothing in the verb works without MLX's back end."""
        return self.name in NEEDS_ENGINE


NEEDS_ENGINE: Final = frozenset({"probe", "plan", "train", "resume", "sweep", "eval"})
TRAIN, WATCH, MANAGE, REFERENCE = "Train", "Watch", "Manage", "Reference"

VERBS: Final = tuple(
    Verb(name, f"grpo_tui.app.cli.verbs.{target}", help_, section)
    for section, name, target, help_ in (
        (TRAIN, "probe", "probe:probe", "Try a model before a run: which group size to use."),
        (TRAIN, "plan", "plan:plan", "Say what fits in memory, from a model's config.json alone."),
        (TRAIN, "train", "train:train", "Train with GRPO, without a screen."),
        (TRAIN, "resume", "resume:resume", "Resume a run from its last checkpoint."),
        (TRAIN, "sweep", "sweep:sweep", "Train a grid of settings and seeds, one after another."),
        (TRAIN, "stop", "stop:stop", "Ask a run to save a checkpoint and stop."),
        (TRAIN, "pause", "pause:pause", "Pause a run."),
        (TRAIN, "continue", "continue_:continue_", "Let a paused run continue."),
        (TRAIN, "eval", "evaluate:evaluate", "Score a run or a model on held-out problems."),
        (WATCH, "watch", "watch:watch", "Attach the live screen to a run."),
        (WATCH, "chat", "chat:chat", "Ask a trained model and its start the same thing."),
        (WATCH, "replay", "replay:replay", "Play back a recorded run."),
        (WATCH, "demo", "demo:demo", "Play the bundled recording; needs no MLX."),
        (WATCH, "tour", "tour:tour", "Learn the workbench in nine sentences; needs no MLX."),
        (WATCH, "logs", "logs:logs", "Print a run's log."),
        (WATCH, "plot", "plot:plot", "Draw the curves of runs in the shell."),
        (WATCH, "report", "report:report", "Summarize a run on one page."),
        (WATCH, "serve", "serve:serve", "Show the workbench in a browser on this machine."),
        (
            MANAGE,
            "runs",
            "runs:app",
            "List runs; show, rename, tag, note, archive, delete, import.",
        ),
        (MANAGE, "compare", "compare:compare", "Compare runs: settings and metrics."),
        (MANAGE, "rollouts", "rollouts:rollouts", "List, search and print rollouts of a run."),
        (MANAGE, "export", "export:export", "Write runs, metrics, rollouts or tokens to a file."),
        (
            REFERENCE,
            "explain",
            "explain:explain",
            "Explain a metric, alert, setting, key or table.",
        ),
        (REFERENCE, "tasks", "tasks:app", "List the tasks; show one."),
        (REFERENCE, "rewards", "rewards:app", "List the reward functions; show one."),
        (REFERENCE, "recipes", "recipes:app", "List the algorithms; show one."),
        (REFERENCE, "presets", "presets:app", "List the presets; show one."),
        (REFERENCE, "models", "models:app", "List models; show one; import or export one."),
        (REFERENCE, "config", "config:app", "Write, check and compare configuration files."),
        (REFERENCE, "doctor", "doctor:doctor", "Check this machine and its setup."),
    )
)
