"""Numbers for narrow columns: short, aligned, with a real minus sign; values of settings."""

import json
import math
from collections.abc import Sequence

from grpo_engine import numbers
from grpo_tui.experiments.values import Unreadable

MINUS = numbers.MINUS
MEGABYTES_BELOW = 0.0995  # GB


def short(value: float | None, digits: int = 2) -> str:
    """Format to about `digits` digits, no leading zero: `.61`, `1.2`, `420`, `12k`, `3.1e−5`."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, Unreadable) else numbers.short(value, digits)


def narrow(value: float | None, width: int) -> str:
    """Like `short`, with fewer digits where it would not fit."""
    text = short(value)
    if value is None or len(text) <= width or not math.isfinite(value):
        return text[:width]
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    power = int(exponent)
    texts = [short(value, 1), f"{mantissa}e{power}", f"{value:.0f}", f"{mantissa[:-1]}e{power}"]
    if power >= 0:
        texts[1:1] = [f"{value:.0f}", f"{value / 1e3:.0f}k"]
    return next((text for text in texts if len(text) <= width), text).replace("-", MINUS)


def signed(value: float | None, digits: int = 2) -> str:
    """Like `short`, with a `+` for numbers above 0."""
    text = short(value, digits)
    return f"+{text}" if value is not None and value > 0 else text


def share(value: float | None) -> str:
    """Format a share as percent: `.5%`, `1.2%`, `75%`."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, Unreadable) else numbers.percent(value)


def with_unit(value: float | None, unit: str, width: int = 99) -> str:
    """Format a metric's value by its unit; one without a unit fits so many cells."""
    if unit == "share":
        return share(value)
    if unit == "s":
        return seconds(value)
    if unit == "GB" and value is not None and abs(value) < MEGABYTES_BELOW:
        return f"{short(value * 1e3)} MB"
    text = narrow(value, width)
    return f"{text} {unit}" if unit in ("GB", "tok/s") and value is not None else text


def seconds(value: float | None) -> str:
    """Format a duration: `0s`, `.2s`, `12s`, `4 min`, `2.5 h`, `3 d`."""
    if value is None or math.isnan(value):
        return str(value) if isinstance(value, Unreadable) else "–"
    if value < 9.95:
        text = f"{value:.1f}"
        return "0s" if text == "0.0" else f"{numbers.without_zero(text)}s"
    if value < 99.5:
        return f"{value:.0f}s"
    if value < 5400:
        return f"{value / 60:.0f} min"
    if value < 129_600:
        return f"{value / 3600:.1f} h"
    return f"{value / 86_400:.0f} d"


def moment(stored: str) -> str:
    """A stored time to the minute: `2026-11-29 12:08 UTC`."""
    return f"{stored[:16].replace('T', ' ')} UTC"


def tokens(value: float) -> str:
    """Format a count of tokens: `840`, `1,200`, `12k`, `3.4M`."""
    return f"{value:,.0f}" if 999.5 <= value < 9_995 else short(value)


def change(value: float, delta: float, unit: str = "") -> str:
    """Format a change with the digits of the value beside it: `▲.04`, `▼.02`, `=`."""
    if math.isnan(delta) or math.isnan(value):
        return ""
    in_megabytes = unit == "GB" and abs(value) < MEGABYTES_BELOW
    scale = 100 if unit == "share" else 1000 if in_megabytes else 1
    size, delta = abs(value) * scale, delta * scale
    decimals = 0 if size >= 99.5 else 1 if size >= 9.95 or unit == "share" else 2
    if 0 < size < 0.0995 and unit != "share":
        decimals = 1 - math.floor(math.log10(size))
    text = f"{abs(delta):.{decimals}f}"
    if not text.strip("0."):
        return "="
    text = numbers.without_zero(text)
    if len(text) > 5:
        text = short(abs(delta), 1)
    return f"{'▲' if delta > 0 else '▼'}{text}"


def clamped(index: int, count: int) -> int:
    """The index, or beyond the ends that of the first or the last of so many items."""
    return max(0, min(index, count - 1))


BARS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """Draw values as bars, averaged into at most `width` columns; a gap is a space."""
    if not values or width <= 0:
        return ""
    values = averaged(values, width)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low = min(finite) if low is None else low
    high = max(finite) if high is None else high
    span = high - low
    differs = span > 1e-9 * max(abs(low), abs(high))  # less is rounding
    return "".join(
        " "
        if not math.isfinite(value)
        else BARS[clamped(round(7 * (value - low) / span), 8)]
        if differs
        else BARS[3]
        for value in values
    )


def averaged(values: Sequence[float], width: int) -> list[float]:
    """The values, or the means of `width` equal parts of them where there are more."""
    count = len(values)
    if count <= width:
        return list(values)
    return [_mean(values[i * count // width : (i + 1) * count // width]) for i in range(width)]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def with_stderr(value: float, errors: Sequence[float]) -> str:
    """A mean of independent results with its standard error, ``sqrt(Σ s²) / n``."""
    if not errors:
        return f"{value:.4g}"
    return f"{value:.4g} ± {math.hypot(*errors) / len(errors):.2g}"


def value_text(value: object) -> str:
    """Format a setting's value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}".replace("-", MINUS)
    return json.dumps(value, ensure_ascii=False)
