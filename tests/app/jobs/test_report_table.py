"""The table of results says what was not measured, and never shows it as 0."""

from dataclasses import replace
from math import nan

from grpo_tui.app.jobs.report_table import before_and_after
from tests.experiments.made import evaluated

REWARD = {"eval/reward": 0.5}


def rows_of(*steps: tuple[int, dict[str, float]]) -> list[list[str]]:
    events = [replace(evaluated(step, (0, 0)), metrics=metrics) for step, metrics in steps]
    lines = before_and_after(events).splitlines()[2:]
    return [line.replace("not measured", "not-measured").split() for line in lines]


def test_accuracy_that_nothing_measured_is_named_as_such() -> None:
    assert rows_of((0, REWARD), (1, REWARD)) == [
        ["accuracy", "not-measured", "not-measured"],
        ["reward", "0.500", "0.500", "+0.000"],
    ]
    assert rows_of((1, REWARD))[0] == ["accuracy", "not-measured"]


def test_accuracy_that_only_a_resumed_run_measured_has_no_change() -> None:
    rows = rows_of((0, REWARD), (1, REWARD | {"eval/accuracy": 0.25}))
    assert rows[0] == ["accuracy", "not-measured", "0.250"]


def test_a_reward_that_no_answer_has_is_not_measured() -> None:
    # before, it was `nan [0.000, 1.000]`
    none = {"eval/reward": nan, "eval/reward_low": nan, "eval/reward_high": nan}
    assert rows_of((0, REWARD), (1, none))[1] == ["reward", "0.500", "not-measured"]
    assert rows_of((1, none))[1] == ["reward", "not-measured"]


def test_a_function_that_stops_scoring_stays_in_the_table_and_the_reward_has_no_change() -> None:
    both = REWARD | {"eval/rewards/a": 1.0, "eval/rewards/b": 0.25}
    assert rows_of((0, both), (1, REWARD | {"eval/rewards/b": 0.5}))[1:] == [
        ["reward", "0.500", "0.500"],  # of two functions, then of one
        ["rewards/b", "0.250", "0.500", "+0.250"],
        ["rewards/a", "1.000", "not-measured"],
    ]


def test_the_results_of_each_of_several_tasks_are_in_the_table() -> None:
    tasks = {
        "eval/task/sums/accuracy": 0.5,
        "eval/task/sums/accuracy_low": 0.4,
        "eval/task/sums/accuracy_high": 0.6,
        "eval/task/sums/truncated": 0.0,
    }
    assert rows_of((1, REWARD | tasks))[2:] == [
        ["task/sums/accuracy", "0.500", "[0.400,", "0.600]"]
    ]


def test_a_mean_has_the_number_of_answers_that_it_is_of_where_that_was_recorded() -> None:
    both = REWARD | {"eval/rewards/a": 1.0}
    counts = {"eval/scored/reward": 4.0, "eval/scored/rewards/a": 12.0}
    assert rows_of((0, both), (1, both | counts))[1:] == [
        ["reward", "0.500", "0.500", "n=4", "+0.000"],
        ["rewards/a", "1.000", "1.000", "n=12", "+0.000"],
    ]
