"""`grpo-tui train` and `resume`: a run without a screen, in the foreground or background."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from grpo_tui.app.cli.params import (
    ConfigFile,
    Detach,
    JsonLines,
    Preset,
    RunOrFolder,
    Sets,
    Steps,
    Trust,
    complete_runs,
)
from grpo_tui.app.cli.run_config import assemble, checkpoint_start, start_preset
from grpo_tui.app.cli.startup import leave_to_background
from grpo_tui.experiments.db.paths import store_path

Begin = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="RUN[:STEP]",
        autocompletion=complete_runs,
        help="Begin with the weights of a run's checkpoint (the last), and its settings.",
    ),
]


def train(
    file: ConfigFile = None,
    preset: Preset = None,
    begin: Begin = "",
    with_optimizer: Annotated[
        bool,
        typer.Option(
            "--with-optimizer", help="With --from: begin with its optimiser's state as well."
        ),
    ] = False,
    sets: Sets = None,
    steps: Steps = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw in the run.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag the run; may be repeated.")] = None,
    detach: Detach = False,
    _trust: Trust = False,
    as_json: JsonLines = False,
    no_store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Do not record: keep only checkpoints and the log, in FOLDER."
        ),
    ] = None,
) -> None:
    """Train with GRPO, without a screen.

    Settings come from the preset, then the file, then --set, each over the one before. Without
    preset and file they are those of preset starter, or the defaults if --set names a model, a
    task, tools, an environment or reward functions. A recipe comes with its own settings: those
    set for another one before are dropped.
    Ctrl-C once stops after the step with a checkpoint, twice at once.

    Example: grpo-tui train --preset starter --steps 20 --set optimizer.learning_rate=3e-4
    """
    from grpo_tui.app.jobs.headless import run_headless
    from grpo_tui.app.jobs.start import tried_job

    if tag and no_store:
        raise typer.BadParameter("--tag is recorded in the store: leave it or --no-store out")
    if with_optimizer and not begin:
        raise typer.BadParameter("--with-optimizer goes with --from RUN")
    if begin and preset is not None:
        raise typer.BadParameter("--from RUN brings the run's settings: leave --preset out")
    start = checkpoint_start(begin, store_path(), with_optimizer=with_optimizer) if begin else None
    preset = preset if begin else start_preset(file, preset, sets)
    config = assemble(file, preset, sets, steps=steps, seed=seed, name=name, start=start)
    if detach:
        raise typer.Exit(leave_to_background(as_json=as_json))
    start_job = partial(tried_job, config, store_path(), folder=no_store, tags=tuple(tag or ()))
    raise typer.Exit(run_headless(start_job, as_json=as_json))


def resume(
    run: RunOrFolder = "@last",
    steps: Annotated[
        int | None,
        typer.Option(
            help="Train up to this step, past the last one too. With a linear or cosine schedule "
            "the learning rate jumps to where it would be in a run of this length."
        ),
    ] = None,
    detach: Detach = False,
    _trust: Trust = False,
    as_json: JsonLines = False,
) -> None:
    """Resume a run from its last checkpoint, bit for bit as if it had not stopped.

    Example: grpo-tui resume @last --steps 200
    """
    from grpo_tui.app.jobs.headless import run_headless
    from grpo_tui.app.jobs.start import resumed_job

    if detach:
        raise typer.Exit(leave_to_background(as_json=as_json))
    start_job = partial(resumed_job, run, store_path(), steps=steps)
    raise typer.Exit(run_headless(start_job, as_json=as_json))
