"""What the Rollouts screen reads: a step's groups, and a group's tokens and history.

Called on the reader thread, which also computes the terms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.inspector.terms import group_terms
from app.inspector.values import TokenTerm, UpdateTotals
from experiments.reader import StoreReader
from experiments.values import GroupView, SearchHit, TokenView
from grpo_engine.config.recipes import Recipe, recipe
from grpo_engine.errors import EngineError, RecipeError
from grpo_engine.events import Origin, PassFinished

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
        """The denominators of the step's update."""
        rollouts = [r for group in self.groups for r in group.rollouts]
        minibatches = max((p.minibatch for p in self.passes), default=0) + 1
        share = max(1, minibatches)
        return UpdateTotals(
            rows=max(1, len(rollouts) // share),
            tokens=max(1, sum(r.tokens for r in rollouts) // share),
            max_length=self.run.max_length,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetail:
    """One group with its token numbers, the terms of each pass, and the history of its prompt."""

    group: GroupView
    tokens: TokenView | None
    terms: tuple[tuple[tuple[TokenTerm, ...], ...], ...]
    history: tuple[GroupView, ...]
    missing: str


def run_facts(reader: StoreReader, run: int) -> RunFacts:
    """Read the run's recipe and sampling limits."""
    detail = reader.run(run)
    algorithm = dict(detail.config.get("algorithm", {}))
    name = str(algorithm.pop("recipe", "grpo"))
    changes = {key: value for key, value in algorithm.items() if value is not None}
    changes |= {path.removeprefix("algorithm."): value for path, value in detail.settled.items()}
    try:
        chosen = recipe(name, **changes)
    except (RecipeError, TypeError):
        chosen = recipe("grpo")
    rollout = detail.config.get("rollout", {})
    return RunFacts(
        key=run,
        id=detail.summary.id,
        name=detail.summary.name or detail.summary.id,
        recipe=chosen,
        max_length=int(rollout.get("max_new_tokens", 1)),
    )


def load_step(
    reader: StoreReader, run: RunFacts, step: int | None, origin: Origin = "train"
) -> StepGroups:
    """Read a step's groups, by default of the newest step that has any."""
    steps = reader.group_steps(run.key, origin)
    chosen = steps[-1] if step is None and steps else (step or 0)
    groups = reader.groups(run.key, chosen, origin) if steps else ()
    return StepGroups(
        run=run,
        step=chosen,
        origin=origin,
        steps=steps,
        groups=groups,
        passes=reader.passes(run.key, chosen),
        counts={name: len(reader.group_steps(run.key, name)) for name in ("eval", "pinned")},
    )


def _with_advantages(reader: StoreReader, step: StepGroups, group: GroupView) -> TokenView | None:
    """The group's tokens; an advantage stored per answer is repeated for each of its tokens."""
    tokens = reader.tokens(step.run.key, group.key)
    if tokens is None:
        return None
    by_index = {rollout.index: rollout.advantage or 0.0 for rollout in group.rollouts}
    rows = tuple(
        row if row.advantages else
        replace(row, advantages=(by_index.get(row.index, 0.0),) * len(row.ids))
        for row in tokens.rows
    )  # fmt: skip
    return replace(tokens, rows=rows)


def load_group(reader: StoreReader, step: StepGroups, group: GroupView) -> GroupDetail:
    """Read one group's tokens, compute their terms in each pass, and find the prompt's history."""
    tokens = _with_advantages(reader, step, group) if group.has_tokens else None
    history = reader.history(step.run.key, group.prompt_hash)
    terms: list[tuple[tuple[TokenTerm, ...], ...]] = []
    missing = "" if tokens else "token numbers were not recorded for this group (record.tokens)"
    if tokens is not None and not all(row.old for row in tokens.rows):
        missing = "the step ended before its tokens were scored"
    elif tokens is not None and group.origin == "train":
        passes = max((len(row.passes) for row in tokens.rows), default=0)
        try:
            for at in range(max(1, passes)):
                terms.append(group_terms(tokens, step.run.recipe, step.totals, at=at))
        except EngineError as error:
            missing = str(error)
    return GroupDetail(
        group=group, tokens=tokens, terms=tuple(terms), history=history, missing=missing
    )


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

    def look(self, reader: StoreReader) -> Hits:
        """Look further and return what is found so far."""
        if self._stream is None:
            self._stream = reader.searching(self.hits.text, run=self._run.key, limit=MOST_HITS + 1)
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
