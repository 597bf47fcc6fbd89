"""`grpo-tui eval`: held-out accuracy of a run, an adapter or a bare model."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_engine.config.parse import parse_sets
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.evaluation.benchmarks import Benchmarks
from grpo_engine.evaluation.target import Target, find_target
from grpo_engine.events import BenchmarksMeasured, RunFailed, to_json
from grpo_engine.platform.scratch import scratch
from grpo_engine.setup.startup import enter_engine
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, print_table
from grpo_tui.app.cli.params import Checkpoint, JsonLines, Preset, Sets, Trust, complete_runs
from grpo_tui.app.cli.run_config import assemble
from grpo_tui.app.cli.store_access import reading, writing
from grpo_tui.app.jobs.progress import printer
from grpo_tui.app.text.event_text import sentence
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.db.paths import store_path

LmEval = Annotated[
    str, typer.Option(metavar="TASKS", help="Instead: benchmarks of lm-eval, with commas between.")
]
LmEvalTasks = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Further task files for --lm-eval.")
]
LmEvalLimit = Annotated[
    int, typer.Option(help="Problems of each task of --lm-eval; 0 for all.", min=0)
]


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
    lm_eval: LmEval = "",
    lm_eval_tasks: LmEvalTasks = None,
    lm_eval_limit: LmEvalLimit = 0,
    sets: Sets = None,
    _trust: Trust = False,
    as_json: JsonLines = False,
) -> None:
    """Score a run or a model on held-out problems, and compare it with its base model.

    With --lm-eval on standard benchmarks, whose results are stored with the run.

    Example: grpo-tui eval @last --set evaluation.problems=500 --set evaluation.samples=4
    """
    names = tuple(filter(None, map(str.strip, lm_eval.split(","))))
    if not names and (lm_eval_tasks or lm_eval_limit):
        raise typer.BadParameter("--lm-eval-tasks and --lm-eval-limit need --lm-eval TASKS")
    lookup = _RunLookup()
    resolved = find_target(
        target,
        assemble(file, preset, sets),
        parse_sets(sets),
        step=step,
        folder=lookup.folder,
        adapter_model=file is None and preset is None,
    )
    if names:
        requested = Benchmarks(tasks=names, folder=lm_eval_tasks, limit=lm_eval_limit)
        _measure(resolved, lookup.run, requested, base=base, as_json=as_json)
        return
    enter_engine(0)
    from grpo_engine.trainer import evaluate_only

    show = printer(as_json=as_json)
    status = exit_codes.OK
    with scratch("eval") as folder:
        for config, step, moment in _turns(resolved, base=base):
            events = evaluate_only(config, Control(), folder=folder, step=step, moment=moment)
            for event in events:
                show.show(event)
                if isinstance(event, RunFailed):
                    status = exit_codes.of_failure(event.error)
    show.close()
    raise typer.Exit(status)


class _RunLookup:
    """Finds the folder of a run, and keeps its name; empty if the target was no run."""

    run = ""

    def folder(self, run: str) -> Path:
        from grpo_tui.app.jobs.start import folder_and_step

        self.run = run.rpartition(":")[0] if run.rpartition(":")[2].isdigit() else run
        return folder_and_step(run, store_path())[0]


Turn = tuple[RunConfig, int, Literal["before", "after"]]


def _turns(target: Target, *, base: bool) -> list[Turn]:
    """The models to measure: the one before the training, then the trained one."""
    config = target.config
    turns: list[Turn] = [(config, target.step, "after")]
    if base and config.model.adapter is not None:
        bare = config.model.model_copy(update={"adapter": None})
        turns.insert(0, (config.model_copy(update={"model": bare}), 0, "before"))
    return turns


def _measure(
    target: Target, run: str, benchmarks: Benchmarks, *, base: bool, as_json: bool
) -> None:
    """Measure standard benchmarks, store the results with the run, and print them."""
    from grpo_tui.app.page.facts import benchmark_rows
    from grpo_tui.experiments.reader import check_ended
    from grpo_tui.experiments.record.writer import add_events

    if run:  # refused before it takes its time
        with reading() as reader:
            check_ended(reader.resolve(run))
    benchmarks.check()
    for code in benchmarks.code:
        print_stderr(f"{code} names functions: lm-eval runs them here, with all that you may do")
    enter_engine(0)
    from grpo_engine.evaluation.benchmarks import measure, program

    begun = time.monotonic()
    models = {moment: config for config, _, moment in _turns(target, base=base)}
    scores = measure(models, benchmarks)
    event = BenchmarksMeasured(
        step=target.step,
        program=program(),
        scores=tuple(scores),
        seconds=time.monotonic() - begun,
        limit=benchmarks.limit,
    )
    if run:
        with writing() as store:
            add_events(store, store.key_of(run), event)
    if as_json:
        print_json(to_json(event))
    else:
        print_stderr(sentence(event) + (f", stored with {run}" if run else ""))
        print_table(benchmark_rows([asdict(event)]))
