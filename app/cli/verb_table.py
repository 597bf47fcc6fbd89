"""The verbs of the command line, with module and summary, without importing any."""

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """One row of the table; `target` is `module:attribute`, a Typer app or a function."""

    name: str
    target: str
    help: str
    section: str


# verbs of which nothing works without MLX's back end
NEEDS_ENGINE: Final = frozenset({"probe", "plan", "train", "resume", "sweep", "eval"})
MOST_USED, BEFORE = "Most used", "Before a run"
DURING, AFTER, LEARN = "While it trains", "Afterwards", "To learn"

VERBS: Final = tuple(
    Verb(name, f"grpo_tui.app.cli.verbs.{target}", help_, section)
    for section, name, target, help_ in (
        (MOST_USED, "train", "train:train", "Train a model, without a screen."),
        (MOST_USED, "watch", "screens:watch", "Attach the live screen to a run."),
        (MOST_USED, "runs", "runs:app", "List runs; rename, tag, archive, delete, import."),
        (MOST_USED, "compare", "compare:compare", "Which settings are better, and how sure."),
        (MOST_USED, "resume", "resume:resume", "Resume a run from its last checkpoint."),
        (MOST_USED, "chat", "chat:chat", "Ask a trained model and its start the same thing."),
        (MOST_USED, "export", "export:export", "Write metrics, rollouts or tokens to a file."),
        (MOST_USED, "doctor", "doctor:doctor", "Check this machine and its set-up."),
        (BEFORE, "plan", "plan:plan", "Say what fits in memory, from a model's config.json."),
        (BEFORE, "probe", "probe:probe", "Try a model: which group size to use."),
        (BEFORE, "sweep", "sweep:sweep", "Train a grid of settings and seeds."),
        (BEFORE, "config", "config:app", "Write and check configuration files."),
        (BEFORE, "presets", "presets:app", "List the presets; show one."),
        (BEFORE, "recipes", "recipes:app", "List the algorithms; show one."),
        (BEFORE, "tasks", "tasks:app", "List the tasks; show or play one."),
        (BEFORE, "rewards", "rewards:app", "List the reward functions; show or try one."),
        (BEFORE, "models", "models:app", "List models; import or export one."),
        (DURING, "pause", "requests:pause", "Pause a run."),
        (DURING, "continue", "requests:continue_", "Let a paused run continue."),
        (DURING, "stop", "requests:stop", "Ask a run to save a checkpoint and stop."),
        (DURING, "logs", "logs:logs", "Print a run's log."),
        (AFTER, "report", "report:report", "Summarize a run on one page."),
        (AFTER, "plot", "plot:plot", "Draw the curves of runs in the shell."),
        (AFTER, "rollouts", "rollouts:rollouts", "List, search and print rollouts of a run."),
        (AFTER, "eval", "evaluate:evaluate", "Score a run or a model on held-out problems."),
        (AFTER, "replay", "screens:replay", "Play back a recorded run."),
        (LEARN, "tour", "screens:tour", "The workbench in nine sentences; needs no MLX."),
        (LEARN, "demo", "screens:demo", "Play the bundled recording; needs no MLX."),
        (LEARN, "explain", "explain:explain", "Any metric, alert, setting or key."),
    )
)
