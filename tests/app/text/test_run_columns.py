"""The cells of a list of runs."""

from dataclasses import replace
from pathlib import Path

from grpo_engine.config.parse import build
from grpo_tui.app.text.run_columns import HELD_OUT
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from tests.app.script import CONFIG, evaluation, started


def test_greedy_accuracy_does_not_stand_for_the_sampled_one_that_follows_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    handle = start_run(path, build(dict(CONFIG)), name="otter")

    def cell(done: int = 0) -> str:
        handle.flush()
        with StoreReader(path) as reader:
            run = replace(reader.resolve("otter"), step=done)
        return "".join(text for text, _ in HELD_OUT.draw(run, 0.0, None)).strip()

    greedy = evaluation(0, 0.125, "before")
    for event in (started(), greedy):
        handle.put(event)
    assert cell() == "–"
    assert cell(done=2).startswith("12%")  # no sampled one has followed
    handle.put(replace(greedy, mode="sampled", metrics={"eval/accuracy": 0.3125}))
    assert cell() == "31%"
    handle.close()
