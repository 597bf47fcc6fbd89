"""Check this program on a new kind of machine; the report can be pasted into an issue.

    python -m benchmarks.device [--quick] [--out device-report.md]

`doctor`; starter steps in each number format; log-probabilities compared with the processor in
float32; a run that is killed and resumed; matrix products; a fault of the GPU that is injected and
survived; memory; decoding and updates beside mlx-lm's; the engine's priority; the workbench in a
terminal. Each part runs in its own process with
a time limit, so that a crash or hang does not affect the others. The report names no user, host or
folder. The exit status is 1 if a part failed.
"""

import argparse
import ctypes
import getpass
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Literal

from grpo_engine.platform import device
from grpo_engine.versions import versions
from grpo_tui.app import exit_codes
from grpo_tui.app.health import machine
from tests.e2e.training import events_in, facts_by_step

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ("float32", "bfloat16", "float16")
SECONDS = 580.0  # for all parts together
GAP = "sampling/sampling_logp_difference"
RATES = {"lora": "7e-4", "full": "1e-5"}
REFUSABLE = "full, float16"
COMPARED = ("reward", "loss", "kl", "entropy")  # a GPU may sum these in another order
CLOSE = 0.1  # largest accepted difference then
APART = {"float32": 1e-4, "bfloat16": 5e-3, "float16": 1e-3}  # nats per token, mean
QUIET = ("evaluation.before_and_after=false", "evaluation.pinned=0")
TITLES = {
    "steps": "| run | s/step | tokens/s sampled | sampler-trainer gap, mean and max (nats) "
    "| peak GB |",
    "parity": "| nats a token from the processor in float32 | mean | max | allowed mean |",
    "products": "| float32 product | GFLOP/s | ms |",
    "beside": "| starter, bfloat16, 8 rows | ms |",
    "memory": "| memory of three steps | GB |",
    "priority": "| class of the engine's thread | ms of a decode step |",
    "machine": "| machine | |",
}
FAULT = (
    "[METAL] Command buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
)
CLASSES = {"user initiated": 0x19, "utility": 0x11}  # of `pthread_set_qos_class_self_np`
PRESSES = 30
Events = list[dict[str, Any]]
Tables = Mapping[str, Sequence[Sequence[object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A line of the report, and rows for its tables."""

    passed: bool
    seen: str
    rows: Tables = field(default_factory=dict)
    name: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a command."""

    status: int
    out: str = ""
    err: str = ""
    late: bool = False

    @property
    def problem(self) -> str:
        """Return the last lines of output of a failed command."""
        if self.late:
            return "cut off at its time limit"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        failed = [e["message"] for e in events_in(self.out) if e["event"] == "RunFailed"]
        lines = failed or self.err.strip().splitlines() or [f"exit status {self.status}"]
        return str(lines[-1])


class Children:
    """Runs commands of this project, each until its time limit or the common deadline."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.end = monotonic() + seconds

    def run(
        self,
        *arguments: str,
        limit: float,
        until: Callable[[str], bool] | None = None,
        **environment: str,
    ) -> Done:
        """Run to the end; a line of output that `until` accepts makes it send SIGKILL."""
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                start_new_session=True,
                text=True,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
            ) as process,
        ):
            late = threading.Event()

            def kill() -> None:
                late.set()
                os.killpg(process.pid, signal.SIGKILL)

            timer = threading.Timer(max(1.0, min(limit, self.end - monotonic())), kill)
            timer.start()
            lines = []
            for line in process.stdout or ():
                lines.append(line)
                if until is not None and until(line):
                    process.kill()
            status = process.wait()
            timer.cancel()
            errors.seek(0)
            return Done(status, "".join(lines), errors.read(), late.is_set())

    def train(self, folder: Path, *settings: str, steps: int, **options: Any) -> Done:
        """Train the starter for some steps without a store."""
        chosen = [argument for setting in (*QUIET, *settings) for argument in ("--set", setting)]
        return self.run(
            "grpo_tui",
            "train",
            "--preset",
            "starter",
            "--json",
            "--no-store",
            str(folder),
            "--steps",
            str(steps),
            *chosen,
            **options,
        )


def parts(children: Children, workdir: Path, *, quick: bool) -> Iterator[Part]:
    """Run all parts in order, each named and timed; a failing part does not affect the others."""
    steps = 2 if quick else 10
    todo: dict[str, Callable[[], Part]] = {"doctor": partial(doctor, children)}
    for tuning, count in (("lora", steps), ("full", 2)):
        for dtype in DTYPES:
            run = partial(training, children, workdir, tuning, dtype, count)
            todo[f"{count} steps, {tuning}, {dtype}"] = run
    todo["parity"] = partial(inside, children, "parity")
    for dtype in DTYPES[: 1 if quick else 2]:
        todo[f"kill and resume, {dtype}"] = partial(killing, children, workdir, dtype)
    for name in list(PARTS)[1:]:
        todo[name] = partial(inside, children, name)
    todo["workbench"] = partial(workbench, children, workdir)
    for name, do in todo.items():
        begun = monotonic()
        try:
            part = do()
        except Exception as error:
            part = Part(passed=False, seen=f"{type(error).__name__}: {error}")
        yield replace(part, name=name, seconds=monotonic() - begun)


def doctor(children: Children) -> Part:
    """Return the facts of `doctor` on machine and MLX; the others describe the user's setup."""
    done = children.run("grpo_tui", "doctor", "--json", limit=90)
    try:
        checks = json.loads(done.out)["facts"]
    except (ValueError, KeyError):
        return Part(passed=False, seen=done.problem)
    bad = [check["name"] for check in checks if check["level"] != "fine"]
    rows = [
        (check["name"], " → ".join(filter(None, (check["found"], check["remedy"]))))
        for check in checks
        if check["area"] in ("Machine", "MLX")
    ]
    seen = f"warns of: {', '.join(bad)}" if bad else "nothing to complain about"
    return Part(passed=done.status == 0, seen=seen, rows={"machine": rows})


def training(children: Children, workdir: Path, tuning: str, dtype: str, steps: int) -> Part:
    """Train the starter: all steps must finish with finite numbers; also report their speed."""
    done = children.train(
        workdir / f"{tuning}-{dtype}",
        f"model.dtype={dtype}",
        f"model.tuning={tuning}",
        f"optimizer.learning_rate={RATES[tuning]}",
        steps=steps,
        limit=240,
    )
    return judged(f"{tuning}, {dtype}", done, steps)


def judged(name: str, done: Done, steps: int) -> Part:
    """Return the verdict on a run's events."""
    results = [e["metrics"] for e in events_in(done.out) if e["event"] == "StepFinished"]
    if name == REFUSABLE and done.status == exit_codes.USAGE and not results:
        return Part(passed=True, seen=f"refused, as it should be: {done.problem}")
    # JSON has no infinities or NaN, so they are strings
    odd = sorted({k for m in results for k, value in m.items() if not isfinite(float(value))})
    seen = f"{len(results)} of {steps} steps" + (f"; {done.problem}" if done.status else "")
    seen += f"; not finite: {', '.join(odd)}" * bool(odd)
    if not results:
        return Part(passed=False, seen=seen)
    late = results[1:] or results  # the first step also warms up

    def typical(key: str) -> float:
        return median(float(m.get(key, 0)) for m in late)

    def largest(key: str) -> float:
        return max(float(m.get(key, 0)) for m in results)

    row = (
        name,
        f"{typical('step_time'):.2f}",
        f"{typical('tokens_per_second'):.0f}",
        f"{typical(f'{GAP}/mean'):.1e}, {largest(f'{GAP}/max'):.1e}",
        f"{largest('memory/peak_gb'):.2f}",
    )
    passed = done.status == 0 and len(results) == steps and not odd
    return Part(passed=passed, seen=seen, rows={"steps": [row]})


def killing(children: Children, workdir: Path, dtype: str, steps: int = 6) -> Part:
    """Kill a run in its fourth step and resume it, and compare it with an uninterrupted one."""
    settings = (f"model.dtype={dtype}", "rollout.prompts=4", "checkpoint.every=2")
    # Other programs would change the number of threads that sum, and so the last digits.
    same: dict[str, Any] = {"limit": 120, "GRPO_TUI_THREADS": "1"}
    unbroken = children.train(workdir / f"whole-{dtype}", *settings, steps=steps, **same)
    if unbroken.status:
        return Part(passed=False, seen=f"the unbroken run: {unbroken.problem}")
    cut = workdir / f"cut-{dtype}"

    def third(line: str) -> bool:
        return any((e["event"], e["step"]) == ("StepFinished", 3) for e in events_in(line))

    killed = children.train(cut, *settings, steps=steps, until=third, **same)
    if killed.late or killed.status != -signal.SIGKILL:
        return Part(passed=False, seen=f"the run to be killed: {killed.problem}")
    resumed = children.run("grpo_tui", "resume", str(cut), "--json", **same)
    if resumed.status:
        return Part(passed=False, seen=f"the resumed run: {resumed.problem}")
    return compared(events_in(unbroken.out), events_in(killed.out), events_in(resumed.out))


def compared(unbroken: Events, killed: Events, resumed: Events) -> Part:
    """Compare bit for bit on a processor, within a tolerance on a GPU."""
    expected = facts_by_step(unbroken)
    if min(facts_by_step(resumed), default=1) == 1:
        return Part(passed=False, seen="the resumed run began again at step 1")
    if {**facts_by_step(killed), **facts_by_step(resumed)} == expected:
        return Part(passed=True, seen=f"{len(expected)} steps equal bit for bit")
    metrics = [
        {e["step"]: e["metrics"] for e in events if e["event"] == "StepFinished"}
        for events in (unbroken, [*killed, *resumed])
    ]
    gaps = {
        key: max(
            abs(m.get(key, 0.0) - metrics[1][step].get(key, 0.0))
            for step, m in metrics[0].items()
            if step in metrics[1]
        )
        for key in COMPARED
    }
    on_gpu = any("gpu" in e["device"] for e in unbroken if e["event"] == "RunStarted")
    passed = on_gpu and metrics[0].keys() == metrics[1].keys() and max(gaps.values()) <= CLOSE
    texts = ", ".join(f"{key} {value:.1e}" for key, value in gaps.items())
    return Part(passed=passed, seen=f"not bit for bit; apart by at most {texts}")


def inside(children: Children, name: str) -> Part:
    """Run a part that needs MLX in its own process."""
    done = children.run("benchmarks.device", "--part", name, limit=120)
    try:
        return Part(**json.loads(done.out.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return Part(passed=False, seen=done.problem)


def products() -> Part:
    """Measure the rates of a large and of a skinny product."""
    from grpo_engine.platform import speed

    results = [speed.measure(shape) for shape in (speed.SQUARE, speed.SKINNY)]
    rows = [
        ("x".join(map(str, product.shape)), f"{product.gflops:.0f}", f"{product.milliseconds:.2f}")
        for product in results
    ]
    seen = f"{results[0].gflops:.0f} GFLOP/s square, {results[1].gflops:.0f} skinny"
    return Part(passed=True, seen=seen, rows={"products": rows})


def events_of_steps(steps: int) -> list[Any]:
    """The events of some steps of the starter in this process."""
    from grpo_engine.config.parse import build, merge
    from grpo_engine.control import Control
    from grpo_engine.presets import preset
    from grpo_engine.trainer import run

    changes = {
        "steps": steps,
        "evaluation": {"before_and_after": False, "pinned": 0},
        "model": {"compute": "graph"},
    }
    config = build(merge(preset("starter").tree, changes))
    with tempfile.TemporaryDirectory() as folder:
        return list(run(config, Control(), folder=Path(folder)))


def fault() -> Part:
    """Let the first gradient fail as Metal fails without memory; the run must complete."""
    from grpo_engine.events import NoteWritten, RunFinished
    from grpo_engine.training import update

    compute, failed = vars(update)["gradient"], list[bool]()

    def failing(*arguments: Any) -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError(FAULT)
        return compute(*arguments)

    vars(update)["gradient"] = failing
    events = events_of_steps(2)
    texts = [event.text for event in events if isinstance(event, NoteWritten)]
    seen = next((text for text in texts if "ran out of memory" in text), "nothing was said of it")
    passed = bool(failed) and isinstance(events[-1], RunFinished) and "discarded" in seen
    return Part(passed=passed, seen=seen)


def memory() -> Part:
    """Train three steps: MLX's peak beside the process's footprint, and what is wired."""
    import mlx.core as mx

    from grpo_engine.events import RunFinished, StepFinished
    from grpo_engine.platform.footprint import footprint
    from grpo_engine.platform.memory import memory as of_machine

    wired: list[int] = []
    wire = mx.set_wired_limit

    def noted(limit: int) -> int:
        wired.append(limit)
        return int(wire(limit))

    mx.set_wired_limit = noted
    events = events_of_steps(3)
    steps = [event.metrics for event in events if isinstance(event, StepFinished)]
    names = ("memory/peak_gb", "memory/footprint_gb", "memory/swap_gb", "memory/pressure")
    rows: list[tuple[str, str]] = [
        (name, f"{max(metrics[name] for metrics in steps):.2f}")
        for name in names
        if steps and name in steps[0]
    ]
    rows.append(("this process at the end", f"{(footprint() or of_machine().process) / 1e9:.2f}"))
    rows += [("wired limit", f"{limit / 1e9:.2f}") for limit in wired]
    restored = not mx.metal.is_available() or (len(wired) == 2 and wired[1] < wired[0])
    seen = f"wired limit set and restored: {wired}" if wired else "nothing is wired here"
    passed = restored and isinstance(events[-1], RunFinished)
    return Part(passed=passed, seen=seen, rows={"memory": rows})


def beside_mlx_lm() -> Part:
    """Decoding and an update beside mlx-lm's."""
    from benchmarks import graph

    policy = graph.loaded("starter", "bfloat16")
    measured = list(graph.times(policy, 8, 32))
    rows = [(name.strip(), f"{milliseconds:.2f}") for name, milliseconds in measured]
    return Part(passed=True, seen=f"{len(rows)} times", rows={"beside": rows})


def priority() -> Part:
    """A decode step under each class that macOS could give the engine's thread."""
    if sys.platform != "darwin":
        return Part(passed=True, seen="is measured on macOS only")
    from benchmarks import graph

    system = ctypes.CDLL(None)
    policy, rows = graph.loaded("starter", "bfloat16"), []
    for name, number in CLASSES.items():
        if system.pthread_set_qos_class_self_np(number, 0):
            return Part(passed=False, seen=f"the system refuses the class {name}")
        measured = dict(graph.times(policy, 8, 32))
        rows.append((name, f"{measured['sampling, all together, per token']:.2f}"))
    return Part(passed=True, seen=", ".join(map(" ".join, rows)), rows={"priority": rows})


def workbench(children: Children, workdir: Path) -> Part:
    """Open the workbench in a terminal, train from its first screen, and time keys meanwhile."""
    data = workdir / "workbench"
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "XDG_DATA_HOME": str(data),
        "XDG_CONFIG_HOME": str(data),
        "XDG_STATE_HOME": str(data),
    }
    screen, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (40, 120))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "grpo_tui"],
        cwd=ROOT,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        try:
            return _driven(process, screen, children, data)
        finally:
            process.terminate()  # saves and stops
            _drain(screen, 20.0, process)
            process.kill()
            os.close(screen)


def _driven(
    process: "subprocess.Popen[bytes]", screen: int, children: Children, data: Path
) -> Part:
    _drain(screen, 3.0, process)
    os.write(screen, b"\r")
    end = min(monotonic() + 150, children.end)
    steps, times, awake = 0, list[float](), ""
    while monotonic() < end and steps < 3 and process.poll() is None:
        _drain(screen, 2.0, process)
        done = children.run(
            "grpo_tui",
            "runs",
            "--json",
            limit=30,
            XDG_DATA_HOME=str(data),
            XDG_CONFIG_HOME=str(data),
            XDG_STATE_HOME=str(data),
        )
        with suppress(ValueError, IndexError, KeyError):
            steps = int(json.loads(done.out)[0]["step"])
    for _ in range(PRESSES if steps >= 3 else 0):
        _drain(screen, 0.1, process)
        pressed = monotonic()
        os.write(screen, b"\t")
        if select.select([screen], [], [], 2.0)[0]:
            times.append(1000 * (monotonic() - pressed))
    if sys.platform == "darwin":
        assertions = subprocess.run(
            ["pmset", "-g", "assertions"], capture_output=True, text=True, check=False
        ).stdout
        awake = "; kept awake" if "caffeinate" in assertions else "; NOT kept awake"
    if steps < 3 or not times:
        status = process.poll()
        ended = f"; it ended with status {status}" if status is not None else ""
        return Part(passed=False, seen=f"{steps} steps from its first screen{ended}")
    times.sort()
    seen = (
        f"{steps} steps from its first screen; keys {median(times):.0f} ms, "
        f"slowest of {len(times)} {times[-1]:.0f}{awake}"
    )
    return Part(passed="NOT" not in awake, seen=seen)


def _drain(screen: int, seconds: float, process: "subprocess.Popen[bytes]") -> None:
    """Read what is drawn for some seconds, or until the program has ended."""
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0 and process.poll() is None:
        if select.select([screen], [], [], min(left, 0.2))[0]:
            with suppress(OSError):
                os.read(screen, 1 << 16)


def parity() -> Part:
    """Score the same answers in float32 on the processor and here in each format."""
    import mlx.core as mx
    import numpy as np

    from benchmarks.growth import sampled
    from grpo_engine.config.settings import ModelConfig, TaskConfig
    from grpo_engine.policy.batch import micro_batches
    from grpo_engine.policy.forward import token_scores
    from grpo_engine.policy.load import load_policy
    from grpo_engine.policy.policy import Policy
    from grpo_engine.rollouts.prompts import PromptRenderer
    from grpo_engine.rollouts.types import PromptRows, Sampling
    from grpo_engine.tasks.base import draw, load_task

    here = mx.default_device()

    def policy_on(device: Any, dtype: str, compute: Literal["auto", "graph"] = "auto") -> Policy:
        mx.set_default_device(device)
        policy = load_policy(ModelConfig(dtype=dtype, compute=compute), seed=0)
        adapter = policy.snapshot()  # an adapter that is not zero
        for n, (name, old) in enumerate(adapter.items()):
            if name.endswith("lora_b"):
                noise = np.random.default_rng(n).normal(0, 0.02, old.shape)
                adapter[name] = mx.array(noise.astype(np.float32)).astype(old.dtype)
        policy.load_trainable(adapter)
        return policy

    def scores(policy: Policy, rows: Any) -> Any:
        (batch,) = micro_batches(rows, max_rows=len(rows))
        logprobs = token_scores(policy, batch, temperature=1.0, gradient=False).logprobs
        return np.array(logprobs)[np.array(batch.mask_BT) > 0]

    oracle = policy_on(mx.cpu, "float32", "graph")
    config, task = TaskConfig(), load_task(TaskConfig())
    render = PromptRenderer(
        tokenizer=oracle.tokenizer,
        task=task,
        config=config,
        model="starter",
        context=oracle.context_length,
        max_new_tokens=48,
    )
    rows = []
    for turn, example in enumerate(draw(task, 0, 0, 8)):
        prompt = PromptRows(key=example.key, group=0, ids=render(example).ids, rows=4)
        rows += sampled(oracle, prompt, Sampling(max_new_tokens=48), turn)
    expected = scores(oracle, rows)
    table, passed = [], True
    for dtype in DTYPES:
        gaps = np.abs(scores(policy_on(here, dtype), rows) - expected)
        passed &= bool(gaps.mean() <= APART[dtype])
        label = f"{dtype} on {str(here.type).rpartition('.')[2]}"
        table.append((label, f"{gaps.mean():.1e}", f"{gaps.max():.1e}", f"{APART[dtype]:g}"))
    seen = f"{expected.size} tokens; " + ", ".join(f"{row[0]} {row[1]} apart" for row in table)
    return Part(passed=passed, seen=seen, rows={"parity": table})


def scrub(text: str) -> str:
    """Remove the names of folders, user and host."""
    folders = {
        str(ROOT): "<repository>",
        sys.prefix: "<environment>",
        str(Path.home()): "~",
        tempfile.gettempdir(): "<temporary>",
    }
    for folder, name in sorted(folders.items(), key=lambda item: -len(item[0])):
        for spelling in {folder, str(Path(folder).resolve())} - {"/"}:
            text = text.replace(spelling, name)
    host, user = socket.gethostname(), ""
    with suppress(OSError, KeyError):  # a container's user may have no name
        user = getpass.getuser()
    for private, name in ((host, "<host>"), (host.partition(".")[0], "<host>"), (user, "<user>")):
        if private and private != "localhost":
            text = re.sub(rf"(?<!\w){re.escape(private)}(?!\w)", name, text, flags=re.IGNORECASE)
    return text


def report(results: Sequence[Part], *, quick: bool) -> str:
    """Format the report as Markdown."""
    failed = [part.name for part in results if not part.passed]
    verdict = f"**FAIL**: {', '.join(failed)}" if failed else "**PASS**"
    software = {**versions(), **{f"MLX for {k}": v for k, v in device.backends().items()}}
    lines = [
        f"# Device report{', quick' * quick}",
        "",
        f"{verdict} ({len(results) - len(failed)} of {len(results)} parts, "
        f"{sum(part.seconds for part in results):.0f} s)",
        "",
        machine.system().result,
        "",
        ", ".join(f"{name} {number}" for name, number in software.items()),
        "",
        "| part | verdict | s | what was seen |",
        "|---|---|---|---|",
    ]
    for part in results:
        verdict = "pass" if part.passed else "FAIL"
        lines.append(line(part.name, verdict, f"{part.seconds:.0f}", part.seen))
    for section, title in TITLES.items():
        rows = [line(*row) for part in results for row in part.rows.get(section, ())]
        if rows:
            lines += ["", title, re.sub(r"[^|]+", "---", title), *rows]
    return scrub("\n".join(lines)) + "\n"


def line(*cells: object) -> str:
    """Format a row of a table, with pipes and line breaks escaped."""
    texts = (" ".join(str(cell).replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(texts)} |"


PARTS = {
    "parity": parity,
    "products": products,
    "fault": fault,
    "memory": memory,
    "beside": beside_mlx_lm,
    "priority": priority,
}


def main(*arguments: str) -> int:
    """Run the parts, print each as it ends, and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two steps each, as CI does")
    parser.add_argument("--out", type=Path, default=Path("device-report.md"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        part = PARTS[options.part]()
        print(json.dumps(asdict(part)))
        return 0
    results: list[Part] = []
    with tempfile.TemporaryDirectory() as workdir:
        for part in parts(Children(), Path(workdir), quick=options.quick):
            results.append(part)
            verdict = "pass" if part.passed else "FAIL"
            print(f"{verdict} {part.name} ({part.seconds:.0f} s): {part.seen}", file=sys.stderr)
            options.out.write_text(report(results, quick=options.quick), encoding="utf-8")
    print(f"the report is in {options.out}", file=sys.stderr)
    return 0 if all(part.passed for part in results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
