"""Another trainer writes its run: what it gives, what it leaves out, and what it gets wrong."""

import math
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_engine import events as ev
from grpo_tui import record
from grpo_tui.app.cli.main import main
from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.replay import timed
from grpo_tui.app.feed.stored import snapshot_of
from grpo_tui.app.inspector.groups import balance
from grpo_tui.app.inspector.stored import load_group, load_step
from grpo_tui.app.tui.screens.watch.render import end_mark
from grpo_tui.experiments.errors import OtherTrainerError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def stored(path: Path) -> list[ev.Event]:
    with StoreReader(path) as reader:
        return [item.event for item in events_after(reader, reader.resolve("@last").key)]


LOOP: dict[str, Any] = {}
LOOP["loop"] = LOOP


def answers(*scores: float) -> list[record.Rollout]:
    return [record.rollout(f"answer {s}", rewards={"right": s}) for s in scores]


def test_what_is_given_is_read_back_and_what_is_not_is_absent(store: Path) -> None:
    numbers = np.array([-0.5, -1.0, -0.25], np.float32)
    full = record.rollout(
        "it is 4",
        rewards={"right": 1.0, "short": 0.5},
        weights={"short": 2.0},
        advantage=0.7,
        finish="stop",
        tokens=record.tokens(
            [3, 4, 5],
            ends=[2, 5, 7],
            old=numbers,
            passes=[numbers, numbers],
            sampler=numbers,
            mask=[1, 1, 0],
        ),
    )
    with record.run("mine", trainer="loop", version="2", store=store, steps=3) as run:
        run.step(1, [record.group("2 + 2 =", [full, *answers(0.0)], target="4")])
        run.step(2, metrics={"loss": 0.5, "kl": None}, updates=[record.update(loss=0.5)])
    events = stored(store)
    (group,) = [event.group for event in events if isinstance(event, ev.GroupScored)]
    first, second = group.rollouts
    assert (first.text, first.reward, first.ids, first.model_tokens) == (
        "it is 4",
        2.0,
        (3, 4, 5),
        3,
    )
    assert (second.reward, second.advantage, second.model_tokens) == (0.0, None, None)
    assert (second.finish, second.sampler_logprobs, group.reward_mean) == ("", (), 1.0)
    (scored,) = [event for event in events if isinstance(event, ev.TokensScored)]
    assert scored.numbers[0].passes == (tuple(numbers.tolist()),) * 2
    assert (scored.numbers[0].mask, scored.numbers[0].reference) == ((1, 1, 0), ())
    (update,) = [event for event in events if isinstance(event, ev.PassFinished)]
    assert (update.loss, update.grad_norm, update.learning_rate) == (0.5, None, None)
    steps = [event for event in events if isinstance(event, ev.StepFinished)]
    assert dict(steps[1].metrics) == {"loss": 0.5}
    assert [step.tokens for step in steps] == [None, None]
    with StoreReader(store) as reader:
        detail = reader.run(reader.resolve("mine").key)
    assert (detail.trainer, detail.origin, detail.summary.status) == ("loop", "loop 2", "completed")
    assert (detail.summary.tokens, detail.summary.seed, detail.summary.total_steps) == (
        None,
        None,
        3,
    )


def test_a_number_that_is_not_finite_is_not_an_absent_one(store: Path) -> None:
    with record.run(store=store) as run:
        run.step(1, updates=[record.update(loss=math.nan, grad_norm=math.inf)])
    (update,) = [event for event in stored(store) if isinstance(event, ev.PassFinished)]
    assert update.loss is not None
    assert math.isnan(update.loss)
    assert (update.grad_norm, update.learning_rate) == (math.inf, None)


def test_what_follows_from_rewards_and_lengths_is_computed_and_named(store: Path) -> None:
    with record.run(store=store) as run:
        run.step(
            1,
            [
                record.group("a", answers(0.0, 1.0)),
                record.group("b", [record.rollout("x", reward=1.0, length=n) for n in (2, 4)]),
            ],
            metrics={"reward": 7.0},
        )
    events = stored(store)
    (step,) = [event for event in events if isinstance(event, ev.StepFinished)]
    assert step.metrics["reward"] == 7.0
    assert step.metrics["rewards/right/mean"] == 0.5
    assert step.metrics["frac_reward_zero_std"] == 0.5
    assert "completions/mean_length" not in step.metrics
    notes = [event.text for event in events if isinstance(event, ev.NoteWritten)]
    assert any(note.startswith("computed here") and "reward_std" in note for note in notes)
    alike = [event.group.no_signal for event in events if isinstance(event, ev.GroupScored)]
    assert alike == ["", "all scored 1"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: record.rollout(None), "text is left out: it must be a text"),  # type: ignore[arg-type]
        (lambda: record.rollout("x", reward="1"), "reward is left out"),  # type: ignore[arg-type]
        (
            lambda: record.tokens([1, 2], old=[0.5]),
            "old is left out: it has 1 values for 2 tokens of ids; give one for each token",
        ),
        (lambda: record.rollout("x", tokens=[1]), "what record.tokens(...) returns"),  # type: ignore[arg-type]
        (
            lambda: record.rollout("x", rewards={"r": 1.0}, weights={"r": "2"}),  # type: ignore[dict-item]
            "weights r is left out",
        ),
        (lambda: record.tokens([1.5], old=[0.5]), "ids is left out"),
        (
            lambda: record.rollout("x", tokens=record.tokens([1, 2], ends=[1, 3])),
            "ends is left out: it must rise up to the 1 characters of the text",
        ),
        (lambda: record.tokens([1], updates=[3]), "what record.UpdateTotals(...) returns"),  # type: ignore[list-item]
        (
            lambda: record.tokens(
                [1], spans=[record.Span(start=0, length=2, kind="model", turn=0)]
            ),
            "spans is left out: they must follow each other to the last of 1 tokens",
        ),
        (lambda: record.tokens([[1]]), "ids is left out"),  # type: ignore[list-item]
        (lambda: record.rollout("x", finish="end"), "finish is left out: it must be one of stop"),  # type: ignore[arg-type]
        (lambda: record.group(7, []), "prompt is left out"),  # type: ignore[arg-type]
        (lambda: record.group("x", ["y"]), "what record.rollout(...) returns"),  # type: ignore[list-item]
        (lambda: record.update(loss="high"), "loss is left out"),  # type: ignore[arg-type]
        (lambda: record.problem("p", samples=-1), "samples is left out"),
        (
            lambda: record.problem("p", samples=2, correct=5),
            "correct is left out: it must be at most 2, as many as there are samples, got 5",
        ),
    ],
)
def test_a_wrong_value_is_left_out_with_a_sentence(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.warns(record.RecordWarning, match=".") as seen:
        make()
    assert [sentence in str(item.message) for item in seen] == [True]
    assert seen[0].filename == __file__


@pytest.mark.filterwarnings("ignore::grpo_tui.record.RecordWarning")
@pytest.mark.parametrize("ids", [[1.5], [[1]], 7])
def test_what_remains_of_wrong_values_is_no_guess(ids: Any) -> None:
    wrong_ids = record.rollout("x", tokens=record.tokens(ids, old=[0.5]))
    wrong_pass = record.tokens([1, 2], passes=[[-1.0], [-1.0, -2.0]])
    wrong_weight = record.rollout("x", rewards={"a": 2.0}, weights={"a": "3"})  # type: ignore[dict-item]
    assert (wrong_ids.rollout.model_tokens, wrong_ids.numbers) == (None, None)
    assert wrong_pass.numbers is None  # the second would be taken for the first
    assert wrong_weight.rollout.reward == 2.0


def test_numbers_of_tokens_belong_to_their_answers() -> None:
    bare, full = (
        record.rollout("ab", tokens=record.tokens([1, 2], **values))
        for values in (record.TokenValues(), record.TokenValues(old=[-1.0, -2.0]))
    )
    group = record.group("p", [bare, full, bare, full])
    assert [numbers.index for numbers in group.numbers] == [1, 3]
    assert [answer.model_tokens for answer in group.group.rollouts] == [2, 2, 2, 2]


def test_settings_by_path_and_by_section_are_one_tree(store: Path) -> None:
    settings = {"algorithm": {"recipe": "dr-grpo"}, "algorithm.beta": 0.1, "seed": 3}
    settings["lr"] = np.array([0.5, math.inf])
    with record.run(store=store, settings=settings, seed=4, model="m") as run:
        pass
    with StoreReader(store) as reader:
        config = reader.run(reader.resolve(run.name).key).config
    assert config["algorithm"] == {"recipe": "dr-grpo", "beta": 0.1}
    assert (config["seed"], config["model"], config["theirs"]) == (
        4,
        {"path": "m"},
        {"lr": [0.5, "Infinity"]},
    )


def test_wrong_steps_are_left_out_and_the_training_goes_on(store: Path) -> None:
    with record.run(store=store) as run, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run.step(2)
        run.step(2)
        run.step("three")  # type: ignore[arg-type]
        run.step(3, 7)  # type: ignore[arg-type]
        run.step(4, metrics={"loss": "low"})  # type: ignore[dict-item]
    assert [event.step for event in stored(store) if isinstance(event, ev.StepFinished)] == [2, 4]
    texts = [str(item.message) for item in seen]
    assert "step 2 is not recorded: step 2 was; count steps upwards" in texts
    assert len(texts) == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": 3}, "name must be a text"),
        ({"settings": {"algorithm": {"recipe": "best"}}}, "best"),
        ({"settings": {"algorithm.clip": 1}}, "algorithm.clip"),
        ({"steps": -1}, "steps"),
        ({"settings": ["lr"]}, "settings must be values by name"),
        ({"settings": {"path": Path("x")}}, "path must be texts, .*; give its text"),
        ({"settings": {"loop": LOOP}}, "loop is nested more than 50 deep; leave it out"),
        ({"tags": "good"}, "tags must be texts, as in .*, got 'good'"),
        ({"tags": [1]}, "tags must be texts"),
        ({"store": "/dev/null"}, "/dev/null"),
    ],
)
def test_a_run_that_cannot_begin_says_why(
    store: Path, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(record.RecordError, match=sentence):
        record.run(**{"store": store, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: record.tokens([1], new=[0.5]), "record.tokens has no argument 'new'; it has samp"),  # type: ignore[call-arg]
        (lambda: record.run(modle="m"), "record.run has no argument 'modle'; it has trainer"),  # type: ignore[call-arg]
    ],
)
def test_an_argument_of_another_name_is_an_error(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        call()


def test_an_exception_in_the_loop_is_the_end_of_the_run_and_passes_on(store: Path) -> None:
    def train() -> None:
        with record.run("broken", store=store) as run:
            run.step(1)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train()
    with StoreReader(store) as reader:
        assert reader.resolve("broken").status == "failed"
    assert isinstance(stored(store)[-1], ev.RunFailed)


def test_a_program_that_ends_before_its_run_leaves_it_aborted(store: Path) -> None:
    code = (
        f"from grpo_tui import record\nrun = record.run('left', store={str(store)!r})\nrun.step(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with StoreReader(store) as reader:
        assert reader.resolve("left").status == "aborted"


def test_recording_loads_no_mlx() -> None:
    code = "import sys, grpo_tui.record; print([m for m in sys.modules if m.startswith('mlx')])"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert output.stdout.strip() == b"[]"


def test_a_locked_store_costs_one_warning_and_no_step(store: Path) -> None:
    run = record.run("locked", store=store)
    with closing(sqlite3.connect(store)) as lock, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        lock.execute("BEGIN IMMEDIATE")
        for step in range(1, 4):
            run.step(step, [record.group("a", answers(0.0, 1.0))])
            run._recorder.flush()
        lock.rollback()
        run.close()
    assert [type(item.message) for item in seen] == [record.RecordWarning]
    assert "the store" in str(seen[0].message)
    steps = [event.step for event in stored(store) if isinstance(event, ev.StepFinished)]
    assert steps == [1, 2, 3]


def test_a_store_that_nobody_can_write_never_blocks_the_loop(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record.run(store=store)
    monkeypatch.setattr(record, "BACKLOG", 5)
    monkeypatch.setattr(record, "CLOSE_S", 0.1)
    with closing(sqlite3.connect(store)) as lock, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        lock.execute("BEGIN IMMEDIATE")
        for step in range(1, 40):
            run.step(step)
        run.close()
        lock.rollback()
    assert any("steps are left out" in str(item.message) for item in seen)
    assert len(seen) == 2  # of the store, and of what is not stored yet


@pytest.mark.parametrize("verb", ["resume", "eval", "chat", "pause", "stop"])
def test_verbs_that_need_the_trainer_say_so(
    store: Path, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_TUI_DB", str(store))
    run = record.run("theirs", trainer="TRL", store=store)
    run.step(1)
    run._recorder.flush()
    assert main([verb, "theirs"]) != 0
    run.close()
    assert "theirs was trained by TRL, and this is its record alone:" in capsys.readouterr().err


def test_requests_from_a_screen_are_refused_and_tags_and_notes_are_not(store: Path) -> None:
    with record.run("theirs", trainer="TRL", store=store) as run, ExperimentStore(store) as opened:
        key = opened.key_of("theirs")
        with pytest.raises(OtherTrainerError, match="only TRL can do that"):
            opened.request(key, "pause")
        opened.tag(key, add=["foreign"])
        run.note("half of it")
    with StoreReader(store) as reader:
        assert reader.resolve("theirs").tags == ("foreign",)


def test_screens_say_what_was_not_recorded(store: Path) -> None:
    with record.run("bare", trainer="loop", store=store) as run:
        run.step(1, [record.group("2 + 2 = ", answers(0.0, 1.0))])
    with StoreReader(store) as reader:
        base = load_step(reader, reader.resolve("bare").key, None)
        detail = load_group(reader, base, base.groups[0])
        snapshot = snapshot_of(reader, base.run.key, 1)
    assert [answer.texts for answer in detail.completions] == [("answer 0.0",), ("answer 1.0",)]
    assert detail.missing == "loop did not record tokens"
    assert balance(base.groups[0]) == "advantages were not recorded"
    assert "its advantages were not recorded" in " ".join(narrate(snapshot))
    assert [end_mark(answer) for answer in base.groups[0].rollouts] == [("", "label")] * 2


def test_token_numbers_without_a_loss_are_shown_without_shares(store: Path) -> None:
    numbers = [-0.5, -1.0]
    tokens = record.tokens([1, 2], ends=[1, 2], old=numbers)
    answer = record.rollout("ab", reward=1.0, tokens=tokens)
    with record.run("bare", trainer="loop", store=store) as run:
        run.step(1, [record.group("2 + 2 = ", [answer])])
    with StoreReader(store) as reader:
        base = load_step(reader, reader.resolve("bare").key, None)
        detail = load_group(reader, base, base.groups[0])
    assert detail.missing == "loop did not record its loss (settings algorithm.recipe)"
    (row,) = [answer.row for answer in detail.completions]
    assert row is not None
    assert (row.old, detail.completions[0].texts) == ((-0.5, -1.0), ("a", "b"))


def test_a_replay_counts_no_tokens_that_were_not_recorded(store: Path) -> None:
    with record.run(store=store) as run:
        run.step(1, [record.group("2 + 2 = ", answers(0.0, 1.0))])
    deltas = [
        item.event
        for item in timed((None, event) for event in stored(store))
        if isinstance(item.event, ev.RolloutsAdvanced)
    ]
    assert {row.tokens for event in deltas for row in event.rows} == {None}
    assert {event.tokens_per_second for event in deltas} == {0.0}


def test_tokens_are_those_of_the_answers_where_they_are_known(store: Path) -> None:
    """A trainer may count prompts as well; tokens of two runs are compared."""
    answer = record.rollout("ab", tokens=record.tokens([1, 2]))
    with record.run(store=store) as run:
        run.step(1, [record.group("2 + 2 = ", [answer, answer])], metrics={"num_tokens": 90})
        run.step(2, [record.group("2 + 2 = ", [answer])], metrics={"num_tokens": 150})
        run.step(3, [record.group("2 + 2 = ", answers(0.0))], metrics={"num_tokens": 200})
    steps = [event.tokens for event in stored(store) if isinstance(event, ev.StepFinished)]
    assert steps == [4, 6, 200]


def test_alerts_are_raised_from_the_metrics_that_are_given(store: Path) -> None:
    with record.run(store=store) as run:
        for step in range(1, 12):
            run.step(step, metrics={"kl": 5.0, "reward": 0.5})
    rules = {event.rule for event in stored(store) if isinstance(event, ev.AlertRaised)}
    assert rules == {"kl_above_limit"}


def test_events_with_absent_numbers_are_equal_after_json() -> None:
    group = record.group("a", answers(1.0)).group
    update = replace(record.update(loss=0.5), step=3)
    for event in (ev.GroupScored(step=1, group=group), update):
        assert ev.from_json(ev.to_json(event)) == event
