"""A run's report as one HTML page: no network, no scripts, light or dark as the reader prefers."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.charts.axis import axis
from grpo_tui.app.charts.series import SMOOTHING, Series, cut
from grpo_tui.app.text.comparison import MAIN_METRICS
from grpo_tui.app.text.numbers import short, with_unit
from grpo_tui.app.text.prompt_text import question
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.text.table import format_value

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import GroupView, RunSummary

WIDE, TALL, LEFT, BOTTOM = 560, 170, 46, 20
PIXELS = 2 * WIDE
MOST_PROMPTS, MOST_ANSWERS, MOST_SIGNS = 6, 4, 2000
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1c; --dim: #6c6c6c; --line: #d0d0d0;
  --accent: #005f87; --soft: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --paper: #121212; --ink: #d0d0d0; --dim: #8a8a8a;
  --line: #3a3a3a; --accent: #5fd7ff; --soft: #1c1c1c; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { margin-bottom: 0; } h2 { margin: 2em 0 .5em; font-size: 1.1em; }
.dim, th, figcaption { color: var(--dim); font-weight: normal; }
.verdict { font-size: 1.15em; border-left: 4px solid var(--accent); padding-left: .8em; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 1em; }
.scroll { overflow-x: auto; } figure { margin: 0; display: flex; flex-direction: column;
  justify-content: space-between; } svg { width: 100%; height: auto; }
svg text { fill: var(--dim); font-size: 11px; } svg path { fill: none; stroke: var(--accent); }
svg .raw { opacity: .35; } svg .smooth { stroke-width: 2; } svg line { stroke: var(--line); }
table { border-collapse: collapse; } th, td { text-align: left;
  padding: .15em 1.2em .15em 0; border-bottom: 1px solid var(--line); vertical-align: top;
  max-width: 40em; overflow-wrap: break-word; }
th { vertical-align: bottom; } .number { text-align: right; font-variant-numeric: tabular-nums; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1em; }
pre { background: var(--soft); padding: .5em .8em; margin: .3em 0; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.4 ui-monospace, monospace; }
"""
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""


def text(value: Any) -> str:
    """Return a value as HTML text: escaped, and with control characters made visible."""
    return escape(safe(format_value(value), "\n"))


def html_page(
    reader: "StoreReader",
    run: "RunSummary",
    content: Mapping[str, Any],
    summary: str,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    """Return the page: verdict, curves, answers, tables."""
    row, name = content["run"], text(content["run"]["name"])
    parts = [
        f"{HEAD}<title>{name}</title><style>{STYLE}</style></head><body>",
        f'<h1>{name}</h1><p class="dim">{text(summary)}</p>',
        f'<p class="verdict">{text(content["verdict"])}</p>',
        *(f"<p>{text(line)}</p>" for line in (row["error"], row["note"]) if line),
        *_section("Curves", f'<div class="curves">{"".join(_charts(reader, run))}</div>'),
        *_section("Answers before and after", "".join(_examples(reader, run))),
        *(part for title, rows in tables.items() for part in _section(title, table(rows))),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _section(title: str, content: str) -> list[str]:
    return [f"<h2>{text(title)}</h2>", f'<div class="scroll">{content}</div>'] if content else []


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table; nothing without rows."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    looks = {
        name: ' class="number"'
        if any(isinstance(row.get(name), int | float) for row in rows)
        else ""
        for name in names
    }
    # a long heading may break behind a slash or an underscore
    heads = {name: re.sub("([/_])", r"\1<wbr>", text(name)) for name in names}
    head = "".join(f"<th{looks[name]}>{heads[name]}</th>" for name in names)
    body = "\n".join(
        "<tr>" + "".join(f"<td{looks[name]}>{text(row.get(name))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


# -- curves -------------------------------------------------------------------------------------


def _charts(reader: "StoreReader", run: "RunSummary") -> Iterable[str]:
    for key in MAIN_METRICS:
        stored = reader.metric_series(run.key, key)
        if sum(map(math.isfinite, stored.values)) > 1:
            yield chart(key, stored.steps, stored.values)


def chart(key: str, steps: Sequence[int], values: Sequence[float]) -> str:
    """Return a metric's curve as SVG: recorded values faint, their moving average bright."""
    metric, (first, last) = spec(key), (steps[0], steps[-1])
    curves = {name: Series.of(key, steps, values, smoothing)
              for name, smoothing in (("raw", 0.0), ("smooth", SMOOTHING))}  # fmt: skip
    scale = axis(values, unit=metric.unit, natural=natural_range(key), labels=4)

    def height(value: float) -> float:
        return 8 + (scale.high - value) / (scale.high - scale.low) * (TALL - BOTTOM - 8)

    def path(series: Series) -> str:
        """The commands that draw a line; a gap lifts the pen."""
        commands, pen = [], "M"
        for item in cut(series, series.steps, last - first, PIXELS, first).columns:
            x = LEFT + item.x * (WIDE - LEFT - 8) / (PIXELS - 1)
            for value in item.line:
                if math.isfinite(value):
                    commands.append(f"{pen}{x:.1f} {height(value):.1f}")
                pen = "L" if math.isfinite(value) else "M"
        return " ".join(commands)

    paths = (f'<path class="{name}" d="{path(series)}"/>' for name, series in curves.items())
    ticks = (
        f'<line x1="{LEFT}" x2="{WIDE - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text(label)}</text>'
        for y, label in ((height(value), label) for value, label in scale.labels)
    )
    ends = (f'<text x="{LEFT}" y="{TALL - 4}">step {first}</text>'
            f'<text x="{WIDE - 8}" y="{TALL - 4}" text-anchor="end">{last}</text>')  # fmt: skip
    name = metric.label if metric.label == key else f"{metric.label} ({key})"
    last_value = text(with_unit(curves["raw"].last, metric.unit, 3))
    return (f"<figure><figcaption>{text(name)}, last {last_value}</figcaption>"
            f'<svg viewBox="0 0 {WIDE} {TALL}" role="img" aria-label="{text(name)}">'
            f"{''.join(ticks)}{''.join(paths)}{ends}</svg></figure>\n")  # fmt: skip


# -- examples -----------------------------------------------------------------------------------


def _examples(reader: "StoreReader", run: "RunSummary") -> Iterable[str]:
    """The first and last answers to the pinned prompts, else to the held-out ones."""
    origin = "pinned" if reader.groups(run.key, origin="pinned", rollouts=False) else "eval"
    count = 0
    for key in reader.examples(run.key, origin):
        groups = reader.groups(run.key, example_key=key, origin=origin, rollouts=False)
        if count < MOST_PROMPTS and groups and groups[0].step < groups[-1].step:
            count += 1
            first, last = reader.group(groups[0].key), reader.group(groups[-1].key)
            target = f' <span class="dim">target</span> {_cut(first.target)}' * bool(first.target)
            yield (f"<p><b>{_cut(question(first.prompt_text))}</b>{target}</p>"
                   f'<div class="pair">{_answers(first)}{_answers(last)}</div>\n')  # fmt: skip


def _answers(group: "GroupView") -> str:
    answers = "".join(
        f'<pre><span class="dim">{text(short(item.reward))}</span> {_cut(item.text)}</pre>'
        for item in group.rollouts[:MOST_ANSWERS]
    )
    mean = f"step {group.step}, mean reward {short(group.reward_mean)}"
    return f'<div><span class="dim">{text(mean)}</span>{answers}</div>'


def _cut(long: str) -> str:
    return text(long[:MOST_SIGNS] + ("…" if len(long) > MOST_SIGNS else ""))
