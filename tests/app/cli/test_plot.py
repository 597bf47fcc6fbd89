"""Curves in the shell: what `plot`, `report` and `compare` draw, and on which kind of output."""

import csv
import math
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app import exit_codes
from grpo_tui.app.charts.series import Series
from grpo_tui.app.cli.curves import MIN_WIDTH, ChartOptions, lines_of, metric_chart, terminal
from grpo_tui.experiments.compare.statistics import mean_interval
from grpo_tui.experiments.values import MetricSeries
from tests.app.calls import Cli, caller
from tests.app.compared import refs_of, sweep_of_settings
from tests.experiments.made import config, evaluated, record_run

PLAIN = ChartOptions(width=40, unicode=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three and four steps, whose rewards differ."""
    path = tmp_path_factory.mktemp("recorded") / "s.db"
    record_run(path, name="plain-otter", last=(evaluated(3, (1, 0)),))
    other = config(seed=1)
    record_run(path, name="brave-fox", tree=other, steps=4, last=(evaluated(4, (1, 1)),))
    return path


@pytest.fixture
def cli(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    monkeypatch.setenv("GRPO_TUI_DB", str(recorded))
    monkeypatch.setenv("COLUMNS", "72")
    return caller(monkeypatch, capfdbinary)


def stored(*values: float, first: int = 1) -> MetricSeries:
    steps = tuple(range(first, first + len(values)))
    return MetricSeries(run=1, key="reward", steps=steps, values=values)


def series(*values: float, smooth: float = 0.0) -> Series:
    return Series.of("reward", range(1, len(values) + 1), values, smooth)


def test_a_gap_parts_a_line_and_a_curve_of_few_values_is_one_line_that_is_not_smoothed() -> None:
    gap = lines_of(series(1.0, 2.0, math.nan, 3.0), 80)
    assert gap == [([1, 2], [1.0, 2.0]), ([4], [3.0])]
    sparse = Series.of("reward", (0, 20, 40), (0.0, 20.0, 40.0))
    assert lines_of(sparse, 80) == [([0, 20, 40], [0.0, 20.0, 40.0])]


def test_six_runs_have_six_colours_and_more_have_letters_that_begin_again_after_z() -> None:
    runs = [(f"run-{n}", stored(0.0, float(n))) for n in range(27)]
    colours = re.compile("\x1b\\[38;5;([0-9]+)m")
    for count in (6, 7):
        lines = metric_chart("reward", runs[:count], ChartOptions(width=60, colour=True))
        names = lines[1 : count + 1]
        assert len({colours.findall(line)[0] for line in names}) == 6
        plain = re.sub("\x1b\\[[0-9;]*m", "", names[0])
        assert plain == ("━ run-0  0" if count == 6 else "a run-0  0")
        assert "\x1b[48" not in "".join(lines)  # the terminal's own background
    letters = [line[0] for line in metric_chart("reward", runs, PLAIN)[1:28]]
    assert "".join(letters) == "abcdefghijklmnopqrstuvwxyza"


def test_a_long_curve_that_is_not_smoothed_shows_the_range_of_each_column() -> None:
    values = [0.0] * 5000
    values[4] = 8.0
    for smooth, top in ((0.0, "8"), (0.9, "1")):
        lines = metric_chart("reward", [("otter", stored(*values))], PLAIN, smooth=smooth)
        assert lines[3].lstrip().startswith(f"{top}+") == (smooth == 0), lines[3]


def test_nothing_that_is_not_ascii_reaches_a_terminal_of_ascii() -> None:
    lines = metric_chart("reward", [("mäßig ⣿", stored(-1.0, 0.00001))], PLAIN)
    assert "\n".join(lines).isascii()
    assert len(lines) == 2 + 14
    assert "m\\xe4\\xdfig" in lines[1]


@pytest.mark.slow
@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=9),
    st.integers(MIN_WIDTH, 200),
    st.text(max_size=30),
)
def test_no_line_is_wider_than_the_terminal_or_has_anything_it_obeys(
    values: list[float], width: int, name: str
) -> None:
    lines = metric_chart("reward", [(name, stored(*values))], ChartOptions(width=width))
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_in_a_pipe_a_plot_has_no_colours(cli: Cli) -> None:
    done = cli("plot", "plain-otter", "brave-fox", "--metric", "reward", "--metric", "kl")
    assert done.code == exit_codes.OK
    assert "\x1b" not in done.out
    lines = done.out.splitlines()
    assert lines[0] == "reward"
    assert "KL to reference (kl)" in lines
    assert max(map(len, lines)) == 72


def test_a_terminal_gets_colours_unless_it_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((97, 24)))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal() == ChartOptions(width=97, colour=True, unicode=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal().colour
    monkeypatch.setenv("TERM", "linux")
    assert not terminal().unicode
    monkeypatch.delenv("NO_COLOR")
    assert terminal().colour
    monkeypatch.setenv("TERM", "dumb")
    assert (terminal().colour, terminal().unicode) == (False, False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert terminal().unicode  # a pipe takes what the encoding has
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((5, 24)))
    assert terminal().width == 24


@pytest.mark.parametrize(
    ("encoding", "expected"), [("UTF-8", True), ("utf8", True), ("latin-1", False), (None, False)]
)
def test_only_utf_8_gets_characters_beyond_ascii(
    monkeypatch: pytest.MonkeyPatch, encoding: str | None, expected: bool
) -> None:
    monkeypatch.setattr(sys, "stdout", SimpleStream(encoding))
    assert terminal().unicode == expected


class SimpleStream:
    """An output with an encoding, or with none."""

    def __init__(self, encoding: str | None) -> None:
        self.encoding = encoding

    def isatty(self) -> bool:
        return False


def test_json_has_the_stored_values(cli: Cli) -> None:
    data = cli("plot", "plain-otter", "brave-fox", "--json").data
    assert [(one["metric"], one["name"], one["steps"]) for one in data] == [
        ("reward", "plain-otter", [1, 2, 3]),
        ("reward", "brave-fox", [1, 2, 3, 4]),
    ]
    assert all(len(one["values"]) == len(one["steps"]) for one in data)


def points_of(svg: str, gid: str) -> list[tuple[float, float]]:
    """The points of a line in a figure, in the file's units."""
    path = re.search(rf'<g id="{re.escape(gid)}">\s*<path d="([^"]*)"', svg)
    assert path is not None
    numbers = re.findall(r"[ML] (\S+) (\S+)", path[1])
    return [(float(x), float(y)) for x, y in numbers]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two settings of three seeds each."""
    path = sweep_of_settings(tmp_path, betas=(0.04, 0.4), seeds=3, steps=6)
    monkeypatch.setenv("GRPO_TUI_DB", str(path))
    return path


def test_the_numbers_of_a_figure_are_those_of_the_store(cli: Cli, sweep: Path) -> None:
    out, names = sweep.with_name("f.svg"), ("b0.04-s0", "b0.4-s0")
    words = ("plot", *names, "--metric", "reward", "--metric", "eval/accuracy", "--out", str(out))
    assert cli(*words, "--data").code == exit_codes.OK
    svg, stored = out.read_text(encoding="utf-8"), cli("plot", *names, "--json").data
    lines = [points_of(svg, f"reward {name}") for name in names]
    steps, values = stored[0]["steps"], stored[0]["values"]
    # two points of the first line say where all others are
    (x0, y0), (x1, y1) = lines[0][0], lines[0][-1]
    x_size, y_size = (x1 - x0) / (steps[-1] - steps[0]), (y1 - y0) / (values[-1] - values[0])
    for line, run in zip(lines, stored, strict=True):
        shown = [(steps[0] + (x - x0) / x_size, values[0] + (y - y0) / y_size) for x, y in line]
        pairs = zip(run["steps"], run["values"], strict=True)
        assert shown == [pytest.approx(pair, rel=1e-4) for pair in pairs]
    written = [row for row in rows_of(out.with_suffix(".csv")) if row["name"] == names[0]]
    assert [float(row["value"]) for row in written if row["metric"] == "reward"] == values
    assert "training step" in svg
    assert "held-out accuracy, sampled (%)" in svg


@pytest.mark.slow
def test_the_seeds_of_a_setting_are_one_line_with_its_interval(cli: Cli, sweep: Path) -> None:
    out, refs = sweep.with_name("f.pdf"), refs_of(sweep)
    assert cli("plot", *refs, "--metric", "kl", "--out", str(out), "--data").code == 0
    assert out.read_bytes().startswith(b"%PDF")
    rows = rows_of(out.with_suffix(".csv"))
    assert {row["name"] for row in rows} == {"beta 0.04 (3 seeds)", "beta 0.4 (3 seeds)"}
    runs = cli("plot", *refs, "--metric", "kl", "--json").data
    seeds = [run["values"][2] for run in runs if run["name"].startswith("b0.04")]
    third = next(row for row in rows if row["step"] == "3" and "0.04" in row["name"])
    numbers = [float(third[name]) for name in ("value", "low", "high")]
    assert numbers == pytest.approx([sum(seeds) / 3, *mean_interval(seeds, (0.0, math.inf))])


@pytest.mark.slow
def test_a_figure_needs_a_format_and_its_package_and_takes_any_name(
    cli: Cli, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("plot", "@last", "--out", str(sweep.with_name("f.gif"))).code == exit_codes.USAGE
    assert "--data writes" in cli("plot", "@last", "--data").err
    assert cli("runs", "rename", "b0.4-s0", "_$\\frac{<b>").code == exit_codes.OK
    done = cli("plot", "_$\\frac{<b>", "b0.04-s0", "--out", str(sweep.with_name("f.svg")))
    assert done.code == exit_codes.OK, done.err
    assert "_$\\frac{&lt;b&gt;" in sweep.with_name("f.svg").read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = cli("plot", "@last", "--out", str(sweep.with_name("g.png")))
    assert (done.code, sweep.with_name("g.png").exists()) == (exit_codes.FAILED, False)
    assert "pip install 'grpo-tui[plots]'" in done.err


@pytest.mark.parametrize("verb", ["plot", "report"])
def test_json_is_printed_and_no_file_is_promised(cli: Cli, verb: str, tmp_path: Path) -> None:
    done = cli(verb, "@last", "--json", "--out", str(tmp_path / "x.svg"))
    assert done.code == exit_codes.USAGE
    assert "--json prints: leave --out" in " ".join(done.err.split())
    assert not [*tmp_path.iterdir()]


def test_a_report_has_the_curve_of_the_reward(cli: Cli) -> None:
    report = cli("report", "plain-otter").out
    assert "## Curves\n\n```text\nreward\n" in report
    assert max(map(len, report.partition("```text\n")[2].partition("```")[0].splitlines())) == 80
