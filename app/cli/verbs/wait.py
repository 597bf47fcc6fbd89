"""`grpo-tui wait`: wait until a run's metrics meet a condition."""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, print_text
from grpo_tui.app.cli.params import Json, RunRef
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.values import ENDED

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

POLL_S = 0.5
RESUMED_S = 20.0  # in which a run that had ended may be resumed: `resume` loads first


def wait(
    run: RunRef,
    until: Annotated[
        str, typer.Option(metavar="CONDITION", help="As stop_when has it, with step as well.")
    ],
    as_json: Json = False,
) -> None:
    """Wait until a condition holds in a run, and print the step and the numbers.

    A condition that held in the past holds. Exit status 1 where the run ends first; one that has
    ended is given 20 seconds to be resumed, as by `grpo-tui resume RUN & grpo-tui wait RUN …`.

    Example: grpo-tui wait @last --until "eval/accuracy > .8 | num_tokens > 2e6"
    """
    from grpo_engine.config.stop_when import StopRule, Streak

    rule, streaks = StopRule(until, "--until"), dict[str, Streak]()
    with reading() as reader:
        target = reader.resolve(run)
        after = dict.fromkeys(rule.metrics, -1)
        resumed_by = time.monotonic() + RESUMED_S * (target.status in ENDED)
        while True:
            ended = reader.resolve(target.id).status in ENDED  # before the last numbers are read
            for step, metrics in _measurements(reader, target.key, after):
                if text := rule.observe(metrics, streaks):
                    if as_json:
                        print_json({"run": target.id, "step": step, "numbers": text})
                    else:
                        print_text(f"step {step}: {text}")
                    return
            if not ended:
                resumed_by = 0.0
            elif time.monotonic() >= resumed_by:
                break
            time.sleep(POLL_S)
    print_stderr(f"{target.title} ended, and {until} did not hold")
    raise typer.Exit(exit_codes.FAILED)


def _measurements(
    reader: "StoreReader", run: int, after: dict[str, int]
) -> Iterator[tuple[int, dict[str, float]]]:
    """The metrics by step that are later than what was read `after`, which is moved on."""
    steps = defaultdict[int, dict[str, float]](dict)
    for metric, last in after.items():
        if metric == "step":
            pairs = [(view.step, float(view.step)) for view in reader.steps(run, after=last)]
        else:
            series = reader.metric_series(run, metric, after=last)
            pairs = list(zip(series.steps, series.values, strict=True))
        for step, value in pairs:
            steps[step][metric] = value
            after[metric] = max(after[metric], step)
    yield from sorted(steps.items())
