"""`grpo-tui audit`: what is wrong with a run, for scripts and agents."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import GREEN, RED, YELLOW, print_json, print_made_safe, styled
from grpo_tui.app.cli.params import Json, RunRef
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.safe_text import clip, safe
from grpo_tui.app.text.words import step_of

if TYPE_CHECKING:
    from grpo_tui.app.text.findings import Audit
    from grpo_tui.experiments.values import RunSummary

FailOn = Annotated[
    Literal["warning", "error"], typer.Option(help="The least severity that sets the exit status.")
]
COLOURS = {"error": RED, "warning": YELLOW, "info": GREEN}
EXAMPLE = 72  # cells of an answer


def audit(run: RunRef, fail_on: FailOn = "warning", as_json: Json = False) -> None:
    """Say what is wrong with a run that has ended or still trains, a line for each problem.

    Exit status 0 without problems, 4 with warnings, 5 with errors. A problem counts while it
    holds, or if it held in the last ten steps; earlier and muted ones are listed as past.

    Example: grpo-tui audit @last --fail-on error || grpo-tui stop @last
    """
    from grpo_tui.app.text.findings import SEVERITIES, audit

    with reading() as reader:
        target = reader.resolve(run)
        result = audit(reader, target)
    if as_json:
        print_json(_content(target, result))
    else:
        print_made_safe("\n".join(_lines(target, result)))
    if SEVERITIES.index(result.worst) >= SEVERITIES.index(fail_on):
        raise typer.Exit(exit_codes.ERRORS if result.worst == "error" else exit_codes.WARNINGS)


def _content(run: "RunSummary", result: "Audit") -> dict[str, Any]:
    fields = ("id", "name", "status", "step", "total_steps")
    return {
        "run": {name: getattr(run, name) for name in fields},
        "health": asdict(result.health),
        "worst": result.worst,
        "findings": list(map(asdict, result.findings)),
        "fine": list(result.fine),
        "unmeasured": list(result.unmeasured),
    }


def _lines(run: "RunSummary", result: "Audit") -> Iterator[str]:
    """The findings for people: severity, topic, steps, sentence and remedy; then what is fine."""
    health = result.health
    yield safe(f"{run.title}: {run.status}, {step_of(run.step, run.total_steps)}, {health.label}")
    if health.reason not in [item.explanation for item in result.findings]:
        yield safe(health.reason, " ")
    for item in result.findings:
        word = item.severity if item.counts else "past"
        times = f" ({item.times} times)" if item.times > 1 else ""
        head = styled(f"{word:<8}", COLOURS[item.severity]) if item.counts else f"{word:<8}"
        text = safe(f"{item.explanation} {item.remedy}".strip(), " ")
        yield f"{head} {safe(item.topic)}, {item.steps}{times}: {text}"
        for answer in item.examples:
            name = f"step {answer.step} answer {answer.group + 1}{letter(answer.rollout)}"
            quoted = clip(" ".join(answer.text.split()), EXAMPLE)
            yield f"{'':<8} {name}, reward {short(answer.reward)}, wrong: “{quoted}”"
    if result.fine:
        yield f"{'fine':<8} {', '.join(result.fine)}"
    if result.unmeasured:
        yield f"{'no data':<8} {', '.join(result.unmeasured)}"
