"""Resolve the target of `grpo-tui eval`, and run the evaluations one after another."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import exit_codes
from app.cli.run_config import assemble
from app.jobs.progress import printer
from grpo_engine import errors
from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.errors import CheckpointError, ModelError
from grpo_engine.events import RunFailed
from grpo_engine.run import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model with its settings; `config.model.adapter` is None for a bare model."""

    config: RunConfig
    step: int = 0
    base: str = ""  # the model that a run began with


def find_target(
    target: str, *, file: Path | None, preset: str | None, sets: Sequence[str],
    changes: Mapping[str, Any], step: int | None, db: Path | None,
) -> Target:  # fmt: skip
    """Resolve `target`: a run's folder, an adapter or model folder, a run, or a hub id."""
    from grpo_engine.config.parse import parse_sets

    over = merge(dict(changes), parse_sets(sets))
    place = Path(target).expanduser()
    if (place / checkpoint.FOLDER).is_dir():
        return of_run(place, over, step)
    if (place / "adapter_config.json").is_file():
        return of_adapter(place, file, preset, sets, over)
    if place.is_dir() or "/" in target or target == "starter":
        return of_model(target, file, preset, sets, over)
    from experiments.db.paths import run_folder, store_path
    from experiments.reader import StoreReader

    path = store_path(db)
    reader = StoreReader(path)
    try:
        run = reader.resolve(target)
    finally:
        reader.close()
    return of_run(run_folder(path, run.id), over, step)


def of_run(folder: Path, over: Mapping[str, Any], step: int | None) -> Target:
    """Return the checkpoint of a step, else the best, else the newest."""
    saved, _ = checkpoint.latest(folder)
    if saved is None:
        raise CheckpointError(f"{folder} holds no checkpoint; a run writes one when it ends")
    best = saved.state["progress"]["best_step"]
    wanted = step if step is not None else (saved.step if best is None else best)
    if wanted not in checkpoint.steps(folder):
        there = ", ".join(map(str, checkpoint.steps(folder)))
        raise CheckpointError(f"{folder} has no checkpoint of step {wanted}; it has {there}")
    chosen = checkpoint.load(folder, wanted)
    config = build(with_adapter(chosen.state["config"], chosen.path, over), str(folder))
    return Target(config=config, step=wanted, base=chosen.state["config"]["model"]["path"])


def of_adapter(
    place: Path, file: Path | None, preset: str | None, sets: Sequence[str], over: Mapping[str, Any]
) -> Target:
    """Return an adapter on the model that it names, or that the settings name."""
    tree = assemble(file, preset, sets).model_dump(mode="json")
    named = json.loads((place / "adapter_config.json").read_text(encoding="utf-8")).get("model")
    if named and file is None and preset is None:
        tree = merge(tree, {"model": {"path": named}})
    return Target(config=build(with_adapter(tree, place, over), str(place)))


def with_adapter(tree: Mapping[str, Any], adapter: Path, over: Mapping[str, Any]) -> dict[str, Any]:
    """Add an adapter to the settings; a full-tuning checkpoint becomes the model itself."""
    if (adapter / "adapters.safetensors").is_file():
        return merge(merge(tree, {"model": {"adapter": str(adapter)}}), over)
    return merge(merge(tree, {"model": {"path": str(adapter)}}), over)


def of_model(
    target: str, file: Path | None, preset: str | None, sets: Sequence[str], over: Mapping[str, Any]
) -> Target:
    """Return a model without an adapter."""
    if "/" in target and not Path(target).expanduser().is_dir() and target.startswith((".", "/")):
        raise ModelError(f"there is no folder {target}; give a run, a folder or a hub id")
    tree = assemble(file, preset, sets).model_dump(mode="json")
    model = {"path": target, "adapter": None}
    return Target(config=build(merge(merge(tree, {"model": model}), over), target))


def run_evaluations(target: Target, *, base: bool, as_json: bool) -> int:
    """Evaluate the base model and then the target; return the exit status."""
    from grpo_engine.platform import enter_engine

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
    with tempfile.TemporaryDirectory(prefix="grpo-tui-eval-") as place:
        for config, step, moment in turns:
            events = evaluate_only(config, Control(), folder=Path(place), step=step, moment=moment)
            for event in events:
                show.show(event)
                if isinstance(event, RunFailed):
                    kind = getattr(errors, event.error, RuntimeError)
                    status = exit_codes.exit_code(kind(event.message))
    show.close()
    return status
