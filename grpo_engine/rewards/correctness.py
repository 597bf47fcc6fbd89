"""Rewards for the content of an answer; each logs a reason with `log_extra("reason", …)`."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo_engine.errors import MissingPackageError, RewardError
from grpo_engine.tasks.answers import (
    MINUSES,
    evaluate,
    final_answer,
    numbers_in,
    same_text,
    split_steps,
    tagged_answer,
    texts_of,
    to_number,
    to_numbers,
)

Log = Callable[[str, list[Any]], None] | None

# The longest text passed to a regular expression or a parser.
LONGEST_TEXT = 100_000
_EQUATION = re.compile(r"(?<![\w.])(-?\d[\d.]*(?:\s*[-+*/×x]\s*-?\d[\d.]*)+)\s*=\s*(-?\d[\d.]*)")


def numeric_answer(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answer: Sequence[Any],
    log_extra: Log = None,
    anywhere: bool = True,
    **_: Any,
) -> list[float | None]:
    """Give 1 where the answer is the number in the `answer` column, else 0.

    The marked answer counts; with `anywhere`, the last number of the text where nothing is marked.
    Where the column has several numbers, as `1, 2, 3`, the last ones must be these. A row whose
    `answer` is no number gets None.
    """
    reasons, scores = [], list[float | None]()
    for text, expected in zip(texts_of(completions, prompts), map(str, answer), strict=True):
        gold = tagged_answer(expected) or expected
        target = to_numbers(expected) or to_numbers(gold) or numbers_in(gold)[-1:]
        marked = tagged_answer(text)
        if marked is None:
            marked = text if anywhere else ""
        numbers = numbers_in(marked)[-len(target) :]
        scores.append(float(numbers == target) if target else None)
        reasons.append(f"found {_listed(numbers)}, expected {_listed(target)}")
    _log(log_extra, reasons)
    return scores


def exact_answer(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answer: Sequence[Any],
    log_extra: Log = None,
    **_: Any,
) -> list[float]:
    """Give 1 where the answer is the text in the `answer` column up to case and spaces, else 0."""
    texts = map(final_answer, texts_of(completions, prompts))
    pairs = list(zip(texts, map(str, answer), strict=True))
    _log(log_extra, [f"found {text[:60]!r}, expected {gold[:60]!r}" for text, gold in pairs])
    return [float(same_text(*pair)) for pair in pairs]


def contains(
    completions: Sequence[Any],
    answer: Sequence[Any] | None = None,
    text: str = "",
    ignore_case: bool = False,
    log_extra: Log = None,
    **_: Any,
) -> list[float]:
    """Give 1 where the completion contains the option `text`, else the `answer` column, else 0."""
    if not text and answer is None:
        raise RewardError("reward contains: give the option `text` or a column `answer`")
    targets = [text] * len(completions) if text else list(map(str, answer or ()))
    _log(log_extra, [f"looked for {target[:60]!r}" for target in targets])
    fold = str.casefold if ignore_case else str
    pairs = zip(texts_of(completions), targets, strict=True)
    return [float(fold(target) in fold(completion)) for completion, target in pairs]


def regex(
    prompts: Sequence[Any], completions: Sequence[Any], pattern: str, full: bool = False, **_: Any
) -> list[float]:
    """Give 1 where the option `pattern` is found (with `full`: matches the whole text), else 0."""
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise RewardError(f"reward regex: pattern {pattern!r} is not valid: {error}") from error
    search = compiled.fullmatch if full else compiled.search
    texts = texts_of(completions, prompts)
    return [float(search(text[:LONGEST_TEXT]) is not None) for text in texts]


def json_valid(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    keys: Sequence[str] = (),
    log_extra: Log = None,
    **_: Any,
) -> list[float]:
    """Give 1 where the text, or the fenced block in it, is JSON (an object with all `keys`)."""
    scores, reasons = [], []
    for text in texts_of(completions, prompts):
        fenced = re.search(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)
        body = fenced[1] if fenced else text.rpartition("</think>")[2]
        try:
            value = json.loads(body[:LONGEST_TEXT])
        except (ValueError, RecursionError) as error:
            scores.append(0.0)
            reasons.append(f"not JSON: {error}"[:120])
            continue
        missing = [key for key in keys if not isinstance(value, dict) or key not in value]
        scores.append(float(not missing))
        reasons.append(f"lacks {', '.join(missing)}" if missing else "valid")
    _log(log_extra, reasons)
    return scores


def math_equal(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answer: Sequence[Any] | None = None,
    solution: Sequence[Any] | None = None,
    log_extra: Log = None,
    **_: Any,
) -> list[float | None]:
    """Give 1 where the answer equals the column mathematically, else 0; None for a bad column."""
    gold = answer if answer is not None else solution
    if gold is None:
        raise RewardError("reward math_equal: the data has neither a column answer nor solution")
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise MissingPackageError(
            "reward math_equal needs the package math-verify; `pip install 'grpo-tui[tasks]'`, "
            "or use numeric_answer"
        ) from error
    scores, reasons = list[float | None](), []
    for text, expected in zip(texts_of(completions, prompts), gold, strict=True):
        target = parse(_latex(str(expected)))
        marked = tagged_answer(text)
        value = parse(_latex(marked) if marked is not None else text[-LONGEST_TEXT:])
        scores.append(float(verify(target, value)) if target else None)
        result = value[-1] if value else "nothing"
        reasons.append(f"found {result}, expected {str(expected)[:60]}"[:120])
    _log(log_extra, reasons)
    return scores


def equation_steps(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answer: Sequence[Any] | None = None,
    per_equation: bool = True,
    **_: Any,
) -> list[list[tuple[int, float]]]:
    """Give (end, score) of each step: 1 where its equations hold, 0 where one does not.

    A step ends at each equation like `7+8=15` or, without `per_equation`, at a blank line or
    `</think>`. With a column `answer`, the last step is the answer. Characters are counted in the
    completion alone.
    """
    steps = []
    for row, completion in enumerate(texts_of(completions)):
        text = completion.translate(MINUSES)  # of the same length
        checked = [(m.end(), float(_is_true(m[1], m[2]))) for m in _EQUATION.finditer(text)]
        if not per_equation:
            checked = [
                (end, min(scores))
                for start, end in split_steps(text)
                if (scores := [score for at, score in checked if start < at <= end])
            ]
        if answer is not None and text:
            right = numeric_answer(prompts[row : row + 1], [text], [answer[row]])[0]
            checked = [step for step in checked if step[0] < len(text)]
            checked.append((len(text), right or 0.0))
        steps.append(checked)
    return steps


def _is_true(expression: str, value: str) -> bool:
    try:
        return evaluate(expression.replace("x", "*"))[0] == to_number(value)
    except ValueError:
        return False


def _latex(text: str) -> str:
    return text if "$" in text or "\\boxed" in text else f"${text}$"


def _listed(numbers: Sequence[Any]) -> str:
    return ", ".join(map(str, numbers))[:40] or "nothing"


def _log(log_extra: Log, reasons: list[str]) -> None:
    if log_extra is not None:
        log_extra("reason", reasons)
