"""Arguments and options that several verbs have, each with what the shell may complete it to."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Literal

import typer

from grpo_tui.experiments.db.paths import store_path

Completions = Iterator[tuple[str, str]]  # values and their lines of help
RECENT = 50  # runs
MAX_HELP = 60  # characters; a shell may show each line as a choice
# Zsh evaluates completions, and a completed name is run with its line. These characters mean
# nothing to a shell, and a name of them is no option, reference or folder to the program.
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
UNSAFE = re.compile(r"[^\w\s.,:;/()<>=+-]")  # characters left out of help


def complete_runs(incomplete: str) -> Completions:
    from grpo_tui.experiments.errors import StoreError
    from grpo_tui.experiments.reader import StoreReader

    try:
        with StoreReader(store_path()) as reader:
            for run in reader.runs(limit=RECENT):
                total = f"/{run.total_steps}" if run.total_steps else ""
                summary = f"{run.status} {run.step}{total} {run.recipe}"
                for name in list(filter(SAFE.fullmatch, (run.name, run.id)))[:1]:
                    yield from _matching(incomplete, (name, summary))
    except (StoreError, OSError):
        return
    yield from _matching(incomplete, ("@last", "the newest run"))


def complete_presets(incomplete: str) -> Completions:
    from grpo_engine.presets import names, preset

    yield from _matching(incomplete, *((name, preset(name).description) for name in names()))


def complete_recipes(incomplete: str) -> Completions:
    from grpo_tui.app.text.recipe_cards import CARDS

    yield from _matching(incomplete, *((name, card.summary) for name, card in CARDS.items()))


def complete_settings(incomplete: str) -> Completions:
    """Names of settings, and after `=` what a setting with choices may be."""
    from grpo_engine.config.parse import settings
    from grpo_engine.config.recipes import RECIPES

    path, is_named, _ = incomplete.partition("=")
    if is_named and path in settings():
        choices = RECIPES if path == "algorithm.recipe" else settings()[path].choices
        yield from _matching(incomplete, *((f"{path}={choice}", "") for choice in choices))
    else:
        names = ((f"{setting.path}=", setting.help) for setting in settings().values())
        yield from _matching(incomplete, *names)


def complete_metrics(incomplete: str) -> Completions:
    from grpo_engine.metrics import METRICS

    yield from _matching(incomplete, *((m.name, m.label) for m in METRICS.values()))


def _matching(incomplete: str, *candidates: tuple[str, str]) -> Completions:
    for name, help in candidates:
        if name.startswith(incomplete):
            yield name, shorten(UNSAFE.sub("", help), MAX_HELP, placeholder=" …")


def _accept(accept: bool) -> None:
    if accept:
        from grpo_engine import consent

        consent.accept_all()


RunRef = Annotated[
    str,
    typer.Argument(help="Id, unique prefix, name or @last.", autocompletion=complete_runs),
]
RunOrFolder = Annotated[
    str,
    typer.Argument(
        help="Id, unique prefix, name, @last, or the ./folder of a run that is not stored.",
        autocompletion=complete_runs,
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Load and contact what a run names that did not begin here.",
        callback=_accept,
        expose_value=False,
    ),
]
Runs = Annotated[list[str], typer.Argument(help="Runs.", autocompletion=complete_runs)]
ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]")]
Checkpoint = Annotated[int | None, typer.Option(help="Checkpoint of a run; else its best.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(help="A metric; may be repeated.", autocompletion=complete_metrics),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Start from these settings; see `grpo-tui presets`.", autocompletion=complete_presets
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="a.b=c", help="Change one setting.", autocompletion=complete_settings
    ),
]
Steps = Annotated[int | None, typer.Option(help="Training steps.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="Run in the background and print the run's name.")
]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print every event as one JSON object a line.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# Filters of answers.
Origin = Annotated[
    Literal["train", "eval", "pinned"] | None, typer.Option(help="What they were sampled for.")
]
GroupIndex = Annotated[int | None, typer.Option("--group", help="Of this group alone.")]
