"""A run in one line."""

from collections.abc import Sequence

from grpo_tui.app.text.numbers import short
from grpo_tui.experiments.values import RunFiles, RunSummary


def run_summary(run: RunSummary, changes: Sequence[str] = ()) -> str:
    """Describe a run in a list, first how its settings differ."""
    reward = run.metrics.get("reward")
    best = f"best reward {short(reward.best)}" if reward and reward.best is not None else ""
    sweep = f"sweep {run.sweep}" if run.sweep else ""
    parts = (
        *changes,
        run.status,
        f"step {run.step}",
        best,
        "" if run.seed is None else f"seed {run.seed}",
        sweep,
        run.recipe,
        run.task,
        *run.tags,
        run.note,
    )
    return " · ".join(filter(None, parts))


def files_text(files: RunFiles | None) -> list[tuple[str, str]]:
    """What the files of another trainer's run have and what they lack, as labels and texts."""
    if files is None:
        return []
    lacking: dict[str, list[str]] = {}
    for name, remedy in files.missing.items():
        lacking.setdefault(remedy, []).append(name)
    missing = [f"{', '.join(names)}: {remedy}" for remedy, names in lacking.items()]
    return [("recorded", ", ".join(files.recorded)), *(("not recorded", text) for text in missing)]
