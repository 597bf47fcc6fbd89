"""The target of an evaluation: a checkpoint of a run, an adapter, or a model."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_engine import consent
from grpo_engine.config.parse import build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import CheckpointError, ModelError
from grpo_engine.frozen import frozen
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.run import checkpoint

ADAPTER = "adapters.safetensors"


@frozen
class Target:
    """A model with its settings; `config.model.adapter` is None for a bare model."""

    config: RunConfig
    step: int = 0
    base: str = ""  # the model that a run began with


def find_target(
    target: str,
    base: RunConfig,
    over: Mapping[str, Any],
    *,
    step: int | None,
    folder: Callable[[str], Path],
    adapter_model: bool,
) -> Target:
    """Resolve a run's folder, an adapter or model folder, a hub id, or a run by its name.

    `base` are the settings of a target that has none; `over` changes those of every target.
    `folder` finds a run's folder by its name. With `adapter_model` an adapter is on the model that
    it names.
    """
    path = Path(target).expanduser()
    if (path / checkpoint.FOLDER).is_dir():
        return of_run(path, over, step)
    if (path / "adapter_config.json").is_file():
        return of_adapter(path, base, over, adapter_model=adapter_model)
    if path.is_dir() or "/" in target or target in EMBEDDED:
        return of_model(target, base, over)
    return of_run(folder(target), over, step)


def of_run(folder: Path, over: Mapping[str, Any], step: int | None) -> Target:
    """Return the checkpoint of a step, else the best, else the newest."""
    saved, _ = checkpoint.latest(folder)
    if saved is None:
        raise CheckpointError(
            f"{folder} holds no checkpoint; a run writes one when it ends, and every "
            "checkpoint.every steps"
        )
    if step is None:
        best = saved.state["progress"]["best_step"]
        step = saved.step if best is None else best
    steps = checkpoint.steps(folder)
    if step not in steps:
        listed = ", ".join(map(str, steps))
        raise CheckpointError(f"{folder} has no checkpoint of step {step}; it has {listed}")
    chosen = checkpoint.load(folder, step)
    settings = chosen.state["config"]
    consent.require(consent.question_of(settings, f"the run in {folder}"))
    server = settings.get("remote", {}).get("url")
    if server and not (chosen.path / ADAPTER).is_file():
        raise CheckpointError(
            f"{chosen.path} has no adapter, since none could be downloaded from {server}; name "
            f"another step of {', '.join(map(str, steps))}, or resume the run there"
        )
    config = build(with_adapter(settings, chosen.path, over), str(folder))
    return Target(config=config, step=step, base=settings["model"]["path"])


def of_adapter(
    folder: Path, base: RunConfig, over: Mapping[str, Any], *, adapter_model: bool
) -> Target:
    """Return an adapter on the model that it names, or that the settings name."""
    tree = base.model_dump(mode="json")
    saved = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if adapter_model and (model := saved.get("model")):
        tuning = saved.get("fine_tune_type", "lora")
        tree = merge(tree, {"model": {"path": model, "tuning": tuning}})
    return Target(config=build(with_adapter(tree, folder, over), str(folder)))


def with_adapter(tree: Mapping[str, Any], adapter: Path, over: Mapping[str, Any]) -> dict[str, Any]:
    """Add an adapter to the settings; a full-tuning checkpoint becomes the model itself.

    What a server has trained is used here, by settings without the server.
    """
    tree = {name: section for name, section in tree.items() if name != "remote"}
    is_adapter = (adapter / ADAPTER).is_file()
    model = {"adapter": str(adapter)} if is_adapter else {"path": str(adapter), "adapter": None}
    return merge(merge(tree, {"model": model}), over)


def of_model(target: str, base: RunConfig, over: Mapping[str, Any]) -> Target:
    """Return a model without an adapter."""
    if target.startswith((".", "/")) and not Path(target).expanduser().is_dir():
        raise ModelError(f"there is no folder {target}; give a run, a folder or a hub id")
    model = {"path": target, "adapter": None}
    tree = merge(base.model_dump(mode="json"), {"model": model})
    return Target(config=build(merge(tree, over), target))
