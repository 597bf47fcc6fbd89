"""Draws the prompts of a step: tasks by their weights, problems by their pass rates.

Its state is in `run.progress`, which changes only when a step is complete.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_engine.config.safe_json import parse_json
from grpo_engine.errors import ConfigError, DataError
from grpo_engine.events import Event, NoteWritten
from grpo_engine.run.session import EngineRun, TaskPart
from grpo_engine.tasks.base import Example, Generated, draw, number_of
from grpo_engine.training.samples import SampledGroup

MAX_UNUSABLE = 10_000  # unusable generated problems in a row that end a run


class Drawing:
    """Draws problems from the run's position on; `finish` moves that."""

    def __init__(self, run: EngineRun) -> None:
        self._run = run
        self._cursors = {part.label: run.progress.cursors.get(part.label, 0) for part in run.parts}
        self._cursors[run.parts[0].label] = run.progress.cursor
        self._counts = dict(run.progress.drawn)
        self._left_out = frozenset(run.progress.left_out)
        self.passed_over = 0  # problems that were left out

    def take(self, count: int) -> list[Example]:
        return [self._next(self._part()) for _ in range(count)]

    def finish(self, groups: Sequence[SampledGroup]) -> None:
        """Move the run's position, and keep the pass rates of what was drawn."""
        progress, (first, *further) = self._run.progress, self._run.parts
        progress.cursor = self._cursors[first.label]
        progress.cursors = {part.label: self._cursors[part.label] for part in further}
        progress.drawn = self._counts
        if self._run.config.task.curriculum != "off":
            progress.rates |= {
                group.example.key: count
                for group in groups
                if (count := group.right.count(group.scores)) is not None
            }

    def _part(self) -> TaskPart:
        """The next prompt's task: prompts are shared in proportion to weights.

        It has the largest weight / (2 · prompts so far + 1), the rule of Sainte-Laguë for seats.
        """
        if len(self._run.parts) == 1:
            return self._run.parts[0]
        counts = self._counts
        part = max(self._run.parts, key=lambda p: p.weight / (2 * counts.get(p.label, 0) + 1))
        counts[part.label] = counts.get(part.label, 0) + 1
        return part

    def _next(self, part: TaskPart) -> Example:
        """The next problem of a task that is not left out."""
        train, unusable = part.task.train, 0
        limit = min(len(train), MAX_UNUSABLE) if isinstance(train, Generated) else len(train)
        while unusable < limit:
            position = self._cursors[part.label]
            self._cursors[part.label] += 1
            example = part.labelled(*draw(part.task, self._run.config.seed, position, 1))
            if example.key in self._left_out or not self._is_usable(part, example):
                unusable += 1
            elif self._is_chosen(part, example, position):
                return example
            self.passed_over += 1
        raise DataError(
            f"no training problem of task {part.label} can be drawn: all {limit} tried are left "
            "out by task.pass_rate_range, or longer than "
            "task.max_prompt_tokens; change these",
            "task.pass_rate_range",
            "task.max_prompt_tokens",
        )

    def _is_usable(self, part: TaskPart, example: Example) -> bool:
        """Whether a generated problem can be used; those of data sets were checked before."""
        skips = part.render.config.bad_rows == "skip" and isinstance(part.task.train, Generated)
        return not skips or part.render.usable_prompt(example) is not None

    def _is_chosen(self, part: TaskPart, example: Example, position: int) -> bool:
        curriculum = self._run.config.task.curriculum
        if curriculum == "off":
            return True
        draw = number_of(f"{self._run.config.seed}/curriculum/{part.label}/{position}") / 2**64
        return draw < chance(curriculum, *self._run.progress.rates.get(example.key, (0, 0)))


def chance(curriculum: str, right: float, tried: float) -> float:
    """The probability of drawing a problem: 1 - p (hardest) or 4p(1 - p) (half).

    p = (right + 1)/(tried + 2) is 1/2 for a problem that was never tried, and never 0 or 1.
    """
    p = (right + 1) / (tried + 2)
    return 1 - p if curriculum == "hardest" else 4 * p * (1 - p)


def take_rates(run: EngineRun) -> Iterator[Event]:
    """Before the first step: read the pass rates, and leave problems out by them."""
    config = run.config.task
    unjudged = [part.label for part in run.parts if not part.scorer.right.function]
    if config.curriculum != "off" and unjudged:
        raise ConfigError(
            f"task.curriculum {config.curriculum} needs pass rates, and nothing says which answers "
            f"to task {unjudged[0]} are right; set evaluation.accuracy",
            "task.curriculum",
            "evaluation.accuracy",
        )
    if config.curriculum != "off" and run.recipe.demonstrates and not config.pass_rates:
        raise ConfigError(
            f"task.curriculum {config.curriculum} needs pass rates, and none are measured where "
            "the data has the answers; name a run or a file with them in task.pass_rates, or turn "
            "it off",
            "task.curriculum",
            "task.pass_rates",
        )
    if not config.pass_rates:
        return
    file = Path(config.pass_rates)
    local = read_rates(file, run.config.rollout.group_size) if run.ranks.leads else None
    rates = {key: (right, tried) for key, (right, tried) in run.ranks.broadcast(local).items()}
    low, high = config.option("lowest"), config.option("highest")
    run.progress.left_out = sorted(
        key for key, (right, tried) in rates.items() if not low <= right / tried <= high
    )
    if config.curriculum != "off":
        run.progress.rates = rates
    yield NoteWritten(
        step=0,
        text=f"{len(rates)} problems have a pass rate in {config.pass_rates}; "
        f"{len(run.progress.left_out)} of them are left out, below {low:g} or above {high:g}",
    )


def read_rates(path: Path, tried: int) -> dict[str, tuple[float, float]]:
    """Right and tried completions by problem, from `{KEY: RATE}` or the output of `probe --json`.

    A rate counts as that of `tried` completions if the file does not give their number.
    """
    try:
        content: Any = parse_json(path.expanduser().read_text(encoding="utf-8"))
        content = content[0] if isinstance(content, list) else content
        if "pass_rates" in content:
            tried, content = int(content.get("answers", tried)), content["pass_rates"]
        rates = {str(key): float(rate) for key, rate in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise DataError(
            f"task.pass_rates {path} has no pass rates by problem ({error}); give a run of the "
            "store, or a JSON file like that of `grpo-tui probe --json`",
            "task.pass_rates",
        ) from error
    wrong = [key for key, rate in rates.items() if not 0 <= rate <= 1]
    if wrong or not rates:
        problem = "there are none"
        if wrong:
            problem = f"the rate of {wrong[0]!r} is {rates[wrong[0]]:g}, not between 0 and 1"
        raise DataError(f"task.pass_rates {path}: {problem}", "task.pass_rates")
    return {key: (rate * tried, tried) for key, rate in rates.items()}
