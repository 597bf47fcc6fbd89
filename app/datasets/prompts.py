"""The chat messages of stored prompts: from the run's task, else read from the stored text.

A store has a prompt as the model got it, with all that the chat template wrote around the messages.
None of that may reach a message, for a trainer applies the template again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from grpo_engine import consent
from grpo_engine.frozen import frozen
from grpo_engine.rollouts.prompts import EXPLANATION, NO_OPENING, conversation
from grpo_engine.tasks.answers import prefill_of
from grpo_engine.tasks.base import (
    Example,
    Generated,
    Message,
    Prompt,
    Task,
    draw,
    load_task,
    user_message,
)
from grpo_tui.app.text.prompt_text import MARK, MODEL_ROLES, OTHER_ROLES, USER_ROLES, turns
from grpo_tui.app.text.words import count_of
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.reader import StoreReader, check_trainer
from grpo_tui.experiments.values import GroupView, RunSummary

# Problems of a generator among which those of a run are looked for, and for one prompt.
DRAWN, AHEAD = 100_000, 1_000
EXPLAINED = EXPLANATION.partition("{")[0].splitlines()[0]
RECORDED = re.compile(r"^(system|developer|user|assistant|tool): ", re.MULTILINE)
SCHEMA = re.compile(r'\{\s*"(?:type|function)"\s*:')
THINK = "<think>"


class LeftOutError(QueryError):
    """An answer or a prompt that cannot be part of a data set; the message completes a count."""


@frozen
class ChatPrompt:
    """A prompt as messages; `prefill` is the beginning of its answers.

    `tools` are the schemas that the chat template showed.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    prefill: str = ""
    is_text: bool = False  # the whole text as the user's message


class StoredPrompts:
    """The prompts of a run; `problem` says why its task cannot be opened, empty if it can."""

    def __init__(self, reader: StoreReader, run: RunSummary) -> None:
        self._examples: list[tuple[Task, Iterator[Example], dict[str, Example]]] = []
        self._last: tuple[int, ChatPrompt | LeftOutError] | None = None
        self.problem = ""
        self.texts: set[str] = set()  # prompts that are in the data as they are
        detail = reader.run(run.key)
        self.trainer = detail.trainer
        try:
            check_trainer(run.title, detail.config, "open its task")
            config = consent.build(detail.config, f"run {run.title}")
            self._add(load_task(config.task), "", config.seed)
            for label, further in config.task.others.items():
                if further.weight:
                    self._add(load_task(further), f"{label}/", config.seed)
        except Exception as error:  # a task may be code, which raises anything
            self.problem = str(error) or type(error).__name__

    def _add(self, task: Task, prefix: str, seed: int) -> None:
        """Look problems up in a task by their keys, which begin with its label."""
        known = {f"{prefix}{example.key}": example for example in task.held_out}
        count = min(DRAWN, len(task.train)) if isinstance(task.train, Generated) else 0
        if not count:
            known |= {f"{prefix}{example.key}": example for example in task.train}
        drawn = (
            replace(example, key=f"{prefix}{example.key}")
            for position in range(count)
            for example in draw(task, seed, position, 1)
        )
        self._examples.append((task, drawn, known))

    def __call__(self, group: GroupView) -> ChatPrompt:
        """The messages of a group's prompt; LeftOutError if they cannot be told apart."""
        if self._last is None or self._last[0] != group.key:
            try:
                self._last = group.key, self._read(group)
            except LeftOutError as error:
                self._last = group.key, error
        if isinstance(self._last[1], LeftOutError):
            raise self._last[1]
        return self._last[1]

    def _read(self, group: GroupView) -> ChatPrompt:
        text = group.prompt_text
        for task, drawn, known in self._examples:
            example = known.get(group.example_key)
            for candidate in islice(drawn, 0 if example else AHEAD):
                known[candidate.key] = candidate
                if candidate.key == group.example_key:
                    example = candidate
                    break
            if example is not None:
                prompt = conversation(task, example, NO_OPENING, _explanation(text))
                replies = any(rollout.spans for rollout in group.rollouts)
                if (chat := as_shown(prompt, text, task.prefill, replies=replies)) is not None:
                    return self._noted(chat, text)
                if not isinstance(prompt, str) and not MARK.search(text):
                    raise LeftOutError("whose problem is another one than it was")
        return self._noted(from_text(text), text)

    def _noted(self, chat: ChatPrompt, text: str) -> ChatPrompt:
        if chat.is_text:
            self.texts.add(text)
        return chat

    def note(self, name: str) -> str:
        """A sentence about prompts that are no messages of their task; empty if all are."""
        if not self.texts:
            return ""
        reason = "the data has no chat messages"
        if self.problem:
            reason = f"the task of {name} cannot be opened ({self.problem})"
        texts = count_of(len(self.texts), "prompt")
        return f"{texts} as the model got the text, as one message of the user: {reason}"


def as_shown(prompt: Prompt, text: str, prefill: str, *, replies: bool) -> ChatPrompt | None:
    """The messages of a problem if the text shows them; None if it shows something else.

    An environment that `replies` may have begun the dialogue with text and messages of its own.
    """
    if isinstance(prompt, str):
        if not text.startswith(prompt.removesuffix(prefill)):
            return None
        return replace(from_text(text.removesuffix(prefill)), prefill=prefill)
    messages, tools = list(prompt), shown_tools(text)
    if begun := prefill_of(prompt):
        messages.pop()
    start = 0
    for message in messages:
        content = str(message.get("content") or "").strip()
        begin = text.find(content, start)
        start = begin + len(content)
        if begin < 0 or (replies and content and content in text[start:]):
            return None
    after = text[start:]
    if begun:
        before, found, rest = after.rpartition(begun.rstrip())
        if not found or rest.strip():
            return None
        after = before
    added, thinks = _opening(after), after.rstrip().endswith(THINK)
    if replies and added is None:
        return None
    if replies and added:
        joined = f"{messages[-1].get('content') or ''}{added[0].rstrip()}"
        messages = [*messages[:-1], {**messages[-1], "content": joined}, *added[1]]
    return ChatPrompt(messages=tuple(messages), tools=tools, prefill=f"{THINK}\n" * thinks + begun)


def from_text(text: str) -> ChatPrompt:
    """A prompt whose problem is unknown: the turns that marks of a template tell apart, or text."""
    if recorded := RECORDED.match(text):
        parts = RECORDED.split(text)
        pairs = list(
            zip(parts[1::2], (part.removesuffix("\n") for part in parts[2::2]), strict=True)
        )
        return _checked(pairs, recorded[1])
    pairs = turns(text)
    if not MARK.search(text) and [body for _, body in pairs] == [text.strip()]:
        return ChatPrompt(messages=user_message(text), is_text=True)
    if shown_tools(text):
        raise LeftOutError("whose prompt lists tools and whose task cannot be opened")
    return _checked(pairs, "")


def _checked(pairs: list[tuple[str, str]], first: str) -> ChatPrompt:
    """The prompt of roles and texts; what a model's turn begins with at the end is its prefill."""
    prefill = ""
    if pairs and pairs[-1][0] in MODEL_ROLES:
        begun = pairs.pop()[1]
        prefill = f"{begun}\n" if begun == THINK else "" if begun.endswith("</think>") else begun
    roles = [role for role, _ in pairs]
    known = USER_ROLES | MODEL_ROLES | OTHER_ROLES
    begins = {"system", "developer", *USER_ROLES}
    if not roles or not known.issuperset(roles) or roles[0] not in begins:
        raise LeftOutError("whose prompt cannot be taken out of its chat template")
    if roles[-1] in MODEL_ROLES or (first and roles.count("system") > 1):
        raise LeftOutError("whose prompt cannot be taken out of its chat template")
    names = dict.fromkeys(USER_ROLES, "user") | dict.fromkeys(MODEL_ROLES, "assistant")
    messages = tuple({"role": names.get(role, role), "content": text} for role, text in pairs)
    return ChatPrompt(messages=messages, prefill=prefill)


def shown_tools(text: str) -> tuple[Mapping[str, Any], ...]:
    """The schemas of tools in a prompt, as chat templates list them: JSON with a function."""
    decoder, tools, end = json.JSONDecoder(), list[Mapping[str, Any]](), 0
    for match in SCHEMA.finditer(text):
        if match.start() < end:
            continue
        with suppress(ValueError, RecursionError):
            value, end = decoder.raw_decode(text, match.start())
            function = value.get("function")
            if (
                value.get("type") == "function"
                and isinstance(function, dict)
                and "name" in function
            ):
                tools.append(value)
    return tuple(tools)


def _explanation(text: str) -> str:
    """The explanation of tools in a prompt for a template that knows none; empty if there is none.

    The next mark of the template ends it.
    """
    _, found, rest = text.partition(EXPLAINED)
    mark = MARK.search(rest)
    return f"{EXPLAINED}{rest[: mark.start() if mark else None].rstrip()}" if found else ""


def _opening(after: str) -> tuple[str, list[Message]] | None:
    """What an environment added after the last message; None if no mark tells it apart."""
    mark = MARK.search(after)
    if mark is None:
        return None if after.strip() else ("", [])
    names = dict.fromkeys(USER_ROLES, "user")
    further: list[Message] = [
        {"role": names.get(role, role), "content": body}
        for role, body in turns(after[mark.start() :])
        if role and role not in MODEL_ROLES
    ]
    return after[: mark.start()], further
