"""A tool that evaluates arithmetic exactly."""

from grpo_engine.tasks.answers import evaluate


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression of whole numbers.

    Args:
        expression: Numbers with + - * / and brackets, such as 12 * (3 + 4).

    Returns:
        The exact value.
    """
    value, _ = evaluate(expression)
    return str(value)
