"""Runs side by side: exact differences, equal work, seeds, the same problems."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_engine.config.settings import AlgorithmConfig
from grpo_tui import record
from grpo_tui.app.text.comparison import setting_name, verdict
from grpo_tui.experiments.compare import statistics
from grpo_tui.experiments.compare.runs import compare
from grpo_tui.experiments.compare.values import Comparison, MetricCell
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.reader import StoreReader
from tests.experiments.made import (
    config,
    ended,
    evaluated,
    finished,
    paired_tests,
    record_run,
    recorded,
    started,
)


def run_of(
    path: Path,
    name: str,
    rewards: tuple[float, ...],
    seed: int = 0,
    beta: float = 0.04,
    pace: int = 100,
    extra: tuple[ev.Event, ...] = (),
    fingerprint: str = "data",
) -> str:
    """A run with these rewards, with `pace` tokens and seconds per step."""
    tree = config(seed=seed, algorithm={"recipe": "grpo", "beta": beta})
    steps = (
        ev.StepFinished(
            step=step,
            metrics={"reward": reward, "frac_reward_zero_std": 1 - reward, "kl": step / 10},
            tokens=pace * step,
            elapsed=float(pace * step),
        )
        for step, reward in enumerate(rewards, start=1)
    )
    first, last = started(fingerprint=fingerprint), ended(len(rewards))
    return recorded(path, first, *steps, *extra, last, tree=tree, name=name).id


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StoreReader]:
    path = tmp_path / "s.db"
    run_of(path, "slow", (0.1, 0.5, 0.4), pace=100)
    run_of(path, "fast", (0.2, 0.6), seed=1, beta=0.1, pace=50)
    with StoreReader(path) as made:
        yield made


def compared(store: Path | StoreReader, *names: str, baseline: str = "", **how: Any) -> Comparison:
    """Compare runs by their names, all runs without any."""
    if isinstance(store, Path):
        with StoreReader(store) as reader:
            return compared(reader, *names, baseline=baseline, **how)
    runs = [store.resolve(name) for name in names] or store.runs(sort="created")
    how |= {"baseline": store.resolve(baseline)} if baseline else {}
    return compare(store, runs, **how)


def cells(reader: StoreReader, key: str, **how: Any) -> tuple[MetricCell, ...]:
    metrics = compared(reader, "slow", "fast", **how).metrics
    return next(item.cells for item in metrics if item.key == key)


def test_recording_and_settings_that_a_run_did_not_have_come_last(path: Path) -> None:
    algorithm = {"recipe": "grpo", "beta": 0.04}
    record_run(path, tree=config(algorithm=algorithm, record={"tokens": "all"}), name="old")
    algorithm = {"recipe": "grpo", "beta": 0.1, "a_new_one": 3}
    tree = config(algorithm=algorithm, record={"tokens": "none"})
    record_run(path, tree=tree, name="new")
    found = compared(path, "old", "new").differing
    minor = [item.path for item in found if item.minor]
    assert minor == [item.path for item in found][-len(minor) :]
    assert {"algorithm.a_new_one", "record.tokens"} <= set(minor)
    assert found[0].path == "algorithm.beta"


def test_settings_are_compared_as_they_are_in_force(path: Path) -> None:
    for name, recipe, beta in (
        ("left", "grpo", None),
        ("said", "grpo", 0.04),
        ("more", "grpo", 0.1),
        ("other", "dr-grpo", None),
    ):
        algorithm = AlgorithmConfig(recipe=recipe, beta=beta).model_dump(mode="json")
        record_run(path, tree=config(algorithm=algorithm, seed=len(name)), name=name, steps=1)
    same = compared(path, "left", "said")
    assert (same.differing, same.by_recipe) == ((), ())
    assert same.same["algorithm.beta"] == 0.04
    first, *_ = compared(path, "left", "more").differing
    assert (first.path, first.values) == ("algorithm.beta", (0.04, 0.1))
    # two recipes: the settings that were chosen, and those that the recipes set
    chosen = compared(path, "left", "other")
    assert {item.path: item.values for item in chosen.differing} == {
        "seed": (4, 5),
        "algorithm.recipe": ("grpo", "dr-grpo"),
    }
    assert {item.path: item.values for item in chosen.by_recipe} == {
        "algorithm.beta": (0.04, 0.0),
        "algorithm.signal": ("group_standard", "group_mean"),
        "algorithm.anchor": ("k3", "none"),
        "algorithm.weight": ("per_sequence", "constant"),
    }
    assert not {item.path for item in chosen.by_recipe} & chosen.same.keys()


def test_the_recipes_value_and_what_is_recorded_make_no_other_setting(path: Path) -> None:
    for seed, (beta, tokens) in enumerate(((None, "all"), (0.04, "none"))):
        algorithm = AlgorithmConfig(recipe="grpo", beta=beta).model_dump(mode="json")
        record = {"tokens": tokens, "after_groups": seed}
        record_run(path, tree=config(algorithm=algorithm, seed=seed, record=record), steps=1)
    (group,) = compared(path).seeds
    assert len(group) == 2


def test_best_follows_the_direction_of_the_metric(reader: StoreReader) -> None:
    slow, fast = cells(reader, "reward")
    assert (slow.best, slow.best_step, slow.last) == (0.5, 2, 0.4)
    slow, _ = cells(reader, "frac_reward_zero_std")
    assert (slow.best, slow.best_step) == (0.5, 2)
    slow, _ = cells(reader, "kl")
    assert (slow.best, slow.best_step) == (0.3, 3)
    assert fast.best == 0.6


def test_distances_are_to_the_baseline(reader: StoreReader) -> None:
    slow, fast = cells(reader, "reward", baseline="slow")
    assert slow.delta_best is None
    assert fast.delta_best == pytest.approx(0.1)
    _, fast = cells(reader, "frac_reward_zero_std", baseline="slow")
    assert fast.delta_best == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("axis", "at", "slow", "fast"),
    [
        ("step", None, 0.5, 0.6),
        ("step", 1, 0.1, 0.2),
        ("tokens", None, 0.1, 0.6),
        ("wall", 99.0, None, 0.2),
    ],
)
def test_runs_are_compared_at_equal_work(
    reader: StoreReader, axis: str, at: float | None, slow: object, fast: object
) -> None:
    one, two = cells(reader, "reward", axis=axis, at=at)
    assert (one.at, two.at) == (slow, fast)


def test_one_run_has_numbers_and_settings_but_nothing_to_compare(reader: StoreReader) -> None:
    run = reader.resolve("slow")
    found = compared(reader, "slow", baseline="slow", axis="step", keys=["reward"])
    assert (found.at, found.differing, found.seeds, found.rankings, found.notes) == (
        f"step {run.step}",
        (),
        (),
        (),
        (),
    )
    assert found.same["seed"] == run.seed
    (cell,) = found.metrics[0].cells
    assert cell.at == reader.value_at(run.key, "reward", run.step)[0]
    assert (cell.best, cell.delta_best) == (run.metrics["reward"].best, None)


def test_runs_are_compared_at_equal_steps_tokens_or_time_alone(reader: StoreReader) -> None:
    with pytest.raises(QueryError, match="no axis 'epoch'"):
        compared(reader, axis="epoch")


def swept(path: Path) -> None:
    """Two betas with two seeds each; greedy answers favour one beta, sampled ones the other."""
    for beta, greedy, sampled in ((0.04, (1, 1, 0, 0), (0, 1)), (0.4, (0, 0, 0, 1), (3, 4))):
        for seed in (0, 1):
            right = tuple(
                min(4, count + place % 2)
                for place in range(12)
                for count in sampled[seed : seed + 1]
            )
            extra = (
                evaluated(1, (4,) * 12, samples=4),
                evaluated(2, greedy * 3, mode="greedy"),
                evaluated(2, right, samples=4),
            )
            run_of(path, f"b{beta}-s{seed}", (0.1, 0.2), seed=seed, beta=beta, extra=extra)


def test_settings_are_tested_and_ranked_pooled_over_their_seeds(tmp_path: Path) -> None:
    swept(tmp_path / "s.db")
    found = compared(tmp_path / "s.db", baseline="b0.04-s1")
    names = {run.id: run.name for run in found.runs}
    greedy, sampled = found.rankings
    assert (greedy.mode, sampled.mode) == ("greedy", "sampled")
    assert (sampled.problems, sampled.comparisons, sampled.seeds) == (12, 1, True)
    # greedy answers favour the other setting: 2 of 4 against 1 of 4
    assert [row.own.share for row in greedy.settings] == [0.5, 0.25]
    best, base = sampled.settings
    assert best.test is not None
    assert (best.may_be_best, base.may_be_best, base.test) == (True, best.test.low <= 0, None)
    for test, samples in zip(paired_tests(found), (1, 4), strict=True):
        assert {names[run] for run in test.own.runs} == {"b0.4-s0", "b0.4-s1"}
        assert {names[run] for run in test.other.runs} == {"b0.04-s0", "b0.04-s1"}
        assert (test.own.steps, test.own.samples) == ((2, 2), samples)
    assert best.test == paired_tests(found)[1]
    sides = (best.own, base.own)
    shares = {
        names[run]: share
        for side in sides
        for run, share in zip(side.runs, side.shares, strict=True)
    }
    # beta .04: 0 or 1 of 4 and 1 or 2 of 4; beta .4: 3 or 4 of 4 and always 4
    assert shares == {"b0.04-s0": 0.125, "b0.04-s1": 0.375, "b0.4-s0": 0.875, "b0.4-s1": 1.0}
    assert best.test.difference == pytest.approx(0.9375 - 0.25)


def test_a_trained_run_is_not_judged_by_its_evaluation_before_training(path: Path) -> None:
    before = replace(evaluated(0, (0, 0, 0, 0)), moment="before")
    run_of(path, "long", (0.1, 0.2, 0.3), extra=(before, evaluated(3, (1, 1, 1, 0))))
    run_of(path, "short", (0.1, 0.2), beta=0.4, extra=(before, evaluated(2, (1, 0, 0, 0))))
    last = compared(path)
    equal, untrained = (compared(path, axis="step", at=at) for at in (2, 0))
    (test,) = paired_tests(last)
    assert (test.own.steps, test.other.steps, test.difference) == ((2,), (3,), -0.5)
    # up to step 2 long has only what it knew before
    assert (paired_tests(equal), equal.rankings) == (paired_tests(last), last.rankings)
    (test,) = paired_tests(untrained)
    assert (test.own.steps, test.other.steps, test.difference) == ((0,), (0,), 0)


def test_runs_that_cannot_be_ranked_have_the_reason(path: Path) -> None:
    before = replace(evaluated(0, (0, 0, 0, 0)), moment="before")
    run_of(path, "done", (0.1, 0.2), extra=(before, evaluated(2, (1, 1, 0, 0))))
    run_of(path, "begun", (0.1,), beta=0.4, extra=(before,))
    run_of(path, "greedy", (0.1, 0.2), beta=1.0, extra=(evaluated(2, (1, 1), mode="greedy"),))
    early, other = compared(path, "done", "begun"), compared(path, "done", "greedy")
    assert early.notes == (
        "no paired test of begun and done: begun was evaluated only before training",
    )
    assert "not evaluated on the same problems in the same way" in verdict(other)


def test_runs_that_differ_in_their_seed_alone_are_one_setting_and_not_ranked(
    path: Path,
) -> None:
    for seed in (0, 1):
        run_of(path, f"s{seed}", (0.1,), seed=seed, extra=(evaluated(1, (seed,) * 12),))
    found = compared(path, "s1", "s0", baseline="s1")
    assert (found.rankings, paired_tests(found)) == ((), ())
    assert found.notes == ("s1 and s0 are runs of one setting",)
    assert "are runs of one setting" in verdict(found)
    run_of(path, "s2", (0.1,), seed=2, fingerprint="other", extra=(evaluated(1, (1,) * 12),))
    found = compared(path, "s0", "s2")
    assert found.notes == ("no paired test of s2 and s0: their data sets differ (data, other)",)


def run_with_file(path: Path, name: str, digest: str, seed: int = 0) -> None:
    code = {".": {"commit": name}, "rewards.py": {"sha256": digest}} if digest else {}
    first = replace(started(), code=code)
    events = (first, evaluated(1, (1, 0, 1, seed) * 3), ended(1))
    recorded(path, *events, tree=config(seed=seed), name=name)


def test_runs_whose_reward_file_was_changed_are_not_of_one_setting(path: Path) -> None:
    """A run that did not record its files is not said to have others."""
    for name, digest, seed in (("a", "1" * 64, 0), ("b", "2" * 64, 0), ("a1", "1" * 64, 1)):
        run_with_file(path, name, digest, seed)
    run_with_file(path, "older", "")
    changed = compared(path, "a", "b", "a1", "older")
    (file,) = (item for item in changed.differing if item.path != "seed")
    assert (file.path, file.values) == (
        "code of rewards.py",
        ("1111111", "2222222", "1111111", None),
    )
    ids = {run.name: run.id for run in changed.runs}
    assert changed.seeds == ((ids["a"], ids["a1"]),)
    assert setting_name(changed, changed.seeds[0]) == "code of rewards.py 1111111 (2 seeds)"
    assert paired_tests(compared(path, "a", "b"))
    for names in (("a", "a1"), ("a", "older")):
        alike = compared(path, *names)
        assert alike.notes == (f"{' and '.join(names)} are runs of one setting",)
        assert "code of rewards.py" not in {item.path for item in alike.differing}
    assert "code of rewards.py" not in compared(path, "a", "older").same


@pytest.mark.parametrize(
    ("rewards", "digest", "unlike", "sentence"),
    [
        ({"weights": [1.0, 2.0]}, "1", {"reward"}, "rewards.weights differs."),
        (
            {"functions": ["a", "b"], "weights": [1.0, 2.0]},
            "1",
            {"reward"},
            "rewards.functions and rewards.weights differ.",
        ),
        ({}, "2", {"reward", "rewards/a/mean"}, "code of rewards.py differs."),
        ({"time_limit": 9.0}, "1", set(), ""),
    ],
)
def test_rewards_by_other_functions_weights_or_code_are_not_compared(
    path: Path, rewards: dict[str, Any], digest: str, unlike: set[str], sentence: str
) -> None:
    for name, tree, of_file in (("a", {}, "1"), ("b", rewards, digest)):
        first = replace(started(), code={"rewards.py": {"sha256": of_file * 64}})
        step = finished(1, 0.5 + len(tree), kl=0.25, **{"rewards/a/mean": 0.5})
        known = {"functions": ["a"], "weights": [], "time_limit": 30.0}
        whole = config(rewards={**known, **tree})
        recorded(path, first, step, evaluated(1, (1, 0, 1) * 3), ended(1), tree=whole, name=name)
    found = compared(path, "a", "b", baseline="a")
    assert found.incomparable == unlike
    said = verdict(found)
    assert sentence in said
    assert ("Rewards are not comparable: " in said) is bool(sentence)
    for item in found.metrics:
        other = item.cells[1].delta_best
        assert (other is None) is (item.key in unlike)
        if item.key != "kl":  # which has none anyway
            assert (item.direction == "none") is (item.key in unlike)


def test_runs_of_two_trainers_are_tested_on_the_problems_that_both_evaluated(path: Path) -> None:
    """What TRL does not record is no difference; the trainer is one, and seeds are alike."""
    settings = {"algorithm.recipe": "grpo", "algorithm.beta": 0.1}
    for seed in (0, 1):
        run_of(path, f"ours{seed}", (0.1,), seed=seed, extra=(evaluated(1, (1, 0, 1, 1) * 3),))
        keys = [row.example_key for row in evaluated(1, (0,) * 12).rows]
        options: dict[str, Any] = {"trainer": "TRL", "seed": seed, "settings": settings}
        with record.run(f"theirs{seed}", store=path, **options) as run:
            run.step(1)
            run.evaluation(1, [record.problem(key, samples=1, correct=0) for key in keys])
    found = compared(path, "ours0", "ours1", "theirs0", "theirs1")
    assert {item.path: item.values for item in found.differing if item.path != "seed"} == {
        "trainer.name": ("grpo-tui", "grpo-tui", "TRL", "TRL"),
        "trainer.version": (None, None, "", ""),
        "algorithm.beta": (0.04, 0.04, 0.1, 0.1),
    }
    assert found.notes == ()
    (test,) = paired_tests(found)
    assert (test.problems, test.other.share, test.own.share) == (12, 0.75, 0.0)
    names = [setting_name(found, group) for group in found.seeds]
    assert names == ["grpo-tui (2 seeds)", "TRL (2 seeds)"]
    assert "task.prefill" not in found.same  # TRL did not record it
    with record.run("bare", trainer="loop", store=path) as run:
        run.evaluation(1, [record.problem(key, samples=1, correct=1) for key in ("a", "b")])
    other = compared(path, "ours0", "bare")
    assert other.notes == (
        "no paired test of bare and ours0: they were not evaluated on the same problems in the "
        "same way (greedy or sampled)",
    )


def test_a_threshold_is_reached_at_the_first_value_that_is_good_enough(path: Path) -> None:
    extra = (evaluated(1, (1, 0, 1, 0)), evaluated(2, (1, 1, 1, 0)))
    for seed, rewards in enumerate(((0.1, 0.5, 0.6), (0.5, 0.2, 0.3), (0.1, 0.2, 0.3))):
        run_of(path, f"a{seed}", rewards, seed=seed, extra=extra)
    run_of(path, "b0", (0.1, 0.6, 0.1), beta=0.1, pace=10, extra=extra)
    (by_reward,), (by_zero,), (by_accuracy,) = (
        compared(path, baseline="a0", reach=reach).rankings
        for reach in ("reward=.5", "frac_reward_zero_std=.5", "")
    )
    with pytest.raises(QueryError, match=r"nothing can reach 'reward='"):
        compared(path, reach="reward=")
    a, b = sorted((row.reached for row in by_reward.settings), key=lambda one: -one.runs)
    # steps 2, 1 and never: the median is 2, at 100 tokens and seconds a step
    assert (a.runs, a.step, a.tokens, a.seconds) == (2, 2, 200, 200)
    assert (b.runs, b.step, b.tokens, b.seconds) == (1, 2, 20, 20)
    # smaller is better: 1 - reward is at most .5 at the same steps
    assert [row.reached for row in by_zero.settings] == [row.reached for row in by_reward.settings]
    # by default, the baseline's last accuracy
    assert (by_accuracy.metric, by_accuracy.threshold) == ("eval/accuracy", 0.75)
    assert {row.reached.step for row in by_accuracy.settings} == {2}


def test_runs_of_other_data_or_without_evaluations_are_not_ranked(path: Path) -> None:
    for name, beta, fingerprint, extra in (
        ("base", 0.04, "data", (evaluated(1, (1, 0, 1)),)),
        ("good", 0.1, "data", (evaluated(1, (1, 1, 1)),)),
        ("other", 0.2, "else", (evaluated(1, (1, 1, 1)),)),
        ("none", 0.3, "data", ()),
    ):
        run_of(path, name, (0.1,), beta=beta, extra=extra, fingerprint=fingerprint)
    result = compared(path, baseline="base")
    (found,) = result.rankings
    names = {run.id: run.name for run in result.runs}
    assert [names[row.own.runs[0]] for row in found.settings] == ["good", "base"]
    assert (found.comparisons, found.seeds) == (1, False)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(2.0, 1, 0.29516724), (4.302653, 2, 0.05), (1.0, 10, 0.34089313), (0.0, 5, 1.0)],
)
def test_students_t_agrees_with_the_tables(t: float, freedom: int, p: float) -> None:
    assert statistics.t_two_sided(t, freedom) == pytest.approx(p, rel=1e-6)


def test_a_held_out_mean_has_the_number_of_its_answers_and_earlier_runs_have_none(
    path: Path,
) -> None:

    def rewarded(step: int, reward: float, count: float = 0) -> ev.EvaluationFinished:
        counts = {"eval/scored/reward": count} if count else {}
        return replace(evaluated(step), metrics={"eval/reward": reward} | counts)

    run_of(path, "old", (0.1, 0.1), extra=(rewarded(1, 0.5),))
    run_of(path, "new", (0.1, 0.1), beta=0.1, extra=(rewarded(1, 0.9, 4), rewarded(2, 0.6, 12)))
    found = compared(path, "old", "new", keys=["eval/reward", "reward"], axis="step", at=2)
    held_out, trained = found.metrics
    assert [(c.best_n, c.last_n, c.at_n) for c in held_out.cells] == [(None,) * 3, (4, 12, 12)]
    assert [(c.best_n, c.last_n, c.at_n) for c in trained.cells] == [(None,) * 3] * 2


def test_a_paired_test_takes_the_answers_that_both_runs_have(path: Path) -> None:
    samples = (  # right, judged: the third problem was not judged at all in the second run
        ((2, 4), (0, 4), (4, 4), (1, 4)),
        ((2, 2), (1, 4), (None, 4), (3, 3)),
    )
    for beta, counts in enumerate(samples):
        rows = tuple(
            ev.EvaluationSample(example_key=f"e{n}", correct=right, samples=judged, rewards={})
            for n, (right, judged) in enumerate(counts)
        )
        event = replace(evaluated(1, samples=4), rows=rows, samples=4)
        run_of(path, f"b{beta}", (0.1,), beta=beta / 10, extra=(event,))
    (test,) = paired_tests(compared(path, "b0", "b1"))
    # problems 0, 1 and 3: .5, 0, .25 and 1, .25, 1; differences .5, .25, .75
    assert test.problems == 3
    assert test.other.share == pytest.approx(0.75 / 3)
    assert test.own.share == pytest.approx(2.25 / 3)
    assert test.difference == pytest.approx(0.5)
    # all three have one sign: 2 of 2**3 ways
    assert test.p_value == pytest.approx(2 / 8)
