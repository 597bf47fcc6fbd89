"""Reward functions of TRL's signature from functions that score one text."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from grpo_engine.tasks.answers import texts_of

Score = float | None | tuple[float | None, str]  # a score, perhaps with its reason


def by_text(score: Callable[..., Score]) -> Callable[..., list[Any]]:
    """A reward function that scores each completion, with its prompt's prefill, by `score`.

    Further arguments of `score` are columns of the data, those by keyword alone are options.
    """
    _, *parameters = inspect.signature(score).parameters.values()
    columns = {item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD}

    @functools.wraps(score)
    def reward(
        prompts: Sequence[Any], completions: Sequence[Any], log_extra: Any = None, **keywords: Any
    ) -> list[float | None]:
        named = {item.name: keywords[item.name] for item in parameters if item.name in keywords}
        results = []
        for row, text in enumerate(texts_of(completions, prompts)):
            values = {name: v[row] if name in columns else v for name, v in named.items()}
            result = score(text, **values)
            results.append(result if isinstance(result, tuple) else (result, ""))
        if log_extra is not None:
            log_extra("reason", [reason for _, reason in results])
        return [value for value, _ in results]

    *positional, keywords = inspect.signature(reward, follow_wrapped=False).parameters.values()
    by_keyword = (item.replace(kind=item.KEYWORD_ONLY) for item in parameters)
    signature = inspect.Signature([*positional, *by_keyword, keywords])
    reward.__signature__ = signature  # type: ignore[attr-defined]
    return reward
