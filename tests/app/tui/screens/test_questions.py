"""Questions that a person asks about a run, each answered on screen within five keys.

Every way starts on Watch as it opens, on a run that has ended and on one that trains, and the
answer is read from the screens' text alone. What is expected is computed from the events.
"""

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median

import pytest
from textual.keys import _character_to_key

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_tui.app.text.numbers import share, short
from grpo_tui.app.tui.app import Workbench
from grpo_tui.app.tui.messages import RunOpened
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.values import GroupView, RecordedTokens
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


# -- the answers, from the store -----------------------------------------------------------------

Answer = Callable[[StoreReader, int, str], None]


def last_groups(reader: StoreReader, run: int) -> tuple[GroupView, ...]:
    return reader.groups(run, step=STEPS, origin="train")


def smoothed(reader: StoreReader, run: int, key: str) -> tuple[float, float]:
    """A metric's first value and its debiased moving average at the end."""
    values = reader.metric_series(run, key).values
    total = norm = 0.0
    for value in values:
        total, norm = 0.9 * total + 0.1 * value, 0.9 * norm + 0.1
    return values[0], total / norm


def says_which_runs_learn_and_what_they_gained(reader: StoreReader, _run: int, text: str) -> None:
    rows = text.split("▌1 Runs▐")[1].splitlines()[2:]  # below the header and the frame
    for run in reader.runs():
        evaluations = reader.evaluations(run.key)
        sampled = [item for item in evaluations if item.mode == "sampled"] or evaluations
        first, last = sampled[0], sampled[-1]
        shares = [item.metrics["eval/accuracy"] for item in (first, last)]
        count = last.problems * last.samples
        smooth = [(right * count + 1) / (count + 2) for right in shares]
        error = math.sqrt(sum(right * (1 - right) / count for right in smooth))
        learns = shares[1] - shares[0] > 2 * error and run.name not in (ENDED, LIVE)
        row = next(line for line in rows if f" {run.name} " in line)
        assert bool(re.search(r" learn(ing|ed) ", row)) == learns, row
        if first.step < last.step:
            assert f"{share(shares[1])}" in row
            assert f"{100 * (shares[1] - shares[0]):+.0f}" in row


def says_whether_it_is_healthy_and_why(reader: StoreReader, run: int, text: str) -> None:
    name = reader.run(run).summary.name
    assert re.search(rf"{name}.* hacked\?  step", text.splitlines()[0])
    help_text = " ".join(text.split(f"health of {name}")[1].replace("│", " ").split())
    assert f" hacked? {HACKED} " in help_text


def says_which_run_still_trains(_reader: StoreReader, _run: int, text: str) -> None:
    assert f"● {LIVE}" in text.split("▌1 Runs▐")[1]


def says_why_groups_gave_no_signal(reader: StoreReader, run: int, text: str) -> None:
    dead = [group.no_signal for group in last_groups(reader, run) if group.no_signal]
    assert dead
    for reason in set(dead):
        assert text.count(f"{reason}: no push") == dead.count(reason)


def shows_each_reward_with_its_start_and_end(reader: StoreReader, run: int, text: str) -> None:
    for name in ("accuracy", "format"):
        first, last = smoothed(reader, run, f"rewards/{name}/mean")
        (line,) = [one for one in text.splitlines() if f"━ {name} ×" in one]
        assert f"{short(first)} → {short(last)}" in line


def says_how_each_reward_moved(reader: StoreReader, run: int, text: str) -> None:
    for name in ("accuracy", "format"):
        first, last = smoothed(reader, run, f"rewards/{name}/mean")
        assert f"(rewards/{name}/mean)   first {short(first)}, now {short(last)}" in text


def says_that_the_format_is_hacked(_reader: StoreReader, _run: int, text: str) -> None:
    assert f"{HACKED} Weigh accuracy more." in text


def says_that_the_reward_is_hacked(_reader: StoreReader, _run: int, text: str) -> None:
    assert "▲ Reward hacking is likely: see the alert." in text


def clipped(row: RecordedTokens, lowest: float = 0.8) -> Iterator[tuple[int, str]]:
    """The clipped tokens of an answer and their sides, by the bounds .8 and 1.2."""
    for token, (new, old) in enumerate(zip(row.passes[-1], row.old, strict=True)):
        advantage, ratio = row.advantages[0], math.exp(new - old)
        if advantage > 0 and ratio > 1.2:
            yield token, "high"
        if advantage < 0 and ratio < lowest:
            yield token, "low"


def rows_of(reader: StoreReader, run: int) -> Iterator[tuple[GroupView, RecordedTokens]]:
    for group in last_groups(reader, run):
        tokens = reader.tokens(run, group.key)
        for row in tokens.rows if tokens else ():
            yield group, row


def says_which_token_was_clipped(reader: StoreReader, run: int, text: str) -> None:
    group, row, token, side = next(
        (group, row, *one) for group, row in rows_of(reader, run) for one in clipped(row)
    )
    assert f"prompt {group.index + 1} " in text
    assert f"answer {'abcd'[row.index]} by token" in text
    assert f"← token {token + 1} of" in text
    assert f"{'better' if side == 'high' else 'worse'} answer, already" in text


def says_what_kl_is_and_that_it_is_fine(reader: StoreReader, run: int, text: str) -> None:
    last = median(reader.metric_series(run, "kl").values[-5:])
    (top,) = re.findall(r".*╭─ help ─.*", text)
    left, right = top.index("╭─ help"), top.rindex("─╮")
    flat = " ".join(" ".join(line[left + 1 : right] for line in text.splitlines()).split())
    assert "moved from that of its reference, the model before training, in nats per token" in flat
    assert f"fine the median of the last 5 steps, {short(last)}, is within the limit of .1" in flat


def says_where_it_is_furthest_from_the_reference(reader: StoreReader, run: int, text: str) -> None:
    def k3(new: float, ref: float) -> float:
        return math.exp(ref - new) - 1 - (ref - new)

    _, kl = smoothed(reader, run, "kl")
    assert re.search(rf"KL to reference .*{re.escape(short(kl))}", text)
    furthest, row, token = max(
        (
            (k3(new, ref), row, token)
            for _, row in rows_of(reader, run)
            for token, (new, ref) in enumerate(zip(row.passes[-1], row.reference, strict=True))
        ),
        key=lambda found: found[0],
    )
    assert f"highest KL {short(furthest, 3)} in the step" in text
    assert f"answer {'abcd'[row.index]} by token" in text
    assert f"← token {token + 1} of" in text


def says_what_the_model_answered_before(reader: StoreReader, run: int, text: str) -> None:
    """50 steps back from step 8 is before the first pinned prompts, those of step 2."""
    before = reader.groups(run, step=2, origin="pinned")[0].rollouts[0].text
    assert "step 2  pinned" in text
    flat = "".join(line.split("││")[1] if "││" in line else "" for line in text.splitlines())
    assert before.replace(" ", "")[:30] in flat.replace(" ", "").replace("▁", "")


def says_what_differs(_reader: StoreReader, _run: int, text: str) -> None:
    assert re.search(r"algorithm\.beta +0\.04 +0\.1|algorithm\.beta +0\.1 +0\.04", text)


def says_which_is_better(_reader: StoreReader, _run: int, text: str) -> None:
    said = " ".join(line.strip("▸ ") for line in text.splitlines())
    better = "learning_rate 0.0001 (3 seeds) is better than learning_rate 1e−05 (3 seeds)"
    assert f"{better} in sampled answers: +" in said
    assert re.search(r"95%: \+[\d.]+ to \+[\d.]+", said)
    assert re.search(r"p (=|<|≤) \.\d+", said)


def says_why_the_loss_is_nearly_nothing(_reader: StoreReader, _run: int, text: str) -> None:
    assert "It often reads near" in text
    assert "the pushes up and down of a group cancel" in text


def says_that_the_loss_is_no_measure(_reader: StoreReader, _run: int, text: str) -> None:
    assert re.search(
        r"Loss [\de.−]+ is near 0: (\d of \d prompts of step \d+ had no push, in the others )?"
        r"pushes up and down cancel\.",
        " ".join(text.split()),
    )


def says_how_many_were_cut_in_the_last_steps(reader: StoreReader, run: int, text: str) -> None:
    cut = fmean(reader.metric_series(run, "completions/clipped_ratio").values)
    told = f"{share(cut)} of answers cut at 64 tokens." if cut else "no answer cut."
    assert f"Last {STEPS} steps: {told}" in " ".join(text.split())


def says_how_many_answers_were_cut(reader: StoreReader, run: int, text: str) -> None:
    first, last = smoothed(reader, run, "completions/clipped_ratio")
    assert f"(completions/clipped_ratio)   first {share(first)}, now {share(last)}" in text


def marks_the_slowest_phase(_reader: StoreReader, _run: int, text: str) -> None:
    line = next(line for line in text.splitlines() if "s/step" in line)
    assert re.search(r"generate 1\.2s ◂ slowest|5\d% generate", line), line


def says_what_is_slow(_reader: StoreReader, _run: int, text: str) -> None:
    spent = dict(re.findall(r"\(time/(\w+)\)   first [\d.]+s, now ([\d.]+)s", text))
    assert spent == {"generate": "1.2", "score": ".1", "logprobs": ".2", "update": ".6"}


def says_what_another_beta_would_have_changed(_reader: StoreReader, _run: int, text: str) -> None:
    rows = re.findall(r"[○●] (?:the run|beta 0\.1) .*?([−\d.e]+) *│", text)
    assert len(rows) == 2, text
    was, would = (float(row.replace("−", "-")) for row in rows)
    assert would == pytest.approx(2.5 * was, rel=0.02)  # the term is beta · KL: .1 ÷ .04


def shows(text: str, group: GroupView, rollout: int | None = None) -> None:
    """The prompt and the answer under the cursor."""
    assert f"{group.index + 1}▸" in text
    assert f"prompt {group.index + 1} " in text
    if rollout is not None:
        assert f"answer {'abcd'[rollout]} by token" in text


def says_which_prompt_failed_most_in_the_step(reader: StoreReader, run: int, text: str) -> None:
    lowest = min(last_groups(reader, run), key=lambda group: group.reward_mean or 0.0)
    worst = min(lowest.rollouts, key=lambda rollout: rollout.reward or 0.0)
    shows(text, lowest, worst.index)
    assert re.search(rf"{lowest.index + 1}▸.* {re.escape(short(lowest.reward_mean))} ", text)


def says_which_prompt_failed_most_over_the_run(reader: StoreReader, run: int, text: str) -> None:
    means: dict[str, list[float]] = {}
    for step in reader.group_steps(run, "train"):
        for group in reader.groups(run, step=step, origin="train"):
            means.setdefault(group.prompt_text, []).append(group.reward_mean or 0.0)
    lowest = min(map(fmean, means.values()))
    rows = re.findall(r"│ *([.\d]+) +(\d+) +\d+  (.*?) *│", text)
    assert rows[0][0] == short(lowest)
    prompts = [prompt for prompt, values in means.items() if fmean(values) == lowest]
    assert any(prompt.startswith(rows[0][2].rstrip("…")) for prompt in prompts)
    assert len(means[prompts[0]]) == int(rows[0][1])


def shows_the_best_answer_of_the_step(reader: StoreReader, run: int, text: str) -> None:
    groups = last_groups(reader, run)
    rollouts = [(r.reward or 0.0, group, r.index) for group in groups for r in group.rollouts]
    reward, group, index = max(rollouts, key=lambda item: item[0])
    shows(text, group, index)
    assert re.search(rf"reward +{re.escape(short(reward))}\D", text)


def says_why_a_token_is_not_pushed(_reader: StoreReader, _run: int, text: str) -> None:
    assert re.search(r"why +(better|worse) answer, already (beyond|below) [.\d]+: clipped,", text)


def says_what_changed_from_first_to_newest(reader: StoreReader, run: int, text: str) -> None:
    steps = reader.group_steps(run, "pinned")
    first, newest = (reader.groups(run, step=steps[at], origin="pinned")[0] for at in (0, -1))
    means = f"mean reward {short(first.reward_mean)} → {short(newest.reward_mean)}"
    assert f"step {steps[0]} → {steps[-1]}   {means}" in text
    rewards = f"reward {short(first.rollouts[0].reward)} → {short(newest.rollouts[0].reward)}"
    assert f"a  {rewards}" in text


def counts_the_answers_with_a_text(reader: StoreReader, run: int, text: str) -> None:
    counts = {
        origin: sum(
            "start" in f"{group.prompt_text}\n{rollout.text}"
            for step in reader.group_steps(run, origin)
            for group in reader.groups(run, step=step, origin=origin)
            for rollout in group.rollouts
        )
        for origin in ("train", "pinned")
    }
    assert f"training {counts['train']}  pinned {counts['pinned']}" in text
    assert f" 1 of {sum(counts.values())} " in text


def says_what_another_clip_range_would_have_clipped(
    reader: StoreReader, run: int, text: str
) -> None:
    counts, tokens = [0, 0], 0
    for step in reader.group_steps(run, "train"):
        for group in reader.groups(run, step=step, origin="train"):
            stored = reader.tokens(run, group.key)
            for row in stored.rows if stored else ():
                tokens += len(row.old)
                for at, lowest in enumerate((0.8, 0.7)):
                    counts[at] += len(list(clipped(row, lowest)))
    for name, count in zip(("the run", "clip_low 0.3"), counts, strict=True):
        assert re.search(rf"[○●] {name} +{re.escape(share(count / tokens))} ", text)
    freed = counts[0] - counts[1]
    words = " ".join(re.sub(r"(?m)^ *│.*?││|│ *$", " ", text).split())  # the right panel's
    assert f"{freed} of {counts[0]} clipped tokens would be free" in words


# -- the ways ------------------------------------------------------------------------------------

TYPED = "type "  # a text that is typed counts as one key
Way = tuple[str, ...]

QUESTIONS: tuple[tuple[str, Way, tuple[Answer, ...]], ...] = (
    ("which group gave no signal and why, which reward moved, is the format being hacked, why is "
     "the loss near 0, are answers truncated, what is slow in a step", (),
     (says_why_groups_gave_no_signal, shows_each_reward_with_its_start_and_end,
      says_that_the_format_is_hacked, says_that_the_loss_is_no_measure,
      says_how_many_were_cut_in_the_last_steps, marks_the_slowest_phase)),
    ("which runs learn", ("1",), (says_which_runs_learn_and_what_they_gained,)),
    ("is it healthy, and why", ("?",), (says_whether_it_is_healthy_and_why,)),
    ("which run did I leave training", ("1",), (says_which_run_still_trains,)),
    ("which reward moved, by search", ("ctrl+p", "type reward"), (says_how_each_reward_moved,)),
    ("which token was clipped, on which side", ("4", "f"), (says_which_token_was_clipped,)),
    ("what is KL here, and is it fine", ("j", "?"), (says_what_kl_is_and_that_it_is_fine,)),
    ("how far from the reference, and where", ("4", "s", "k"),
     (says_where_it_is_furthest_from_the_reference,)),
    ("this prompt 50 steps ago", ("4", "t", "@", "type -50", "enter"),
     (says_what_the_model_answered_before,)),
    ("what differs between two runs", ("ctrl+p", "type compare brave", "enter"),
     (says_what_differs,)),
    ("which is better, and how sure", ("ctrl+p", "type sweep", "enter"), (says_which_is_better,)),
    ("why is the loss near 0, by search", ("ctrl+p", "type loss"),
     (says_why_the_loss_is_nearly_nothing,)),
    ("are answers truncated, by search", ("ctrl+p", "type truncated"),
     (says_how_many_answers_were_cut,)),
    ("what is slow in a step, by search", ("ctrl+p", "type slow"), (says_what_is_slow,)),
    ("what would beta .1 have changed", ("4", "v", "enter", "type .1", "enter"),
     (says_what_another_beta_would_have_changed,)),
)  # fmt: skip


ON_ANSWERS: tuple[tuple[str, Way, Answer], ...] = (
    ("which prompt fails most in this step, and its worst answer", ("4", "s", "w"),
     says_which_prompt_failed_most_in_the_step),
    ("which prompt fails most over the run", ("4", "s", "o"),
     says_which_prompt_failed_most_over_the_run),
    ("the best answer of the step", ("4", "s", "r"), shows_the_best_answer_of_the_step),
    ("why was this token not pushed", ("4", "f"), says_why_a_token_is_not_pushed),
    ("what changed for this prompt from first to last", ("4", "t", "d", "d"),
     says_what_changed_from_first_to_newest),
    ("all answers with a text", ("4", "/", "type start"), counts_the_answers_with_a_text),
    ("what would another clip range have done", ("4", "v", "j", "l"),
     says_what_another_clip_range_would_have_clipped),
)  # fmt: skip


async def seen_on(on: Walk, run: str, keys: Way, words: tuple[str, ...] = ()) -> str:
    """Open a run on Watch and press keys; return the text of Watch and of the last screen."""
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


@pytest.mark.slow
@pytest.mark.parametrize("run", [ENDED, pytest.param(LIVE, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("question", "keys", "answers"), QUESTIONS, ids=[question for question, _, _ in QUESTIONS]
)
async def test_a_question_is_answered_within_five_keys(
    question: str, keys: Way, answers: tuple[Answer, ...], run: str, store: Path
) -> None:
    assert len(keys) <= MOST_KEYS
    async with walk(Workbench(store, preferences=Preferences()), SIZE) as on:
        text = await seen_on(on, run, keys)
    reader = StoreReader(store)
    try:
        for answered in answers:
            answered(reader, reader.resolve(run).key, text)
    except AssertionError as error:
        error.add_note(f"{question}, on\n{text}")
        raise
    finally:
        reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
@pytest.mark.parametrize(
    ("question", "keys", "answered"), ON_ANSWERS, ids=[question for question, _, _ in ON_ANSWERS]
)
async def test_a_question_about_answers_is_answered_within_five_keys_at_every_size(
    question: str, keys: Way, answered: Answer, size: tuple[int, int], store: Path
) -> None:
    assert len(keys) <= MOST_KEYS
    async with walk(Workbench(store, preferences=Preferences()), size) as on:
        shown = ("completed after", f"step {STEPS}")
        text = (await seen_on(on, ENDED, keys, shown)).rpartition("1 Runs")[2]
    with StoreReader(store) as reader:
        try:
            answered(reader, reader.resolve(ENDED).key, text)
        except AssertionError as error:
            error.add_note(f"{question}, on\n{text}")
            raise


# -- on small terminals --------------------------------------------------------------------------


def says_whether_it_is_learning(reader: StoreReader, run: int, text: str) -> None:
    first, last = smoothed(reader, run, "rewards/accuracy/mean")
    assert f"{short(first)} → {short(last)}" in text
    assert re.search(r"▸reward .*\d", text)


SMALL: tuple[tuple[str, Way, tuple[Answer, ...]], ...] = (
    ("is it learning, is the reward hacked, why is the loss near 0", (),
     (says_whether_it_is_learning, says_that_the_reward_is_hacked,
      says_that_the_loss_is_no_measure)),
    ("which is better, and how sure", ("ctrl+p", "type sweep", "enter"), (says_which_is_better,)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("question", "keys", "answers"), SMALL, ids=[question for question, _, _ in SMALL]
)
async def test_the_first_questions_are_answered_at_80_by_24(
    question: str, keys: Way, answers: tuple[Answer, ...], store: Path
) -> None:
    async with walk(Workbench(store, preferences=Preferences()), (80, 24)) as on:
        text = await seen_on(on, LIVE, keys, (f"  {STEPS + 1}/", "reward"))
    with StoreReader(store) as reader:
        try:
            for answered in answers:
                answered(reader, reader.resolve(LIVE).key, text)
        except AssertionError as error:
            error.add_note(f"{question}, on\n{text}")
            raise


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
