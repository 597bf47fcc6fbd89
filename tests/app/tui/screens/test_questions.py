"""Questions that a person asks about a run, each answered on screen within five keys.

Every way starts on Watch as it opens, on a run that has ended and on one that trains, and the
answer is looked for in the screens' text alone. Whether its numbers are right, other tests say.
"""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from textual.keys import _character_to_key

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import RunOpened
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from tests.app.compared import sweep_of_rates, sweep_of_two_settings
from tests.app.script import CONFIG, Script, algorithm
from tests.app.stored import record, run_events
from tests.app.walk import Walk, walk
from tests.experiments.made import alerted

SIZE = (140, 44)
MOST_KEYS = 5
STEPS = 8
ENDED, LIVE = "calm-otter", "live-heron"
HACKED = "Reward rose by .2 while accuracy fell."


def events(live: bool) -> Iterator[ev.Event]:
    """The run, with an alert for gaming the format; one that trains is sampling its next step."""
    for event in run_events(steps=STEPS, seed=1):
        if live and (
            isinstance(event, ev.RunFinished)
            or (isinstance(event, ev.EvaluationFinished) and event.moment == "after")
        ):
            continue
        yield event
        if isinstance(event, ev.StepFinished) and event.step == STEPS:
            yield alerted(
                STEPS, rule="format_hacking", explanation=HACKED, remedy="Weigh accuracy more."
            )
    if live:
        script = Script(steps=STEPS, total_steps=60, prompts=4, group=4)
        yield from (e for e in script.sampling() if e.step > STEPS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = sweep_of_rates(tmp_path_factory.mktemp("store"))
    record(
        path, run_events(steps=6, seed=2), name="brave-fox", seed=1, algorithm=algorithm(beta=0.1)
    )
    record(path, events(live=False), name=ENDED, seed=0)
    handle = start_run(path, build({**CONFIG, "steps": 60}), name=LIVE)
    for event in events(live=True):
        handle.put(event)
    handle.flush()
    over = threading.Event()

    def progress() -> None:
        while not over.wait(1.0):  # a run without progress for a minute is shown as stalled
            handle.progressed()

    thread = threading.Thread(target=progress)
    thread.start()
    yield path
    over.set()
    thread.join()
    handle.close()


Way = tuple[str, ...]
TYPED = "type "  # a text that is typed counts as one key
NUMBER = r"[−+]?[\d.]+(e−\d+)?%?"
BETTER = (
    r"learning_rate 0\.0001 \(3 seeds\) is better than learning_rate 1e−05 \(3 seeds\) in sampled "
    rf"answers: \+.*95%: {NUMBER} to {NUMBER}\).* p (=|<|≤) \.\d+",
)
LOSS = (
    r"Loss \S+ at step \d+( \(KL penalty[^)]*\))? is near 0: "
    r"(\d of \d prompts had no push, in the others )?pushes up"
)
# each question with its keys, and what is found on the screen when its spaces are joined
QUESTIONS: dict[str, tuple[Way, Way]] = {
    "which group gave no signal and why": ((), (r"all (right|wrong)[^│]*: no push",)),
    "which reward moved": ((), (rf"━ accuracy ×.*? {NUMBER} → {NUMBER}",)),
    "is the format being hacked": ((), (f"{HACKED} Weigh accuracy more.",)),
    "why is the loss near 0": ((), (LOSS,)),
    "are answers truncated": ((), (rf"Last {STEPS} steps: ({NUMBER} of|no) answers? cut",)),
    "what is slow in a step": ((), (r"generate 1\.2s ◂ slowest|generate 5\d% of time",)),
    "which runs learn": (("1",), (r"rates-6 learn(ing|ed) +6\d% \+\d+", r"calm-otter .*hacked\?")),
    "is it healthy, and why": (("?",), (r"health of \S+ .*hacked\?", "Reward rose by .2 while")),
    "which run did I leave training": (("1",), (f"Runs▐.*● {LIVE}",)),
    "which reward moved, by search": (("ctrl+p", "type reward"),
     (rf"\(rewards/format/mean\) first {NUMBER}, now {NUMBER}",)),
    "which token was clipped": (("4", "f"), (r"CLIPPED (high|low)", "(better|worse) answer, alr")),
    "what is KL here, and is it fine": (("j", "?"), ("nats per token", "is within the limit of")),
    "where is it furthest from the reference": (("4", "s", "k"),
     (rf"highest KL {NUMBER}, step \d",)),
    "this prompt 50 steps ago": (("4", "t", "@", "type -50", "enter"), ("step 2 pinned",)),
    "what differs between two runs": (("ctrl+p", "type compare brave", "enter"),
     (r"algorithm\.beta +0\.(04 +0\.1|1 +0\.04)",)),
    "which is better, and how sure": (("ctrl+p", "type sweep", "enter"), BETTER),
    "why is the loss near 0, by search": (("ctrl+p", "type loss"), ("It often reads near",)),
    "are answers truncated, by search": (("ctrl+p", "type truncated"),
     (rf"\(completions/clipped_ratio\) first {NUMBER}, now {NUMBER}",)),
    "what is slow in a step, by search": (("ctrl+p", "type slow"),
     (r"\(time/generate\) first 1\.2s, now 1\.2s",)),
    "what would beta .1 have changed": (("4", "v", "enter", "type .1", "enter"),
     (r"● beta 0\.1 .*\d",)),
}  # fmt: skip
ON_ANSWERS: dict[str, tuple[Way, Way]] = {
    "which prompt fails most in this step, and its worst answer": (("4", "s", "f"),
     ("sort failing", "answer [abcd] by token")),
    "which prompt fails most over the run": (("4", "s", "o"),
     (r"│ \d+/\d+ [.\d]+ (\d+ )*\d+ \+ \d",)),
    "the worst answer of the step": (("4", "s", "w"),
     (rf"sort worst \(\d+ answers? with reward {NUMBER}\)",)),
    "the best answer of the step": (("4", "s", "r"), ("sort reward", rf"reward +{NUMBER}")),
    "why was this token not pushed": (("4", "f"),
     (r"why (better|worse) answer, already (beyond|below) [.\d]+: clipped,",)),
    "what changed for this prompt from first to last": (("4", "t", "d", "d"),
     (rf"step 2 → {STEPS} mean reward {NUMBER} → {NUMBER}",)),
    "all answers with a text": (("4", "/", "type start"), (r"training \d+ pinned \d",)),
    "what would another clip range have done": (("4", "v", "j", "l"),
     (rf"● clip_low 0\.3 {NUMBER}", "clipped tokens would be free")),
}  # fmt: skip
SMALL: dict[str, tuple[Way, Way]] = {
    "is it learning": ((), (rf"▸reward .*?{NUMBER} → {NUMBER}",)),
    "is the reward hacked": ((), ("▲ Reward hacking is likely: see the alert.",)),
    "why is the loss near 0": ((), (LOSS,)),
    "which is better, and how sure": (("ctrl+p", "type sweep", "enter"), BETTER),
}  # fmt: skip


async def seen_on(on: Walk, run: str, keys: Way, words: Way = ()) -> str:
    """Open a run on Watch and press keys; the text of Watch and of the last screen."""
    on.app.post_message(RunOpened(run))
    words = words or ("run completed" if run == ENDED else f"step {STEPS + 1}/", "accuracy")
    await on.until(lambda: all(word in on.text for word in words))
    watch = on.text
    for key in keys:
        typed = key.removeprefix(TYPED)
        pressed = [key] if key in ("enter", "escape", "ctrl+p") else map(_character_to_key, typed)
        await on.press(*pressed)
    on.app.frame_now()
    await on.pilot.pause()
    return f"{watch}\n{on.text}" if keys else watch


async def answered(
    store: Path, run: str, keys: Way, patterns: Way, size: tuple[int, int], words: Way = ()
) -> None:
    assert len(keys) <= MOST_KEYS
    async with walk(Workbench(store, preferences=Preferences()), size) as on:
        text = await seen_on(on, run, keys, words)
    joined = " ".join(text.split())
    for pattern in patterns:
        assert re.search(pattern, joined), f"{pattern} on\n{text}"


@pytest.mark.slow
@pytest.mark.parametrize("run", [ENDED, LIVE])
@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_question_is_answered_within_five_keys(
    question: str, run: str, store: Path
) -> None:
    await answered(store, run, *QUESTIONS[question], SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
@pytest.mark.parametrize("question", ON_ANSWERS)
async def test_a_question_about_answers_is_answered_within_five_keys_at_every_size(
    question: str, size: tuple[int, int], store: Path
) -> None:
    words = ("completed after", f"step {STEPS}")
    await answered(store, ENDED, *ON_ANSWERS[question], size, words)


@pytest.mark.parametrize("question", SMALL)
async def test_the_first_questions_are_answered_at_80_by_24(question: str, store: Path) -> None:
    await answered(store, LIVE, *SMALL[question], (80, 24), (f"  {STEPS + 1}/", "reward"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_what_a_setting_did_in_a_two_by_two_is_two_keys_away(
    size: tuple[int, int], tmp_path: Path
) -> None:
    path = sweep_of_two_settings(tmp_path)
    with StoreReader(path) as reader:
        runs = {run.name: reader.evaluations(run.key)[-1] for run in reader.runs()}
        name = next(name for name in runs if name.startswith("r1e-05-b0.04"))
        sides: dict[str, list[float]] = {"r1e-05": [], "r0.0001": []}
        for run, evaluation in runs.items():
            assert evaluation.mode == "sampled"
            rows = [(row.correct or 0) / row.samples for row in reader.samples(evaluation.key)]
            sides[run.partition("-b")[0]].append(fmean(rows))
    change = 100 * (fmean(sides["r0.0001"]) - fmean(sides["r1e-05"]))
    async with walk(Workbench(path, preferences=Preferences()), size) as on:
        on.app.post_message(RunOpened(name))
        await on.until(lambda: "completed after" in on.text)
        await on.press("5", "G")
        await on.see("averaged over the others", "held-out accuracy, sampled")
        (line,) = [text for text in on.lines if "learning_rate 1e−05 → 0.0001" in text]
    found = re.search(r"\+([\d.]+) +\+([\d.]+) to \+([\d.]+) +(< )?\.\d+", line)
    assert found, line
    middle, low, high = map(float, found.groups()[:3])
    assert middle == pytest.approx(change, abs=0.06)
    assert 0 < low < middle < high
