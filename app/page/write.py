"""Writes the page: one file with everything in it, which loads nothing and runs only its own code.

Its texts are hostile: they are escaped, and a Content-Security-Policy allows the scripts and the
style sheet by their hashes alone. Paths and hosts are cut from everything but prompts and answers.
"""

import hashlib
import json
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine.frozen import frozen
from grpo_engine.metrics import spec
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.inspector.measures import HEAT_NAMES
from grpo_tui.app.page.answers import Choice, candidates, listed, packed, steps_of
from grpo_tui.app.page.curves import charts
from grpo_tui.app.page.facts import gather, summary_of, tables
from grpo_tui.app.text.comparison import (
    columns_of,
    ranking_rows,
    ranking_title,
    rankings_of,
    setting_name,
    verdict,
)
from grpo_tui.app.text.findings import Finding, audit
from grpo_tui.app.text.numbers import short, value_text, with_unit
from grpo_tui.app.text.safe_text import clip, safe
from grpo_tui.app.text.table import format_value
from grpo_tui.app.text.words import count_of, first_of
from grpo_tui.experiments.export.csv import header_of
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.compare.values import Comparison, SettingDifference
    from grpo_tui.experiments.reader import StoreReader

LIMIT = 5_000_000  # bytes
CAPTIONS = {"Held-out": "means with their 95 % interval and the number of answers"}
LARGE = ("eval/accuracy", "eval/greedy/accuracy", "reward")
NAMED = 3  # runs in a title
NAME = 60  # cells of a run's or a setting's name in a list
LONG = 48  # characters of a cell that is wrapped
SAMPLE = 200  # cells of an answer that shows a finding
LEFT_OUT = "left out"
# topics of sentences that may quote what a function was given, or come from elsewhere
QUOTING = ("failures", "process", "other")
TEXTS = re.compile(r"prompt|prefill|chat_template_kwargs|\.stop$")  # settings that models read
FOLDERS = re.compile(
    r"(?<![\w.~/\\<])(?:~|[A-Za-z]:(?=[\\/])|file:|https?:)?[\\/](?=\S)(?:[^\s\"'<>|]*[\\/])?"
)
HOME = str(Path.home()) + "/"  # its name may have spaces
POLICY = (
    "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def page(
    reader: "StoreReader",
    runs: Sequence[RunSummary],
    choice: Choice,
    *,
    limit: int = LIMIT,
) -> str:
    """The page of a run, or of several with what Compare says of them."""
    compared = _compared(reader, runs, choice) if len(runs) > 1 else Compared()
    parts = [_parts(reader, run, choice, alone=len(runs) == 1) for run in runs]
    frame = {
        "TITLE": text(first_of([run.title for run in runs], NAMED)),
        "TOP": "\n".join(compared.lines or parts[0].head),
        "RESULTS": "\n".join(
            ["<h2>Runs</h2>" * (len(runs) > 1), *(line for part in parts for line in part.results)]
        ),
        "MORE": "\n".join(line for part in parts for line in part.more),
    }
    lines = [[run for run in runs if run.id in ids] for ids in compared.settings] or [[*runs]]
    data: dict[str, Any] = {
        "runs": [clip(clean(run.title), NAME) for run in runs],
        "lines": [clip(clean(name), NAME) for name in compared.settings.values()],
        "charts": charts(reader, lines, everything=choice.everything),
        "heat": HEAT_NAMES,
        "groups": [],
    }
    used = len(_document(frame, data, ""))
    limit = sys.maxsize if choice.everything else limit
    for item in candidates(reader, runs, choice):
        group = listed(item, choice) | {"data": packed(reader, item, choice, clean)}
        used += len(json.dumps(group))
        if used > limit:
            break
        data["groups"].append(group)
    note = " ".join(_left_out(reader, runs, choice, data["groups"]))
    if used > limit:
        note += f" No more fits into {limit / 1e6:g} MB."
    return _document(frame, data, f"{note} --steps chooses steps, --all takes all." if note else "")


def _left_out(
    reader: "StoreReader",
    runs: Sequence[RunSummary],
    choice: Choice,
    groups: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """How many of the answers are on the page, if others are not."""
    steps_by_run = [steps_of(reader, run, choice) for run in runs]
    stored = sum(
        len(reader.groups(run.key, step=step, origin="train"))
        for run, steps in zip(runs, steps_by_run, strict=True)
        for step in steps
    )
    steps = {step for run in runs for step in reader.group_steps(run.key)}
    pinned = [(group["run"], group["step"]) for group in groups if group["origin"] == "pinned"]
    visits = sum(len(reader.group_steps(run.key, "pinned")) for run in runs)
    numbers, trained = sorted(set().union(*steps_by_run)), len(groups) - len(pinned)
    if len(numbers) < len(steps) or trained < stored:
        part, all_steps = f"{trained} of {count_of(stored, 'prompt')}", f"{len(steps):,}"
        listed_steps = ", ".join(map(str, numbers))
        yield f"{part} of the steps {listed_steps}, of {all_steps} with answers."
    if len(set(pinned)) < visits:
        yield f"Pinned prompts at {len(set(pinned))} of {visits:,} steps."


def clean(text: str) -> str:
    """A text without folders and hosts: of a path its last part, of an address its path's."""
    return FOLDERS.sub("", text.replace(HOME, "~/"))


# -- HTML ---------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A value as escaped text."""
    return escape(safe(clean(format_value(value)), "\n"))


def _table(rows: Sequence[Mapping[str, Any]], caption: str) -> Iterator[str]:
    names = header_of(rows)
    heads = (f'<th scope="col">{text(name)}</th>' for name in names)
    yield f'<div class="wide" tabindex="0" role="group" aria-label="{text(caption)}"><table>'
    yield f"<caption>{text(caption)}</caption><thead><tr>{''.join(heads)}</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>"
    yield "</tbody></table></div>"


def _cell(value: Any) -> str:
    css_class = "number" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    css_class = "long" if len(content := text(value)) > LONG else css_class
    return f'<td class="{css_class}">{content}</td>'


@frozen
class Compared:
    """What Compare says of several runs, and the settings that their curves are of, by runs."""

    lines: Sequence[str] = ()
    settings: Mapping[tuple[str, ...], str] = field(default_factory=dict)


def _compared(reader: "StoreReader", runs: Sequence[RunSummary], choice: Choice) -> Compared:
    """The verdict, the rankings, and the settings that differ."""
    from grpo_tui.experiments.compare.runs import compare

    result: Comparison = compare(reader, runs)
    if choice.redact:  # settings also name the lines of charts and the rows of rankings
        result = replace(result, differing=tuple(map(_numbered, result.differing)))
    settings = {ids: setting_name(result, ids) for ids in columns_of(result, pooled=True)}
    lines = [
        f"<h1>{text(first_of([run.title for run in runs], NAMED))}</h1>",
        f'<p class="verdict">{text(verdict(result))}</p>',
        *(f"<p>{text(note)}</p>" for note in result.notes),
    ]
    for ranking in rankings_of(result):
        lines += _table(ranking_rows(ranking, result), ranking_title(ranking))
    differing: list[dict[str, Any]] = []
    for item in result.differing:
        values = {run.id: value_text(v) for run, v in zip(result.runs, item.values, strict=True)}
        row = {"setting": item.path}
        for ids, name in settings.items():
            row[name] = ", ".join(dict.fromkeys(values[run] for run in ids))
        differing.append(row)
    if differing:
        lines += _table(differing, "settings that differ")
    return Compared(lines=lines, settings=settings)


def _numbered(item: "SettingDifference") -> "SettingDifference":
    """A setting with `text 1`, `text 2` … for its values, if these are texts that models read."""
    if not TEXTS.search(item.path):
        return item
    names = {value_text(value): "" for value in item.values}
    names = {text: f"text {number}" for number, text in enumerate(names, 1)}
    return replace(item, values=tuple(names[value_text(value)] for value in item.values))


def _redacted(content: dict[str, Any], findings: Sequence[Finding]) -> list[Finding]:
    """Leave out of the content what models read, and return the findings without what may quote.

    What an alert is about, when and how often it was raised stays.
    """
    texts = {path for path in content["settings"] if TEXTS.search(path)}
    content["settings"] |= dict.fromkeys(texts, LEFT_OUT)
    quoted = [item.explanation for item in findings if item.topic in QUOTING]
    quoted.append(content["run"]["error"])
    if any(text.rstrip(".") in content["health_reason"] for text in quoted if text):
        content["health_reason"] = LEFT_OUT
    return [
        replace(item, explanation=LEFT_OUT, remedy="")
        if item.topic in QUOTING
        else replace(item, examples=())
        for item in findings
    ]


@frozen
class RunParts:
    """What the page says of a run: first of all, below its curves, and at the end."""

    head: Sequence[str]
    results: Sequence[str]
    more: Sequence[str]


def _parts(reader: "StoreReader", run: RunSummary, choice: Choice, *, alone: bool) -> RunParts:
    content = gather(reader, run)
    result = audit(reader, run)
    findings: Sequence[Finding] = result.findings
    note = run.note
    if choice.redact:
        findings, note = _redacted(content, findings), ""
    head = [
        f"<h1>{text(run.title)}</h1>" if alone else "",
        f'<p class="muted">{text(summary_of(content["run"]))}</p>',
        *_numbers(content),
        f'<p class="verdict">{text(content["verdict"])}</p>',
        f'<p class="note">{text(note)}</p>' if note else "",
        *_problems(findings),
        f'<p class="muted">No problem seen: {text(", ".join(result.fine))}.</p>'
        if result.fine
        else "",
    ]
    listed_tables = {
        title: list(_table(rows, CAPTIONS.get(title, title)))
        for title, rows in tables(content).items()
        if rows
    }
    held_out, _ = listed_tables.pop("Held-out", []), listed_tables.pop("Alerts", None)
    if held_out:
        held_out.insert(0, "<h2>Held-out results</h2>")
    more = [
        line
        for title, lines in listed_tables.items()
        for line in (f"<details><summary>{text(title)}</summary>", *lines, "</details>")
    ]
    if alone:
        return RunParts(head=head, results=held_out, more=more)
    title = f'{text(run.title)} <span class="muted">{text(content["health"])}</span>'
    folded = [f"<details><summary>{title}</summary>", *head, *held_out, *more, "</details>"]
    return RunParts(head=(), results=folded, more=())


def _numbers(content: Mapping[str, Any]) -> Iterator[str]:
    """The run in a few large words: its health, and where reward and accuracy went."""
    yield '<ul class="numbers">'
    yield f"<li><b>{text(content['health'])}</b> {text(content['health_reason'])}</li>"
    for row in content["metrics"]:
        if row["metric"] in LARGE and row["last"] is not None:
            metric = spec(row["metric"])
            ends = (with_unit(row[end], metric.unit) for end in ("first", "last"))
            way = " → ".join(dict.fromkeys(ends))
            once = _once(row, content["run"]["step"])
            yield f"<li><b>{text(way)}</b> {text(metric.label + once)}</li>"
    yield "</ul>"


def _once(row: Mapping[str, Any], step: int) -> str:
    """When a held-out result was measured, if only once and not at the end."""
    first, last = row["first_step"], row["last_step"]
    if first != last or last is None or last >= step:
        return ""
    return f" at step {last}, not measured again"


def _problems(findings: Iterable[Finding]) -> Iterator[str]:
    """A line for each alert: severity, topic, steps, sentence, remedy, and answers that show it."""
    yield '<ul class="problems">'
    for item in findings:
        word = item.severity if item.counts else "past"
        times = f", {item.times} times" if item.times > 1 else ""
        yield f'<li><b class="badge {word}">{word}</b> <b>{text(item.topic)}</b>'
        yield f' <span class="muted">{text(item.steps + times)}</span>'
        yield f'<br>{text(item.explanation)} <span class="muted">{text(item.remedy)}</span>'
        for answer in item.examples:
            name = f"step {answer.step}, answer {answer.group + 1}{letter(answer.rollout)}"
            quoted = clip(" ".join(answer.text.split()), SAMPLE)
            yield f"<br><q>{escape(quoted)}</q> "
            yield f'<span class="muted">{name}, reward {short(answer.reward)}, wrong</span>'
        yield "</li>"
    yield "</ul>"


def _document(frame: Mapping[str, str], data: Mapping[str, Any], note: str) -> str:
    """The whole file; scripts come last, and the data is no script."""
    style = asset("uPlot.min.css") + asset("page.css")
    scripts = [asset("uPlot.iife.min.js"), asset("page.js")]
    parts = {
        **frame,
        "POLICY": POLICY.format(" ".join(map(_hash, scripts)), _hash(style)),
        "STYLE": style,
        "NOTE": text(note),
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "SCRIPTS": "".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda mark: parts[mark[1]], asset("page.html"))


def asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    """The source of a policy that allows exactly this text."""
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{b64encode(digest).decode('ascii')}'"
