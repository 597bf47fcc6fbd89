"""Resolve the target of `grpo-tui eval`, and run the evaluations one after another."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from grpo_engine import errors
from grpo_engine.config.parse import merge, parse_sets
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.evaluation import target as targets
from grpo_engine.evaluation.target import Target
from grpo_engine.events import RunFailed
from grpo_engine.platform.scratch import scratch
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.run_config import assemble
from grpo_tui.app.jobs.progress import printer


def find_target(
    target: str, *, file: Path | None, preset: str | None, sets: Sequence[str],
    changes: Mapping[str, Any], step: int | None, db: Path | None,
) -> Target:  # fmt: skip
    """Resolve `target`: a run, its folder, an adapter or model folder, or a hub id.

    What is no run has the settings of the file and the preset; an adapter without them names its
    model.
    """
    over = merge(dict(changes), parse_sets(sets))
    base = assemble(file, preset, sets)
    return targets.find_target(
        target, base, over, step=step, folder=partial(_folder, db),
        adapter_model=file is None and preset is None,
    )  # fmt: skip


def _folder(db: Path | None, run: str) -> Path:
    from grpo_tui.experiments.db.paths import run_folder, store_path
    from grpo_tui.experiments.reader import StoreReader

    path = store_path(db)
    with closing(StoreReader(path)) as reader:
        return run_folder(path, reader.resolve(run).id)


def run_evaluations(target: Target, *, base: bool, as_json: bool) -> int:
    """Evaluate the base model and then the target; return the exit status."""
    from grpo_engine.setup.startup import enter_engine

    enter_engine(0)
    from grpo_engine.evaluation.held_out import Moment
    from grpo_engine.trainer import evaluate_only

    show = printer(as_json=as_json)
    turns: list[tuple[RunConfig, int, Moment]] = []
    if base and target.config.model.adapter is not None:
        bare = target.config.model.model_copy(update={"adapter": None})
        turns.append((target.config.model_copy(update={"model": bare}), 0, "before"))
    turns.append((target.config, target.step, "after"))
    status = exit_codes.OK
    with scratch("eval") as folder:
        for config, step, moment in turns:
            events = evaluate_only(config, Control(), folder=folder, step=step, moment=moment)
            for event in events:
                show.show(event)
                if isinstance(event, RunFailed):
                    error_class = getattr(errors, event.error, RuntimeError)
                    status = exit_codes.exit_code(error_class(event.message))
    show.close()
    return status
