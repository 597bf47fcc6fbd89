"""One completion during decoding: its tokens, its text for people, and when it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

from grpo_engine.events import Finish, RowDelta, Span, model_tokens, unscored
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.dialogue import NO_LIMITS, EnvironmentReply, TurnLimits, Usage
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from grpo_engine.tasks.base import Message

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
        after = self.decode(ids[self._prefix :])
        if after.endswith(INCOMPLETE) and not last:
            return ""
        new = after[len(before) :]
        self._prefix, self._read = self._read, len(ids)
        self.text += new
        return new


@dataclass(slots=True, kw_only=True, eq=False)
class DecodingRow:
    """One completion while it is sampled: the model's turn, after earlier ones and their replies.

    Without an environment it is one turn.
    """

    prompt: PromptRows
    index: int
    key: int  # key of its noise
    limit: int  # most tokens of the model that the context allows
    max_new_tokens: int  # most tokens of the model in several contexts
    max_tokens: int  # most tokens of the model and the environment
    end_ids: frozenset[int]
    growing: GrowingText  # text of this turn
    number: int = 0  # index among the rows that are sampled together
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    finish: Finish | None = None
    to_force: list[int] = field(default_factory=list)
    reported: tuple[int, int, int, Finish | None] = (0, 0, 0, None)  # the `_progress` at that time
    turn: int = 0
    begin: int = 0  # index of the turn's first token
    limits: TurnLimits = NO_LIMITS  # limits of this turn
    contexts: list[tuple[int, int]] = field(default_factory=list)  # see `TokenRow`
    waits: bool = False  # for its environment
    spans: list[Span] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    _text: str = ""  # text of the earlier turns
    _ends: list[int] | None = field(default_factory=list)  # characters after their tokens
    _thought: bool = False
    _pending: str = ""  # text to be reported

    @property
    def length(self) -> int:
        """Tokens of the model so far."""
        return model_tokens(self.ids, self.spans)

    @property
    def context(self) -> list[int]:
        """The tokens that the next one depends on."""
        return self.ids[self.contexts[-1][0] :] if self.contexts else [*self.prompt.ids, *self.ids]

    @property
    def usage(self) -> Usage:
        """The tokens of a turn that has ended."""
        count = len(self.ids) - self.begin
        is_cut = self.ids[-1] not in self.end_ids and count == self.limits.tokens
        return Usage(context=len(self.context) - count, tokens=count, is_cut=is_cut)

    @property
    def is_done(self) -> bool:
        """Whether no token follows, for the time being or at all."""
        return self.waits or self.finish is not None

    @property
    def may_continue(self) -> bool:
        """Whether a token may follow the one that is pending."""
        return self.length + 1 < self.limit and len(self.ids) + 1 < self.max_tokens

    @property
    def _progress(self) -> tuple[int, int, int, Finish | None]:
        return len(self.ids), self.length, len(self.spans), self.finish

    @property
    def has_grown(self) -> bool:
        """Whether there is something to report."""
        return bool(self._pending) or self._progress != self.reported

    def append(self, token: int, logprob: float, raw_logprob: float) -> None:
        """Append a token."""
        if self.to_force:
            self.forced.append(len(self.ids))
            self.to_force.pop(0)
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.raw_logprobs.append(raw_logprob)

    def settle(self, sampling: Sampling, think_end: list[int]) -> None:
        """Decide after a token whether the turn has ended and whether thinking must end."""
        if self.ids[-1] in self.end_ids and not sampling.ignore_end:
            self.finish = "stop"
        elif (stop := sampling.stop + self.limits.stop) and self._contains_new(stop):
            self.finish = "stop_string"
        elif self.length >= self.limit:
            self.finish = "length"
        elif len(self.ids) >= self.max_tokens:
            self.finish = "context"
        elif len(self.ids) - self.begin == self.limits.tokens:
            self.finish = "stop"
        elif think_end and not self._thought and not self.to_force:
            self._read_text()
            self._thought = THINK_END in self.growing.text
            if not self._thought and len(self.ids) - self.begin >= sampling.think_budget:
                self.to_force, self._thought = list(think_end), True

    def _contains_new(self, stops: Sequence[str]) -> bool:
        before = len(self.growing.text)
        self._read_text()
        tail = self.growing.text[max(0, before + 1 - max(map(len, stops))) :]
        return any(stop in tail for stop in stops)

    def _read_text(self, *, last: bool = False) -> None:
        self._pending += self.growing.advance(self._without_end(), last=last)

    def end_turn(self) -> str:
        """End the model's turn and return its text, for the environment."""
        self._read_text(last=True)
        text = self._close()
        self.finish, self.waits = None, True
        return text if self.turn else self.prompt.prefill + text

    def end(self, finish: Finish, reply: EnvironmentReply) -> None:
        """Append an environment's last reply, after which no turn follows."""
        self.add_reply(reply)
        self.finish = finish

    def add_reply(self, reply: EnvironmentReply, tokens: Sequence[int] = ()) -> None:
        """Append an environment's reply, with its tokens if a turn follows."""
        start, text = len(self.ids), f"\n{reply.text}\n" if tokens else ""
        self.waits, self.limits = False, reply.limits
        self.spans.append(
            Span(
                start=start,
                length=len(tokens),
                kind="environment",
                turn=self.turn,
                chars=len(text),
                name=reply.name,
                ms=reply.ms,
                error=reply.error,
                reward=reply.reward,
                info=reply.info,
            )
        )
        calls = [  # the form of TRL's rewards
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
            if call.name
        ]
        if calls:
            self.messages[-1] = {**self.messages[-1], "tool_calls": calls}
        self.messages += reply.messages
        if reply.restarts and tokens:
            self.max_tokens += len(self.context)
            self.limit = self.max_new_tokens
            self.contexts.append((start, len(tokens)))
        self.ids += tokens
        self.logprobs += [0.0] * len(tokens)
        self.raw_logprobs += [0.0] * len(tokens)
        self.forced += range(start, len(self.ids))
        self._text += text
        self._pending += text
        if self._ends is not None and tokens:
            # The chat template renders the reply, so only its end is known.
            self._ends += [len(self._text) - len(text)] * (len(tokens) - 1) + [len(self._text)]
        self.turn, self.begin = self.turn + 1, len(self.ids)
        self.growing, self._thought = GrowingText(self.growing.decode), False

    def _without_end(self) -> list[int]:
        """The tokens of this turn without the end token."""
        ids = self.ids[self.begin :]
        return ids[:-1] if self.finish == "stop" and ids and ids[-1] in self.end_ids else ids

    def _close(self) -> str:
        """Add the model's turn to the dialogue; return its text."""
        ids, count, decode = self._without_end(), len(self.ids) - self.begin, self.growing.decode
        text = decode(ids)
        char_ends, before = token_ends(ids, text, decode), len(self._text)
        self._text += text
        if not char_ends and (ids or not self.turn):
            self._ends = None
        if self._ends is not None:
            self._ends += [before + end for end in char_ends]
            self._ends += [len(self._text)] * (count - len(ids))
        self.messages.append({"role": "assistant", "content": text})
        self.spans.append(
            Span(start=self.begin, length=count, kind="model", turn=self.turn, chars=len(text))
        )
        return text

    def delta(self) -> RowDelta:
        """The progress of the row since the last report."""
        if not self.waits:
            self._read_text(last=self.finish is not None)
        text, self._pending = self._pending, ""
        _, length, spans, _ = self.reported
        self.reported = self._progress
        return RowDelta(
            group=self.prompt.group,
            index=self.index,
            text=text,
            tokens=self.length - length,
            finish=self.finish,
            spans=tuple(map(unscored, self.spans[spans:])),
            waits=self.waits,
        )

    def trajectory(self, *, has_environment: bool = False) -> Trajectory:
        """The finished completion; its text leaves out end tokens."""
        if self.begin < len(self.ids) and (not self.spans or self.spans[-1].kind != "model"):
            self._close()
        return Trajectory(
            key=self.prompt.key,
            group=self.prompt.group,
            index=self.index,
            attempt=self.prompt.attempt,
            prompt_ids=self.prompt.ids,
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            raw_logprobs=tuple(self.raw_logprobs),
            finish=self.finish or "length",
            text=self._text,
            forced=tuple(self.forced),
            ends=tuple(self._ends or ()),
            contexts=tuple(self.contexts),
            spans=tuple(self.spans) if has_environment else (),
            messages=tuple(self.messages) if has_environment else (),
        )


def demonstration(prompt: PromptRows, ids: tuple[int, ...], decode: Decode) -> Trajectory:
    """The data's own completion of a prompt, which no sampler gave a probability."""
    text = decode(ids)
    return Trajectory(
        key=prompt.key,
        group=prompt.group,
        attempt=prompt.attempt,
        prompt_ids=prompt.ids,
        ids=ids,
        finish="stop",
        text=text,
        ends=token_ends(ids, text, decode),
    )


def token_ends(ids: Sequence[int], text: str, decode: Decode) -> tuple[int, ...]:
    """Number of characters of the text after each token; empty if unknown.

    Tokens are decoded one by one, with a cache, if that reproduces the text; else with their
    neighbours, because of context-dependent spaces and incomplete characters.
    """
    texts = [decode([token]) for token in ids]
    if "".join(texts) == text:
        return tuple(accumulate(map(len, texts)))
    growing, ends = GrowingText(decode), []
    for count in range(1, len(ids) + 1):
        growing.advance(ids[:count], last=count == len(ids))
        ends.append(len(growing.text))
    return tuple(ends) if growing.text == text else ()


def decoder(policy: Policy) -> Decode:
    """A function that decodes ids without special tokens, as reward functions expect."""

    def text(ids: Sequence[int]) -> str:
        return str(policy.tokenizer.decode(list(ids), skip_special_tokens=True))

    single = cache(lambda token: text([token]))
    return lambda ids: single(ids[0]) if len(ids) == 1 else text(ids)
