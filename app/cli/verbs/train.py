"""`grpo-tui train`: a run without a screen, in the foreground or background."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_engine.config.settings import RunConfig
from grpo_engine.platform.threads import launched_rank
from grpo_tui.app.cli.params import (
    ConfigFile,
    Db,
    Detach,
    JsonLines,
    Preset,
    ReadyFile,
    Sets,
    Steps,
    complete_runs,
)
from grpo_tui.app.cli.run_config import assemble, checkpoint_start
from grpo_tui.app.cli.startup import leave_to_background
from grpo_tui.app.jobs.engine_thread import EngineThread
from grpo_tui.app.trial.ready import require
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
    as_json: JsonLines = False,
    db: Db = None,
    no_store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Do not record: keep only checkpoints and the log, in FOLDER."
        ),
    ] = None,
    ready_file: ReadyFile = None,
) -> None:
    """Train with GRPO, without a screen.

    Settings come from the preset, then the file, then --set, each over the one before. A recipe
    comes with its own settings: those set for another one before are dropped.
    Ctrl-C once stops after the step with a checkpoint, twice at once.

    Example: grpo-tui train --preset starter --steps 20 --set optimizer.learning_rate=3e-4
    """
    from grpo_tui.app.jobs.headless import run_headless
    from grpo_tui.app.jobs.start import new_job, with_teacher

    if tag and no_store:
        raise typer.BadParameter("--tag is recorded in the store: leave it or --no-store out")
    if with_optimizer and not begin:
        raise typer.BadParameter("--with-optimizer goes with --from RUN")
    if begin and preset is not None:
        raise typer.BadParameter("--from RUN brings the run's settings: leave --preset out")
    start = checkpoint_start(begin, db, with_optimizer=with_optimizer) if begin else None
    config = assemble(file, preset, sets, steps=steps, seed=seed, name=name, start=start)
    if detach:
        leave_to_background(as_json=as_json)
    config = with_teacher(config, store_path(db))
    engine = _engine_for(config)
    job = new_job(config, db=db, folder=no_store, tags=tuple(tag or ()))
    raise typer.Exit(run_headless(job, as_json=as_json, ready=ready_file, engine=engine))


def _engine_for(config: RunConfig) -> EngineThread:
    """Start the engine's thread and try the settings on it; raise if a run would fail."""
    from grpo_tui.app.jobs.headless import PATIENCE

    engine = EngineThread()
    engine.start()
    if launched_rank() is None:  # what fits on several machines is known once they are connected
        try:
            engine.call(lambda: require(config))
        except BaseException:
            engine.finish()
            engine.join(PATIENCE)  # the interpreter must not end before its threads
            raise
    return engine
