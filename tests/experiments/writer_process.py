"""A process that records scripted steps and prints each stored step as a JSON line, like train.

Arguments: store, steps, seconds between steps, run to resume or `-`.
"""

import json
import sys
import threading
import time
from pathlib import Path

from grpo_engine import events as ev
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import resume_run, start_run
from tests.experiments.made import CONFIG, ended, started, step_events, trouble


def main(path: Path, steps: int, pause: float, resume: str) -> None:
    first = 0
    if resume != "-":
        reader = StoreReader(path)
        first = reader.resolve(resume).step
        reader.close()
        handle = resume_run(path, resume, from_step=first)
    else:
        handle = start_run(path, CONFIG)
    facts = handle.facts
    print(json.dumps({"id": handle.id}), flush=True)

    def show() -> None:
        while (fact := facts.get()) is not None:
            _, event = fact
            if isinstance(event, ev.StepFinished):
                print(json.dumps(ev.to_json(event)), flush=True)

    shower = threading.Thread(target=show)
    shower.start()
    handle.put(started(step=first))
    for step in range(first + 1, first + steps + 1):
        for event in step_events(step, groups=1):
            handle.put(event)
        if pause:
            time.sleep(pause)
    handle.put(ended(first + steps))
    stored = handle.close()
    shower.join()
    print(json.dumps({"stored": stored, "trouble": trouble(handle)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
