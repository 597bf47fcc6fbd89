"""What the Runs screen reads: rows, sparklines of the visible rows, a preview of one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_tui.app.text.comparison import value_text
from grpo_tui.app.text.numbers import averaged
from grpo_tui.experiments.values import (
    AlertView,
    EvaluationView,
    MetricSeries,
    PostMortem,
    RunDetail,
    RunSummary,
)

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

PREVIEWED = ("reward", "kl", "eval/accuracy", "eval/greedy/accuracy")
SPARK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """One run at a glance."""

    detail: RunDetail
    changed: tuple[tuple[str, str], ...]
    series: tuple[MetricSeries, ...]
    alert: AlertView | None
    evaluations: tuple[EvaluationView, ...]
    post_mortem: PostMortem | None


def load_sparks(reader: "StoreReader", runs: Sequence[RunSummary]) -> dict[int, tuple[float, ...]]:
    """The reward of each run, averaged to the columns of its sparkline."""
    return {
        run.key: tuple(averaged(reader.metric_series(run.key, "reward").values, SPARK))
        for run in runs
    }


def load_preview(reader: "StoreReader", run: RunSummary) -> Preview:
    """Curves, changed settings, the last alert; for a lost run, what is known of its end."""
    # pydantic takes as long to load as the screen's first frame takes to draw
    from grpo_engine.config.parse import changed
    from grpo_tui.experiments.post_mortem import post_mortem

    detail = reader.run(run.key)
    alerts = reader.alerts(run.key)
    keys = set(reader.metric_keys(run.key))
    return Preview(
        detail=detail,
        changed=tuple(
            (path, ", ".join(map(str, value)) if isinstance(value, list) else value_text(value))
            for path, value in changed(detail.settings).items()
            if value is not None and path != "name"
        ),
        series=tuple(reader.metric_series(run.key, key) for key in PREVIEWED if key in keys),
        alert=next((alert for alert in alerts if not alert.muted), None),
        evaluations=reader.evaluations(run.key),
        post_mortem=post_mortem(reader, run.key) if run.status in ("lost", "failed") else None,
    )
