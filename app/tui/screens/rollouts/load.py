"""What the Rollouts screen reads: a step's groups, and a group's tokens and history.

Called on the reader thread, which also computes the terms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grpo_engine.config.recipes import Recipe, recipe
from grpo_engine.config.removed import without_removed
from grpo_engine.config.settings import AlgorithmConfig
from grpo_engine.errors import EngineError
from grpo_engine.events import CUT, REPLACED, Origin, PassFinished, UpdateTotals
from grpo_tui.app.inspector.heat import HeatMode, scales
from grpo_tui.app.inspector.moments import Measure, Moment, moments_of
from grpo_tui.app.inspector.terms import group_terms, not_recorded
from grpo_tui.app.inspector.values import TokenTerm
from grpo_tui.experiments.values import GroupView, SearchHit, TokenRow, TokenView

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

ORIGINS: tuple[Origin, ...] = ("train", "pinned", "eval")

UNFINISHED = "the update of this step has not ended: its numbers are not there yet"
MOST_HITS = 50
SLICE = 8  # pages of texts that are read at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run's settings that the screen needs."""

    key: int
    id: str
    name: str
    recipe: Recipe
    max_length: int
    think_budget: int
    unread: str = ""  # why the recipe is not the run's


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroups:
    """A step's groups of one origin, and the steps that have groups."""

    run: RunFacts
    step: int
    origin: Origin
    steps: tuple[int, ...]
    groups: tuple[GroupView, ...]
    passes: tuple[PassFinished, ...]
    counts: dict[str, int]

    @property
    def totals(self) -> UpdateTotals:
        """The denominators of the step, if it was one update with every token in the loss."""
        rollouts = [r for group in self.groups if not replaced(group) for r in group.rollouts]
        left_out = "length" if self.run.recipe.mask_truncated else ""
        tokens = sum(r.tokens for r in rollouts if r.finish != left_out)
        return UpdateTotals(rows=len(rollouts), tokens=tokens)

    def at(self, step: int, groups: tuple[GroupView, ...]) -> "StepGroups":
        """Another step of the run."""
        return replace(self, step=step, groups=groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetail:
    """One group: token numbers, terms of each pass, what fills a bar, and its prompt's history."""

    group: GroupView
    tokens: TokenView | None
    terms: "tuple[Terms, ...]"
    scales: dict[HeatMode, float]
    history: tuple[GroupView, ...]
    missing: str


def run_facts(reader: "StoreReader", run: int) -> RunFacts:
    """Read the run's recipe and sampling limits."""
    detail = reader.run(run)
    algorithm = {**detail.config.get("algorithm", {})}
    algorithm |= {path.removeprefix("algorithm."): value for path, value in detail.settled.items()}
    _, notes = without_removed({"algorithm": algorithm})
    unread = "; ".join(notes.values())
    try:
        chosen = AlgorithmConfig.model_validate(algorithm).resolved()
    except ValueError as error:
        chosen, unread = recipe("grpo"), f"this version cannot read the run's recipe: {error}"
    rollout = detail.config.get("rollout", {})
    return RunFacts(
        key=run,
        id=detail.summary.id,
        name=detail.summary.name or detail.summary.id,
        recipe=chosen,
        max_length=int(rollout.get("max_new_tokens", 1)),
        think_budget=int(rollout.get("think_budget", 0)),
        unread=unread,
    )


def load_step(
    reader: "StoreReader", run: RunFacts, step: int | None, origin: Origin = "train"
) -> StepGroups:
    """Read a step's groups, by default of the newest step that has any."""
    steps = reader.group_steps(run.key, origin)
    chosen = steps[-1] if step is None and steps else (step or 0)
    groups = reader.groups(run.key, chosen, origin) if steps else ()
    groups = groups if origin == "train" else tuple(map(_unpushed, groups))
    return StepGroups(
        run=run,
        step=chosen,
        origin=origin,
        steps=steps,
        groups=groups,
        passes=reader.passes(run.key, chosen),
        counts={name: len(reader.group_steps(run.key, name)) for name in ORIGINS},
    )


def _unpushed(group: GroupView) -> GroupView:
    """A group outside the gradient: what its answers' advantages would be pushes nothing."""
    return replace(group, rollouts=tuple(replace(r, advantage=None) for r in group.rollouts))


def completed(step: StepGroups, group: GroupView, tokens: TokenView) -> TokenView:
    """The group's tokens; an advantage stored per answer is repeated for each of its tokens.

    Runs recorded before updates were have one for the whole step.
    """
    by_index = {rollout.index: rollout for rollout in group.rollouts}
    masks_cut = step.run.recipe.mask_truncated

    def complete(row: TokenRow) -> TokenRow:
        rollout, count = by_index[row.index], len(row.ids)
        cut = masks_cut and rollout.finish in CUT
        row = replace(row, spans=rollout.spans)
        advantages = row.advantages or (rollout.advantage or 0.0,) * count
        if row.updates:
            return replace(row, advantages=advantages)
        updates = (step.totals,) * max(1, len(row.passes))
        return replace(row, advantages=advantages, updates=updates, mask=(0,) * count * cut)

    return replace(tokens, rows=tuple(map(complete, tokens.rows)))


def replaced(group: GroupView) -> bool:
    """Whether another group took this one's place in the update."""
    return group.no_signal.endswith(REPLACED)


def why_no_terms(step: StepGroups, group: GroupView, tokens: TokenView | None) -> str:
    """Why a group's tokens have no terms; empty if they have."""
    if tokens is None:
        return "token numbers were not recorded for this group (record.tokens=all records them)"
    if group.origin == "eval":
        return "held-out answers are not trained on: only the sampler scored their tokens"
    if group.origin == "pinned":
        return "no push: sampled outside the gradient"
    if all(row.old for row in tokens.rows):
        return step.run.unread or not_recorded(tokens, step.run.recipe, step.run.think_budget)
    if group.no_signal:
        return f"no push: {group.no_signal}, so its tokens were left out of the update"
    return "the step ended before its tokens were scored"


def not_ended(reader: "StoreReader", step: StepGroups) -> bool:
    """Whether the run is still at work on this step."""
    run = reader.run(step.run.key).summary
    return run.active and run.step < step.step


def load_group(reader: "StoreReader", step: StepGroups, group: GroupView) -> GroupDetail:
    """Read one group's tokens, compute their terms in each pass, and find the prompt's history."""
    tokens, terms, missing = load_terms(reader, step, group)
    history = reader.history(step.run.key, group.prompt_hash)
    return GroupDetail(
        group=group,
        tokens=tokens,
        terms=terms,
        scales=scales(tokens.rows if tokens else (), terms[-1] if terms else ()),
        history=history,
        missing=missing,
    )


Terms = tuple[tuple[TokenTerm, ...], ...]


def load_terms(
    reader: "StoreReader", step: StepGroups, group: GroupView, *, last: bool = False
) -> tuple[TokenView | None, tuple[Terms, ...], str]:
    """A group's tokens, their terms in each pass, or in the last one, and why there are none."""
    recorded = reader.tokens(step.run.key, group.key) if group.has_tokens else None
    missing = why_no_terms(step, group, recorded)
    if missing and recorded is not None and group.origin == "train" and not_ended(reader, step):
        missing = UNFINISHED
    tokens = None if recorded is None else completed(step, group, recorded)
    terms: list[Terms] = []
    if tokens is not None and not missing:
        passes = max(1, max((len(row.passes) for row in tokens.rows), default=0))
        run = step.run
        try:
            for at in range(passes - 1 if last else 0, passes):
                terms.append(group_terms(tokens, run.recipe, at=at, max_length=run.max_length))
        except EngineError as error:
            missing = str(error)
    return tokens, tuple(terms), missing


def unclipped(group: GroupView) -> bool:
    """Whether no token of a group was clipped in the last pass, as recorded with its answers."""
    return all(rollout.clip_fraction == 0 for rollout in group.rollouts)


def load_moments(reader: "StoreReader", step: StepGroups, measure: Measure) -> tuple[Moment, ...]:
    """The moments of a step's groups, by the numbers of the last pass."""
    found: list[Moment] = []
    for group in step.groups:
        if measure == "clipped" and step.run.recipe.trust == "clip" and unclipped(group):
            continue
        tokens, terms, _ = load_terms(reader, step, group, last=True)
        if tokens is not None:
            rows = terms[-1] if terms else ()
            found += moments_of(measure, group.index, tokens.rows, rows)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What a search of a run has found so far, newest first; `more` than `MOST_HITS` may exist."""

    text: str
    found: tuple[SearchHit, ...] = ()
    done: bool = False
    more: bool = False


class Searcher:
    """A search of a run's prompts and answers, in slices that leave the reader free in between."""

    def __init__(self, run: RunFacts, text: str) -> None:
        self.hits = Hits(text=text)
        self._run = run
        self._stream: Iterator[SearchHit | None] | None = None

    def look(self, reader: "StoreReader") -> Hits:
        """Look further and return what is found so far."""
        from grpo_tui.experiments.search import searching

        if self._stream is None:
            self._stream = searching(reader, self.hits.text, run=self._run.key, limit=MOST_HITS + 1)
        found, pauses = list(self.hits.found), 0
        for hit in self._stream:
            if hit is not None:
                found.append(hit)
                continue
            pauses += 1
            if pauses == SLICE:
                break
        self.hits = replace(
            self.hits,
            found=tuple(found[:MOST_HITS]),
            done=pauses < SLICE,
            more=len(found) > MOST_HITS,
        )
        return self.hits
