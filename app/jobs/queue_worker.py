"""The queue's worker: train one run after another, each in its own process."""

import json
import time
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from grpo_engine import consent
from grpo_engine.errors import EngineError
from grpo_engine.platform.scratch import scratch
from grpo_engine.platform.spawn import Child, start
from grpo_tui.app.exit_codes import REFUSAL
from grpo_tui.app.jobs.detach import command
from grpo_tui.app.jobs.launch import CLONE_OF
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.processes import environment
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import PARENT, QUEUE_ITEM

RENEW_S, POLL_S = 15.0, 5.0
STDERR = 2  # takes the output of runs
CONFIG = "config.yaml"


def work(queue: RunQueue, sweep: int | None = None) -> int:
    """Train queued runs until none is left; return how many did not complete."""
    failed = 0
    while (item := queue.take(sweep)) is not None:
        if (earlier := queue.repeats(item)) is not None:
            note = f"the same settings and seed were trained as {earlier.name}"
            queue.finish(item.id, "skipped", note=note, run_id=earlier.id)
            print_stderr(
                f"{item.name}: skipped, {note}; `grpo-tui sweep --queue --again` trains it anyway"
            )
            continue
        try:
            state, note = run_item(queue, item)
        except BaseException:
            # The item still has its run, which is resumed from its checkpoint next time.
            queue.finish(item.id, "queued", note="interrupted")
            raise
        queue.finish(item.id, state, note=note)
        print_stderr(f"{item.name}: {state}" + (f", {note}" if note else ""))
        failed += state != "done"
    return failed


def run_item(queue: RunQueue, item: Any) -> tuple[str, str]:
    """Train one item in another process; return its outcome from the store.

    An item that was not queued on this machine is refused: a worker cannot ask for consent.
    """
    try:
        consent.require(consent.question_of(item.config, f"the queued run {item.name}"))
    except EngineError as error:
        return "failed", str(error)
    if item.run_id is not None:
        _wait_for_orphan(queue, item.id, item.run_id)
        if queue.store.run_row(item.run_id).status == "completed":
            return "done", ""
    with scratch("queue") as folder:
        refusal = folder / "refusal.txt"
        arguments = _command(queue, item, folder)
        print_stderr(f"{item.name}: {' '.join(arguments[4:5])} {json.dumps(item.settings)}")
        variables = {
            QUEUE_ITEM: str(item.id),
            REFUSAL: str(refusal),
            PARENT: str(item.settings.get(CLONE_OF, "")),
        }
        process = start(arguments, {**environment(), **variables}, (0, STDERR, STDERR))
        try:
            code = _wait(queue, item.id, process)
        except KeyboardInterrupt:
            # The child got the signal, too; it saves a checkpoint and stops.
            process.wait()
            raise
        refused = refusal.read_text(encoding="utf-8") if refusal.exists() else ""
        refused = refused.removeprefix(f"{folder / CONFIG}: ")
    run = queue.item(item.id).run_id
    if run is None:
        return "failed", refused or (
            f"it ended with status {code} before it was recorded; `grpo-tui sweep --queue --retry` "
            "in a terminal shows why"
        )
    row = queue.store.run_row(run)
    if row.status == "completed":
        return "done", ""
    if row.status == "stopped":
        return "cancelled", "it was stopped"
    return "failed", row.error or f"it ended as {row.status} with status {code}"


def _wait_for_orphan(queue: RunQueue, item: int, run: int) -> None:
    """Wait for a run that is still active although its worker is gone."""
    with StoreReader(queue.store.path) as reader:
        is_printed = False
        while (summary := reader.runs(archived=True, keys=[run])[0]).active:
            if not is_printed:
                print_stderr(f"{summary.name} is still running without its worker: waiting for it")
            is_printed = True
            queue.renew(item)
            time.sleep(POLL_S)


def _command(queue: RunQueue, item: Any, folder: Path) -> list[str]:
    """Return the command that trains from the start, or resumes an interrupted run."""
    store = ["--db", str(queue.store.path)]
    if item.run_id is not None:
        return command("resume", *store, "--", queue.store.run_row(item.run_id).short)
    config = folder / CONFIG
    # JSON is valid YAML.
    config.write_text(json.dumps(item.config), encoding="utf-8")
    return command("train", str(config), "--name", item.name, *store)


def _wait(queue: RunQueue, item: int, process: Child) -> int:
    while True:
        try:
            return process.wait(timeout=RENEW_S)
        except TimeoutExpired:
            queue.renew(item)
