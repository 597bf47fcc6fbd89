"""One answer during decoding: its tokens, its text for people, and when it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from grpo_engine.events import Finish, RowDelta
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling

INCOMPLETE = "\ufffd"  # a decoder's output for an incomplete character
THINK_END = "</think>"

Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class GrowingText:
    """Incrementally decoded text of ids."""

    decode: Decode
    text: str = ""
    _prefix: int = 0  # ids from here are decoded together, to get spaces right
    _read: int = 0  # ids up to here are in `text`

    def advance(self, ids: Sequence[int], *, last: bool = False) -> str:
        """Decode the ids and return the new text; an incomplete character is held back."""
        if self._read == len(ids):
            return ""
        before = self.decode(ids[self._prefix : self._read])
        whole = self.decode(ids[self._prefix :])
        if whole.endswith(INCOMPLETE) and not last:
            return ""
        gained = whole[len(before) :]
        self._prefix, self._read = self._read, len(ids)
        self.text += gained
        return gained


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    prompt: PromptRows
    index: int
    key: int  # key of its noise
    limit: int  # maximum tokens
    text: GrowingText
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    finish: Finish | None = None
    to_force: list[int] = field(default_factory=list)
    reported: int = 0  # tokens already reported in progress events
    _thought: bool = False
    _pending: str = ""

    @property
    def next_forced(self) -> int:
        """The forced next token; -1 if it is sampled."""
        return self.to_force[0] if self.to_force else -1

    def take(self, token: int, logprob: float, raw_logprob: float) -> None:
        """Append a token."""
        if self.to_force:
            self.forced.append(len(self.ids))
            self.to_force.pop(0)
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.raw_logprobs.append(raw_logprob)

    def settle(self, sampling: Sampling, ends: frozenset[int], think_end: list[int]) -> None:
        """Decide after a token whether the answer has ended and whether thinking must end."""
        ended = self.ids[-1] in ends and not sampling.ignore_end
        if ended:
            self.finish = "stop"
        elif sampling.stop and self._met(sampling.stop):
            self.finish = "stop_string"
        elif len(self.ids) >= self.limit:
            self.finish = "length"
        elif think_end and not self._thought and not self.to_force:
            self._pending += self.text.advance(self.ids)
            self._thought = THINK_END in self.text.text
            if not self._thought and len(self.ids) >= sampling.think_budget:
                self.to_force, self._thought = list(think_end), True

    def _met(self, stops: Sequence[str]) -> bool:
        before = len(self.text.text)
        self._pending += self.text.advance(self.ids)
        reach = max(map(len, stops)) - 1
        tail = self.text.text[max(0, before - reach) :]
        return any(stop in tail for stop in stops)

    def delta(self, ends: frozenset[int]) -> RowDelta:
        """What the row gained since the last report."""
        shown = self.ids[:-1] if self.finish == "stop" and self.ids[-1] in ends else self.ids
        gained = self._pending + self.text.advance(shown, last=self.finish is not None)
        self._pending = ""
        new, self.reported = len(self.ids) - self.reported, len(self.ids)
        return RowDelta(
            group=self.prompt.group, index=self.index, text=gained, tokens=new,
            finish=self.finish,
        )  # fmt: skip

    def rollout(self, decode: Decode, ends: frozenset[int]) -> Rollout:
        """The finished answer; its text leaves out the end token."""
        shown = self.ids[:-1] if self.finish == "stop" and self.ids[-1] in ends else self.ids
        text = decode(shown)
        ends_at = token_ends(shown, text, decode)
        return Rollout(
            key=self.prompt.key, group=self.prompt.group, index=self.index,
            attempt=self.prompt.attempt, prompt_ids=self.prompt.ids, ids=tuple(self.ids),
            logprobs=tuple(self.logprobs), raw_logprobs=tuple(self.raw_logprobs),
            finish=self.finish or "length", text=text, forced=tuple(self.forced),
            ends=(*ends_at, *[len(text)] * (len(self.ids) - len(shown))) if ends_at else (),
        )  # fmt: skip


def token_ends(ids: Sequence[int], text: str, decode: Decode) -> tuple[int, ...]:
    """Number of characters of the text after each token; empty if unknown.

    Tokens are decoded one by one, with a cache, if that reproduces the text; else with their
    neighbours, because of context-dependent spaces and incomplete characters.
    """
    ends = tuple(accumulate(len(decode([token])) for token in ids))
    if "".join(decode([token]) for token in ids) == text:
        return ends
    growing, places = GrowingText(decode), []
    for count in range(1, len(ids) + 1):
        growing.advance(ids[:count], last=count == len(ids))
        places.append(len(growing.text))
    return tuple(places) if growing.text == text else ()


def decoder(policy: Policy) -> Decode:
    """A function that decodes ids without special tokens, as reward functions expect."""

    single: dict[int, str] = {}

    def decode(ids: Sequence[int]) -> str:
        if len(ids) == 1 and ids[0] in single:
            return single[ids[0]]
        text: str = policy.tokenizer.decode(list(ids), skip_special_tokens=True)
        if len(ids) == 1:
            single[ids[0]] = text
        return text

    return decode
