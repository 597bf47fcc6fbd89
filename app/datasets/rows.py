"""Rows for the next training: the best answers of a run, or pairs of a better and a worse one.

Every answer is in a row, or counted under the reason why it is not.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from heapq import nlargest, nsmallest
from math import isnan
from typing import Any, Literal

from grpo_engine.events import rewards_differ
from grpo_engine.frozen import frozen
from grpo_engine.tasks.base import Message, json_of
from grpo_tui.app.datasets.answers import answer_messages
from grpo_tui.app.datasets.prompts import ChatPrompt, LeftOutError, StoredPrompts
from grpo_tui.app.inspector.groups import is_right
from grpo_tui.app.text.words import count_of
from grpo_tui.experiments.export.rows import Row, groups_of
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.search import matches
from grpo_tui.experiments.values import GroupView, RolloutView, RunSummary

DataFormat = Literal["sft", "preferences"]


@frozen
class Choice:
    """Which answers are taken: of groups with these `columns`, that contain a text.

    Of each prompt `best` answers or pairs. Good answers have at least `min_reward`, and are none
    that are known to be wrong, `right` ones alone if it is true, or any if it is false. The rewards
    of a pair differ by at least `min_margin`.
    """

    columns: Mapping[str, Any] = field(default_factory=dict)
    search: str = ""
    best: int = 1
    limit: int = 0
    right: bool | None = None
    min_reward: float | None = None
    min_margin: float = 0.0


@frozen
class Candidate:
    """An answer that may be in a row; `unfit` is why it is no good one, empty if it is."""

    reward: float
    step: int
    prompt: ChatPrompt
    messages: tuple[Message, ...]
    unfit: str


class DataRows:
    """The rows of some runs, and after they were read how many answers are in none and why."""

    def __init__(
        self, reader: StoreReader, runs: Sequence[RunSummary], form: DataFormat, choice: Choice
    ) -> None:
        self._reader, self._runs, self._form, self._choice = reader, runs, form, choice
        self._written: set[tuple[str, str]] = set()
        self.left_out = Counter[str]()
        self.answers = 0
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[Row]:
        for count, row in enumerate(self._rows()):
            if self._choice.limit and count >= self._choice.limit:
                self.left_out["beyond --limit"] += 1 if self._form == "sft" else 2
            else:
                yield row

    def _rows(self) -> Iterator[Row]:
        for run in self._runs:
            prompts = StoredPrompts(self._reader, run)
            by_prompt: dict[str, list[Candidate]] = {}
            for candidate in self._candidates(run, prompts):
                key = json_of(list(map(dict, candidate.prompt.messages)))
                by_prompt.setdefault(key, []).append(candidate)
            if note := prompts.note(run.title):
                self.notes.append(note)
            for candidates in by_prompt.values():
                yield from (
                    self._best(candidates) if self._form == "sft" else self._pairs(candidates)
                )

    def summary(self, rows: int) -> str:
        """What was written and what was left out, in sentences."""
        lines = [f"{count_of(rows, 'row')} from {count_of(self.answers, 'answer')}"]
        counts = [f"{count:,} {reason}" for reason, count in self.left_out.most_common()]
        if counts:
            lines.append(f"left out: {', '.join(counts)}")
        return "\n".join([*lines, *self.notes])

    def _candidates(self, run: RunSummary, prompts: StoredPrompts) -> Iterator[Candidate]:
        """The answers of a run that could be learned."""
        config = self._reader.run(run.key).config
        seen: set[tuple[str, str]] = set()
        for group, rollout in self._rollouts(run):
            self.answers += 1
            try:
                self._refuse_unscored(group, rollout)
                prompt = prompts(group)
                messages = answer_messages(rollout, prompt, recorded=bool(prompts.trainer))
                _refuse_known(seen, group.prompt_text, rollout.text)
            except LeftOutError as error:
                self.left_out[str(error)] += 1
                continue
            yield Candidate(
                reward=rollout.reward or 0.0,
                step=group.step,
                prompt=prompt,
                messages=messages,
                unfit=self._unfit(rollout, _rule(config, group.example_key)),
            )

    def _refuse_unscored(self, group: GroupView, rollout: RolloutView) -> None:
        """Refuse what no reward compares, and held-out problems, which would be learned."""
        if group.origin != "train" and "origin" not in self._choice.columns:
            raise LeftOutError("to held-out problems")
        if rollout.failed:
            raise LeftOutError("on which a reward function failed")
        if rollout.reward is None or isnan(rollout.reward):
            raise LeftOutError("without a reward")

    def _rollouts(self, run: RunSummary) -> Iterator[tuple[GroupView, RolloutView]]:
        """The answers that the filters leave."""
        columns, keys = dict(self._choice.columns), None
        if text := self._choice.search:
            pages = matches(self._reader, run.key, text, **columns)
            keys = {match.rollout for page in pages for match in page}
        for group in groups_of(self._reader, run, **columns):
            for rollout in group.rollouts:
                if keys is None or rollout.key in keys:
                    yield group, rollout

    def _unfit(self, rollout: RolloutView, rule: str) -> str:
        """Why an answer is no good one."""
        least = self._choice.min_reward
        if least is not None and (rollout.reward is None or rollout.reward < least):
            return f"with a reward below {least:g}"
        right = None if self._choice.right is False else is_right(rollout, rule)
        if right is False:
            return "that are wrong"
        is_unknown = right is None and self._choice.right
        return "of which nothing says that they are right" if is_unknown else ""

    def _best(self, candidates: Sequence[Candidate]) -> Iterator[Row]:
        """The best answers of a prompt, each once in all runs."""
        good = [item for item in candidates if not item.unfit]
        self.left_out.update(item.unfit for item in candidates if item.unfit)
        best = nlargest(self._choice.best, good, key=_rank)
        if rest := len(good) - len(best):
            self.left_out["that are not the best of their prompt"] += rest
        for item in best:
            try:
                _refuse_known(self._written, _text(item.prompt.messages), _text(item.messages))
            except LeftOutError as error:
                self.left_out[str(error)] += 1
                continue
            yield _row(item, messages=[*item.prompt.messages, *item.messages])

    def _pairs(self, candidates: Sequence[Candidate]) -> Iterator[Row]:
        """The best answer of a prompt with its worst one, the second best with the second worst."""
        count = self._choice.best
        better = nlargest(count, (item for item in candidates if not item.unfit), key=_rank)
        worse = nsmallest(count, candidates, key=_rank)
        used = 0
        for good, bad in zip(better, worse, strict=False):
            margin = good.reward - bad.reward
            if margin <= 0 or margin < self._choice.min_margin:
                continue
            if not rewards_differ((good.reward, bad.reward)):
                continue
            used += 2
            yield _row(
                good,
                prompt=list(good.prompt.messages),
                chosen=list(good.messages),
                rejected=list(bad.messages),
                margin=margin,
            )
        if rest := len(candidates) - used:
            equal = not rewards_differ([item.reward for item in candidates])
            reason = "whose prompt has no answer with another reward" if equal else "in no pair"
            self.left_out[reason] += rest


def _refuse_known(known: set[tuple[str, str]], prompt: str, answer: str) -> None:
    """Refuse an answer that was there before."""
    if (prompt, answer) in known:
        raise LeftOutError("that repeat another one")
    known.add((prompt, answer))


def _rank(item: Candidate) -> tuple[float, int]:
    """The order of answers to a prompt: by reward, and of equally good ones the newest."""
    return item.reward, item.step


def _text(messages: Sequence[Message]) -> str:
    return json_of(list(map(dict, messages)))


def _row(of: Candidate, **row: Any) -> Row:
    """A row, with the schemas of the tools that its prompt offers."""
    return {**row, "tools": list(of.prompt.tools)} if of.prompt.tools else row


def _rule(config: Mapping[str, Any], example_key: str) -> str:
    """The setting that says which answers to a problem are right."""
    task = config.get("task") or {}
    others: Mapping[str, Mapping[str, Any]] = task.get("others") or {}
    for label, further in others.items():
        if example_key.startswith(f"{label}/"):
            return str(further.get("accuracy") or "")
    return str((config.get("evaluation") or {}).get("accuracy") or "")
