"""Reward functions of TRL's signature from functions that score one text."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from grpo_engine.tasks.answers import texts_of

Score = float | None | tuple[float | None, str]  # a score, or with its reason


def by_text(score: Callable[..., Score]) -> Callable[..., list[Any]]:
    """A reward function that scores each completion, with its prompt's prefill, by `score`.

    Further arguments of `score` are columns of the data, those by keyword alone are options.
    """
    _, *parameters = inspect.signature(score).parameters.values()
    columns = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    options = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]

    @functools.wraps(score)
    def reward(
        prompts: Sequence[Any], completions: Sequence[Any], *values: Any, log_extra: Any = None,
        **keywords: Any,
    ) -> list[float | None]:  # fmt: skip
        keywords |= dict(zip(columns, values, strict=False))
        chosen = {name: keywords[name] for name in options if name in keywords}
        results = []
        for row, text in enumerate(texts_of(completions, prompts)):
            cells = {name: keywords[name][row] for name in columns if name in keywords}
            result = score(text, **cells, **chosen)
            results.append(result if isinstance(result, tuple) else (result, ""))
        if log_extra is not None:
            log_extra("reason", [reason for _, reason in results])
        return [value for value, _ in results]

    own = inspect.signature(reward, follow_wrapped=False).parameters
    named = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
    given = [own[name] for name in ("prompts", "completions", "log_extra")]
    signature = inspect.Signature([*given, *named, own["keywords"]])
    reward.__signature__ = signature  # type: ignore[attr-defined]
    return reward
