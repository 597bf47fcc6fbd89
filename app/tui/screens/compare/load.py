"""What the Compare screen reads: the comparison, grid, and answers to one prompt.

Everything runs on the reader thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_tui.app.text.comparison import value_text
from grpo_tui.experiments.compare.runs import compare, only_recorded, side_by_side
from grpo_tui.experiments.compare.values import Comparison
from grpo_tui.experiments.errors import CompareError, RunNotFoundError
from grpo_tui.experiments.values import GroupView, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

LATE_STEPS = 20  # training prompts of this many last steps are offered for comparing answers
MOST_PROMPTS = 200
MOST_LISTED = 2000  # runs to choose from
MOST_DESCRIBED = 100  # of these have the settings that differ
MOST_CHANGES = 3
ORIGINS = ("pinned", "eval", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The compared runs, and the references that match no run."""

    comparison: Comparison | None
    gone: tuple[str, ...]


def list_runs(
    reader: "StoreReader", text: str, base: RunSummary | None
) -> list[tuple[RunSummary, list[str]]]:
    """The runs that match a filter, the newest of them with the settings that differ from base."""
    runs = reader.runs(text, limit=MOST_LISTED)
    own = reader.settings(base.key) if base else {}
    return [(run, _changes(reader, run, own) if place < MOST_DESCRIBED and own else [])
            for place, run in enumerate(runs)]  # fmt: skip


def _changes(reader: "StoreReader", run: RunSummary, own: dict[str, object]) -> list[str]:
    """Some settings in which a run differs from another, as `beta 0.4`."""
    found = [
        f"{path.rpartition('.')[2]} {value_text(value)}"
        for path, value in reader.settings(run.key).items()
        if path in own and path not in ("name", "seed") and not only_recorded(path)
        and value_text(value) != value_text(own[path])
    ]  # fmt: skip
    return found[:MOST_CHANGES] + (["…"] if len(found) > MOST_CHANGES else [])


def load_comparison(
    reader: "StoreReader", refs: Sequence[str], baseline: str, axis: str, at: float | None,
    reach: str = "",
) -> Found:  # fmt: skip
    """Compare the runs where the shortest one ends, their metrics at a position on the axis."""
    runs: list[RunSummary] = []
    gone: list[str] = []
    for ref in refs:
        try:
            run = reader.resolve(ref)
        except RunNotFoundError:
            gone.append(ref)
            continue
        if run.key not in {other.key for other in runs}:
            runs.append(run)
    if not runs:
        return Found(comparison=None, gone=tuple(gone))
    base = next((run for run in runs if run.id == baseline), runs[0])
    found = compare(
        reader, runs, baseline=base, axis=axis, at=common_end(runs, axis), reach=reach,
        or_last=True, values_at=at,
    )  # fmt: skip
    return Found(comparison=found, gone=tuple(gone))


def end_of(run: RunSummary, axis: str) -> float:
    """Where a run ends on the axis."""
    if axis == "step":
        return float(run.step)
    return float(run.tokens) if axis == "tokens" else run.elapsed


def common_end(runs: Sequence[RunSummary], axis: str) -> float:
    """Where the shortest run ends, ignoring runs without a finished step."""
    return min((end for run in runs if (end := end_of(run, axis)) > 0), default=0.0)


# -- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """An example that at least one of the runs has answered."""

    example_key: str
    text: str
    target: str
    origin: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Each run's answers to one prompt, up to a position on the axis."""

    prompt: Prompt
    at: float
    groups: dict[str, GroupView | None]


def load_prompts(reader: "StoreReader", runs: Sequence[RunSummary]) -> tuple[Prompt, ...]:
    """Prompts that the runs have answered: those shared by most runs first, then by `ORIGINS`."""
    found: dict[tuple[str, str], Prompt] = {}
    for origin in ORIGINS:
        for run in runs:
            since = max(0, run.step - LATE_STEPS) if origin == "train" else 0
            examples = reader.examples(run.key, origin, since=since)
            for key, (text, target) in examples.items():
                known = found.get((origin, key))
                found[origin, key] = Prompt(
                    example_key=key, text=text, target=target, origin=origin,
                    runs=known.runs + 1 if known else 1,
                )  # fmt: skip
    order = sorted(found.values(), key=lambda p: (-p.runs, ORIGINS.index(p.origin)))
    unique = {prompt.example_key: prompt for prompt in reversed(order)}
    return tuple(prompt for prompt in order if unique[prompt.example_key] is prompt)[:MOST_PROMPTS]


def load_answers(
    reader: "StoreReader", runs: Sequence[RunSummary], prompt: Prompt, axis: str, at: float
) -> Answers:
    """Return each run's latest answers to a prompt, up to a position on the axis."""
    groups: dict[str, GroupView | None] = {}
    for run in runs:
        step = int(at) if axis == "step" else reader.step_within(run.key, axis, at) or 0
        try:
            groups[run.id] = side_by_side(reader, [run], prompt.example_key, step).groups[0]
        except CompareError:
            groups[run.id] = None
    return Answers(prompt=prompt, at=at, groups=groups)
