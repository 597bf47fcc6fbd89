"""The tokens between two turns of the model: the end of one, a reply, the beginning of the next.

They are a suffix of the chat template's text for a made-up dialogue, cut after the end token of
the model's turn. So sampled tokens are never rendered again, which could change them: a template
that drops the thinking of earlier turns would. A reply's text that imitates the template's control
tokens is encoded as plain text.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_engine.errors import DataError
from grpo_engine.frozen import frozen
from grpo_engine.rollouts.prompts import (
    TURN,
    TURN_TEXT,
    PromptRenderer,
    plain_text,
    without_tools,
)
from grpo_engine.tasks.base import Message

REPLY: Message = {"role": "user", "content": "a reply"}
THOUGHT = "a made-up thought"
KEPT_THINKING = (
    "the chat template of {} drops the thinking of earlier turns; the dialogues of this run keep "
    "it, so that each turn follows what was sampled. The first prompt is as the template has it"
)
_MARKED = re.compile("\ue000(\\d+)\ue001")  # characters for private use
_MARKS = str.maketrans({"\ue000": "\ufffd", "\ue001": "\ufffd"})


@frozen
class ReplyTokens:
    """Renders replies for one model; `end_token` ends a completion in its template, if one does."""

    render: PromptRenderer
    is_plain: bool
    controls: re.Pattern[str] | None
    closing: tuple[int, ...] = ()  # tokens after a completion, up to its end token
    note: str = ""  # a note for the run

    @property
    def end_token(self) -> int | None:
        return self.closing[-1] if self.closing else None

    def with_calls(self, ids: Sequence[int], completion: str, tools: Sequence[Any]) -> str:
        """The completion, its calls in the model's own form turned into that of environments.

        They are read by mlx-lm's parser for the model. A call that it cannot read stays one, so
        that its reply is an error. The marks of calls may be control tokens.
        """
        render, parser = self.render, getattr(self.render.tokenizer, "tool_parser", None)
        if self.is_plain or not render.template_knows_tools or render.config.chat_template:
            return completion
        # The parser of JSON reads the form of environments as well.
        if parser is None or parser.__module__.endswith(".json_tools"):
            return completion
        start, end = render.tokenizer.tool_call_start, render.tokenizer.tool_call_end
        content, *texts = render.tokenizer.decode(list(ids)).split(start)
        if not texts:
            return completion
        for text in texts:
            body = text.split(end)[0] if end else text
            try:
                parsed = parser(body, list(tools))
                calls = parsed if isinstance(parsed, list) else [parsed]
                bodies = [*map(json.dumps, calls)]
            except Exception:  # Parsers raise many kinds, and a model may write anything.
                bodies = [body]
            content += "".join(f"<tool_call>{body}</tool_call>" for body in bodies)
        return str(content)

    def __call__(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The tokens after a completion's end token; an error if the template cannot do it."""
        hidden: list[str] = []
        safe = [self._hide(message, hidden) for message in self._supported(messages)]
        if self.is_plain:
            return tuple(self._encode(f"\n{plain_text(safe)}", hidden))
        _, after = self._around(1, safe)
        ids = tuple(self._encode(after, hidden))
        if ids[: len(self.closing)] != self.closing:
            raise self._refusal(1, messages[0])
        return ids[len(self.closing) :]

    def _around(self, turns: int, messages: Sequence[Message]) -> tuple[str, str]:
        """The text before and after a dialogue's last completion, which these messages follow."""
        text = self.render.dialogue_text((*TURN * turns, *messages), opens=bool(messages))
        before, _, after = text.rpartition(TURN_TEXT)
        return before, after

    def closed_by(self, ends: frozenset[int]) -> tuple[int, ...]:
        """The tokens that the template writes after a completion, up to the last end token."""
        alone, followed = (self._encode(self._around(1, m)[1]) for m in ((), (REPLY,)))
        shared = _shared(alone, followed)
        counts = [n for n, token in enumerate(followed, 1) if token in ends]
        closed = [n for n in counts if n <= shared]
        # A template may leave the last completion open and end it before a message.
        opened = [n for n in counts if n == len(alone) + 1 == shared + 1]
        if ends.intersection(alone) and not closed:
            raise self._refusal(1, REPLY)
        return tuple(followed[: (closed or opened or [0])[-1]])

    def check(self, role: str) -> None:
        """Refuse a template that, before such a message, changes more than a turn's thinking."""
        message = {**REPLY, "role": role}
        rendered = self._supported([message])
        _, after = self._around(1, rendered)
        self([message])
        for turn in (1, 2):
            question = (TURN * turn)[:-1]
            prompt = self.render.dialogue_text(question)
            prompt = prompt[: _shared(prompt, self.render.dialogue_text(question, opens=True))]
            before, then = self._around(turn, rendered)
            if not before.startswith(prompt) or then != after:
                raise self._refusal(turn, message)

    def _refusal(self, turn: int, message: Message) -> DataError:
        return DataError(
            f"the chat template of {self.render.model} rewrites turn {turn} of a dialogue when a "
            f"message of the role {message['role']} follows, so that the dialogue would not be the "
            "one that was sampled; set task.chat_template to a file that leaves earlier turns as "
            "they are, or to `chatml` if the model uses <|im_start|>"
        )

    def _supported(self, messages: Sequence[Message]) -> Sequence[Message]:
        if self.render.template_knows_tools and not self.is_plain:
            return messages
        return without_tools(messages)

    def _hide(self, message: Message, hidden: list[str]) -> Message:
        """The message with a mark in the place of each text that would be a control token."""
        content = str(message.get("content") or "").translate(_MARKS)
        if self.controls is not None:

            def mark(match: re.Match[str]) -> str:
                hidden.append(match.group())
                return f"\ue000{len(hidden) - 1}\ue001"

            content = self.controls.sub(mark, content)
        return {**message, "content": content}

    def _encode(self, text: str, hidden: Sequence[str] = ()) -> list[int]:
        tokenizer = self.render.tokenizer
        ids: list[int] = []
        for index, part in enumerate(_MARKED.split(text)):
            # A single letter is no control token.
            for piece in hidden[int(part)] if index % 2 else filter(None, [part]):
                ids += tokenizer.encode(piece, add_special_tokens=False)
        return ids


def reply_tokens(
    render: PromptRenderer, ends: frozenset[int], *, is_plain: bool, uses_tools: bool
) -> ReplyTokens:
    """Prepare the replies of a run; an error names a template that rewrites dialogues."""
    replies = ReplyTokens(render=render, is_plain=is_plain, controls=_controls(render.tokenizer))
    if is_plain:
        return replies
    replies = replace(replies, closing=replies.closed_by(ends))
    for role in ("user", "tool") if uses_tools else ("user",):
        replies.check(role)
    question, turn = TURN
    thinking = {**turn, "content": f"<think>\n{THOUGHT}\n</think>\n\n{TURN_TEXT}"}
    text = render.dialogue_text((question, thinking, REPLY), opens=True)
    return replies if THOUGHT in text else replace(replies, note=KEPT_THINKING.format(render.model))


def _shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The number of items that two sequences share before they differ."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _controls(tokenizer: Any) -> re.Pattern[str] | None:
    """The texts that the tokenizer reads as control tokens, longest first."""
    texts = sorted((text for text in tokenizer.get_added_vocab() if len(text) > 1), key=len)
    return re.compile("|".join(map(re.escape, reversed(texts)))) if texts else None
