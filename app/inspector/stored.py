"""The answers of a stored step with their token numbers and losses, as screens and pages show them.

Functions with a reader also compute the losses: on a screen they run in the reader thread.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from grpo_engine.config.recipes import Recipe, recipe
from grpo_engine.config.removed import without_removed
from grpo_engine.config.settings import AlgorithmConfig
from grpo_engine.errors import EngineError
from grpo_engine.events import Origin
from grpo_engine.frozen import frozen
from grpo_tui.app.inspector.functions import evaluable, require
from grpo_tui.app.inspector.losses import TokenLoss, not_recorded, token_losses
from grpo_tui.app.inspector.measures import HeatMode, Values, shades, values_of
from grpo_tui.app.text.numbers import clamped
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import GroupView, RecordedTokens, RolloutView

ORIGINS: tuple[Origin, ...] = ("train", "pinned", "eval")
UNFINISHED = "the update of this step has not ended: its numbers are not there yet"
THINK_END = "</think>"
LONG_THINKING = 512  # tokens; an answer after longer thinking is read from its first token


@frozen
class RunInfo:
    """The run's settings that its answers are read by."""

    key: int
    id: str
    name: str
    recipe: Recipe
    max_length: int
    right: str = ""  # the rule for right answers, as in the setting evaluation.accuracy
    unreadable: str = ""  # why the recipe is not the run's
    trainer: str = ""  # of a run that another program trained
    remedies: Mapping[str, str] = field(default_factory=dict)  # by what its files lack

    def lacks(self, name: str) -> str:
        """Say that the trainer did not record this, and what would."""
        remedy = self.remedies.get(name)
        return f"{self.trainer} did not record {name}" + (f": {remedy}" if remedy else "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupList:
    """A step's groups of one origin, and the steps that have groups."""

    run: RunInfo
    step: int
    origin: Origin
    steps_of: Mapping[str, tuple[int, ...]]  # steps with groups, by origin
    groups: tuple[GroupView, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have groups of this origin."""
        return self.steps_of[self.origin]


def nearest_step(steps: Sequence[int], step: float, by: int = 0) -> int:
    """The step that is `by` steps from another, or from the last one before it."""
    return steps[clamped(bisect_right(steps, step) - 1 + by, len(steps))] if steps else 0


@frozen
class RolloutTokens:
    """One answer with its token numbers, as far as they were recorded."""

    rollout: RolloutView
    texts: tuple[str, ...]  # one per token; a single one if the tokens are unknown
    row: RecordedTokens | None = None
    losses: Sequence[TokenLoss] = ()  # those of the last pass

    @property
    def thinking(self) -> int:
        """The tokens before the first of an answer that follows long thinking; else 0."""
        text = self.rollout.text
        final = text.partition(THINK_END)[2].lstrip()
        if not final or self.rollout.spans:
            return 0
        ends = accumulate(map(len, self.texts))
        count = sum(end <= len(text) - len(final) for end in ends)
        return count if count > LONG_THINKING else 0

    @property
    def stages(self) -> dict[str, Sequence[float]]:
        """The log-probabilities that are known, from the reference to the step's end."""
        row = self.row
        assert row is not None
        stages: dict[str, Sequence[float]] = {
            "ref": row.reference,
            "teacher": row.teacher,
            "sampled": () if row.old else row.sampler,
            "old": row.old,
            "new": row.passes[-1] if row.passes else (),
            "after": row.after,
        }
        return {name: values for name, values in stages.items() if values}

    @property
    def by_token(self) -> bool:
        """Whether the text of each token is known."""
        return self.row is not None and len(self.row.ids) == len(self.texts)

    @property
    def tokens(self) -> Sequence[int]:
        """Where the cursor may be: on the model's tokens."""
        return self.row.model_positions if self.row and self.row.ids else range(len(self.texts))

    def token_text(self, token: int) -> str:
        """The text of a token, or its id where the trainer recorded no texts."""
        if self.row and self.row.ids and not self.by_token:
            return f"id {self.row.ids[token]}"
        return self.texts[token] if token < len(self.texts) else ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupDetail:
    """One group: its answers' token numbers, and its prompt's history."""

    group: GroupView
    completions: tuple[RolloutTokens, ...]
    history: tuple[GroupView, ...]
    missing: str  # why there are no losses


@lru_cache(maxsize=4)
def shades_of(detail: GroupDetail, mode: HeatMode) -> tuple[Values, ...]:
    """The shade of each token of a group's answers; no shades where no token has one."""
    values = [values_of(mode, a.row, a.losses) if a.row else () for a in detail.completions]
    return tuple(() if all(shade is None for shade in row) else row for row in shades(mode, values))


def run_info(reader: StoreReader, run: int) -> RunInfo:
    """Read the run's recipe and sampling limits."""
    detail = reader.run(run)
    section = "algorithm."
    algorithm = {
        path.removeprefix(section): value
        for path, value in detail.settings.items()
        if path.startswith(section)
    }
    _, notes = without_removed({"algorithm": algorithm})
    unreadable = "; ".join(notes.values())
    try:
        resolved = AlgorithmConfig.model_validate(algorithm).resolved()
    except ValueError as error:
        resolved = recipe("grpo")
        unreadable = f"this version cannot read the run's recipe: {error}"
    if detail.trainer and not detail.config.get("algorithm"):
        unreadable = f"{detail.trainer} did not record its loss (settings algorithm.recipe)"
    return RunInfo(
        key=run,
        id=detail.summary.id,
        name=detail.summary.title,
        recipe=resolved,
        max_length=int(detail.settings.get("rollout.max_new_tokens", 1)),
        right=str(detail.settings.get("evaluation.accuracy") or ""),
        unreadable=unreadable,
        trainer=detail.trainer,
        remedies=detail.files.missing if detail.files else {},
    )


def load_step(
    reader: StoreReader,
    run: RunInfo | int,
    step: int | None,
    origin: Origin = "train",
    by: int = 0,
) -> GroupList:
    """Read the groups of a step, or of the step `by` steps from it; by default of the newest."""
    run = run_info(reader, run) if isinstance(run, int) else run
    steps_of: dict[str, tuple[int, ...]] = {o: reader.group_steps(run.key, o) for o in ORIGINS}
    steps = steps_of[origin]
    step = nearest_step(steps, math.inf if step is None else step, by)
    groups = reader.groups(run.key, step=step, origin=origin) if steps else ()
    # a resumed run may have had another file of its functions
    run = replace(run, recipe=evaluable(run.recipe, reader.functions(run.key, max(1, step))))
    if origin != "train":  # an advantage that pushes nothing is not shown
        groups = tuple(
            replace(group, rollouts=tuple(replace(r, advantage=None) for r in group.rollouts))
            for group in groups
        )
    return GroupList(run=run, step=step, origin=origin, steps_of=steps_of, groups=groups)


def with_functions(reader: StoreReader, base: GroupList) -> GroupList:
    """A step whose recipe evaluates the run's functions; raise UntrustedError if it may not."""
    sources = reader.functions(base.run.key, max(1, base.step))
    require(sources)
    return replace(base, run=replace(base.run, recipe=evaluable(base.run.recipe, sources)))


def load_tokens(
    reader: StoreReader, run: RunInfo, group: GroupView
) -> tuple[Sequence[RecordedTokens], str]:
    """A group's tokens with spans and advantages of its answers; why they have no losses."""
    tokens = reader.tokens(run.key, group.key) if group.has_tokens else None
    if tokens is None:
        text = "token numbers were not recorded for this group (record.tokens=all records them)"
        return (), run.lacks("tokens") if run.trainer else text
    rollouts = {rollout.index: rollout for rollout in group.rollouts}
    rows = [
        replace(
            row,
            spans=rollouts[row.index].spans,
            advantages=row.advantages or (rollouts[row.index].advantage or 0.0,),
        )
        for row in tokens.rows
    ]
    return rows, without_losses(run, group, rows)


def without_losses(run: RunInfo, group: GroupView, rows: Sequence[RecordedTokens]) -> str:
    """Why a group's tokens have no losses; empty if they have."""
    if group.origin == "eval":
        return "held-out answers are not trained on: only the sampler scored their tokens"
    if group.origin == "pinned":
        return "no push: not trained on"
    if all(row.old for row in rows):
        return run.unreadable or not_recorded(rows, run.recipe)
    if run.trainer and not any(row.ids for row in rows):
        return run.lacks("tokens")
    if run.trainer:
        return run.lacks("the trainer's log-probabilities")
    if group.no_signal:
        return f"no push: {group.no_signal}, so its tokens were left out of the update"
    if all(rollout.advantage == 0 for rollout in group.rollouts):
        return "no push: no token of its answers is in the loss"
    return "the step ended before its tokens were scored"


def load_group(
    reader: StoreReader, step: GroupList, group: GroupView, *, history: bool = True
) -> GroupDetail:
    """Read one group's tokens, compute their losses, and read the prompt's history."""
    run = step.run
    rows, missing = load_tokens(reader, run, group)
    if rows and missing and group.origin == "train":
        summary = reader.run(run.key).summary
        missing = UNFINISHED if summary.active and summary.step < step.step else missing
    losses: Sequence[Sequence[TokenLoss]] = ((),) * len(rows)
    if not missing:
        try:
            losses = token_losses(rows, run.recipe, max_length=run.max_length, step=step.step)
        except EngineError as error:
            missing = str(error)
    recorded = {row.index: (row, of_row) for row, of_row in zip(rows, losses, strict=True)}

    def completion(rollout: RolloutView) -> RolloutTokens:
        if rollout.index not in recorded:
            return RolloutTokens(rollout=rollout, texts=(rollout.text,))
        row, of_row = recorded[rollout.index]
        return RolloutTokens(
            rollout=rollout, texts=split(rollout.text, row), row=row, losses=of_row
        )

    return GroupDetail(
        group=group,
        completions=tuple(map(completion, group.rollouts)),
        history=reader.groups(run.key, prompt_hash=group.prompt_hash) if history else (),
        missing=missing,
    )


def split(text: str, row: RecordedTokens) -> tuple[str, ...]:
    """An answer split into tokens, or in one piece if they are unknown."""
    if len(row.ends) != len(row.ids) or (text and not row.ids):
        return (text,)
    return tuple(text[start:end] for start, end in pairwise((0, *row.ends)))
