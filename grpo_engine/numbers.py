"""Numbers in sentences: short, with a real minus sign and no 0 before the point."""

import math

MINUS = "−"


def short(value: float, digits: int = 2) -> str:
    """Format to about `digits` digits: `.61`, `1.2`, `420`, `12k`, `3.1e−5`."""
    if math.isnan(value):
        return "NaN"
    size, sign = abs(value), MINUS if value < 0 else ""
    if math.isinf(value):
        return f"{sign}∞"
    if size == 0:
        return "0"
    if not 0.00095 <= size < 9_999.5e6:
        mantissa, _, exponent = f"{size:.1e}".partition("e")
        return f"{sign}{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", MINUS)
    if size >= 999_500:
        return f"{sign}{size / 1e6:.{0 if size >= 9.95e6 else 1}f}M"
    if size >= 9_995:
        return f"{sign}{size / 1e3:.0f}k"
    if size >= 99.5:
        return f"{sign}{size:.0f}"
    if size >= 9.995:
        return sign + f"{size:.1f}".removesuffix(".0")
    decimals = digits + (size < 0.0995) + (size < 0.0095)
    return sign + without_zero(f"{size:.{decimals}f}".rstrip("0").rstrip("."))


def without_zero(text: str) -> str:
    """A number below 1 without the 0 before its point."""
    return text[1:] if text.startswith("0.") else text


def percent(value: float) -> str:
    """Format a share as percent: `.5%`, `1.2%`, `75%`."""
    if math.isnan(value):
        return short(value)
    share = 100 * value
    if share == 0 or abs(share) >= 9.95:
        return f"{share:.0f}%".replace("-", MINUS)
    if abs(share) < 0.05:
        return "<.1%"
    return f"{share:.1f}%".replace("-", MINUS).replace("0.", ".", abs(share) < 0.95)
