"""Changes the maths one operator, comparison or constant at a time and counts what tests notice.

    python -m tests.tools.mutants [--seconds N] [--workers N] [--again]

Results are kept in `.mutants.jsonl`, so that an interrupted run can be continued; `--again` tries
the survivors once more. When every mutant has a result, `docs/mutants.md` is written, and the exit
status says whether at least 95 % were noticed and every survivor is explained.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.tools.mutate import Mutant, mutants

ROOT = Path(__file__).parents[2]
MATHS = ROOT / "grpo_engine" / "maths"
RESULTS = ROOT / ".mutants.jsonl"
REASONS = Path(__file__).with_name("survivors.toml")
TABLE = ROOT / "docs" / "mutants.md"
LEAST = 0.95
PATIENCE = 120.0  # seconds after which a mutant that hangs counts as noticed

# The tests most likely to notice, by module; the rest run after them in this order.
FILES = (
    "worked_numbers",
    "advantages",
    "critic",
    "metrics",
    "target",
    "around",
    "reuse",
    "trl",
    "gradients",
    "identities",
    "stability",
    "edges",
)
FIRST = {
    "advantage": ("advantages", "critic"),
    "around": ("around",),
    "batch": ("stability", "trl"),
    "critic": ("critic", "gradients"),
    "groups": ("advantages",),
    "loss": ("gradients", "around", "stability"),
    "metrics": ("metrics", "target"),
    "process": ("advantages",),
    "ratio": ("gradients", "stability"),
    "reuse": ("reuse",),
    "signal": ("advantages",),
    "target": ("target",),
    "trust": ("identities", "gradients", "trl"),
    "weight": ("gradients", "around", "stability"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One mutant of one module."""

    module: str
    mutant: Mutant

    @property
    def key(self) -> str:
        """The mutated source, independent of its line number."""
        return hashlib.sha256(f"{self.module}\n{self.mutant.source}".encode()).hexdigest()[:20]


def install(job: Job) -> None:
    """Put a mutant in place of its module, wherever that was imported."""
    name = f"grpo_engine.maths.{job.module}"
    module = sys.modules[name]
    changed: dict[str, Any] = {"__name__": name}
    exec(compile(job.mutant.source, str(module.__file__), "exec"), changed)
    for key, new in changed.items():
        old = module.__dict__.get(key)
        if getattr(new, "__module__", name) != name or key.startswith("__"):
            continue
        if isinstance(new, FunctionType) and isinstance(old, FunctionType):
            transplant(old, new)
        elif isinstance(new, type):
            for part, method in vars(new).items():
                transplant(vars(old).get(part), method)
        else:
            rebind(key, old, new)


def transplant(old: object, new: object) -> None:
    """Replace the code and defaults of a function, property or wrapped function by another's."""
    if isinstance(new, property):
        old, new = getattr(old, "fget", None), new.fget
    if isinstance(old, FunctionType) and isinstance(new, FunctionType):
        old.__code__, old.__defaults__ = new.__code__, new.__defaults__
        old.__kwdefaults__ = new.__kwdefaults__


def rebind(key: str, old: object, new: object) -> None:
    """Replace a constant wherever it was imported under its name."""
    for other in list(sys.modules.values()):
        space = getattr(other, "__dict__", {})
        if key in space and space[key] is old:
            space[key] = new


def jobs() -> list[Job]:
    sources = sorted(path for path in MATHS.glob("*.py") if path.stem != "__init__")
    return [Job(path.stem, mutant) for path in sources for mutant in mutants(path.read_text())]


class Loop:
    """A pytest plug-in that runs the collected tests once per mutant, each in a child process."""

    def __init__(self, todo: Sequence[Job], workers: int, seconds: float) -> None:
        self.todo, self.workers, self.seconds = todo, workers, seconds

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try mutants in parallel until all are done or time runs out."""
        _, status = os.waitpid(start(None, session), 0)
        if status != 0:
            raise pytest.UsageError("the tests fail without any mutant: mend them first")
        waiting, running = list(reversed(self.todo)), dict[int, tuple[Job, float]]()
        end, done = time.monotonic() + self.seconds, 0
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < self.workers and time.monotonic() < end:
                job = waiting.pop()
                running[start(job, session)] = (job, time.monotonic())
            child, status = os.waitpid(-1, os.WNOHANG)
            if child in running:
                job, _ = running.pop(child)
                keep(job, survived=status == 0)
                done += 1
                print(f"\r{done} of {len(self.todo)}", end="", file=sys.stderr, flush=True)
                continue
            for child, (_, since) in running.items():
                if time.monotonic() - since > PATIENCE:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        print(file=sys.stderr)
        return True


def start(job: Job | None, session: pytest.Session) -> int:
    """Test a mutant, or the unchanged source, in a child; exit status 0 if all tests pass."""
    child = os.fork()
    if child:
        return child
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        first: tuple[str, ...] = ()
        if job is not None:
            install(job)
            first = FIRST.get(job.module, ())
        order = {
            f"test_{name}.py": rank for rank, name in enumerate(dict.fromkeys((*first, *FILES)))
        }
        for item in sorted(session.items, key=lambda item: order[item.path.name]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.testsfailed:
                os._exit(1)
    except BaseException:  # a mutant that cannot be imported counts as noticed
        os._exit(1)
    os._exit(0)


def keep(job: Job, survived: bool) -> None:
    """Save one result."""
    with RESULTS.open("a") as file:
        file.write(json.dumps({"key": job.key, "survived": survived}) + "\n")


def results() -> dict[str, bool]:
    """Whether each mutant tried so far survived, by its latest result."""
    if not RESULTS.exists():
        return {}
    rows = map(json.loads, RESULTS.read_text().splitlines())
    return {row["key"]: row["survived"] for row in rows}


def reason(job: Job, reasons: dict[str, list[dict[str, str]]]) -> str:
    """Why a survivor is no gap in the tests; empty if unexplained."""
    for entry in reasons.get(job.module, []):
        same = (entry["before"], entry["after"]) == (job.mutant.before, job.mutant.after)
        if same:
            return entry["why"]
    return ""


def table(every: Sequence[Job], survived: dict[str, bool]) -> tuple[str, bool]:
    """The page for `docs/`, and whether the tests notice enough mutants."""
    reasons = tomllib.loads(REASONS.read_text()) if REASONS.exists() else {}
    left = [job for job in every if survived[job.key]]
    explained = {job.key: reason(job, reasons) for job in left}
    share = 1 - len(left) / len(every)
    good = share >= LEAST and all(explained.values())
    lines = [
        "# Mutants of the maths",
        "",
        "Written by `make mutants`: each row changes one operator, comparison, constant, extreme, "
        "branch or stop_gradient of a module in `grpo_engine/maths/`, and asks whether a test in "
        "`tests/engine/maths/` turns red.",
        "",
        f"**{len(every)} mutants, {len(every) - len(left)} noticed ({share:.1%})**; "
        f"{len(left)} survivors, explained below.",
        "",
        "| module | mutants | noticed | survivors |",
        "| --- | ---: | ---: | ---: |",
    ]
    by_module = Counter(job.module for job in every)
    for module, count in sorted(by_module.items()):
        missed = sum(job.module == module for job in left)
        lines.append(f"| `{module}.py` | {count} | {count - missed} | {missed} |")
    lines += ["", "| kind | mutants | noticed |", "| --- | ---: | ---: |"]
    for kind, count in sorted(Counter(job.mutant.kind for job in every).items()):
        missed = sum(job.mutant.kind == kind for job in left)
        lines.append(f"| {kind} | {count} | {count - missed} |")
    lines += ["", "## Survivors", ""]
    for job in left:
        why = explained[job.key] or "**not explained**"
        lines += [
            f"- `{job.module}.py`: {why}",
            "",
            "  ```diff",
            f"  - {job.mutant.before}",
            f"  + {job.mutant.after}",
            "  ```",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n", good


def main() -> int:
    """Try mutants without a result, and write the page when all have one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting after this long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    asked = parser.parse_args()
    every, known = jobs(), results()
    todo = [job for job in every if job.key not in known or (asked.again and known[job.key])]
    files = [str(ROOT / f"tests/engine/maths/test_{name}.py") for name in FILES]
    plain = ["-s", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    pytest.main([*plain, *files], plugins=[Loop(todo, asked.workers, asked.seconds)])
    known = results()
    missing = sum(job.key not in known for job in every)
    if missing:
        print(f"{missing} of {len(every)} mutants have no result yet; run this again")
        return 3
    page, good = table(every, known)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(page)
    print(page.split("\n\n")[2])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
