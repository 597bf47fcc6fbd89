"""`grpo-tui eval`: held-out accuracy of a run, an adapter or a bare model."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_engine.config.parse import parse_sets
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.evaluation.target import find_target
from grpo_engine.events import RunFailed
from grpo_engine.platform.scratch import scratch
from grpo_engine.setup.startup import enter_engine
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.params import Checkpoint, JsonLines, Preset, Sets, Trust, complete_runs
from grpo_tui.app.cli.run_config import assemble
from grpo_tui.app.jobs.progress import printer
from grpo_tui.experiments.db.paths import store_path


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            help="Run, adapter folder, model folder or hub id.", autocompletion=complete_runs
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Option("--config", help="Settings for an adapter or a model; else the defaults."),
    ] = None,
    preset: Preset = None,
    step: Checkpoint = None,
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Evaluate the model without adapter as well.")
    ] = True,
    sets: Sets = None,
    _trust: Trust = False,
    as_json: JsonLines = False,
) -> None:
    """Score a run or a model on held-out problems, and compare it with its base model.

    Example: grpo-tui eval @last --set evaluation.problems=500 --set evaluation.samples=4
    """
    from grpo_tui.app.jobs.start import folder_and_step

    resolved = find_target(
        target,
        assemble(file, preset, sets),
        parse_sets(sets),
        step=step,
        folder=lambda run: folder_and_step(run, store_path())[0],
        adapter_model=file is None and preset is None,
    )
    enter_engine(0)
    from grpo_engine.trainer import evaluate_only

    show = printer(as_json=as_json)
    turns: list[tuple[RunConfig, int, Literal["before", "after"]]]
    config = resolved.config
    turns = [(config, resolved.step, "after")]
    if base and config.model.adapter is not None:
        bare = config.model.model_copy(update={"adapter": None})
        turns.insert(0, (config.model_copy(update={"model": bare}), 0, "before"))
    status = exit_codes.OK
    with scratch("eval") as folder:
        for config, step, moment in turns:
            events = evaluate_only(config, Control(), folder=folder, step=step, moment=moment)
            for event in events:
                show.show(event)
                if isinstance(event, RunFailed):
                    status = exit_codes.of_failure(event.error)
    show.close()
    raise typer.Exit(status)
