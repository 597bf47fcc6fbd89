"""What a task offers before it is built: the options that it takes, and its first rows."""

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name

from grpo_engine.config.declaration import Setting
from grpo_engine.config.settings import TaskConfig
from grpo_engine.tasks.base import BUILT_IN, Task, is_code
from grpo_engine.tasks.rows import BadRows, DataRow


def options_of(config: TaskConfig) -> Mapping[str, Setting]:
    """The options of the named task; none of a verifiers package, which checks them itself."""
    target, _ = BUILT_IN.get(config.name.partition(":")[0], ("", ""))
    if target:
        module = resolve_name(target.partition(":")[0])
        options: Mapping[str, Setting] = (
            module.options_of(config)
            if hasattr(module, "options_of")
            else getattr(module, "OPTIONS", {})
        )
        return options
    from grpo_engine.tasks import code, files

    return code.options_of(config) if is_code(config.name) else files.OPTIONS


def first_rows(config: TaskConfig, count: int) -> Sequence[DataRow]:
    """The first rows of the training split whose columns `task.columns` can name."""
    if config.name.partition(":")[0] in BUILT_IN:
        return ()
    from grpo_engine.tasks import code, files

    bad = BadRows(config)
    if is_code(config.name):
        source = code.source_of(config)
        source = code.called(source, config) if callable(source) else source
        if isinstance(source, Task):
            return ()
        splits = code.splits_of(config, source, config.name, bad)
    else:
        splits = files.load_splits(config, config.name, bad, count)
    return (splits.get(config.option("train")) or next(iter(splits.values())))[:count]
