"""`grpo-tui eval`: held-out accuracy of a run, an adapter or a bare model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_tui.app.cli.params import Holding, JsonLines, Sets, complete_presets, complete_runs


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            help="Run, adapter folder, model folder or hub id.", autocompletion=complete_runs
        ),
    ],
    file: Annotated[
        Path | None, typer.Option("--config", help="Settings for an adapter or a model.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Settings for an adapter or a model.", autocompletion=complete_presets),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Evaluate on another task.")] = None,
    samples: Annotated[int | None, typer.Option(help="Sampled answers per problem.")] = None,
    problems: Annotated[int | None, typer.Option(help="Held-out problems.")] = None,
    step: Annotated[int | None, typer.Option(help="Checkpoint of a run; else its best.")] = None,
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Evaluate the model without adapter as well.")
    ] = True,
    sets: Sets = None,
    as_json: JsonLines = False,
    db: Holding = None,
) -> None:
    """Score a run or a model on held-out problems, and compare it with its base model.

    Example: grpo-tui eval @last --problems 500 --samples 4
    """
    from grpo_tui.app.cli.evaluating import find_target, run_evaluations

    changes: dict[str, Any] = {}
    if task is not None:
        changes["task"] = {"name": task, "others": {}}
    counts = {"problems": problems, "samples": samples}
    changes["evaluation"] = {key: value for key, value in counts.items() if value is not None}
    resolved = find_target(
        target, file=file, preset=preset, sets=sets or [], changes=changes, step=step, db=db
    )
    raise typer.Exit(run_evaluations(resolved, base=base, as_json=as_json))
