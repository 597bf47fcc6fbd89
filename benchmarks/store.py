"""How fast the store is at scale: python -m benchmarks.store [PART...] [--folder F] [--out FILE].

Parts are runs, steps, rollouts, starter, opened; each makes its own store, measures, and says
against which target. The folder needs 3 GB. Numbers are medians, with the slowest beside them.
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import store_data as data
from grpo_engine import events as ev
from grpo_tui.app.feed.stored import StoreFeed
from grpo_tui.experiments.compare.runs import compare
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.search import search

RUNS, STEPS, ROLLOUTS, STARTER, OPENED = 10_000, 100_000, 200_000, 100, 125


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; a target of 0 means none."""

    name: str
    value: float
    slowest: float
    unit: str = "ms"
    target: float = 0.0
    processor: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the target is met."""
        return not self.target or self.value < self.target

    def line(self) -> str:
        """Format the result as a row of a Markdown table."""
        target = f"< {self.target:g}" if self.target else ""
        slowest = f"{self.slowest:.3g}" if self.slowest else ""
        mark = "" if self.ok else " **missed**"
        processor = f"{self.processor:.3g}" if self.processor else ""
        value = f"{self.value:.3g} {self.unit}{mark}"
        return f"| {self.name} | {value} | {slowest} | {processor} | {target} |"


def processor() -> float:
    """Return the processor seconds of this process and its commands."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + spent.ru_utime + spent.ru_stime


def timed(name: str, act: Callable[[], object], *, target: float = 0.0, times: int = 7) -> Result:
    """Return the milliseconds that a call takes."""
    spans, works = [], []
    for _ in range(times):
        start, work = time.perf_counter(), processor()
        act()
        spans.append(1e3 * (time.perf_counter() - start))
        works.append(1e3 * (processor() - work))
    middle = statistics.median
    return Result(name, middle(spans), max(spans), target=target, processor=middle(works))


def command(path: Path, *argv: str, target: float = 0.0) -> Result:
    """Time a whole command, including Python's start and its output."""
    call = [sys.executable, "-m", "grpo_tui", *argv, "--db", str(path)]
    shortened = argv if len(argv) < 8 else (*argv[:2], "...", argv[-1])

    def run() -> None:
        subprocess.run(call, check=True, capture_output=True)

    return timed(
        f"`grpo-tui {' '.join(shortened)}`, the whole command", run, target=target, times=5
    )


def report(text: str) -> None:
    """Print to stderr."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


# -- many runs ------------------------------------------------------------------------------------


def runs(folder: Path) -> Iterator[Result]:
    """List and filter ten thousand runs."""
    path = folder / "runs.db"
    data.many_runs(path, RUNS)
    report(f"{RUNS} runs in {path.stat().st_size / 1e6:.0f} MB")
    with closing(StoreReader(path)) as reader:
        yield timed(f"list all of {RUNS:,} runs", reader.runs, target=500)
        for text in (
            "status:failed",
            "recipe:dapo reward>0.5",
            "cfg.algorithm.beta>=0.05",
            "tag:tag-3 !status:failed",
            "run-99 | recipe:gspo",
        ):
            count = len(reader.runs(text))
            yield timed(
                f"filter `{text.replace('|', chr(92) + '|')}`: {count:,} runs",
                partial(reader.runs, text),
                target=500,
            )
        yield timed(
            "sort by `-best reward`, all", lambda: reader.runs(sort="-best reward"), target=500
        )
        yield timed(
            "sort by a setting, first 50",
            lambda: reader.runs(sort="algorithm.beta", limit=50),
            target=500,
        )
        yield timed("name a run by its prefix", lambda: reader.resolve("run-77"[:6] + "77"))
    yield command(path, "runs", "--filter", "recipe:dapo", "--limit", "50")
    yield command(path, "runs", "--json")


# -- long runs ------------------------------------------------------------------------------------


def steps(folder: Path) -> Iterator[Result]:
    """Record a hundred thousand steps, read a series, compare ten such runs."""
    path = folder / "steps.db"
    handle = start_run(path, data.config(), name="long-0")
    handle.put(data.started())
    chance = random.Random(0)
    values = [data.metrics(step, chance) for step in range(1000)]
    start, work = time.perf_counter(), processor()
    for step in range(1, STEPS + 1):
        handle.put(
            ev.StepFinished(
                step=step, metrics=values[step % 1000], tokens=step * 4096, elapsed=float(step)
            )
        )
    assert handle.flush(300), handle.board.view.store_warning
    span, work = time.perf_counter() - start, processor() - work
    handle.put(ev.RunFinished(step=STEPS, reason="completed", summary={}))
    assert handle.close(), handle.board.view.store_warning
    size = path.stat().st_size / 1e6
    report(f"{STEPS} steps in {span:.1f} s and {size:.0f} MB")
    yield Result(
        f"record one of {STEPS:,} steps x {data.METRICS} metrics",
        1e3 * span / STEPS,
        0.0,
        target=1.0,
        processor=1e3 * work / STEPS,
    )
    yield Result("size of a step's metrics", 1e3 * size / STEPS, 0.0, "kB")
    with closing(StoreReader(path)) as reader:
        run = reader.resolve("long-0").key
        yield timed(
            f"read one series of {STEPS:,} steps",
            lambda: reader.metric_series(run, "reward"),
            target=100,
        )
        yield timed(
            "the last 1,000 steps of a series",
            lambda: reader.metric_series(run, "reward", after=STEPS - 1000),
        )
    data.copy_run(path, 9)
    report(f"ten such runs in {path.stat().st_size / 1e6:.0f} MB")
    with closing(StoreReader(path)) as reader:
        long_runs = [reader.resolve(f"long-{number}") for number in range(10)]
        for axis in ("", "step", "tokens", "wall"):
            yield timed(
                "compare ten such runs" + (f", at equal {axis}" if axis else ""),
                partial(compare, reader, long_runs, baseline=long_runs[0], axis=axis),
                target=1000,
                times=3,
            )
    yield command(path, "compare", *(f"long-{number}" for number in range(10)), target=1000)


# -- many rollouts --------------------------------------------------------------------------------


def rollouts(folder: Path) -> Iterator[Result]:
    """Search two hundred thousand rollouts."""
    path = folder / "rollouts.db"
    _write_rollouts(path)
    size = path.stat().st_size / 1e6
    report(f"{ROLLOUTS} rollouts in {size:.0f} MB")
    yield Result("size of a rollout", 1e3 * size / ROLLOUTS, 0.0, "kB")
    with closing(StoreReader(path)) as reader:
        run = reader.resolve("@last").key
        for text in (data.RARE, "the", data.PHRASE, "nswe", "</answer>", "ZZYV", "q!w"):
            yield timed(
                f"50 newest hits of `{text}`, or to the end",
                _search(reader, run, text),
                target=300,
                times=3,
            )
        for sort in ("reward", "advantage", "length", "kl"):
            for text in ("the", data.RARE, data.PHRASE):
                yield timed(
                    f"first hit of `{text}`, sorted by {sort}",
                    _search(reader, run, text, 1, sort=sort),
                    target=500,
                    times=3,
                )
        yield _cancelled(reader, run, "q!w")
        yield _cancelled(reader, run, "the qwertz", sort="kl")


def _write_rollouts(path: Path) -> None:
    handle = start_run(path, data.config(record={"tokens": "none", "rollouts": True}))
    handle.put(data.started())
    chance = random.Random(0)
    number, step = 0, 0
    while number < ROLLOUTS:
        step += 1
        for index in range(32):
            texts = [data.answer(chance, number + offset, ROLLOUTS) for offset in range(8)]
            number += 8
            handle.put(ev.GroupScored(step=step, group=data.group(index, texts, chance)))
        handle.put(ev.StepFinished(step=step, metrics={"reward": 0.5}, tokens=step, elapsed=step))
    assert handle.close(), handle.board.view.store_warning


def _search(
    reader: StoreReader, run: int, text: str, count: int = 50, **options: Any
) -> Callable[[], list[object]]:
    return lambda: list(islice(filter(None, search(reader, run, text, limit=50, **options)), count))


def _cancelled(reader: StoreReader, run: int, text: str, **options: Any) -> Result:
    """Measure how long a search continues after another thread interrupted it."""
    at = 0.0

    def stop() -> None:
        nonlocal at
        at = time.perf_counter()
        reader.interrupt()

    timer = threading.Timer(0.1, stop)
    timer.start()
    try:
        _search(reader, run, text, **options)()
        span = 0.0
    except InterruptedError:
        span = 1e3 * (time.perf_counter() - at)
    timer.cancel()
    return Result("a search stops after it was cancelled", span, 0.0, target=300)


# -- a starter's step -----------------------------------------------------------------------------


def starter(folder: Path) -> Iterator[Result]:
    """Record steps of the starter: metrics, 256 rollouts and their tokens."""
    for tokens in (16, 64):
        path = folder / f"starter-{tokens}.db"
        handle = start_run(path, data.config())
        handle.put(data.started())
        assert handle.flush(10)
        chance = random.Random(0)
        spans, waits, works = [], [], []
        for step in range(1, STARTER + 1):
            events = list(data.starter_step(step, chance, tokens=tokens))
            start, work = time.perf_counter(), processor()
            for event in events:
                handle.put(event)
            waits.append(1e3 * (time.perf_counter() - start))
            assert handle.flush(60), handle.board.view.store_warning
            spans.append(1e3 * (time.perf_counter() - start))
            works.append(1e3 * (processor() - work))
        assert handle.close(), handle.board.view.store_warning
        size = sum(
            file.stat().st_size
            for file in folder.rglob("*")
            if file.is_file() and (path.stem in file.name or handle.id in str(file))
        )
        label = f"256 rollouts of {tokens} tokens"
        yield Result(
            f"record a step: {data.METRICS} metrics, {label}, token numbers",
            statistics.median(spans),
            max(spans),
            target=25,
            processor=statistics.median(works),
        )
        yield Result("of which the trainer waits", statistics.median(waits), max(waits))
        yield Result(f"size of such a step, {label}", size / STARTER / 1e6, 0.0, "MB")


# -- a run of many rollouts -----------------------------------------------------------------------


def opened(folder: Path) -> Iterator[Result]:
    """Record steps of 800 rollouts, then open the run, as Watch and Rollouts do."""
    for tokens, record in ((16, "none"), (16, "all")):
        path = folder / f"opened-{record}.db"
        yield _commits(path, tokens, record)
    count = OPENED * 800
    yield timed(
        f"Watch, first screen of a run of {count:,} rollouts", partial(_watch, path), target=500
    )
    yield timed(
        f"Rollouts, first screen of a run of {count:,} rollouts", partial(_last, path), target=500
    )


def _commits(path: Path, tokens: int, record: str) -> Result:
    """Record `OPENED` steps and return the median of a step's commit."""
    handle = start_run(path, data.config(record={"tokens": record, "rollouts": True}))
    handle.put(data.started())
    assert handle.flush(10)
    chance = random.Random(0)
    spans, works = [], []
    for step in range(1, OPENED + 1):
        events = list(data.starter_step(step, chance, groups=100, tokens=tokens))
        start, work = time.perf_counter(), processor()
        for event in events:
            handle.put(event)
        assert handle.flush(60), handle.board.view.store_warning
        spans.append(1e3 * (time.perf_counter() - start))
        works.append(1e3 * (processor() - work))
    handle.put(ev.RunFinished(step=OPENED, reason="completed", summary={}))
    assert handle.close(), handle.board.view.store_warning
    middle = statistics.median
    return Result(
        f"record a step of 800 rollouts, tokens: {record}",
        middle(spans),
        max(spans),
        processor=middle(works),
    )


def _watch(path: Path) -> None:
    feed = StoreFeed(path, "@last")
    assert feed.caught_up.wait(60)
    feed.close()


def _last(path: Path) -> None:
    with closing(StoreReader(path)) as reader:
        run = reader.resolve("@last")
        reader.run(run.key)
        step = reader.group_steps(run.key)[-1]
        groups = reader.groups(run.key, step=step, origin="train")
        reader.tokens(run.key, groups[0].key)


PARTS: dict[str, Callable[[Path], Iterator[Result]]] = {
    "runs": runs,
    "steps": steps,
    "rollouts": rollouts,
    "starter": starter,
    "opened": opened,
}


def main(args: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(args)
    results: list[Result] = []
    lines = ["| what | median | slowest | processor | target |", "| --- | --- | --- | --- | --- |"]
    for part in chosen.parts or PARTS:
        with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="store-") as folder:
            for result in PARTS[part](Path(folder)):
                results.append(result)
                lines.append(result.line())
                print(lines[-1], flush=True)
    if chosen.out:
        chosen.out.write_text("\n".join(lines) + "\n")
    missed = [result.name for result in results if not result.ok]
    report(f"{len(results)} measured, {len(missed)} missed")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
