"""What Rollouts shows: a step's groups and their token numbers from the store, and the cursor.

Functions with a reader run in the reader thread, which also computes the losses.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import lru_cache
from heapq import nlargest
from operator import attrgetter
from typing import Literal

from grpo_engine.config.conditions import Term
from grpo_engine.errors import ConfigError
from grpo_engine.frozen import frozen
from grpo_engine.rewards.right import Right
from grpo_tui.app.inspector.groups import (
    Order,
    TextChange,
    furthest,
    is_greedy,
    largest_by_reward,
    measure_of,
    ordered,
    visits,
    word_diff,
)
from grpo_tui.app.inspector.measures import (
    Cursor,
    HeatMode,
    Highlight,
    Measure,
    Values,
    highlights_of,
)
from grpo_tui.app.inspector.stored import (
    ORIGINS,
    GroupDetail,
    GroupList,
    RolloutTokens,
    load_group,
    load_step,
    nearest_step,
    shades_of,
)
from grpo_tui.app.text.numbers import clamped, short
from grpo_tui.app.text.words import count_of
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.search import Match, hits, matches
from grpo_tui.experiments.values import (
    GroupView,
    PromptMean,
    RolloutView,
    SearchHit,
)

Against = Literal["", "before", "first"]
NO_GROUPS = "No answers are recorded. The first appear once a step has ended; 3 shows the run."
MAX_PROMPTS = 1_000  # of a run, those of the lowest means
WINDOW = 100  # matches before and after the cursor whose texts are read
Index = tuple[int, int]  # group and rollout
SLICE = 4  # pages of texts that a search reads at a time


@lru_cache(maxsize=4)
def by_sampling(step: GroupList) -> Mapping[bool, Sequence[GroupView]]:
    """A step's groups, greedy ones under True, sampled ones under False."""
    result: dict[bool, list[GroupView]] = {}
    for group in step.groups:
        result.setdefault(is_greedy(group), []).append(group)
    return result


@lru_cache(maxsize=4)
def listed(step: GroupList, order: Order, greedy: bool) -> tuple[GroupView, ...]:
    """A step's groups in an order; of greedy and sampled ones those of one kind."""
    parts = by_sampling(step)
    return ordered(parts[greedy] if len(parts) > 1 else step.groups, order, step.run.right)


@lru_cache(maxsize=4)
def largest_scores(step: GroupList) -> dict[str, float]:
    """The largest size of each reward function's scores in a step."""
    return largest_by_reward(step.groups)


@lru_cache(maxsize=64)
def changes(older: str, newer: str) -> tuple[TextChange, ...]:
    """The words that differ between two answers."""
    return word_diff(older, newer)


def load_highlights(
    reader: StoreReader, step: GroupList, measure: Measure, by: int = 0
) -> tuple[GroupList, tuple[Highlight, ...]]:
    """The clipped tokens of a step, or the one of the highest KL, by the last pass.

    The step is this one, or the one `by` steps from it.
    """
    result: list[Highlight] = []
    if by:
        step = load_step(reader, step.run, step.step, step.origin, by)
    for group in step.groups:
        clipped = any(rollout.clip_fraction != 0 for rollout in group.rollouts)
        if measure == "clipped" and step.run.recipe.trust_rule.stops_at == "bounds" and not clipped:
            continue
        for completion in load_group(reader, step, group, history=False).completions:
            if completion.row is not None:
                at = step.step, group.index, completion.rollout.index
                result += highlights_of(measure, at, completion.row, completion.losses)
    if measure == "kl":
        result = nlargest(1, result, attrgetter("value"))
    return step, tuple(result)


@frozen
class Search:
    """What a search of a run has matched so far, newest first; `hits` are those from `first` on."""

    text: str
    answers_only: bool = False
    matches: tuple[Match, ...] = ()
    counts: Mapping[tuple[str, int], int] = field(default_factory=Counter)  # by origin and step
    in_prompts: int = 0  # the matches of a prompt alone, left out or not
    done: bool = False
    first: int = 0
    hits: tuple[SearchHit, ...] = ()

    @property
    def origins(self) -> list[str]:
        """What its matches were sampled for."""
        return [origin for origin in ORIGINS if any(origin == of for of, _ in self.counts)]

    def at_step(self, index: int, by: int) -> int:
        """The first match of the step that is `by` steps with matches of this origin away."""
        at = self.matches[index]
        steps = sorted(step for origin, step in self.counts if origin == at.origin)
        step = nearest_step(steps, at.step, by)
        return index if step == at.step else self._first(at.origin, step)

    def at_origin(self, index: int) -> int:
        """The newest match of the next origin."""
        origins = self.origins
        position = origins.index(self.matches[index].origin) + 1
        origin = origins[position % len(origins)]
        return self._first(origin, max(step for of, step in self.counts if of == origin))

    def _first(self, origin: str, step: int) -> int:
        numbers = enumerate(self.matches)
        return next(i for i, m in numbers if (m.origin, m.step) == (origin, step))


def search(
    reader: StoreReader, run: int, text: str, *, answers_only: bool = False
) -> Iterator[Search]:
    """Search a run's prompts and answers, in slices that leave the reader free in between."""
    result = Search(text=text, answers_only=answers_only)
    for number, page in enumerate(matches(reader, run, text), 1):
        in_prompts = result.in_prompts + sum(not match.in_answer for match in page)
        page = [match for match in page if match.in_answer or not answers_only]
        counts = Counter(result.counts)
        counts.update((match.origin, match.step) for match in page)
        all_matches = (*result.matches, *page)
        result = replace(result, matches=all_matches, counts=counts, in_prompts=in_prompts)
        if number == 1 or number % SLICE == 0:
            yield result
    yield replace(result, done=True)


def load_hits(reader: StoreReader, of: Search, index: int) -> Search:
    """Read the texts around a match."""
    first = max(0, index - WINDOW)
    rollouts = [match.rollout for match in of.matches[first : index + WINDOW]]
    return replace(of, first=first, hits=tuple(hits(reader, rollouts, of.text)))


def load_prompts(reader: StoreReader, step: GroupList, greedy: bool) -> tuple[PromptMean, ...]:
    """Read the prompts of a run that were sampled in one way, those that fail most first."""
    rewards = next((r.rewards for group in step.groups for r in group.rollouts), ())
    rule = None
    with suppress(ConfigError):  # a rule for a function that did not score these answers
        right = Right.of(step.run.right, "", [reward.name for reward in rewards])
        rule = Term(right.function, right.op, str(right.limit))
    return reader.prompt_means(
        step.run.key, step.origin, greedy=greedy, limit=MAX_PROMPTS, rule=rule
    )


def _prompt_of(group: GroupView) -> tuple[str, str, bool]:
    """What two groups have in common that sampled the same prompt in the same way."""
    return group.origin, group.prompt_hash, is_greedy(group)


@frozen
class RolloutsView:
    """The screen's state; every change returns a new one."""

    step: GroupList | None = None
    detail: GroupDetail | None = None
    group_at: int = 0  # position in the listed order
    rollout_at: int = 0
    token: int = 0
    order: Order = "prompt"
    mode: HeatMode = "push"
    against: Against = ""  # the visit that answers are compared with
    greedy: bool = True  # whether greedy answers are listed where sampled ones are there as well
    search: Search | None = None
    prompts: tuple[PromptMean, ...] = ()  # of the whole run, while they are listed
    listed_from: Cursor = (0, 0, 0, 0)  # what was shown before they were listed
    hit: int = 0  # of the search, or of the prompts
    measure: Measure = "clipped"
    highlights: tuple[Highlight, ...] = ()

    @property
    def hits(self) -> int:
        """The number of matches of the search, or of prompts of the run."""
        return len(self.search.matches if self.search else self.prompts)

    @property
    def item(self) -> SearchHit | PromptMean | None:
        """The match or the prompt of the run under the cursor, once it is read."""
        items, first = (self.search.hits, self.search.first) if self.search else (self.prompts, 0)
        return items[self.hit - first] if 0 <= self.hit - first < len(items) else None

    @property
    def by_sampling(self) -> Mapping[bool, Sequence[GroupView]]:
        """The step's groups, greedy ones under True, sampled ones under False."""
        return by_sampling(self.step) if self.step else {}

    @property
    def groups(self) -> tuple[GroupView, ...]:
        """The step's groups as they are listed: of greedy and sampled ones one kind at a time."""
        return listed(self.step, self.order, self.greedy) if self.step else ()

    @property
    def group(self) -> GroupView | None:
        """The group under the cursor."""
        return self.groups[self.group_at] if self.groups else None

    @property
    def loaded(self) -> GroupDetail | None:
        """The numbers of the group under the cursor, once loaded."""
        group, detail = self.group, self.detail
        return detail if detail and group and detail.group.key == group.key else None

    @property
    def rollout(self) -> RolloutView | None:
        """The answer under the cursor as stored."""
        group = self.group
        return group.rollouts[self.rollout_at] if group and group.rollouts else None

    @property
    def completion(self) -> RolloutTokens | None:
        """The answer under the cursor, with its numbers once they are loaded."""
        if self.loaded is not None and self.rollout is not None:
            return self.loaded.completions[self.rollout_at]
        return (
            RolloutTokens(rollout=self.rollout, texts=(self.rollout.text,))
            if self.rollout
            else None
        )

    @property
    def tokens(self) -> Sequence[int]:
        """Where the cursor may be in the answer."""
        return self.completion.tokens if self.completion else ()

    @property
    def shades(self) -> Values:
        """The shade of each token of the answer; empty if no token has one."""
        return shades_of(self.loaded, self.mode)[self.rollout_at] if self.loaded else ()

    @property
    def visits(self) -> tuple[GroupView, ...]:
        """The groups of this prompt that were sampled as this one, once its history is read."""
        return visits(self.loaded.history, self.group) if self.loaded and self.group else ()

    @property
    def sorted_by(self) -> str:
        """What the prompts are listed by; empty for the order they were drawn in, and for hits.

        By the best or the worst answer it has that reward, and how many answers got it.
        """
        if self.prompts:
            return "over the run"
        if self.search or self.order == "prompt":
            return ""
        best = measure_of(self.groups[0], self.order) if self.groups else None
        if self.order not in ("worst", "reward") or best is None:
            return self.order
        rewards = [rollout.reward for group in self.groups for rollout in group.rollouts]
        count = count_of(rewards.count(best), "answer")
        return f"{self.order} ({count} with reward {short(best)})"

    def visit(self, by: int) -> GroupView | None:
        """The same prompt `by` visits away, or None."""
        same, group = self.visits, self.group
        index = next((i for i, visit in enumerate(same) if group and visit.key == group.key), -1)
        return same[index + by] if 0 <= index + by < len(same) else None

    @property
    def compared(self) -> tuple[GroupView, GroupView] | None:
        """The earlier and the later group whose answers are compared; None if that is off."""
        if self.against == "first" and len(self.visits) > 1:
            return self.visits[0], self.visits[-1]
        earlier = self.visit(-1) if self.against == "before" else None
        return (earlier, self.group) if earlier and self.group else None

    @property
    def cursor(self) -> Cursor:
        """Step, group and answer by their index, and token."""
        group, rollout = self.group, self.rollout
        step, index = self.step.step if self.step else 0, group.index if group else 0
        return step, index, rollout.index if rollout else 0, self.token

    @property
    def highlight(self) -> Highlight | None:
        """The highlight under the cursor."""
        cursor = self.cursor
        return next((item for item in self.highlights if item.cursor == cursor), None)

    # -- moves ------------------------------------------------------------------------------

    def cleared(self) -> "RolloutsView":
        """A view of another run, which has not been read."""
        return RolloutsView(mode=self.mode)

    def with_step(self, step: GroupList, at: Index | None = None) -> "RolloutsView":
        """Show another step, at an answer; else at the same prompt, or at its position."""
        view = replace(self, step=step, token=0, highlights=())
        groups = [_prompt_of(group) for group in view.groups]
        prompt = _prompt_of(self.group) if self.group else None
        position = groups.index(prompt) if prompt in groups else clamped(self.group_at, len(groups))
        view = replace(view, group_at=position)
        # a held-out problem may have one answer
        view = view.at_rollout(*at) if at else view.move_rollout(0)
        if view.group is None or _prompt_of(view.group) != prompt:
            view = replace(view, against="")
        return view.without_other_list()

    def with_prompts(self, prompts: tuple[PromptMean, ...]) -> "RolloutsView":
        """List the prompts of the run."""
        listed_from = self.listed_from if self.prompts else self.cursor
        return replace(self, prompts=prompts, listed_from=listed_from, hit=0)

    def without_other_list(self) -> "RolloutsView":
        """Close the list of the run's prompts unless the group is one of its selected prompt."""
        group, selected = self.group, self.prompts[self.hit : self.hit + 1]
        listed = [(prompt.origin, prompt.prompt_text) for prompt in selected]
        same = group and (group.origin, group.prompt_text) in listed
        return self if same else replace(self, prompts=())

    def with_detail(self, detail: GroupDetail) -> "RolloutsView":
        """Take a group's numbers; an answer after long thinking is read from its first token."""
        view = replace(self, detail=detail)
        begins = self.loaded is None and self.token == 0 and self.highlight is None
        return view.at_token(view.completion.thinking) if begins and view.completion else view

    def move_group(self, by: int) -> "RolloutsView":
        """Go to another group."""
        position = clamped(self.group_at + by, len(self.groups))
        return replace(self, group_at=position, rollout_at=0, token=0)

    def move_rollout(self, by: int) -> "RolloutsView":
        """Go to another answer of the group, keeping the token if possible.

        From the answer after long thinking it goes to where the other one begins after its own.
        """
        count = len(self.group.rollouts) if self.group else 0
        view = replace(self, rollout_at=clamped(self.rollout_at + by, count))
        if by and self.completion and 0 < self.completion.thinking <= self.token:
            token = view.completion.thinking if view.completion else self.token
            return view.at_token(token)
        return view.at_token(self.token)

    def move_token(self, by: int) -> "RolloutsView":
        """Go to another token of the model."""
        return self._among(self.tokens, by)

    def _among(self, tokens: Sequence[int], by: int) -> "RolloutsView":
        index = bisect_right(tokens, self.token) - 1 + by
        token = tokens[clamped(index, len(tokens))] if tokens else self.token
        return replace(self, token=token)

    def at_token(self, token: int) -> "RolloutsView":
        """Put the cursor on a token, or on the model's last one before it."""
        return replace(self, token=token).move_token(0)

    def move_turn(self, by: int) -> "RolloutsView":
        """Go to the first token of another turn, or of an answer or the thinking before it."""
        spans = self.rollout.spans if self.rollout else ()
        starts = [span.start for span in spans if span.kind == "model" and span.length]
        if self.completion and self.completion.thinking:
            starts = [0, self.completion.thinking]
        return self._among(starts, by).move_token(0)

    def at_rollout(self, group: int, rollout: int) -> "RolloutsView":
        """Move the cursor to an answer of the group with this index in its step."""
        groups = self.step.groups if self.step else ()
        greedy = any(item.index == group and is_greedy(item) for item in groups)
        view = replace(self, greedy=greedy) if len(self.by_sampling) > 1 else self
        index = next((i for i, other in enumerate(view.groups) if other.index == group), None)
        if index is None:
            return self
        return replace(view, group_at=index, token=0, rollout_at=0).move_rollout(rollout)

    def other_sampling(self) -> "RolloutsView | None":
        """The sampled answers to the same prompt after the greedy ones; None if there are none."""
        if len(self.by_sampling) < 2 or not self.greedy:
            return None
        view = replace(self, greedy=False, prompts=(), group_at=0, rollout_at=0, token=0)
        hashes = [group.prompt_hash for group in view.groups]
        prompt = self.group.prompt_hash if self.group else ""
        return replace(view, group_at=hashes.index(prompt) if prompt in hashes else 0)

    def at_highlight(self, highlight: Highlight) -> "RolloutsView":
        """Move to a highlight of this step; its answer's numbers need not be loaded yet."""
        _, group, rollout, token = highlight.cursor
        return replace(self.at_rollout(group, rollout), token=token).without_other_list()

    def ordered_by(self, order: Order) -> "RolloutsView":
        """Order the groups; the cursor goes to the first one's furthest answer."""
        view = replace(self, order=order, group_at=0, token=0, against="")
        if view.group is None or view.step is None:
            return view
        return replace(view, rollout_at=furthest(view.group, order, view.step.run.right))
