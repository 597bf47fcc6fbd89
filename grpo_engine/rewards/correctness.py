"""Rewards for the content of an answer; each logs a reason with `log_extra("reason", …)`."""

import json
import re
from collections.abc import Sequence
from typing import Any

from grpo_engine.errors import MissingPackageError, RewardError
from grpo_engine.tasks.answers import (
    MINUSES,
    evaluate,
    final_answer,
    numbers_in,
    same_text,
    tagged_answer,
    texts_of,
    to_number,
    to_numbers,
)
from grpo_engine.tasks.by_text import Score, by_text

# The longest text passed to a regular expression or a parser.
LONGEST_TEXT = 100_000
_EQUATION = re.compile(r"(?<![\w.])(-?\d[\d.]*(?:\s*[-+*/×x]\s*-?\d[\d.]*)+)\s*=\s*(-?\d[\d.]*)")


@by_text
def numeric_answer(text: str, answer: Any, *, anywhere: bool = True) -> Score:
    """Give 1 where the answer is the number in the `answer` column, else 0.

    The marked answer counts; with `anywhere`, the last number of the text where nothing is marked.
    Where the column has several numbers, as `1, 2, 3`, the last ones must be these. A row whose
    `answer` is no number gets None.
    """
    gold = tagged_answer(str(answer)) or str(answer)
    target = to_numbers(str(answer)) or to_numbers(gold) or numbers_in(gold)[-1:]
    marked = tagged_answer(text)
    if marked is None:
        marked = text if anywhere else ""
    numbers = numbers_in(marked)[-len(target) :]
    reason = f"found {_listed(numbers)}, expected {_listed(target)}"
    return (float(numbers == target) if target else None), reason


@by_text
def exact_answer(text: str, answer: Any) -> Score:
    """Give 1 where the answer is the text in the `answer` column up to case and spaces, else 0.

    A row without an answer gets None.
    """
    result, gold = final_answer(text), "" if answer is None else str(answer)
    score = float(same_text(result, gold)) if gold else None
    return score, f"found {result[:60]!r}, expected {gold[:60]!r}"


@by_text
def contains(
    completion: str, answer: Any = None, *, text: str = "", ignore_case: bool = False
) -> Score:
    """Give 1 where the completion contains the option `text`, else the `answer` column, else 0."""
    if not text and answer is None:
        raise RewardError("reward contains: give the option `text` or a column `answer`")
    target = text or str(answer)
    fold = str.casefold if ignore_case else str
    return float(fold(target) in fold(completion)), f"looked for {target[:60]!r}"


@by_text
def regex(text: str, *, pattern: str, full: bool = False) -> Score:
    """Give 1 where the option `pattern` is found (with `full`: matches the whole text), else 0."""
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise RewardError(f"reward regex: pattern {pattern!r} is not valid: {error}") from error
    search = compiled.fullmatch if full else compiled.search
    return float(search(text[:LONGEST_TEXT]) is not None)


@by_text
def json_valid(text: str, *, keys: Sequence[str] = ()) -> Score:
    """Give 1 where the text, or the fenced block in it, is JSON (an object with all `keys`)."""
    fenced = re.search(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)
    body = fenced[1] if fenced else text.rpartition("</think>")[2]
    try:
        value = json.loads(body[:LONGEST_TEXT])
    except (ValueError, RecursionError) as error:
        return 0.0, f"not JSON: {error}"[:120]
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    return float(not missing), f"lacks {', '.join(missing)}" if missing else "valid"


@by_text
def math_equal(text: str, answer: Any = None, solution: Any = None) -> Score:
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
    target, marked = parse(_latex(str(gold))), tagged_answer(text)
    value = parse(_latex(marked) if marked is not None else text[-LONGEST_TEXT:])
    reason = f"found {value[-1] if value else 'nothing'}, expected {str(gold)[:60]}"[:120]
    return (float(verify(target, value)) if target else None), reason


def equation_steps(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answer: Sequence[Any] | None = None,
    **_: Any,
) -> list[list[tuple[int, float]]]:
    """Give (end, score) of each step: 1 where its equations hold, 0 where one does not.

    A step ends at each equation like `7+8=15`; with a column `answer`, the last one is the answer.
    Characters are counted in the completion alone.
    """
    steps = []
    for row, completion in enumerate(texts_of(completions)):
        text = completion.translate(MINUSES)  # The length stays the same.
        checked = [(m.end(), float(_is_true(m[1], m[2]))) for m in _EQUATION.finditer(text)]
        if answer is not None and text:
            right = numeric_answer(prompts[row : row + 1], [text], answer=[answer[row]])[0]
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
