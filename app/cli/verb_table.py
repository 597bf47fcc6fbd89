"""The verbs of the command line, with module and summary, without importing any."""

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """One row of the table; `target` is `module:attribute`, a Typer app or a function."""

    name: str
    target: str
    help: str
    section: str


# Nothing of these verbs works without MLX's back end.
NEEDS_ENGINE: Final = frozenset({"probe", "plan", "train", "resume", "sweep", "eval"})
TRAINING: Final = frozenset({"train", "resume", "sweep"})
SECTIONS: Final = {
    "Most used": (
        ("train", "train:train", "Train a model, without a screen."),
        ("watch", "screens:watch", "Attach the live screen to a run."),
        ("runs", "runs:app", "List runs; rename, tag, archive, delete, import."),
        ("compare", "compare:compare", "Which settings are better, and how sure."),
        ("resume", "train:resume", "Resume a run from its last checkpoint."),
        ("chat", "chat:chat", "Ask a trained model and its start the same question."),
        ("export", "export:export", "Write metrics, rollouts or tokens to a file."),
        ("doctor", "doctor:doctor", "Check this machine and its set-up."),
    ),
    "Before a run": (
        ("plan", "plan:plan", "Say what fits in memory, from a model's config.json."),
        ("probe", "probe:probe", "Try a model: which group size to use."),
        ("sweep", "sweep:sweep", "Train a grid of settings and seeds."),
        ("config", "config:app", "Write and check configuration files."),
        ("presets", "presets:app", "List the presets; show one."),
        ("recipes", "recipes:app", "List the algorithms; show one."),
        ("tasks", "tasks:app", "List the tasks; show or play one."),
        ("rewards", "rewards:app", "List the reward functions; show or try one."),
        ("models", "models:app", "List models; import or export one."),
    ),
    "While it trains": (
        ("pause", "requests:pause", "Pause a run."),
        ("continue", "requests:continue_", "Let a paused run continue."),
        ("stop", "requests:stop", "Ask a run to save a checkpoint and stop."),
        ("wait", "wait:wait", "Wait until a condition on a run's metrics holds."),
        ("logs", "logs:logs", "Print a run's log."),
    ),
    "Afterwards": (
        ("report", "report:report", "Summarize a run on one page."),
        ("audit", "audit:audit", "What is wrong with a run, as an exit status."),
        ("plot", "plot:plot", "Draw the curves of runs in the shell."),
        ("rollouts", "rollouts:rollouts", "List, search and print rollouts of a run."),
        ("eval", "evaluate:evaluate", "Score a run or a model on held-out problems."),
        ("replay", "screens:replay", "Play back a recorded run."),
    ),
    "To learn": (
        ("tour", "screens:tour", "The workbench in nine sentences; needs no MLX."),
        ("demo", "screens:demo", "Play the bundled recording; needs no MLX."),
        ("explain", "explain:explain", "Any metric, alert, setting or key."),
    ),
}
VERBS: Final = tuple(
    Verb(name, f"grpo_tui.app.cli.verbs.{target}", help_, section)
    for section, rows in SECTIONS.items()
    for name, target, help_ in rows
)
