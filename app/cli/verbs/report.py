"""`grpo-tui report`: a one-page summary of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_tui.app.cli.output import print_json, write_out
from grpo_tui.app.cli.params import Json, Runs
from grpo_tui.app.cli.store_access import reading, resolve_all
from grpo_tui.app.page.facts import gather, summary_of, tables
from grpo_tui.app.text.comparison import MAIN_METRICS
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.words import count_of

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import RunSummary

Steps = Annotated[
    str, typer.Option(metavar="N,N", help="On a page: answers of these steps.", show_default=False)
]


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(help="Write to this file, not to stdout; .html is a page for browsers."),
    ] = None,
    steps: Steps = "",
    everything: Annotated[
        bool,
        typer.Option("--all", help="Every metric; on a page also the answers of every step."),
    ] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="On a page: leave out prompts and answers.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Summarize a run on one page: has it learned, curves, times, results, settings.

    Markdown, or with --out run.html one file for any browser, which has the answers by token and
    loads nothing: of the first, the best and the last step, up to 5 MB. It takes several runs.

    Example: grpo-tui report @last --out run.html
    """
    if as_json and out is not None:
        raise typer.BadParameter(f"--json prints: leave --out {out} away, or write > {out}")
    html = out is not None and out.suffix.lower() in (".html", ".htm")
    if (steps or redact or len(runs) > 1) and not html:
        raise typer.BadParameter("several runs, --steps and --redact need a page: --out run.html")
    with reading() as reader:
        selected = resolve_all(reader, runs)
        if html:
            from grpo_tui.app.page.answers import Choice
            from grpo_tui.app.page.write import page

            choice = Choice(steps=_numbers(steps), everything=everything, redact=redact)
            for run in selected:
                _say_missing(reader, run, choice.steps)
            text = page(reader, selected, choice)
        else:
            content = gather(reader, selected[0])
            if not (everything or as_json):
                content["metrics"] = [
                    row for row in content["metrics"] if row["metric"] in MAIN_METRICS
                ]
            text = "" if as_json else markdown(content, plots(reader, selected[0]))
    print_json(content) if as_json else write_out(text, out)


def _numbers(steps: str) -> list[int]:
    try:
        return [int(step) for step in steps.split(",") if step]
    except ValueError:
        raise typer.BadParameter(f"--steps {steps}: write numbers, as 1,20,60") from None


def _say_missing(reader: "StoreReader", run: "RunSummary", chosen: Sequence[int]) -> None:
    """Name the steps that the page of a run cannot have; where it can have none, it is refused."""
    stored = reader.group_steps(run.key)
    missing = sorted(set(chosen).difference(stored))
    if missing and stored and len(missing) < len(set(chosen)):
        print_stderr(
            f"{run.title} has no answers at step{'s' * (len(missing) > 1)} "
            f"{', '.join(map(str, missing))} of --steps; it has "
            f"{count_of(len(stored), 'step')} with answers, from {stored[0]} to {stored[-1]}"
        )


def plots(reader: "StoreReader", run: "RunSummary") -> list[str]:
    """Plot reward and held-out accuracy, as far as they exist."""
    from grpo_tui.app.cli.curves import ChartOptions, metric_chart

    lines: list[str] = []
    for key in ("reward", "eval/accuracy"):
        series = reader.metric_series(run.key, key)
        if len(series.steps) > 1:
            lines += metric_chart(key, [(run.name, series)], ChartOptions())
    return lines


def markdown(content: dict[str, Any], curves: list[str]) -> str:
    """Format the page as Markdown."""
    from grpo_tui.app.cli.markdown import md_cell, table
    from grpo_tui.experiments.export.csv import header_of

    run = content["run"]
    lines = [
        f"# {md_cell(run['name'])}",
        "",
        f"`{run['id']}` · {md_cell(summary_of(run))}",
        "",
        f"**Health: {content['health']}.** {md_cell(content['health_reason'])}",
        "",
        f"**{md_cell(content['verdict'])}**",
        "",
    ]
    if run["error"]:
        lines += [f"**Ended with** {md_cell(run['error'])}", ""]
    if run["note"]:
        lines += [md_cell(run["note"]), ""]
    lines += ["## Curves", "", "```text", *curves, "```", ""] if curves else []
    for title, rows in tables(content).items():
        if rows:
            lines += [f"## {md_cell(title)}", "", *table(header_of(rows), rows), ""]
    return "\n".join(lines) + "\n"
