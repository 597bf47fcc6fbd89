"""A language model behind a chat endpoint as a judge of answers, by a rubric of the user."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_engine.errors import RewardError
from grpo_engine.rewards.http_client import LONGEST_QUOTE, HttpClient
from grpo_engine.rewards.rubric import read_rubric
from grpo_engine.rewards.verdict import message, read_reply

MAX_TOKENS = 1e9  # A larger count for one request is not credible.
SHARE = 0.9  # of a call's time limit; the remainder is for the way back

Result = tuple[float | RewardError | None, str]
NO_RESULT: Result = (None, "")


class Judge:
    """Scores answers from 0 to 1; identical ones are judged once.

    Totals since the process began are logged as metrics: calls, failures, replies from the cache,
    and the cost.
    """

    def __init__(self, path: str) -> None:
        self._rubric = rubric = read_rubric(Path(path).expanduser())
        self._client = HttpClient(rubric.url, _key(path, rubric.key_variable))
        self._cache: dict[str, Sequence[Result]] = {}  # by request
        self._totals = dict.fromkeys(("calls", "failures", "cached", "cost"), 0.0)
        self.__name__ = Path(path).stem
        self.columns = rubric.columns

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        trainer_state: Any,
        log_extra: Callable[..., None],
        log_metric: Callable[..., None],
        **columns: Sequence[Any],
    ) -> list[Any]:
        """A score for each answer, the error in place of it, or None in a group of equal ones."""
        deadline = time.monotonic() + SHARE * trainer_state.time_limit
        free = asyncio.Semaphore(self._rubric.concurrency)
        questions = self._questions(prompts, completions, columns)
        counts = {question: count for question, _, count in filter(None, questions)}
        replies = await asyncio.gather(
            *(self._reply(question, count, deadline, free) for question, count in counts.items())
        )
        by_question = dict(zip(counts, replies, strict=True))
        results = [by_question[item[0]][item[1]] if item else NO_RESULT for item in questions]
        log_extra("reason", [reason for _, reason in results])
        for name, total in {**self._totals, "calls": self._client.calls}.items():
            log_metric(f"judge/{self.__name__}/{name}", total)
        return [score for score, _ in results]

    def _questions(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[tuple[str, int, int] | None]:
        """For each answer the message to the judge, and which answer it is there of how many.

        Answers to the same prompt with the same columns are ranked together; None where all of
        them are equal.
        """
        ranking, rows, groups = self._rubric.ranking, [], dict[str, list[Any]]()
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            data, text = {"prompt": _content(prompt)}, _content(completion)
            if self.columns:
                data["columns"] = {name: columns[name][row] for name in self.columns}
            group = groups.setdefault(json.dumps(data), []) if ranking else []
            if text not in group:
                group.append(text)
            rows.append((data, text, group))
        for data, text, group in rows:
            data |= {"answers": dict(enumerate(group, 1))} if ranking else {"answer": text}
        return [
            None
            if ranking and len(group) == 1
            else (message(self._rubric, data), group.index(text), len(group))
            for data, text, group in rows
        ]

    async def _reply(
        self, question: str, count: int, deadline: float, free: asyncio.Semaphore
    ) -> Sequence[Result]:
        """The judge's scores of the `count` answers of a question, perhaps from the cache."""
        rubric, cache = self._rubric, self._cache
        if question in cache:
            self._totals["cached"] += 1
            return cache[question]
        messages = [{"role": "user", "content": question}]
        body = {**rubric.options, "model": rubric.model, "messages": messages}
        try:
            async with free:
                reply = await self._client.post_with_retries(
                    json.dumps(body).encode(), rubric.time_limit, deadline, rubric.retries
                )
            scores = read_reply(rubric, self._text(reply), count)
        except RewardError as error:
            self._totals["failures"] += 1
            return [(error, "")] * count
        cache[question] = scores
        if len(cache) > rubric.cache:
            del cache[next(iter(cache))]
        return scores

    def _text(self, data: str) -> str:
        """The text of the reply without the key; its cost is counted."""
        reply: Any = None
        with suppress(ValueError, RecursionError):
            reply = json.loads(
                data, parse_int=float
            )  # An integer may have too many digits for Python.
        match reply:
            case {"choices": [{"message": {"content": str(text)}}, *_]}:
                pass
            case _:
                quote = self._client.without_key(data)[:LONGEST_QUOTE]
                raise RewardError(f"{self._client.name} answered without a message: {quote}")
        match reply:
            case {"usage": {"prompt_tokens": float(read), "completion_tokens": float(written)}} if (
                max(read, written) < MAX_TOKENS
            ):
                price, price_written = self._rubric.price
                cost = max(0, read) * price + max(0, written) * price_written
                self._totals["cost"] += cost / 1e6
        return self._client.without_key(text)


def _content(value: Any) -> Any:
    """A text, or the messages of a dialogue; of a single message its text."""
    is_single = isinstance(value, list) and len(value) == 1
    return value[0].get("content") if is_single else value


def _key(path: str, variable: str) -> str:
    """The key that the environment has; it is never part of a message."""
    key = os.environ.get(variable, "").strip()
    if (variable and not key) or not (key.isascii() and key.isprintable()):
        raise RewardError(
            f"reward judge:{path}: the environment variable that key_variable names is not set, or "
            "has characters that no header can have; export the key before you start the run"
        )
    return key
