"""Extracts the answer from a completion and parses numbers in it.

`<think>7+8=15</think><answer>1,085</answer>`, or a text that ends in `\\boxed{1085}` or
`#### 1085`, all contain the number 1085.
"""

import ast
import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
HASHES = re.compile(r"####\s*([^\n]+)")
NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|-?\.\d+")
# The minus sign and hyphens of other widths, which people and models write for "-".
MINUSES = str.maketrans("\N{MINUS SIGN}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}", "---")
# Longer strings of digits are no answers, and Python parses them slowly.
LONGEST_NUMBER = 400
LONGEST_EXPRESSION = 500
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def text_of(completion: Any) -> str:
    """The model's text in a completion, given as a string or a list of messages."""
    if isinstance(completion, str):
        return completion
    messages = [m for m in completion if m.get("role") == "assistant"] or completion
    return "\n".join(str(message.get("content") or "") for message in messages)


def texts_of(completions: Sequence[Any], prompts: Sequence[Any] | None = None) -> list[str]:
    """The texts of the completions, each preceded by its prompt's prefill."""
    texts = [text_of(completion) for completion in completions]
    if prompts is None:
        return texts
    return [prefill_of(prompt) + text for prompt, text in zip(prompts, texts, strict=True)]


def prefill_of(prompt: Any) -> str:
    """The prefill that a completion of this prompt continues; empty without one."""
    if isinstance(prompt, str) or not prompt or prompt[-1].get("role") != "assistant":
        return ""
    return str(prompt[-1].get("content") or "")


def tagged_answer(text: str) -> str | None:
    """The marked answer: in the last `<answer>`, `\\boxed{}` or `####`."""
    answers = TAGGED.findall(text)[-1:] or last_boxed(text) or HASHES.findall(text)[-1:]
    return str(answers[0]).strip() if answers else None


def last_boxed(text: str) -> list[str]:
    """The content of the last `\\boxed{…}`, if it is closed; braces may be nested."""
    _, mark, content = text.rpartition("\\boxed{")
    depth = 1
    for index, character in enumerate(content if mark else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return [content[:index]]
    return []


def final_answer(text: str) -> str:
    """The marked answer, else the text after `</think>`, else the whole text."""
    marked = tagged_answer(text)
    return marked if marked is not None else text.rpartition("</think>")[2].strip()


def numbers_in(text: str) -> list[Fraction]:
    """All numbers in the text, as exact fractions."""
    parts = NUMBER.findall(text.translate(MINUSES))
    return [number for part in parts if (number := to_number(part)) is not None]


def last_number(text: str) -> Fraction | None:
    """The last number in the text as an exact fraction; None without one."""
    return next(reversed(numbers_in(text)), None)


def to_numbers(text: str) -> list[Fraction]:
    """A number, or several between commas or semicolons (`1, 2, 3`); empty if it is anything else.

    `1,085` is one number.
    """
    if (number := to_number(text)) is not None:
        return [number]
    parts = [to_number(part) for part in re.split("[,;]", text.strip(" ()[]{}."))]
    numbers = [part for part in parts if part is not None]
    return numbers if len(numbers) == len(parts) else []


def to_number(text: str) -> Fraction | None:
    """Parse a number as people write it ($1,085.00, 3/4, -5 %), exactly; None if it is not one."""
    cleaned = re.sub(r"[$€£%]|\\[,$%!]", "", text.translate(MINUSES)).strip().rstrip(".")
    cleaned = re.sub(r"(?<=\d)[,\s](?=\d{3}(?!\d))", "", cleaned)  # between thousands
    cleaned = re.sub(r"\s*([-+/])\s*", r"\1", cleaned)
    if len(cleaned) > LONGEST_NUMBER or not re.fullmatch(
        r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:/\d+)?", cleaned
    ):
        return None
    try:
        numerator, _, denominator = cleaned.partition("/")
        return Fraction(numerator) / Fraction(denominator or "1")
    except (ValueError, ZeroDivisionError):
        return None


def evaluate(expression: str) -> tuple[Fraction, list[Fraction]]:
    """The exact value of an expression with + - * / and brackets, and the numbers in it.

    Raises ValueError if it is invalid. The text is parsed, never run as Python.
    """
    text = re.sub(r"(?<![\d.])0+(?=\d)", "", " ".join(expression.translate(MINUSES).split()))
    text = text.replace("×", "*").replace("÷", "/")
    if len(text) > LONGEST_EXPRESSION or not re.fullmatch(r"[0-9 .+*/()-]+", text):
        raise ValueError(f"{text[:20]!r} is not arithmetic")
    numbers: list[Fraction] = []

    def value_of(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant():
                numbers.append(Fraction(text[node.col_offset : node.end_col_offset]))
                return numbers[-1]
            case ast.UnaryOp(ast.USub(), operand):
                return -value_of(operand)
            case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
                value: Fraction = OPERATORS[type(sign)](value_of(left), value_of(right))
                return value
        raise ValueError(f"{text[:20]!r} is not arithmetic")

    try:
        return value_of(ast.parse(text, mode="eval").body), numbers
    except (ArithmeticError, SyntaxError) as error:
        raise ValueError(f"{text[:20]!r}: {error.args[0]}") from error


def same_text(a: str, b: str) -> bool:
    """Whether two texts are equal up to case, surrounding punctuation and white space."""

    def plain(text: str) -> str:
        return " ".join(text.translate(MINUSES).split()).strip(" .\"'`").casefold()

    return plain(a) == plain(b)
