"""`report` and `compare` begin with what was found; the HTML page is whole and harmless."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app.cli.main import main
from grpo_tui.app.cli.report_html import chart, table
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.app.compared import cli, refs_of, sweep_of_settings
from tests.app.script import HOSTILE
from tests.app.stored import record, run_events

EVIL = (
    "</title></style></pre><script>alert(1)</script><img src=http://evil.example/x onerror=a(1)>"
    "<svg onload=alert(1)>\" onmouseover='alert(1)' &lt;b&gt; ]]> -->" + "".join(HOSTILE[:5])
)
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "div", "span",
        "pre", "table", "tr", "th", "td", "figure", "figcaption", "svg", "path", "line",
        "text", "wbr"}  # fmt: skip
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "viewbox", "role", "d",
              "aria-label", "x", "y", "x1", "x2", "y1", "y2", "text-anchor"}  # fmt: skip


class Page(HTMLParser):
    """Collects a page's tags, attributes, and the text outside of styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.open: list[str] = []
        self.seen = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        if tag not in ("meta", "path", "line", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.seen += data if "style" not in self.open else ""


def hostile_events() -> Iterator[ev.Event]:
    for event in run_events(steps=4, prompts=1):
        if isinstance(event, ev.GroupScored) and event.group.origin == "pinned":
            rollouts = tuple(replace(one, text=EVIL) for one in event.group.rollouts)
            group = replace(event.group, prompt_text=EVIL, target=EVIL, rollouts=rollouts)
            yield replace(event, group=group)
        else:
            yield event
        if isinstance(event, ev.StepFinished) and event.step == 4:
            yield ev.AlertRaised(step=4, rule=EVIL, severity="warning", explanation=EVIL,
                                 remedy=EVIL)  # fmt: skip


def page_of(path: Path, out: Path, *options: str) -> Page:
    assert main(["report", "@last", "--html", str(out), *options, "--db", str(path)]) == 0
    return Page(out.read_text(encoding="utf-8"))


def test_hostile_text_stays_text_in_the_page(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    key = record(path, hostile_events(), name=EVIL, task={"name": EVIL})
    with closing(ExperimentStore(path)) as store:
        store.change(key, note=EVIL)
    page = page_of(path, tmp_path / "page.html", "--all")
    assert set(page.tags) <= TAGS
    assert page.names <= ATTRIBUTES
    assert page.open == []
    # name in title and heading, note, task, and each of the prompts with target and answers
    assert page.seen.count("<script>alert(1)</script>") >= 10
    assert not {"\x1b", "\u202e", "\x00", "\u2066"} & set(page.seen)


def test_the_page_needs_neither_network_nor_scripts_and_follows_the_readers_scheme(
    tmp_path: Path,
) -> None:
    record(tmp_path / "s.db", run_events(steps=6), name="calm-otter")
    page_of(tmp_path / "s.db", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    outside = ("http:", "https:", "src=", "href=", "url(", "@import")
    assert not [part for part in outside if part in html]
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


def test_the_page_has_verdict_curves_differences_times_and_answers_then_and_now(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    record(path, run_events(steps=6), name="calm-otter",
           algorithm={"recipe": "grpo", "beta": 0.3})  # fmt: skip
    page = page_of(path, tmp_path / "page.html")
    order = ["Held-out accuracy", "Curves", "Answers before and after",
             "Differences from the recipe grpo", "algorithm.beta", "Phase times", "generate",
             "Held-out"]  # fmt: skip
    places = [page.seen.index(part) for part in order]
    assert places[:-1] == sorted(places[:-1])
    assert page.tags.count("path") >= 6
    with closing(StoreReader(path)) as reader:
        run = reader.resolve("calm-otter").key
        prompts = reader.examples(run, "pinned")
        assert prompts
        for key in prompts:
            groups = reader.groups(run, example_key=key)
            for group in (groups[0], groups[-1]):
                assert f"step {group.step}, mean reward" in page.seen
                for one in reader.group(group.key).rollouts:
                    assert one.text in page.seen


def test_a_curve_is_drawn_where_its_values_are() -> None:
    # from the lower left, 46 and 150 px, to the upper right, 552 and 8 px
    assert 'd="M46.0 150.0 L552.0 8.0"' in chart("eval/accuracy", (0, 10), (0.0, 1.0))


def test_a_gap_parts_a_curve() -> None:
    steps, values = range(4), (0.0, 1.0, float("nan"), 1.0)
    raw = chart("eval/accuracy", tuple(steps), values).partition('class="raw" d="')[2]
    assert re.findall("[ML]", raw.partition('"')[0]) == ["M", "L", "M"]


def test_a_report_says_first_whether_the_run_has_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04,), seeds=1)
    assert main(["report", "@last", "--db", str(path)]) == 0
    said = capsys.readouterr().out
    places = [said.index(part) for part in (
        "**Held-out accuracy rose: from ", "greedy answers, steps 0 and 6; p &lt; .001",
        "sampled 4 times, steps 0 and 6", "## Curves", "## Phase times", "## Metrics",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "grad_norm" not in said
    assert main(["report", "@last", "--all", "--db", str(path)]) == 0
    assert "grad_norm" in capsys.readouterr().out


def test_compare_begins_with_the_verdict_and_ranks_settings_not_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04, 0.4), seeds=2, steps=4)
    refs = refs_of(path)
    said = cli(capsys, *refs, "--db", str(path))
    first = said.splitlines()[0]
    assert first.startswith(("beta 0.4 (2 seeds) ", "No significant difference: "))
    assert "t test over seeds and problems" in first
    places = [said.index(part) for part in (
        "greedy answers to 60 held-out problems; reached: ",
        "sampled answers to 60 held-out", "seconds a step", "algorithm.beta", "mean over seeds",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "grad_norm" not in said
    assert "grad_norm" in cli(capsys, *refs, "--all", "--db", str(path))
    assert main(["compare", *refs, "--reach", "high", "--db", str(path)]) == 2
    assert "nothing can reach 'high'" in capsys.readouterr().err


def test_without_the_option_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "s.db", run_events(steps=2), name="calm-otter")
    assert main(["report", "@last", "page.html", "--db", str(tmp_path / "s.db")]) == 2
    assert "use --html" in capsys.readouterr().err


def test_a_table_aligns_numbers_and_breaks_long_headings() -> None:
    made = table([{"mode": "greedy", "eval/mean_length": None}, {"eval/mean_length": 13.7}])
    head, first, second = made.splitlines()
    assert '<th>mode</th><th class="number">eval/<wbr>mean_<wbr>length</th>' in head
    assert first.count('class="number"') == second.count('class="number"') == 1
    assert '<td class="number">13.7</td>' in second


def busy(events: Iterator[ev.Event]) -> Iterator[ev.Event]:
    """The events of a run with an environment, on a machine that other programs use."""
    for event in events:
        if isinstance(event, ev.StepFinished):
            more = {"time/others": 7.0, "time/environment": 0.4}
            event = replace(event, metrics={**event.metrics, **more})
        yield event


def test_the_phases_of_report_and_compare_sum_to_the_time_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.db"
    for seed, name in enumerate(("first", "second")):
        record(path, busy(run_events(steps=3, seed=seed)), name=name)
    assert main(["report", "first", "--json", "--db", str(path)]) == 0
    facts = json.loads(capsys.readouterr().out)
    spent = {row["phase"]: row["seconds a step"] for row in facts["phases"]}
    assert list(spent) == ["generate", "score", "logprobs", "update", "other"]
    mean = {row["metric"]: row["mean"] for row in facts["metrics"]}
    assert sum(spent.values()) == pytest.approx(mean["step_time"])
    assert mean["time/others"] == 7.0
    said = cli(capsys, "first", "second", "--db", str(path))
    head = next(line for line in said.splitlines() if "seconds a step" in line)
    assert head.split() == ["seconds", "a", "step", *spent]
    assert main(["report", "first", "--db", str(path)]) == 0
    shares = re.findall(r"\| ([\d.]+)% \|", capsys.readouterr().out.partition("## Phase times")[2])
    assert sum(map(float, shares[: len(spent)])) == pytest.approx(100, abs=1)
