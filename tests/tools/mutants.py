"""Changes a package one operator, comparison or constant at a time and counts what tests notice.

    python -m tests.tools.mutants [TARGET] [--sample N] [--seconds N] [--workers N] [--again]

TARGET is one of `TARGETS`, the maths unless told otherwise. Results are kept in `.mutants.jsonl`,
so that an interrupted run can be continued; `--again` tries the survivors once more, `--sample`
takes the same N mutants each time, drawn at random. When every mutant has a result, a report is
printed, and the exit status says whether at least 95 % were noticed and every survivor is explained
in `survivors/`.

Each mutant is tried in a fork, which has none of the threads of MLX: a test that evaluates an array
while it is collected, in an id for instance, waits for them without end.
"""

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

from tests.tools.mutate import Mutant, mutants

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".mutants.jsonl"
LEAST = 0.95
PATIENCE = 1200  # seconds after which a mutant that waits for something counts as noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is mutated, and the tests that must notice."""

    title: str
    modules: tuple[str, ...]  # files or folders
    folder: str  # the tests' folder; each test is a file in it, without `test_` and `.py`
    tests: tuple[str, ...]  # in the order in which they run
    first: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by module, run before
    left_out: str = ""  # what seems to belong to it, and why it does not
    sample: int = 0  # mutants that are drawn, always the same; 0 for all

    def sources(self) -> list[Path]:
        """The files that are mutated."""
        found: list[Path] = []
        for name in self.modules:
            path = ROOT / name
            found += sorted(path.glob("*.py")) if path.is_dir() else [path]
        return [path for path in found if path.stem != "__init__"]

    def test_files(self, module: str = "") -> list[Path]:
        """The files of tests, those most likely to notice a change of the module first."""
        names = dict.fromkeys((*self.first.get(module, ()), *self.tests))
        return [
            (ROOT / self.folder / name).with_name(f"test_{Path(name).name}.py") for name in names
        ]


TARGETS = {
    "maths": Target(
        title="the maths",
        modules=("grpo_engine/maths",),
        folder="tests/engine/maths",
        tests=(
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
            "custom",
            "teacher",
        ),
        first={
            "advantage": ("advantages", "teacher", "critic"),
            "arrays": ("stability", "trl"),
            "critic": ("critic", "gradients"),
            "custom": ("custom",),
            "loss": ("gradients", "around", "stability"),
            "metrics": ("metrics", "target"),
            "ratio": ("gradients", "stability"),
            "reuse": ("reuse", "around"),
            "signal": ("advantages", "teacher", "around"),
            "trust": ("target", "identities", "gradients", "trl"),
            "weight": ("gradients", "around", "stability"),
        },
    ),
    "policy": Target(
        title="scores, updates and adapters of a policy",
        modules=(
            "grpo_engine/policy/adapters.py",
            "grpo_engine/policy/attention.py",
            "grpo_engine/policy/batch.py",
            "grpo_engine/policy/forward.py",
            "grpo_engine/policy/gated_delta.py",
            "grpo_engine/policy/head.py",
            "grpo_engine/policy/lora.py",
            "grpo_engine/policy/optimizer.py",
            "grpo_engine/policy/policy.py",
        ),
        folder="tests/engine/policy",
        tests=("optimizer", "gated_delta", "scores", "attention", "lora", "policy"),
        first={
            "adapters": ("policy",),
            "attention": ("attention",),
            "batch": ("scores",),
            "lora": ("lora",),
            "policy": ("policy",),
        },
    ),
    "rollouts": Target(
        title="prompts, draws and dialogues",
        modules=(
            "grpo_engine/cpu/draw.py",
            "grpo_engine/rollouts/decode.py",
            "grpo_engine/rollouts/graph.py",
            "grpo_engine/rollouts/noise.py",
            "grpo_engine/rollouts/prompts.py",
            "grpo_engine/rollouts/replies.py",
            "grpo_engine/rollouts/row.py",
            "grpo_engine/rollouts/sampler.py",
        ),
        folder="tests/engine/rollouts",
        tests=("sampler", "noise", "token_ends", "prompts", "replies", "rollouts", "dialogues"),
        first={
            "prompts": ("prompts",),
            "replies": ("replies",),
            "row": ("token_ends", "rollouts"),
            "decode": ("rollouts",),
            "graph": ("rollouts",),
        },
    ),
    "settings": Target(
        title="the settings, alerts and events",
        modules=(
            "grpo_engine/config",
            "grpo_engine/alerts",
            "grpo_engine/evaluation/statistics.py",
            "grpo_engine/events.py",
            "grpo_engine/metrics.py",
            "grpo_engine/names.py",
            "grpo_engine/paths.py",
        ),
        folder="tests/engine",
        tests=(
            "config/recipes",
            "config/values",
            "config/parse",
            "config/trl_config",
            "config/removed",
            "config/stop_when",
            "config/hostile_files",
            "alerts/alerts",
            "evaluation/statistics",
            "events",
            "metrics",
            "names",
            "paths",
            "irregular_files",
        ),
        first={
            "rules": ("alerts/alerts",),
            "state": ("alerts/alerts",),
            "trl_config": ("config/trl_config",),
            "stop_when": ("config/stop_when",),
            "conditions": ("config/stop_when",),
            "statistics": ("evaluation/statistics",),
            "events": ("events",),
            "metrics": ("metrics",),
            "names": ("names",),
            "paths": ("paths", "irregular_files"),
        },
    ),
    "users": Target(
        title="rewards, judges and tasks",
        modules=("grpo_engine/rewards", "grpo_engine/tasks", "grpo_engine/environments/calls.py"),
        folder="tests/engine",
        tests=(
            "rewards/rewards",
            "rewards/right",
            "rewards/judge",
            "tasks/tasks",
            "tasks/files",
            "tasks/bad_rows",
            "tasks/code",
            "tasks/arithmetic",
            "tasks/gsm8k_tutorial",
        ),
        left_out="What runs in processes of the sandbox is left out, for a mutant is put into the "
        "process of the tests.",
        sample=60,
    ),
    "training": Target(
        title="what a step trains on",
        modules=(
            "grpo_engine/training/advantages.py",
            "grpo_engine/training/drawing.py",
            "grpo_engine/training/samples.py",
        ),
        folder="tests/engine/training",
        tests=(
            "advantages",
            "gather",
            "refills",
            "drawing",
            "rewards",
            "sft",
            "custom_choices",
            "teacher",
            "trainer",
        ),
        first={"drawing": ("drawing",), "samples": ("advantages", "gather")},
        left_out="Passes and reports are compared with runs of TRL (`test_trl_runs.py`), which "
        "take too long to repeat for each mutant.",
    ),
    "inspector": Target(
        title="the inspector",
        modules=("app/inspector",),
        folder="tests/app/inspector",
        tests=("words", "terms", "groups", "heat", "lab", "inspector"),
        first={"groups": ("groups",), "measures": ("heat",), "layout": ("heat",), "lab": ("lab",)},
    ),
    "charts": Target(
        title="the charts",
        modules=(
            "app/charts/axis.py",
            "app/charts/series.py",
            "app/tui/widgets/charts/plot.py",
            "app/tui/screens/watch/render.py",
            "app/cli/curves.py",
        ),
        folder="tests/app",
        tests=(
            "charts/axis",
            "charts/series",
            "tui/charts",
            "tui/compare/plot",
            "tui/plot",
            "tui/chart_truth",
            "cli/plot",
        ),
        first={
            "plot": ("tui/plot", "tui/compare/plot"),
            "render": ("tui/charts",),
            "series": ("charts/series", "tui/plot"),
            "curves": ("cli/plot",),
        },
        left_out="These map a value to a dot and back: axes, thinning, joins, smoothing. Left out "
        "is what only places or colours whole charts (`app/tui/widgets/charts/stack.py`, "
        "`app/tui/screens/compare/panels.py`, `app/tui/screens/runs/render.py`): no number "
        "changes in it.",
    ),
    "cli": Target(
        title="the command line",
        modules=(
            "app/cli/output.py",
            "app/cli/run_config.py",
            "app/cli/store_access.py",
            "app/cli/strict.py",
            "app/cli/verbs/compare.py",
            "app/cli/verbs/explain.py",
            "app/cli/verbs/plan.py",
            "app/cli/verbs/report.py",
            "app/cli/verbs/requests.py",
            "app/cli/verbs/rollouts.py",
            "app/cli/verbs/runs.py",
            "app/cli/verbs/sweep.py",
            "app/text/run_columns.py",
            "app/text/safe_text.py",
            "app/text/table.py",
        ),
        folder="tests/app",
        tests=(
            "text/safe_text",
            "cli/explain",
            "cli/plan",
            "cli/refused_values",
            "cli/reports",
            "cli/store_commands",
        ),
        sample=40,
    ),
    "screens": Target(
        title="the state of Watch and the state and text of Rollouts",
        modules=(
            "app/tui/screens/watch/state.py",
            "app/tui/screens/rollouts/state.py",
            "app/tui/screens/rollouts/render.py",
        ),
        folder="tests/app/tui",
        tests=(
            "screens/rollouts_words",
            "screens/long_answers",
            "charts",
            "screens/dialogues",
            "screens/rollouts",
            "screens/watch",
        ),
        sample=20,
    ),
    "compare": Target(
        title="what Compare says",
        modules=(
            "app/charts/stored.py",
            "app/text/comparison.py",
            "app/tui/screens/compare/render.py",
            "app/tui/screens/compare/state.py",
        ),
        folder="tests/app",
        tests=(
            "text/comparison",
            "charts/stored",
            "tui/compare/plot",
            "tui/compare/unequal_training",
            "tui/compare/pages",
            "tui/compare/compare",
            "tui/compare/looks",
            "tui/compare/choosing_runs",
            "tui/chart_truth",
        ),
        sample=40,
    ),
    "runs": Target(
        title="the list of runs on the screen",
        modules=(
            "app/text/run_columns.py",
            "app/tui/screens/runs/render.py",
            "app/tui/screens/runs/state.py",
        ),
        folder="tests/app",
        tests=("tui/screens/runs", "tui/chart_truth", "cli/store_commands"),
        sample=40,
    ),
    "form": Target(
        title="the form of New run",
        modules=(
            "app/tui/screens/new_run/columns.py",
            "app/tui/screens/new_run/render.py",
            "app/tui/screens/new_run/state.py",
        ),
        folder="tests/app/tui/new_run",
        tests=("form", "view", "choosing", "sweeps", "new_run", "own_data", "trials"),
        sample=40,
    ),
    "feed": Target(
        title="what is told of a run while it trains or is replayed",
        modules=("app/feed",),
        folder="tests/app/feed",
        tests=(
            "run_state",
            "attempts",
            "run_health",
            "sampler_gap",
            "session",
            "replay",
            "record_first",
            "demo",
        ),
        first={"replay": ("replay",)},
        sample=40,
    ),
    "files": Target(
        title="pages, bundles and files of problems",
        modules=("app/bundle", "app/datasets", "app/page"),
        folder="tests/app",
        tests=(
            "datasets/prompts",
            "datasets/answers",
            "datasets/rows",
            "datasets/trl_reads",
            "page/page",
            "bundle/bundle",
        ),
        first={"curves": ("page/page",)},
        sample=40,
    ),
    "jobs": Target(
        title="what starts, tries and queues runs",
        modules=("app/jobs", "app/trial", "app/chat", "app/health"),
        folder="tests/app",
        tests=(
            "jobs/report_table",
            "jobs/progress",
            "jobs/sweep",
            "jobs/begin_from",
            "jobs/start",
            "jobs/power",
            "jobs/queue_worker",
            "trial/offers",
            "trial/ready",
            "trial/trial",
            "chat",
            "server_health",
        ),
        sample=40,
    ),
    "store": Target(
        title="the store",
        modules=(
            "experiments/store.py",
            "experiments/reader.py",
            "experiments/read/connection.py",
            "experiments/record/writer.py",
            "experiments/record/spill.py",
            "experiments/record/recorder.py",
            "experiments/db/tokens.py",
        ),
        folder="tests/experiments",
        tests=(
            "values",
            "tokens",
            "reader",
            "round_trip",
            "unmeasured",
            "deleting",
            "queue",
            "recorder",
            "faults",
            "hostile_stores",
            "search",
        ),
        first={
            "tokens": ("tokens",),
            "writer": ("round_trip", "unmeasured"),
            "recorder": ("recorder", "faults"),
            "spill": ("faults",),
            "store": ("deleting", "queue"),
        },
        sample=40,
    ),
    "sharing": Target(
        title="comparisons, exports, imports and bundles of runs",
        modules=(
            "experiments/compare",
            "experiments/export",
            "experiments/board.py",
            "experiments/bundles.py",
            "experiments/importing.py",
            "experiments/search.py",
        ),
        folder="tests/experiments",
        tests=(
            "effects",
            "paired",
            "compare",
            "export",
            "export_trackio",
            "live_trackers",
            "board",
            "bundles",
            "importing",
            "planted_ids",
            "results",
            "search",
        ),
        first={
            "effects": ("effects", "paired"),
            "trackio": ("export_trackio",),
            "trackers": ("live_trackers",),
            "board": ("board",),
            "bundles": ("bundles",),
            "importing": ("importing", "planted_ids"),
            "search": ("search",),
        },
        sample=60,
    ),
    "record": Target(
        title="runs that other trainers record",
        modules=("grpo_tui/record.py", "grpo_tui/trl"),
        folder="tests/record",
        tests=("record", "trl_steps", "trl_script"),
        sample=60,
    ),
    "foreign": Target(
        title="files of other trainers",
        modules=("grpo_tui/foreign",),
        folder="tests/foreign",
        tests=(
            "trl",
            "verifiers",
            "nemo_rl",
            "trackio",
            "prime_rl",
            "importing",
            "hostile_files",
            "what_screens_show",
        ),
        first={
            "importing": ("importing", "hostile_files"),
            "nemo_rl": ("nemo_rl",),
            "prime_rl": ("prime_rl",),
            "trackio": ("trackio",),
        },
        sample=60,
    ),
    "remote": Target(
        title="runs whose weights are on a server",
        modules=("grpo_engine/remote",),
        folder="tests/engine/remote",
        tests=("calls", "service", "remote_runs", "hostile_runs"),
        sample=60,
    ),
    "environments": Target(
        title="environments, agents and tool servers",
        modules=("grpo_engine/environments", "grpo_engine/sandbox/client.py"),
        folder="tests/engine",
        tests=(
            "environments/verifiers",
            "environments/client",
            "environments/trl",
            "environments/runs",
            "environments/agents",
            "environments/tool_servers",
            "environments/strangers",
            "sandbox/sandbox",
        ),
        sample=60,
    ),
    "setup": Target(
        title="what a run needs before and between its steps",
        modules=("grpo_engine/setup", "grpo_engine/run", "grpo_engine/api"),
        folder="tests/engine",
        tests=(
            "setup/alert_limits",
            "setup/code_version",
            "setup/server_cost",
            "setup/memory_plan",
            "setup/preflight",
            "api/settings",
            "api/public",
            "api/runs",
            "api/environments",
            "api/probe",
            "run/clock",
            "run/checkpoint",
            "run/failed_runs",
            "run/full_disk",
            "run/gpu_faults",
            "consent",
        ),
        sample=60,
    ),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One mutant of one module, which is named by its path without `.py`."""

    path: str
    mutant: Mutant

    @property
    def module(self) -> str:
        """The module's last name."""
        return Path(self.path).name

    def function(self) -> range:
        """The lines of the outermost function around the change; empty if there is none."""
        return next(
            (lines for lines in functions(self.path) if self.mutant.line in lines), range(0)
        )

    def change(self) -> str:
        """A hash of the change, which other changes of the file leave as it is."""
        text = f"{self.path}\n{self.mutant.before}\n{self.mutant.after}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def key(self) -> str:
        """The mutated source, independent of its line number."""
        return hashlib.sha256(f"{self.path}\n{self.mutant.source}".encode()).hexdigest()[:20]


@cache
def functions(path: str) -> list[range]:
    """The lines of each function and method of a module, decorators included."""
    found = []
    waiting: list[ast.AST] = [ast.parse((ROOT / path).with_suffix(".py").read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min(part.lineno for part in (node, *node.decorator_list))
            found.append(range(first, (node.end_lineno or node.lineno) + 1))
        else:
            waiting += ast.iter_child_nodes(node)
    return found


def module_name(path: str) -> str:
    """The name by which the module of a file is imported."""
    name = path.replace("/", ".")
    return name if name.startswith(("grpo_engine.", "grpo_tui.")) else f"grpo_tui.{name}"


def install(job: Job) -> None:
    """Put a mutant in place of its module, wherever that was imported."""
    name = module_name(job.path)
    module = sys.modules[name]
    changed: dict[str, Any] = {"__name__": name, "__file__": module.__file__}
    exec(compile(job.mutant.source, str(module.__file__), "exec"), changed)
    for key, new in changed.items():
        old = module.__dict__.get(key)
        imported = isinstance(new, FunctionType | type) and new.__module__ != name
        if imported or key.startswith("__"):
            continue
        if isinstance(new, FunctionType) and isinstance(old, FunctionType):
            transplant(old, new)
        elif isinstance(new, type) and isinstance(old, type):
            replace_parts(old, new)
        else:
            rebind(key, old, new)


def replace_parts(old: type, new: type) -> None:
    """Replace a class's methods and plain constants by another's."""
    for name, part in vars(new).items():
        if isinstance(part, int | float | str | tuple) and not name.startswith("__"):
            setattr(old, name, part)
        else:
            transplant(vars(old).get(name), part)


def transplant(old: object, new: object) -> None:
    """Replace the code and defaults of a function, property or wrapped function by another's."""
    for within in ("fget", "__func__"):
        if not isinstance(new, FunctionType) and isinstance(
            getattr(new, within, None), FunctionType
        ):
            old, new = getattr(old, within, None), getattr(new, within)
    if isinstance(old, FunctionType) and isinstance(new, FunctionType):
        old.__code__, old.__defaults__ = new.__code__, new.__defaults__
        old.__kwdefaults__ = new.__kwdefaults__


def rebind(key: str, old: object, new: object) -> None:
    """Replace a constant wherever it was imported under its name."""
    for other in list(sys.modules.values()):
        space = getattr(other, "__dict__", {})
        if key in space and space[key] is old:
            space[key] = new


def jobs(target: Target) -> list[Job]:
    """Every mutant of every file, or those of the sample."""
    found = []
    for source in target.sources():
        path = str(source.relative_to(ROOT).with_suffix(""))
        found += [Job(path, mutant) for mutant in mutants(source.read_text())]
    if 0 < target.sample < len(found):
        found.sort(key=Job.change)
        found = found[: target.sample]
    return found


@dataclass(frozen=True, slots=True)
class Trial:
    """What the tests do without any mutant: the modules they import, and what each test calls."""

    modules: list[str] = field(default_factory=list)
    calls: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # path and first line
    seconds: dict[str, float] = field(default_factory=dict)  # of computing

    def reached(self, job: Job, test: str) -> bool:
        """Whether a test calls the mutated function; any may notice a change outside of one."""
        lines = job.function()
        return not lines or any(
            path == job.path and line in lines for path, line in self.calls[test]
        )

    def limit(self, test: str) -> float:
        """Seconds of computing after which a test hangs; nothing traces it then."""
        return 2 + 2 * self.seconds[test]


class Calls:
    """Notes which functions of some files are called."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = {str(sys.modules[module_name(path)].__file__): path for path in paths}
        self.found: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, _event: str, _arg: object) -> None:
        """Note a call, as a trace function."""
        path = self.paths.get(frame.f_code.co_filename)
        if path is not None:
            self.found.add((path, frame.f_code.co_firstlineno))

    def of(self, item: pytest.Item, following: pytest.Item | None) -> list[tuple[str, int]]:
        """Run a test, and return what it calls."""
        self.found = set()
        threading.settrace(self)
        sys.settrace(self)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        return sorted(self.found)


class Loop:
    """A pytest plug-in that runs the collected tests once per mutant, each in a child process."""

    def __init__(self, target: Target, todo: Sequence[Job], workers: int, seconds: float) -> None:
        self.target, self.todo, self.workers, self.seconds = target, todo, workers, seconds

    def pytest_sessionstart(self) -> None:
        """Shrink no failing example and look for no other: that a test fails is enough."""
        from hypothesis import Phase, settings  # pytest wants to be the first to import it

        kept = settings.get_profile("tests")
        settings.register_profile(
            "mutants", kept, phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try mutants in parallel until all are done or time runs out."""
        for path in {job.path for job in self.todo}:
            importlib.import_module(module_name(path))
        trial = self.trial(session)
        prepare(trial)
        waiting, running = list(reversed(self.todo)), dict[int, tuple[Job, float]]()
        end, done = time.monotonic() + self.seconds, 0
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < self.workers and time.monotonic() < end:
                job = waiting.pop()
                running[start(job, session, self.target, trial)] = (job, time.monotonic())
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

    def trial(self, session: pytest.Session) -> Trial:
        """Run all tests in a child without any mutant."""
        with tempfile.NamedTemporaryFile("w+") as file:
            child = fork()
            if not child:
                calls, found = Calls({job.path for job in self.todo}), Trial()
                for item, following in zip_longest(session.items, session.items[1:]):
                    begin = time.process_time()
                    found.calls[item.nodeid] = calls.of(item, following)
                    found.seconds[item.nodeid] = time.process_time() - begin
                found.modules.extend(sys.modules)
                file.write(json.dumps(asdict(found)))
                file.flush()
                os._exit(session.testsfailed)
            _, status = os.waitpid(child, 0)
            if status != 0:
                raise pytest.UsageError("the tests fail without any mutant: mend them first")
            file.seek(0)
            return Trial(**json.load(file))


def prepare(trial: Trial) -> None:
    """Do once what each child would do: import, look for constants in what is imported, collect."""
    from hypothesis import given, strategies

    for name in trial.modules:
        with contextlib.suppress(ImportError, SyntaxError):
            importlib.import_module(name)
    given(strategies.none())(lambda _: None)()
    gc.collect()
    gc.freeze()


def start(job: Job, session: pytest.Session, target: Target, trial: Trial) -> int:
    """Test a mutant in a child; exit status 0 if all tests pass."""
    child = fork()
    if child:
        return child
    try:
        install(job)
        files = target.test_files(job.module)
        order = {path: rank for rank, path in enumerate(files)}
        items = [item for item in session.items if trial.reached(job, item.nodeid)]
        items.sort(key=lambda item: (order[item.path], searches(item)))
        for item, following in zip_longest(items, items[1:]):
            signal.setitimer(signal.ITIMER_PROF, trial.limit(item.nodeid))  # ends the child
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(1)
    except BaseException:  # a mutant that cannot be imported counts as noticed
        os._exit(1)
    os._exit(0)


def fork() -> int:
    """Start a child that prints nothing; its process id, or 0 in it."""
    child = os.fork()
    if not child:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
    return child


def searches(item: pytest.Item) -> bool:
    """Whether hypothesis looks for an example; the examples by hand of a file run before."""
    return hasattr(getattr(item, "obj", None), "hypothesis")


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


def table(name: str, every: Sequence[Job], survived: dict[str, bool]) -> tuple[str, bool]:
    """The report in Markdown, and whether the tests notice enough mutants."""
    target = TARGETS[name]
    given = Path(__file__).parent / "survivors" / f"{name}.toml"
    reasons = tomllib.loads(given.read_text()) if given.exists() else {}
    left = [job for job in every if survived[job.key]]
    explained = {job.key: reason(job, reasons) for job in left}
    share = 1 - len(left) / len(every)
    good = share >= LEAST and all(explained.values())
    folders = " or ".join(
        f"`{one if one.endswith('.py') else one + '/'}`" for one in target.modules
    )
    command = "make mutants" if name == "maths" else f"make mutants ARGS={name}"
    lines = [
        f"# Mutants of {target.title}",
        "",
        f"`{command}`: each row changes one operator, comparison, constant, extreme, "
        f"branch or stop_gradient of a module in {folders}, and asks whether a test in "
        f"`{target.folder}/` turns red.",
        "",
        f"**{len(every)} mutants, {len(every) - len(left)} noticed ({share:.1%})**; "
        f"{len(left)} survivors, explained below.",
        "",
        *([target.left_out, ""] if target.left_out else []),
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
    """Try mutants without a result, and print the report when all have one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", choices=tuple(TARGETS), default="maths")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting after this long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    parser.add_argument("--sample", type=int, help="try so many mutants, the same each time")
    options = parser.parse_args()
    target = TARGETS[options.target]
    every, known = jobs(target), results()
    if options.sample:
        every = random.Random(0).sample(every, min(options.sample, len(every)))
    todo = [job for job in every if job.key not in known or (options.again and known[job.key])]
    if todo:
        plain = ["-s", "-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:randomly"]
        loop = Loop(target, todo, options.workers, options.seconds)
        pytest.main([*plain, *map(str, target.test_files())], plugins=[loop])
    known = results()
    missing = sum(job.key not in known for job in every)
    if missing:
        print(f"{missing} of {len(every)} mutants have no result yet; run this again")
        return 3
    page, good = table(options.target, every, known)
    print(page)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
