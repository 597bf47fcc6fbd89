"""Rewards for the content of an answer; each logs a reason with `log_extra("reason", …)`."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo_engine.errors import MissingPackageError, RewardError
from grpo_engine.tasks.answers import (
    MINUSES,
    NUMBER,
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
    for text, expected in zip(texts_of(completions, prompts), answer, strict=True):
        gold = tagged_answer(str(expected)) or str(expected)
        want = to_numbers(str(expected)) or to_numbers(gold) or numbers_in(gold)[-1:]
        marked = tagged_answer(text)
        if marked is None and anywhere:
            marked = text
        got = numbers_in(marked or "")[-len(want) :]
        scores.append(float(got == want) if want else None)
        reasons.append(f"found {_show(got)}, expected {_show(want)}")
    _give(log_extra, reasons)
    return scores


def exact_answer(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answer: Sequence[Any],
    log_extra: Log = None,
    **_: Any,
) -> list[float]:
    """Give 1 where the answer is the text in the `answer` column up to case and spaces, else 0."""
    got = [final_answer(text) for text in texts_of(completions, prompts)]
    _give(
        log_extra,
        [f"found {g[:60]!r}, expected {str(a)[:60]!r}" for g, a in zip(got, answer, strict=True)],
    )
    return [float(same_text(g, str(a))) for g, a in zip(got, answer, strict=True)]


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
    wanted = [text] * len(completions) if text else [str(a) for a in answer or ()]
    scores = []
    for have, want in zip(texts_of(completions), wanted, strict=True):
        a, b = (have.casefold(), want.casefold()) if ignore_case else (have, want)
        scores.append(float(b in a))
    _give(log_extra, [f"looked for {want[:60]!r}" for want in wanted])
    return scores


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
        lacks = [k for k in keys if not isinstance(value, dict) or k not in value]
        scores.append(float(not lacks))
        reasons.append(f"lacks {', '.join(lacks)}" if lacks else "valid")
    _give(log_extra, reasons)
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
        want = parse(_latex(str(expected)))
        marked = tagged_answer(text)
        got = parse(_latex(marked) if marked is not None else text[-LONGEST_TEXT:])
        scores.append(float(verify(want, got)) if want else None)
        reasons.append(f"found {got[-1] if got else 'nothing'}, expected {str(expected)[:60]}")
    _give(log_extra, [str(reason)[:120] for reason in reasons])
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
    every = []
    for row, written in enumerate(texts_of(completions)):
        text = written.translate(MINUSES)  # of the same length
        checked = [(m.end(), float(_holds(m[1], m[2]))) for m in _EQUATION.finditer(text)]
        if not per_equation:
            parts = split_steps(text)
            inside = [[s for end, s in checked if a < end <= b] for a, b in parts]
            checked = [(b, min(s)) for (_, b), s in zip(parts, inside, strict=True) if s]
        if answer is not None and text:
            right = numeric_answer(prompts[row : row + 1], [text], [answer[row]])[0]
            checked = [step for step in checked if step[0] < len(text)]
            checked.append((len(text), right or 0.0))
        every.append(checked)
    return every


def _holds(left: str, right: str) -> bool:
    """Whether the left side, of sums and products of numbers, equals the number on the right."""
    parts = re.findall(NUMBER.pattern + r"|[-+*/×x]", left.replace(" ", ""))
    total, sign, product = to_number("0"), 1, None
    operator = "+"
    for part in parts:
        value = to_number(part)
        if value is None:
            if part not in "-+*/×x":
                return False
            operator = part
            continue
        if product is not None and operator not in "*/×x":
            total, product = (total or 0) + sign * product, None
        if product is None:
            product, sign = value, -1 if operator == "-" else 1
        elif operator == "/":
            if value == 0:
                return False
            product /= value
        else:
            product *= value
        operator = "+"
    return (total or 0) + sign * (product or 0) == to_number(right)


def _latex(text: str) -> str:
    return text if "$" in text or "\\boxed" in text else f"${text}$"


def _show(numbers: Sequence[Any]) -> str:
    return ", ".join(map(str, numbers))[:40] or "nothing"


def _give(log_extra: Log, reasons: list[str]) -> None:
    if log_extra is not None:
        log_extra("reason", reasons)
