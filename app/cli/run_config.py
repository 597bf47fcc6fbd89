"""Build a RunConfig from the command line: preset, then file, then single settings."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_engine.config.parse import build, merge, parse_sets, problems, read_yaml
from grpo_engine.config.settings import RunConfig
from grpo_tui.app.text.stderr import print_stderr

COMMAND_LINE = "the command line"


def assemble(
    file: Path | None,
    preset: str | None,
    sets: Iterable[str] | None,
    *,
    start: Mapping[str, Any] | None = None,
    **options: object,
) -> RunConfig:
    """Merge the settings in order.

    `start` are the settings of a run to begin from, which take the preset's place. `options` are
    settings such as `steps` that come last; None leaves one as it is.

    The user's own settings come together first, so that a file that names no recipe changes
    whichever is chosen.
    """
    tree, changes, source = dict[str, Any](), parse_sets(sets), COMMAND_LINE
    if start is not None:
        tree, source = dict(start), "the run to begin from"
    elif preset is not None:
        from grpo_engine.presets import preset as read_preset

        tree, source = read_preset(preset).tree, f"preset {preset}"
    before = tree
    if file is not None:
        settings, source = read_yaml(file), str(file)
        before, changes = merge(tree, settings), merge(settings, changes)
    tree = merge(tree, changes)
    overrides = {key: value for key, value in options.items() if value is not None}
    if overrides.keys() & changes.keys():
        _build(tree, before, source)  # A value that an option replaces is checked as well.
    return _build({**tree, **overrides}, before, source)


def start_preset(file: Path | None, preset: str | None, sets: Iterable[str] | None) -> str | None:
    """The preset of a new run; where neither it nor a file is named, one is chosen and printed."""
    if preset is not None or file is not None:
        return preset
    from grpo_engine.presets import starting_preset

    chosen, sentence = starting_preset(parse_sets(sets))
    print_stderr(sentence)
    return chosen


def _build(tree: dict[str, Any], before: dict[str, Any], source: str) -> RunConfig:
    """Build the settings; `before` are those of `source`, without the command line."""
    is_of_source = set(problems(before)).intersection(problems(tree))
    return build(tree, source if is_of_source else COMMAND_LINE)


def checkpoint_start(ref: str, store: Path, *, with_optimizer: bool) -> dict[str, Any]:
    """The settings of `RUN` or `RUN:STEP`, with the model of its checkpoint."""
    from grpo_engine.evaluation.target import of_run
    from grpo_engine.run import checkpoint
    from grpo_tui.app.jobs.start import folder_and_step

    folder, step = folder_and_step(ref, store)
    if step is None and (steps := checkpoint.steps(folder)):
        step = steps[-1]
    target = of_run(folder, {"name": ""}, step)
    tree = target.config.model_dump(mode="json")
    start = str(checkpoint.folder(folder, target.step)) if with_optimizer else None
    return merge(tree, {"optimizer": {"start": start}})
