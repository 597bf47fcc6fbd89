"""The functions that start, continue and judge runs from Python."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_engine import consent, names
from grpo_engine import events as ev
from grpo_engine.api.evaluation import evaluate_target
from grpo_engine.api.progress import ProgressBar
from grpo_engine.api.records import Store, open_store
from grpo_engine.api.run import Callbacks, Run
from grpo_engine.api.settings import Settings, merged, name_object, named_tree, settings_of
from grpo_engine.config.parse import with_steps
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.errors import CheckpointError, EngineError
from grpo_engine.evaluation.target import find_target
from grpo_engine.frozen import frozen
from grpo_engine.platform.threads import launched_rank
from grpo_engine.run import checkpoint
from grpo_engine.run.user_objects import NO_OBJECTS, UserObjects


def train(
    config: Settings | None = None,
    /,
    *,
    preset: str | None = None,
    callbacks: Callbacks = (),
    record: bool | str | Path = True,
    tags: Iterable[str] = (),
    folder: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Train to the end, and return the run.

    Settings come from the preset, then `config` (a `RunConfig`, a mapping or a YAML file), then the
    keywords, each over the one before. A mapping has sections, or settings by dotted path:
    `{"rollout.group_size": 4}`; a keyword is a section: `rollout={"group_size": 4}`.
    Five sections have a short form: `rewards=[…]` takes functions and names, `task=` a name, a
    `Task`, a function or rows, `model=` a name or a folder, `algorithm=` a name or a recipe,
    `remote=` the address of the server that has the weights.
    `tools=[…]` takes functions, `environment=` a class, an instance, or classes by the name in a
    row's `environment`; both take names as well.

    `callbacks` get the events of the type that their parameter has. `record` is the store's file,
    True for the usual one, or False; what is not recorded goes to `folder`, by default one that is
    removed with the run. `progress` shows a bar or hides it. Ctrl-C stops after the step, with a
    checkpoint to resume from.
    """
    run = iterate(
        config,
        preset=preset,
        callbacks=callbacks,
        record=record,
        tags=tags,
        folder=folder,
        **settings,
    )
    return _finish(run, progress)


def iterate(
    config: Settings | None = None,
    /,
    *,
    preset: str | None = None,
    callbacks: Callbacks = (),
    record: bool | str | Path = True,
    tags: Iterable[str] = (),
    folder: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Begin a run that trains while it is iterated: `for event in iterate(…)`.

    It takes what `train` takes. A loop that is left early ends the run as soon as the run is
    dropped; `resume` continues from its last checkpoint.
    """
    chosen, objects = settings_of(config, preset, settings)
    control = Control()
    # one rank records the run of all
    store = None if launched_rank() else open_store(record)
    if store is not None and folder is not None:
        raise EngineError("folder goes with record=False: a recorded run has its own folder")
    return Run(
        chosen,
        objects,
        control=control,
        callbacks=callbacks,
        record=None if store is None else store.begin(chosen, control, tuple(tags)),
        folder=None if folder is None else Path(folder),
    )


def resume(
    run: Run | str | Path,
    /,
    *,
    steps: int | None = None,
    rewards: Iterable[Any] = (),
    task: Any = None,
    tools: Iterable[Any] = (),
    environment: Any = None,
    functions: Iterable[Any] = (),
    callbacks: Callbacks = (),
    record: bool | str | Path = True,
    progress: bool | None = None,
    trust: bool = False,
) -> Run:
    """Resume a run from its last checkpoint, and train to the end, or up to step `steps`.

    `run` is a run, the name or id of a recorded one (`@last` for the newest), or the folder of one
    that was not recorded; a complete one needs more `steps`. What it was given as Python objects is
    given again in `rewards`, `task`, `tools`, `environment` and `functions` (of the recipe's
    choices); a run of this process still has them, and its store. `trust` allows what the settings
    of a run name that did not begin here.
    """
    control = Control()
    objects = UserObjects(
        task=task,
        rewards=_by_name(rewards),
        environments=_by_name(tools, environment),
        functions=_by_name(functions),
    )
    if launched_rank():  # settings and checkpoints are rank 0's
        follower = Run(RunConfig(), objects, record=None, control=control, resume=True)
        follower.finish()
        return follower
    target = _to_resume(run, record)
    with consent.accepting(trust):
        config = consent.build(target.tree, f"run {target.name}")
    if target.is_complete and (steps is None or steps <= config.steps):
        raise CheckpointError(
            f"run {target.name} is complete at step {target.step}; grpo_engine.resume(run, "
            f"steps=N) continues it to a step N after {config.steps}"
        )
    config = config if steps is None else with_steps(config, steps, target.step)
    objects = _objects_of(config, run, objects)
    new_record = None
    if target.store is not None:
        changed = None if steps is None else config
        new_record = target.store.resume(
            target.name, from_step=target.step, control=control, config=changed
        )
    resumed = Run(
        config,
        objects,
        record=new_record,
        control=control,
        resume=True,
        callbacks=callbacks,
        folder=None if new_record else target.folder,
    )
    return _finish(resumed, progress)


@frozen
class _Resumable:
    """A run at its last checkpoint; `store` is None for one that was not recorded."""

    name: str
    folder: Path
    store: Store | None
    tree: Mapping[str, Any]  # its settings
    step: int
    is_complete: bool


def _to_resume(run: Run | str | Path, record: bool | str | Path) -> _Resumable:
    old_record, folder = None, Path(str(run))
    if isinstance(run, Run):
        old_record, folder = run.record, run.folder
    if not old_record and folder.is_dir():
        return _checkpoint_in(folder)
    name = old_record.id if old_record else str(run)
    store = open_store(old_record.store if old_record else record)
    if store is None:
        raise EngineError(f"run {name} is recorded and resumes there: leave out record=False")
    status, tree = store.resumable(name)
    folder = store.folder(name)
    return _Resumable(
        name=name,
        folder=folder,
        store=store,
        tree=tree,
        step=checkpoint.newest_step(folder),
        is_complete=status == "completed",
    )


def _checkpoint_in(folder: Path) -> _Resumable:
    """A run that was not recorded; it is complete if its last checkpoint says so."""
    saved, _ = checkpoint.latest(folder)
    if saved is None:
        raise CheckpointError(f"{folder} holds no checkpoint to resume from; train again")
    tree, ended_by = saved.state["config"], saved.state["progress"].get("ended_by")
    return _Resumable(
        name=str(folder),
        folder=folder,
        store=None,
        tree=tree,
        step=saved.step,
        is_complete=bool(ended_by) or saved.step >= tree["steps"],
    )


def _by_name(objects: Iterable[Any], environment: Any = None) -> dict[str, Any]:
    """Objects that are passed again, by their names in the settings."""
    by_name: dict[str, Any] = {}
    several = environment.values() if isinstance(environment, Mapping) else [environment]
    for item in (*objects, *several):
        if item is not None and not isinstance(item, str):
            name_object(item, by_name, replace=True)
    return by_name


def _objects_of(config: RunConfig, run: Run | str | Path, new: UserObjects) -> UserObjects:
    """The Python objects that a resumed run needs; raise if one is missing."""
    before = run.objects if isinstance(run, Run) else NO_OBJECTS

    def required(role: str, required_names: Collection[str], objects: Mapping[str, Any]) -> Any:
        for name in required_names:
            if name not in objects:
                names.refuse_missing(name, role)
        return {name: item for name, item in objects.items() if name in required_names}

    task, environments = config.task, {**before.environments, **new.environments}
    source = before.task if new.task is None else new.task
    if source is None:
        names.refuse_missing(task.name, "task")
    return UserObjects(
        task=source if task.name.startswith(names.IN_PROCESS) else None,
        rewards=required("reward", config.rewards.functions, {**before.rewards, **new.rewards}),
        functions=required(
            "function", config.algorithm.choices, {**before.functions, **new.functions}
        ),
        environments=required("tool", task.tools, environments)
        | required("environment", task.environments.values(), environments),
    )


def evaluate(
    target: Run | str | Path,
    /,
    *,
    preset: str | None = None,
    step: int | None = None,
    record: bool | str | Path = True,
    config: Settings | None = None,
    trust: bool = False,
    **settings: Any,
) -> dict[str, ev.EvaluationFinished]:
    """Evaluate a run, an adapter folder or a model on held-out problems.

    Returns the evaluation of each mode, `greedy` and `sampled`, with metrics and their intervals.
    `target` is a run, the name of a recorded one in the store `record`, a folder or a hub id. A run
    has its own settings; anything else those of the preset or of `config`. Keywords change both.
    `trust` is as for `resume`.
    """
    if isinstance(target, Run):
        return target.evaluate(step=step, **settings)
    changes, objects = named_tree(settings)
    base = merged(config, preset, changes)

    def folder(name: str) -> Path:
        store = open_store(record)
        if store is None:
            raise EngineError(f"{name} is no folder and no hub id, and record=False finds no run")
        return store.folder(name)

    with consent.accepting(trust):
        resolved = find_target(
            str(target),
            base,
            changes,
            step=step,
            folder=folder,
            adapter_model=preset is None and config is None,
        )
    return evaluate_target(resolved, objects)


def _finish(run: Run, progress: bool | None) -> Run:
    """Train to the end with a bar, and return the run."""
    bar = ProgressBar(run.config.steps, False if launched_rank() else progress)
    run.write = bar.write
    try:
        run.finish(bar.show)
    finally:
        bar.close()
        run.write = print
    return run
